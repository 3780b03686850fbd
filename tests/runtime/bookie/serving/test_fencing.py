"""Fences, forced ledgers and explicit LACs: the answer follows the sync, and none comes after a failed one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import real_ports, running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import BookieError, BookieFailedError
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import StorageConfig
from bkctl.storage.errors import JournalFailedError
from bkctl.storage.index.ledger_index import LedgerRow
from bkctl.storage.journal.format import JournalRecordKind
from bkctl.storage.journal.reader import JournalScan
from tests.runtime.bookie.committing import GatedDisk, committing
from tests.runtime.bookie.conftest import KEY as PEER_KEY
from tests.runtime.bookie.conftest import Peer
from tests.runtime.bookie.handler_bookie import Bookie
from tests.storage.engines import KEY, FailingOnceDisk, checkpoint, config_below, entry, open_storage
from tests.until import until


class GatedBookie:
    """A bookie whose disk a test can stop."""

    def __init__(self, config: StorageConfig, *, handles_max: int = 1000) -> None:
        self.config = config
        self.disk = GatedDisk()
        storage = open_storage(config, filesystem=self.disk)
        storage.replay()
        self.disk.take_calls()
        self.bookie = Bookie(storage, config.journal, handles_max=handles_max)

    async def until_syncing(self) -> None:
        """Until the journal lane is inside of a sync, which the closed gate holds."""
        await until(lambda: any(call == "sync" for call, _ in self.disk.calls))

    async def close(self) -> None:
        for gate in self.disk.gates.values():
            gate.set()
        await self.bookie.close()


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[GatedBookie]:
    gated = GatedBookie(config_below(tmp_path))
    yield gated
    await gated.close()


async def several_ticks() -> None:
    """Give everything that could be answered now its turns of the loop."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_second_fencing_read_waits_for_the_first_fence(gated: GatedBookie) -> None:
    bookie = gated.bookie
    assert await bookie.add(5, 0) is Status.OK
    gated.disk.take_calls()
    gate = gated.disk.close_gate("sync")
    first = bookie.fence(5)
    await gated.until_syncing()
    second = bookie.fence(5)
    # The reads lane answers in order: the read parts of both are done.
    for _ in range(3):
        assert (await bookie.read(5, 1))[0] is Status.NO_SUCH_ENTRY
    await several_ticks()
    assert not first.done()
    assert not second.done()
    gate.set()
    assert await first is Status.OK
    assert await second is Status.OK


async def test_a_fence_that_was_not_durable_is_never_reported_as_durable(gated: GatedBookie) -> None:
    """The row stays fenced in memory after the journal has failed, and the restart accepts adds again."""
    bookie = gated.bookie
    assert await bookie.add(5, 0) is Status.OK
    gated.disk.fail_on = "sync"
    assert await bookie.fence(5) is Status.IO_ERROR
    gated.disk.fail_on = None
    assert await bookie.fence(5) is Status.IO_ERROR
    assert (await bookie.read(5, 0, KEY))[0] is Status.IO_ERROR


async def test_nothing_is_known_to_be_durable_after_the_journal_has_failed(gated: GatedBookie) -> None:
    bookie = gated.bookie
    assert await bookie.add(5, 0) is Status.OK
    assert await bookie.fence(5) is Status.OK
    assert await bookie.fence(5) is Status.OK, "a fence that is durable is confirmed again"
    gated.disk.fail_on = "sync"
    assert await bookie.write_lac(5, 0) is Status.IO_ERROR
    gated.disk.fail_on = None
    assert await bookie.fence(5) is Status.IO_ERROR
    assert (await bookie.read(5, 0, KEY))[0] is Status.IO_ERROR
    assert await bookie.force_ledger(5) is Status.IO_ERROR
    assert await bookie.write_lac(5, 0) is Status.IO_ERROR
    assert (await bookie.read(5, 0))[0] is Status.OK, "a plain read says nothing about the journal"


