"""Starts on disks that somebody else has filled: the bookie comes up read-only and serves all that it holds."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

import pytest

from bkctl.runtime.errors import NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.disks.test_monitor import wait_mode
from tests.runtime.bookie.small_disk import SmallDisk

pytestmark = pytest.mark.cluster

SERVER_EXCEPTION_EXIT_CODE = 2
PAYLOAD = bytes(512 * 1024)
COUNT = 12
"""Entries of so many bytes: the journal holds 6 MiB."""
TORN = b"\0\0\x04\0torn"
"""Of a record of 1 KiB, in the first of its sectors."""


class UnflushedBookie:
    """A bookie whose journal holds entries that were never flushed; killed and started as a test wants it."""

    def __init__(self, directory: Path, metadata_uri: str, store: ZooKeeperStore) -> None:
        self.directory = directory
        self._metadata_uri = metadata_uri
        self._store = store

    def bookie(self, *keys: str) -> BookieUnderTest:
        words = (word for key in ("flushInterval=3600000", "diskCheckInterval=500", *keys) for word in ("--set", key))
        return BookieUnderTest(self.directory, self._metadata_uri, self._store, *words)

    async def wait_mode(self, mode: BookieMode) -> None:
        await wait_mode(self.bookie().registrations, "traced", mode)

    async def write(self) -> None:
        async with self.bookie().running() as (_, peer):
            for entry_id in range(COUNT):
                assert await peer.add(1, entry_id, peer.body(1, entry_id, PAYLOAD)) is Status.OK
            assert await peer.add(2, 0) is Status.OK
            assert await peer.read(2, 0, fence_with=KEY) == peer.body(2, 0)

    def tear_journal(self) -> None:
        """The beginning of a group whose rest a power failure kept from the disk."""
        path = max((self.directory / "journal" / "current").glob("*[0-9a-f].txn"), key=lambda path: int(path.stem, 16))
        end = -(-len(path.read_bytes().rstrip(b"\0")) // 512) * 512
        with path.open("r+b") as file:
            file.seek(end)
            file.write(TORN)

    async def require_read_only(self, peer: Peer) -> None:
        await self.wait_mode(BookieMode.READ_ONLY)
        await self.require_all(peer)
        assert await peer.add(1, COUNT) is Status.READ_ONLY
        assert await peer.add(1, COUNT, recovery=True, high_priority=True) is Status.READ_ONLY

    async def require_all(self, peer: Peer) -> None:
        for entry_id in range(COUNT):
            assert await peer.read(1, entry_id) == peer.body(1, entry_id, PAYLOAD)
        assert await peer.read(2, 0) == peer.body(2, 0)

    async def require_writable(self, peer: Peer) -> None:
        await self.wait_mode(BookieMode.WRITABLE)
        await self.require_all(peer)
        assert await peer.add(1, COUNT) is Status.OK

    async def fence_read_only(self, ledger_id: int) -> str:
        """A start that comes up read-only and fences a ledger without entries; returns what it has logged."""
        bookie = self.bookie()
        async with bookie.running() as (_, peer):
            await self.require_read_only(peer)
            with pytest.raises(NoSuchEntryError):
                await peer.read(ledger_id, 0, fence_with=KEY)
            return bookie.said()

    async def require_nothing_lost(self, *fenced: int) -> None:
        """Of what was acknowledged to the end of ``require_writable``."""
        async with self.bookie().running() as (process, peer):
            await self.require_all(peer)
            assert await peer.read(1, COUNT) == peer.body(1, COUNT)
            for ledger_id in (2, *fenced):
                assert await peer.add(ledger_id, 1) is Status.FENCED
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0


@pytest.fixture
def unflushed(tmp_path: Path, metadata_uri: str, store: ZooKeeperStore) -> UnflushedBookie:
    return UnflushedBookie(tmp_path, metadata_uri, store)


async def test_without_room_for_what_the_journal_holds(ledger_disk: SmallDisk, unflushed: UnflushedBookie) -> None:
    """The entries wait in the write cache and in the journals; fences are journaled."""
    await unflushed.write()
    ledger_disk.use(0.9)
    for new_fence in (3, 4):
        await unflushed.fence_read_only(new_fence)
    async with unflushed.bookie().running() as (_, peer):
        ledger_disk.use(0.1)
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost(3, 4)


@pytest.mark.battery
async def test_behind_a_torn_tail(ledger_disk: SmallDisk, unflushed: UnflushedBookie) -> None:
    await unflushed.write()
    unflushed.tear_journal()
    ledger_disk.use(0.9)
    for new_fence in (3, 4):
        assert "which were never synced" in await unflushed.fence_read_only(new_fence)
    async with unflushed.bookie().running() as (_, peer):
        ledger_disk.use(0.1)
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost(3, 4)


@pytest.mark.battery
async def test_with_more_in_the_journal_than_half_a_write_cache(
    ledger_disk: SmallDisk, unflushed: UnflushedBookie
) -> None:
    await unflushed.write()
    ledger_disk.use(0.97)
    small = "dbStorage_writeCacheMaxSizeMb=8"
    for _ in range(2):
        async with unflushed.bookie(small).running() as (_, peer):
            await unflushed.require_read_only(peer)
    async with unflushed.bookie(small).running() as (_, peer):
        ledger_disk.use(0.1)
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost()


@pytest.mark.battery
async def test_with_more_in_the_journal_than_the_write_cache(
    ledger_disk: SmallDisk, unflushed: UnflushedBookie
) -> None:
    """What cannot be kept in memory cannot be served: the sentence says how much room, or memory, it takes."""
    await unflushed.write()
    ledger_disk.use(0.97)
    refused = unflushed.bookie("dbStorage_writeCacheMaxSizeMb=4")
    assert await refused.refused(()) == SERVER_EXCEPTION_EXIT_CODE
    last_line = refused.said().splitlines()[-1]
    assert last_line.startswith(f"error: {ledger_disk.path}")
    found = re.search(
        r"iB are free, [0-9.]+ [A-Z]iB more are needed.* --set (dbStorage_writeCacheMaxSizeMb=[0-9]+)$", last_line
    )
    assert found is not None
    async with unflushed.bookie(found[1]).running() as (_, peer):
        await unflushed.require_read_only(peer)
    async with unflushed.bookie(found[1]).running() as (_, peer):
        ledger_disk.use(0.1)
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost()


@pytest.mark.battery
async def test_without_a_single_free_block_for_a_journal(journal_disk: SmallDisk, unflushed: UnflushedBookie) -> None:
    """Nothing can be journaled: a fence is answered when it can."""
    await unflushed.write()
    journal_disk.use(1.0)
    for _ in range(2):
        async with unflushed.bookie().running() as (_, peer):
            await unflushed.require_read_only(peer)
    async with unflushed.bookie().running() as (_, peer):
        fencing = asyncio.create_task(peer.read(3, 0, fence_with=KEY))
        done, _ = await asyncio.wait([fencing], timeout=1.5)
        assert not done
        journal_disk.use(0.5)
        with pytest.raises(NoSuchEntryError):
            await fencing
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost(3)


async def test_without_a_single_free_block(ledger_disk: SmallDisk, unflushed: UnflushedBookie) -> None:
    """Not even the index can be opened: it is read as it stands."""
    await unflushed.write()
    ledger_disk.use(1.0)
    for new_fence in (3, 4):
        await unflushed.fence_read_only(new_fence)
    async with unflushed.bookie().running() as (_, peer):
        await unflushed.require_all(peer)
        ledger_disk.use(0.1)
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost(3, 4)


@pytest.mark.battery
async def test_without_a_single_free_block_and_with_everything_flushed(
    ledger_disk: SmallDisk, unflushed: UnflushedBookie
) -> None:
    """What was flushed is read through the index, and comes from the entry logs."""
    await unflushed.write()
    async with unflushed.bookie().running() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    ledger_disk.use(1.0)
    for _ in range(2):
        async with unflushed.bookie().running() as (_, peer):
            await unflushed.require_read_only(peer)
            with pytest.raises(NoSuchEntryError):
                await peer.read(1, COUNT)
    async with unflushed.bookie().running() as (_, peer):
        ledger_disk.use(0.1)
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost()


@pytest.mark.battery
async def test_without_a_single_free_block_on_any_disk(
    ledger_disk: SmallDisk, journal_disk: SmallDisk, unflushed: UnflushedBookie
) -> None:
    await unflushed.write()
    for disk in (ledger_disk, journal_disk):
        disk.use(1.0)
    for _ in range(2):
        async with unflushed.bookie().running() as (_, peer):
            await unflushed.require_read_only(peer)
    async with unflushed.bookie().running() as (_, peer):
        for disk in (ledger_disk, journal_disk):
            disk.use(0.1)
        await unflushed.require_writable(peer)
    await unflushed.require_nothing_lost()


@pytest.mark.battery
async def test_deleted_ledgers_free_a_disk_without_a_single_free_block(
    ledger_disk: SmallDisk, unflushed: UnflushedBookie, store: ZooKeeperStore, metadata_uri: str
) -> None:
    """Nobody tidies up the disk: the collector finds by the index, as it stands, which logs may go."""
    await unflushed.write()
    uri = parse_metadata_uri(metadata_uri)
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    for ledger_id in (1, 2):
        await ledgers.create(new_ledger(("traced",), 1, 1, DigestType.CRC32C, b"secret"), ledger_id=ledger_id)
    for entry_id in (0, 1):  # each in a log of its own
        async with unflushed.bookie("logSizeLimit=1048576").running() as (process, peer):
            assert await peer.add(2, entry_id, recovery=True) is Status.OK
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
    ledger_disk.use(1.0)
    async with unflushed.bookie("gcWaitTime=500").running() as (_, peer):
        await unflushed.require_read_only(peer)
        await ledgers.delete(1)
        await unflushed.wait_mode(BookieMode.WRITABLE)
        assert await peer.add(2, 2, recovery=True) is Status.OK
    async with unflushed.bookie().running() as (_, peer):
        for entry_id in range(3):
            assert await peer.read(2, entry_id) == peer.body(2, entry_id)
        with pytest.raises(NoSuchLedgerError):
            await peer.read(1, 0)
