"""A bookie with more ledgers than rows fit into its memory: the same answers, some of them later."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import TooManyRequestsError
from bkctl.runtime.protocol.messages import ReadCall, ReadLacCall
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.index_store import PlyvelIndexStore, open_plyvel
from bkctl.storage.config import EngineConfig
from bkctl.storage.errors import StorageError
from bkctl.storage.index.ledger_index import LedgerIndex
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from tests.runtime.bookie.committing import add_run
from tests.runtime.bookie.conftest import KEY as PEER_KEY
from tests.runtime.bookie.handler_bookie import Bookie
from tests.runtime.bookie.test_measures import bookie as running
from tests.storage.engines import KEY, SMALL, checkpoint, config_below, entry, explicit_lac, open_storage

FEW_ROWS = msgspec.structs.replace(SMALL, ledger_rows_bytes_max=64 * 1024)
MANY = range(100)
"""Ledgers; 64 KiB are enough for 70 of those used last, and 35 changed ones."""

Answer = TypeVar("Answer")


class DamagedOnDemand(PlyvelIndexStore):
    """A real database; gets fail while ``is_damaged``."""

    is_damaged = False

    def get(self, key: bytes) -> bytes | None:
        if self.is_damaged:
            raise StorageError("a damaged block")
        return super().get(key)


class OpenEngine:
    def __init__(self, root: Path) -> None:
        config = config_below(root, engine=FEW_ROWS)
        self.stores: list[DamagedOnDemand] = []
        self.storage = open_storage(config, open_index=self._open)
        self.storage.replay()
        self.bookie = Bookie(self.storage, config.journal)
        self.rows: LedgerIndex = self.bookie.engine.rows

    def _open(self, path: str, *, create: bool, strict: bool) -> PlyvelIndexStore:
        store = DamagedOnDemand(open_plyvel(path, create=create, strict=strict)._database, path)
        self.stores.append(store)
        return store

    def set_damaged(self, is_damaged: bool) -> None:
        for store in self.stores:
            store.is_damaged = is_damaged

    async def fill(self) -> None:
        """Many ledgers with an entry each; the first ones are only on disk."""
        for number, ledger_id in enumerate(MANY):
            assert await self.bookie.add(ledger_id, 0) is Status.OK
            if number % 20 == 0:
                checkpoint(self.storage)
        checkpoint(self.storage)
        assert self.rows.needs_read(0)


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenEngine]:
    opened = OpenEngine(tmp_path)
    yield opened
    await opened.bookie.close()


async def test_a_row_on_disk_gives_the_same_answers(opened: OpenEngine) -> None:
    await opened.fill()
    bookie, cold = opened.bookie, iter(MANY)
    assert await bookie.read(next(cold), 0) == (Status.OK, entry(0, 0, b""), -1)
    assert (await bookie.read(next(cold), 7))[0] is Status.NO_SUCH_ENTRY
    assert await bookie.add(next(cold), 1) is Status.OK
    assert await bookie.add(next(cold), 1, key=b"o" * 20) is Status.UNAUTHORIZED
    assert await bookie.write_lac(next(cold), 0) is Status.OK
    fenced = next(cold)
    assert await bookie.fence(fenced) is Status.OK
    assert await bookie.add(fenced, 1) is Status.FENCED
    assert await bookie.read_lac(next(cold)) == (Status.OK, None, entry(6, 0, b""))
    assert (await bookie.list_entries(next(cold)))[0] is Status.OK
    assert (await bookie.read(max(MANY) + 1, 0))[0] is Status.NO_SUCH_LEDGER
    assert all(opened.rows.needs_read(ledger_id) for ledger_id in range(8, 20)), "else nothing was read from the disk"


async def test_requests_of_a_ledger_whose_row_is_read_keep_their_order(opened: OpenEngine) -> None:
    await opened.fill()
    bookie = opened.bookie
    asked = [
        bookie.ask(add_run(0, 1, key=KEY)),
        bookie.ask(ReadCall(1, 0, 1, None, False)),
        bookie.ask(add_run(0, 2, key=KEY)),
        bookie.ask(ReadCall(1, 0, 2, None, False)),
    ]
    assert [await each.status() for each in asked] == [Status.OK] * 4


async def test_a_request_that_fails_behind_its_row_leaves_the_others_their_answers(
    opened: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened.fill()
    bookie, find_cached = opened.bookie, opened.bookie.engine.find_many_cached

    def fail_for_entry_7(ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | None]:
        if 7 in entry_ids:
            raise ValueError("a defect")
        return find_cached(ledger_id, entry_ids)

    monkeypatch.setattr(bookie.engine, "find_many_cached", fail_for_entry_7)
    asked = [bookie.ask(ReadCall(1, 0, entry_id, None, False)) for entry_id in (7, 0)]
    statuses = await asyncio.wait_for(asyncio.gather(*(each.status() for each in asked)), 60)
    assert statuses == [Status.IO_ERROR, Status.OK]


async def test_a_row_that_cannot_be_read_is_an_error_and_not_a_missing_ledger(opened: OpenEngine) -> None:
    await opened.fill()
    bookie = opened.bookie
    opened.set_damaged(True)
    assert (await bookie.read(0, 0))[0] is Status.IO_ERROR
    assert await bookie.add(1, 1) is Status.IO_ERROR
    assert await bookie.fence(2) is Status.IO_ERROR
    assert await bookie.write_lac(3, 0) is Status.IO_ERROR
    assert await bookie.add(max(MANY), 1) is Status.OK, "its row is in memory"
    opened.set_damaged(False)
    assert await bookie.add(1, 1) is Status.OK


async def test_a_defect_in_the_reading_of_a_row_leaves_no_request_without_an_answer(
    opened: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened.fill()
    bookie = opened.bookie

    def fail(_: int) -> None:
        raise ValueError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(bookie.engine.rows, "read", fail)
        assert await asyncio.wait_for(bookie.add(0, 1), 60) is Status.IO_ERROR
    assert await bookie.add(0, 1) is Status.OK


async def test_a_row_that_was_read_before_a_change_is_not_used_after_it(opened: OpenEngine) -> None:
    await opened.fill()
    bookie, rows = opened.bookie, opened.rows
    asked = bookie.ask(add_run(0, 1, key=KEY))
    assert bookie.engine.rows.set_fenced(0)
    checkpoint(opened.storage)
    for ledger_id in MANY[1:]:
        rows.find(ledger_id)
    assert rows.needs_read(0)
    assert await asked.status() is Status.FENCED


async def test_new_ledgers_wait_for_a_checkpoint_while_too_many_rows_are_changed(opened: OpenEngine) -> None:
    bookie = opened.bookie
    for ledger_id in itertools.takewhile(lambda _: opened.rows.has_room, itertools.count()):
        assert await bookie.add(ledger_id, 0) is Status.OK
    new = opened.bookie.engine.ledger_count
    assert await bookie.fence(new) is Status.TOO_MANY_REQUESTS
    assert await bookie.fence(0) is Status.TOO_MANY_REQUESTS
    assert await bookie.write_lac(0, 0) is Status.TOO_MANY_REQUESTS
    assert await bookie.add(0, 1) is Status.OK, "it changes no row"
    assert bookie.engine.ledger_count == new
    waiting = bookie.ask(add_run(new, 0, key=KEY))
    running = opened.storage.begin_checkpoint()
    bookie.handler._adds.retry_waiting()
    assert await waiting.status() is Status.OK
    assert await bookie.fence(0) is Status.OK
    opened.storage.write_checkpoint(running)
    opened.storage.end_checkpoint(running)


async def test_a_dropped_row_takes_the_lac_of_its_ledger_along(opened: OpenEngine) -> None:
    await opened.fill()
    bookie = opened.bookie
    confirmed = opened.bookie.engine._last_add_confirmed
    assert 0 not in confirmed
    assert len(confirmed) < len(MANY)
    assert await bookie.read(0, 0) == (Status.OK, entry(0, 0, b""), -1)
    assert bookie.engine.last_add_confirmed(0) == -1


def test_replay_keeps_within_the_memory_for_rows(tmp_path: Path) -> None:
    config = config_below(tmp_path, engine=FEW_ROWS)
    storage = open_storage(config)
    storage.replay()
    records = [record for ledger_id in range(1000) for record in _records(ledger_id)]
    storage.journals[0].write_group(records, is_synced=True)
    storage.close()
    storage = open_storage(config)
    rows = storage.engines[0].rows
    peaks: list[int] = []
    rows.on_dropped = lambda _: peaks.append(rows.memory_bytes)
    storage.replay()
    assert 0 < max(peaks) <= FEW_ROWS.ledger_rows_bytes_max
    for ledger_id in range(1000):
        row = rows.find(ledger_id)
        assert row is not None
        assert (row.master_key, row.is_fenced) == (KEY, ledger_id % 2 == 0)
        assert row.explicit_lac == explicit_lac(ledger_id, 1)
    storage.close()


def _records(ledger_id: int) -> list[bytes]:
    fence = [encode_fence_record(ledger_id)] if ledger_id % 2 == 0 else []
    lac = encode_explicit_lac_record(ledger_id, explicit_lac(ledger_id, 1))
    return [encode_ledger_key_record(ledger_id, KEY), *fence, lac]


class Crowd:
    """Asks a bookie about many ledgers, some hundred at a time, and notes the memory of rows in between."""

    def __init__(self, rows: LedgerIndex, peaks: list[int]) -> None:
        self._rows = rows
        self._peaks = peaks

    async def each(self, ask: Callable[[int], Awaitable[Answer]], ledger_ids: range) -> list[Answer]:
        """The answers, in order."""
        answers: list[Answer] = []
        for first in range(0, len(ledger_ids), 500):
            answers += await asyncio.gather(*(self._ask(ask, each) for each in ledger_ids[first : first + 500]))
        return answers

    async def _ask(self, ask: Callable[[int], Awaitable[Answer]], ledger_id: int) -> Answer:
        while True:
            with contextlib.suppress(TooManyRequestsError):  # only a fence: adds wait
                answer = await ask(ledger_id)
                self._peaks.append(self._rows.memory_bytes)
                return answer


@pytest.mark.parametrize(
    ("ledger_count", "bytes_max"), [(2_000, 128 * 1024), pytest.param(20_000, 1024 * 1024, marks=pytest.mark.battery)]
)
async def test_very_many_ledgers(bookie_config: BookieConfig, ledger_count: int, bytes_max: int) -> None:
    """Fences and entries of far more ledgers than fit into the memory for rows outlast a restart."""
    engine = EngineConfig(ledger_rows_bytes_max=bytes_max)
    storage = msgspec.structs.replace(bookie_config.storage, engine=engine)
    config = msgspec.structs.replace(bookie_config, storage=storage, throttle_max_s=60)
    everyone, fenced, unfenced = range(ledger_count), range(0, ledger_count, 2), range(1, ledger_count, 2)
    peaks: list[int] = []
    for is_restarted in (False, True):
        async with running(config) as (server, peer):
            assert server.view.storage is not None
            rows = server.view.storage.engines[0].rows
            crowd = Crowd(rows, peaks)
            bodies = [peer.body(ledger_id, 0) for ledger_id in everyone]
            if not is_restarted:
                assert set(await crowd.each(functools.partial(peer.add, entry_id=0), everyone)) == {Status.OK}
                found = await crowd.each(functools.partial(peer.read, entry_id=0, fence_with=PEER_KEY), fenced)
                assert found == bodies[::2]
            entry_id = 2 if is_restarted else 1
            assert set(await crowd.each(functools.partial(peer.add, entry_id=entry_id), fenced)) == {Status.FENCED}
            assert set(await crowd.each(functools.partial(peer.add, entry_id=entry_id), unfenced)) == {Status.OK}
            assert await crowd.each(functools.partial(peer.read, entry_id=0), everyone) == bodies
            assert len(rows) == ledger_count
    assert bytes_max // 2 < max(peaks) <= bytes_max


async def test_a_dropped_row_does_not_lower_the_lac_of_entries_in_the_write_cache(opened: OpenEngine) -> None:
    await opened.fill()
    bookie, rows = opened.bookie, opened.rows
    for entry_id in range(1, 6):
        assert await bookie.add(0, entry_id) is Status.OK
    assert await bookie.read(0, 5) == (Status.OK, entry(0, 5, b""), 4)
    for ledger_id in MANY[1:]:
        rows.find(ledger_id)
    assert not rows.is_kept(0)
    assert await bookie.read(0, 5) == (Status.OK, entry(0, 5, b""), 4)


async def test_a_row_that_is_lost_during_a_read_leaves_no_request_without_an_answer(opened: OpenEngine) -> None:
    await opened.fill()
    bookie, rows = opened.bookie, opened.rows
    for ledger_id in (0, 1):
        rows.find(ledger_id)
    asked = [bookie.ask(ReadCall(1, 0, -1, None, False)), *(bookie.ask(ReadLacCall(1, each)) for each in (0, 1))]
    for ledger_id in MANY[2:]:
        rows.find(ledger_id)
    assert rows.needs_read(0)
    opened.set_damaged(True)
    async with asyncio.timeout(60):  # else a lost answer is waited for without end
        statuses = [await each.status() for each in asked]
    assert statuses[1:] == [Status.IO_ERROR] * 2