async def test_an_add_that_needs_no_journal_is_not_acknowledged_after_it_has_failed(tmp_path: Path) -> None:
    async with committing(tmp_path, is_data_written=False) as running:
        running.add(0)
        running.disk.fail_on = "sync"
        with pytest.raises(JournalFailedError):
            await running.journal.append_and_wait(entry(1, 0))
        running.disk.fail_on = None
        running.add(1)
    assert running.answers.entry_ids == [0]


async def test_a_forced_ledger_waits_for_the_write_under_way(tmp_path: Path) -> None:
    """Adds are acknowledged before their sync here, so that the force alone proves that they are durable."""
    config = config_below(tmp_path)
    journal = msgspec.structs.replace(config.journal, is_data_synced=False, sync_interval_s=3600.0)
    gated = GatedBookie(msgspec.structs.replace(config, journal=journal))
    try:
        bookie = gated.bookie
        gate = gated.disk.close_gate("write")
        added = asyncio.ensure_future(bookie.add(5, 0))
        await until(lambda: any(call == "write" for call, _ in gated.disk.calls))
        forced = bookie.force_ledger(5)
        await several_ticks()
        assert not forced.done(), "the entry is not written yet"
        sync = gated.disk.close_gate("sync")
        gate.set()
        assert await added is Status.OK
        await gated.until_syncing()
        assert not forced.done(), "the entry is not synced yet"
        sync.set()
        assert await forced is Status.OK
        gated.disk.take_calls()
        assert await bookie.force_ledger(5) is Status.OK
        assert gated.disk.take_calls() == [], "nothing is left to sync"
    finally:
        await gated.close()


async def test_a_forced_ledger_waits_for_the_sync_under_way(gated: GatedBookie) -> None:
    gate = gated.disk.close_gate("sync")
    added = asyncio.ensure_future(gated.bookie.add(5, 0))
    await gated.until_syncing()
    forced = gated.bookie.force_ledger(5)
    await several_ticks()
    assert not forced.done()
    gate.set()
    assert await added is Status.OK
    assert await forced is Status.OK


async def test_a_forced_ledger_waits_for_a_group_that_is_complete_but_not_begun(tmp_path: Path) -> None:
    async with committing(tmp_path, group_record_count_max=1) as running:
        gate = running.disk.close_gate("sync")
        running.add(0)
        forced = running.journal.barrier()
        await until(lambda: ("sync", "1.txn") in running.disk.calls)
        await several_ticks()
        assert not forced.done()
        gate.set()
        await forced
        assert running.answers.entry_ids == [0]


async def test_a_handle_that_was_let_go_journals_the_key_again(tmp_path: Path) -> None:
    """The bound on the handles holds, and the key stands before the fence of each ledger in a replay."""
    gated = GatedBookie(config_below(tmp_path), handles_max=2)
    bookie = gated.bookie
    for ledger_id in (5, 6, 7, 5):
        assert await bookie.add(ledger_id, 0) is Status.OK
    journal_id = bookie.storage.journals[0].durable_position.journal_id
    path = f"{gated.config.journal_directories[0]}/current/{journal_id:x}.txn"
    records = JournalScan(GatedDisk(), path, is_newest=True)
    assert [each.ledger_id for each in records if each.kind is JournalRecordKind.LEDGER_KEY] == [5, 6, 7, 5]
    await gated.close()


async def test_a_key_that_was_accepted_does_not_open_the_ledger_for_another_key(gated: GatedBookie) -> None:
    """The ledger is open in this process; the handle that is kept is no excuse for a wrong key."""
    bookie = gated.bookie
    assert await bookie.add(5, 0) is Status.OK
    assert await bookie.add(5, 1, key=b"wrong" * 4) is Status.UNAUTHORIZED
    assert (await bookie.read(5, 0, b"wrong" * 4))[0] is Status.UNAUTHORIZED
    assert await bookie.write_lac(5, 0, key=b"wrong" * 4) is Status.UNAUTHORIZED
    assert await bookie.add(5, 1, key=b"") is Status.UNAUTHORIZED
    row = bookie.engine.rows.find(5)
    assert row is not None
    assert not row.is_fenced
    assert await bookie.add(5, 1) is Status.OK


