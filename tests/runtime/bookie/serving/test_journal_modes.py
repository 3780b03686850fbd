"""A bookie process under journal settings other than the usual ones: what was acknowledged is there after kill -9."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from tests.java_ranges import RANGES, ends
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import KEY, Peer
from tests.until import until

COUNT = 300
INVALID_CONF_EXIT_CODE = 1

SETTLED_OTHERWISE = frozenset({"bookiePort", "zkTimeout", "journalFormatVersionToWrite"})
AT_THE_UPPER_ENDS = (
    "journalFlushWhenQueueEmpty=true",  # or each add waits for a minute
    "minorCompactionInterval=0",
    "majorCompactionInterval=0",
    *(
        f"{key}={ends(bounds)[1]}"
        for key, bounds in RANGES.items()
        # Room that no disk has makes a bookie read-only.
        if bounds.below is None
        and not key.startswith(("minUsable", "minorC", "majorC"))
        and key not in SETTLED_OTHERWISE
    ),
)
"""Each number as large as it may be: no timer, file or allocation overflows."""

pytestmark = pytest.mark.cluster


async def add_all(peer: Peer, ledger_id: int, count: int = COUNT) -> None:
    statuses = await asyncio.gather(*(peer.add(ledger_id, entry_id) for entry_id in range(count)))
    assert set(statuses) == {Status.OK}


async def require_all(peer: Peer, ledger_id: int, count: int = COUNT) -> None:
    for entry_id in range(count):
        assert await peer.read(ledger_id, entry_id) == peer.body(ledger_id, entry_id)


@pytest.mark.parametrize(
    "settings",
    [
        ("journalFormatVersionToWrite=4", "flushInterval=3600000"),
        ("journalFormatVersionToWrite=5", "journalMaxSizeMB=1", "flushInterval=3600000"),
        ("journalSyncData=false", "journalPageCacheFlushIntervalMSec=20", "flushInterval=100"),
        ("journalMaxGroupWaitMSec=2", "journalQueueSize=3", "journalAlignmentSize=4096", "flushInterval=100"),
        AT_THE_UPPER_ENDS,
    ],
    ids=lambda settings: settings[0],
)
async def test_a_kill_loses_nothing_acknowledged(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore, settings: tuple[str, ...]
) -> None:
    keys = [word for setting in settings for word in ("--set", setting)]
    bookie = BookieUnderTest(tmp_path, metadata_uri, store, *keys)
    async with bookie.running() as (process, peer):
        await add_all(peer, 7)
        process.kill()
    async with bookie.running() as (_, peer):
        await require_all(peer, 7)
        await add_all(peer, 8, 5)
        await require_all(peer, 8, 5)


async def test_a_number_that_no_file_can_hold_is_refused_before_anything_is_changed(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    bookie = BookieUnderTest(tmp_path, metadata_uri, store, "--set", "journalPreAllocSizeMB=99999999999999999999")
    assert await bookie.refused(()) == INVALID_CONF_EXIT_CODE
    assert "--set journalPreAllocSizeMB = 99999999999999999999: must be from 1 to 2048" in bookie.said()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bookie.log"]


async def test_two_journals_share_the_ledgers(tmp_path: Path, metadata_uri: str, store: ZooKeeperStore) -> None:
    bookie = BookieUnderTest(
        tmp_path, metadata_uri, store, "--journal-dir", str(tmp_path / "journal-2"), "--set", "flushInterval=200"
    )
    current = tmp_path / "ledgers" / "current"

    def marks() -> list[bytes]:
        return [path.read_bytes() for path in sorted(current.glob("lastMark.?"))]

    async with bookie.running() as (process, peer):
        before = marks()
        await add_all(peer, 7)
        # A checkpoint, which may come before the last answer, moves the marks; what follows is left to the journals.
        await until(lambda: len(marks()) >= 2 and marks() != before)
        await add_all(peer, 8)
        assert await peer.read(8, 0, fence_with=KEY) == peer.body(8, 0)
        process.kill()
    assert {path.name for path in current.glob("lastMark*")} == {"lastMark.0", "lastMark.1"}
    async with bookie.running() as (_, peer):
        await require_all(peer, 7)
        await require_all(peer, 8)
        assert await peer.add(8, COUNT) is Status.FENCED
        assert await peer.add(7, COUNT) is Status.OK


async def test_without_written_data_an_orderly_stop_loses_nothing(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    keys = ("--set", "journalWriteData=false", "--set", "flushInterval=3600000")
    bookie = BookieUnderTest(tmp_path, metadata_uri, store, *keys)
    async with bookie.running() as (process, peer):
        await add_all(peer, 7)
        assert await peer.read(7, 0, fence_with=KEY) == peer.body(7, 0)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    async with bookie.running() as (_, peer):
        await require_all(peer, 7)
        assert await peer.add(7, COUNT) is Status.FENCED
