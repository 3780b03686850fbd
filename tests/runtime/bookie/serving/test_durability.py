"""Promise 1: an acknowledged add is on disk. Checked on a bookie process, at its system calls and after kill -9."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bkctl.runtime.errors import BookieIOError, BookieUnavailableError, NoSuchEntryError
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.syscalls import TRACED, Acknowledgement, ConfirmedFences, Entry, JournalWrite, SyncEnd, events

LEDGER_ID = 7
JOURNAL_FAILED_EXIT_CODE = 5
pytestmark = pytest.mark.cluster


@pytest.fixture
def bookie(tmp_path: Path, metadata_uri: str, store: ZooKeeperStore) -> BookieUnderTest:
    return BookieUnderTest(tmp_path, metadata_uri, store)


async def add_until(
    peer: Peer, first_entry_id: int, count: int, *, in_flight: int, is_first_acknowledged: asyncio.Event | None = None
) -> list[int]:
    """Add entries with a number in flight; the ids that were acknowledged."""
    acknowledged: list[int] = []
    has_begun = is_first_acknowledged or asyncio.Event()
    turns = asyncio.Semaphore(in_flight)

    async def add(entry_id: int) -> None:
        async with turns:
            if await peer.add(LEDGER_ID, entry_id) is Status.OK:
                acknowledged.append(entry_id)
                has_begun.set()

    await asyncio.gather(*(add(entry_id) for entry_id in range(first_entry_id, first_entry_id + count)))
    return acknowledged


def strace(log: Path, *options: str) -> list[str]:
    """The prefix that traces a process, or the reason to skip."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("strace is not installed")
    probe = subprocess.run([program, "-e", "trace=none", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("this process may not trace others")
    # -D: strace is the grandchild, so that the process of the test is the bookie itself.
    return [program, "-D", "-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={TRACED}", *options, "-o", str(log)]


async def finished(log: Path, pid: int) -> str:
    """The whole log: the tracer writes its last lines after the traced process has ended."""
    last_line = re.compile(rf"^{pid} +\+\+\+ (exited|killed)", re.MULTILINE)
    async with asyncio.timeout(30):
        while last_line.search(text := log.read_text()) is None:  # noqa: ASYNC110  a file sends no event
            await asyncio.sleep(0.05)
    return text


@pytest.mark.strace
async def test_each_acknowledgement_follows_the_sync_of_its_bytes(bookie: BookieUnderTest, tmp_path: Path) -> None:
    log = tmp_path / "strace.log"
    async with bookie.running(strace(log)) as (process, peer):
        acknowledged = await add_until(peer, 0, 400, in_flight=1 + 20)
    assert len(acknowledged) == 400
    written: dict[str, set[Entry]] = {}
    durable: set[Entry] = set()
    seen = 0
    for event in events(await finished(log, process.pid)):
        match event:
            case JournalWrite(descriptor, entries):
                written.setdefault(descriptor, set()).update(entries)
            case SyncEnd(descriptor, is_ok=True):
                durable |= written.pop(descriptor, set())
            case Acknowledgement(entries):
                assert set(entries) <= durable, "acknowledged before its sync returned"
                seen += len(entries)
    assert seen == 400, "the log shows every acknowledgement"


@pytest.mark.strace
async def test_nothing_is_acknowledged_after_a_failed_sync(bookie: BookieUnderTest, tmp_path: Path) -> None:
    log = tmp_path / "strace.log"
    async with bookie.running(strace(log, "-e", "inject=fdatasync:error=EIO:when=12+")) as (process, peer):
        acknowledged = await add_until(peer, 0, 300, in_flight=5)
        assert await asyncio.to_thread(process.wait, 30) == JOURNAL_FAILED_EXIT_CODE
    assert 0 < len(acknowledged) < 300
    has_failed = False
    for event in events(await finished(log, process.pid)):
        match event:
            case SyncEnd(is_ok=False):
                has_failed = True
            case Acknowledgement(entries):
                assert not has_failed, f"{entries} acknowledged after a failed sync"
    assert has_failed
    async with bookie.running() as (_, peer):
        for entry_id in acknowledged:
            assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id)


@pytest.mark.strace
async def test_no_fence_is_confirmed_after_a_failed_sync(bookie: BookieUnderTest, tmp_path: Path) -> None:
    """Each client asks again at once; a fence that was confirmed to any of them holds after the restart."""
    log = tmp_path / "strace.log"
    confirmed: set[int] = set()

    async def fence_again_and_again(peer: Peer, client: int) -> None:
        for ledger_id in range(client * 1000, client * 1000 + 1000):
            for _ in range(3):
                try:
                    await peer.read(ledger_id, -1, fence_with=KEY)
                except NoSuchEntryError:
                    confirmed.add(ledger_id)
                except BookieUnavailableError:
                    return
                except BookieIOError:
                    continue

    async with bookie.running(strace(log, "-e", "inject=fdatasync:error=EIO:when=20+")) as (process, peer):
        await asyncio.gather(*(fence_again_and_again(peer, client) for client in range(8)))
        assert await asyncio.to_thread(process.wait, 60) == JOURNAL_FAILED_EXIT_CODE
    has_failed = False
    for event in events(await finished(log, process.pid)):
        match event:
            case SyncEnd(is_ok=False):
                has_failed = True
            case ConfirmedFences(ledger_ids):
                assert not has_failed, f"fences of {ledger_ids} confirmed after a failed sync"
    assert has_failed
    assert confirmed
    async with bookie.running() as (_, peer):
        for ledger_id in sorted(confirmed):
            assert await peer.add(ledger_id, 0) is Status.FENCED


async def test_kill_at_any_moment_loses_no_acknowledged_entry(bookie: BookieUnderTest) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    acknowledged: list[int] = []
    for turn in range(4):
        async with bookie.running() as (process, peer):
            for entry_id in acknowledged:
                assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id)
            has_begun = asyncio.Event()
            adding = asyncio.ensure_future(
                add_until(peer, turn * 5000, 5000, in_flight=200, is_first_acknowledged=has_begun)
            )
            if turn == 0:  # on a busy machine the moment alone may come before anything was acknowledged, each time
                await has_begun.wait()
            await asyncio.sleep(chance.uniform(0.01, 0.3))
            process.kill()
            acknowledged += await adding
    assert acknowledged
    async with bookie.running() as (_, peer):
        for entry_id in acknowledged:
            assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id)
