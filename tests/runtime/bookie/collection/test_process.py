"""The collector inside a bookie process: killed in mid-round, again and again; and on a disk that is full."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from bkctl.runtime.errors import BookieError, NoSuchLedgerError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import Peer
from tests.runtime.bookie.small_disk import small_disk

METADATA = new_ledger(("traced",), 1, 1, DigestType.CRC32C, b"secret")
KEPT = range(6)
GONE = range(6, 30)
ENTRIES = range(12)
NO_ROOM = {Status.READ_ONLY, Status.TOO_MANY_REQUESTS}
"""No time-out: a bookie whose disk is full answers the adds that it has not stored durably."""
FAST = (
    "logSizeLimit=65536",
    "flushInterval=100",
    "gcWaitTime=150",
    "minorCompactionInterval=0",
    "majorCompactionInterval=1",
    "majorCompactionThreshold=0.99",
    "compactionRateByEntries=200",
)


def settings(*pairs: str) -> list[str]:
    return [word for pair in (*FAST, *pairs) for word in ("--set", pair)]


def body(peer: Peer, ledger_id: int, entry_id: int) -> bytes:
    return peer.body(ledger_id, entry_id, random.Random(f"{ledger_id}:{entry_id}").randbytes(2000))


async def require_kept(peer: Peer) -> None:
    for ledger_id in KEPT:
        for entry_id in ENTRIES:
            assert await peer.read(ledger_id, entry_id) == body(peer, ledger_id, entry_id)


@pytest.mark.battery
@pytest.mark.parametrize("is_transactional", ["false", "true"])
async def test_a_bookie_that_is_killed_in_its_rounds_loses_nothing(
    metadata_uri: str, tmp_path: Path, store: ZooKeeperStore, is_transactional: str
) -> None:
    uri = parse_metadata_uri(metadata_uri)
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    bookie = BookieUnderTest(tmp_path, metadata_uri, store, *settings(f"useTransactionalCompaction={is_transactional}"))
    async with bookie.running() as (_, peer):
        for ledger_id in (*KEPT, *GONE):
            await ledgers.create(METADATA, ledger_id=ledger_id)
        for entry_id in ENTRIES:
            adds = (peer.add(each, entry_id, body(peer, each, entry_id)) for each in (*KEPT, *GONE))
            assert set(await asyncio.gather(*adds)) == {Status.OK}
            await asyncio.sleep(0.05)
    for ledger_id in GONE:
        await ledgers.delete(ledger_id)
    pauses = random.Random(7)
    for _ in range(3):
        async with bookie.running() as (process, peer):
            await asyncio.sleep(1.2 + pauses.random())
            await require_kept(peer)
            process.kill()
        assert "Traceback" not in bookie.said(), bookie.said()
    current = tmp_path / "ledgers" / "current"
    async with bookie.running() as (_, peer):
        async with asyncio.timeout(300):
            while _log_bytes(current) > 2 * len(KEPT) * len(ENTRIES) * 2100 + 2 * 65536:
                await require_kept(peer)
                await asyncio.sleep(0.1)
        await require_kept(peer)
        for ledger_id in GONE:
            with pytest.raises(NoSuchLedgerError):
                await peer.read(ledger_id, 0)
    assert [name for name in os.listdir(current) if name == "bkctl.quarantine"] == []


def _log_bytes(current: Path) -> int:
    size_bytes = 0
    for path in current.glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # removed by the bookie since it was listed
            size_bytes += path.stat().st_size
    return size_bytes


async def test_a_full_disk_empties_itself(metadata_uri: str, tmp_path: Path, store: ZooKeeperStore) -> None:
    """Deleting what nobody uses needs no room, and comes at once when the disk is full."""
    uri = parse_metadata_uri(metadata_uri)
    ledgers = await open_ledger_store(store, uri.root, uri.tree)
    with small_disk(tmp_path / "disk") as disk:
        wanted = ("gcWaitTime=1000", "majorCompactionInterval=0", "diskCheckInterval=200", "logSizeLimit=1000000")
        bookie = BookieUnderTest(disk.path, metadata_uri, store, *settings(*wanted))
        async with bookie.running() as (_, peer):
            await ledgers.create(METADATA, ledger_id=1)
            await ledgers.create(METADATA, ledger_id=2)
            assert await peer.add(1, 0, body(peer, 1, 0)) is Status.OK
            entry_id = 0
            status = Status.OK
            while status is Status.OK:
                payload = peer.body(2, entry_id, bytes(100_000))
                status = await peer.add(2, entry_id, payload)
                entry_id += 1
            assert status in NO_ROOM
            assert await peer.read(2, 0) == peer.body(2, 0, bytes(100_000))
            await ledgers.delete(2)
            async with asyncio.timeout(60):
                while (status := await peer.add(1, 1, body(peer, 1, 1))) is not Status.OK:
                    assert status in NO_ROOM
                    await asyncio.sleep(0.2)
            assert await peer.read(1, 0) == body(peer, 1, 0)
            with pytest.raises(BookieError):
                await peer.read(2, 0)