class Collected:
    """Ledger 5, written and closed elsewhere, whose copy was then collected."""

    def __init__(self, config: StorageConfig) -> None:
        self._config = config
        self.bookie = self._open()

    def _open(self) -> Bookie:
        storage = open_storage(self._config)
        storage.replay()
        return Bookie(storage, self._config.journal)

    async def collect(self) -> None:
        assert await self.bookie.add(5, 0) is Status.OK
        checkpoint(self.bookie.storage)
        engine = self.bookie.engine
        engine.collected.append(5)
        engine.collected.note(5)
        engine.delete_ledger(5)
        self.bookie.forget(5)

    async def restart(self) -> None:
        """Without a checkpoint, as after a crash: the journals bring back what was acknowledged."""
        await self.bookie.close()
        self.bookie = self._open()

    def row(self) -> LedgerRow | None:
        return self.bookie.engine.rows.find(5)


@pytest.fixture
async def collected(tmp_path: Path) -> AsyncIterator[Collected]:
    collected = Collected(config_below(tmp_path))
    await collected.collect()
    yield collected
    await collected.bookie.close()


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_collected_ledger_refuses_plain_adds_and_is_not_there(
    collected: Collected, *, is_restarted: bool
) -> None:
    if is_restarted:
        checkpoint(collected.bookie.storage)
        await collected.restart()
    bookie = collected.bookie
    assert await bookie.add(5, 1) is Status.FENCED
    assert await bookie.add(5, 0, key=b"another") is Status.FENCED
    assert collected.row() is None, "a refused add makes no row"
    assert (await bookie.read(5, 0))[0] is Status.NO_SUCH_LEDGER
    assert (await bookie.read(5, -1))[0] is Status.NO_SUCH_LEDGER
    assert (await bookie.read_lac(5))[0] is Status.NO_SUCH_LEDGER
    assert (await bookie.list_entries(5))[0] is Status.NO_SUCH_LEDGER
    assert await bookie.add(6, 0) is Status.OK, "others are as ever"


@pytest.mark.parametrize("way", ["recovery add", "fencing read", "explicit LAC"])
async def test_a_row_of_a_collected_ledger_that_is_made_again_is_fenced(collected: Collected, way: str) -> None:
    checkpoint(collected.bookie.storage)  # the deletion is durable
    bookie = collected.bookie
    if way == "recovery add":
        assert await bookie.add(5, 0, is_recovery=True) is Status.OK
        assert await bookie.add(5, 1, is_recovery=True) is Status.OK
        assert (await bookie.read(5, 1))[0] is Status.OK
    elif way == "fencing read":
        assert await bookie.fence(5) is Status.NO_SUCH_ENTRY
    else:
        assert await bookie.write_lac(5, 0) is Status.OK
    assert await bookie.add(5, 2) is Status.FENCED
    await collected.restart()
    row = collected.row()
    assert row is not None
    assert row.is_fenced
    assert await collected.bookie.add(5, 2) is Status.FENCED
    assert (await collected.bookie.read(5, 1))[0] is (Status.OK if way == "recovery add" else Status.NO_SUCH_ENTRY)
    assert await collected.bookie.add(5, 2, is_recovery=True) is Status.OK


async def test_a_bookie_whose_journal_fails_closes_its_listener_first(bookie_config: BookieConfig) -> None:
    """No other part of the stop has begun here: the block that runs the bookie goes on."""
    disk = FailingOnceDisk()
    async with running_bookie(bookie_config, dataclasses.replace(real_ports(), file_system=disk)) as server:
        pool = BookiePool(lambda _: _address(server), ClientConfig(), LoopClock())
        try:
            peer = Peer(pool, server.bookie_id)
            assert await peer.add(5, 0) is Status.OK
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            disk.arm("sync", ".txn")
            with pytest.raises(BookieError):
                await peer.read(5, 0, fence_with=PEER_KEY)
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", server.port)
        finally:
            await pool.close()
        with pytest.raises(BookieFailedError):
            await server.serve_until(asyncio.Event())


async def _address(server: BookieServer) -> tuple[str, int]:
    return "127.0.0.1", server.port
