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
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    ADD_ENTRY,
    EOK,
    FORCE_LEDGER,
    VERSION_THREE,
    WRITE_LAC,
    OperationType,
    Request,
    Response,
)
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.syscalls import (
    TRACED,
    Acknowledgement,
    ConfirmedFences,
    Entry,
    ForcedLedgers,
    JournalWrite,
    SyncEnd,
    events,
)
from tests.runtime.net.test_listener import Peer as FramePeer
from tests.runtime.net.test_listener import peer_of
from tests.storage.engines import explicit_lac

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


def request(txn_id: int, operation: OperationType) -> Request:
    request = Request()
    request.header.version, request.header.operation, request.header.txnId = VERSION_THREE, operation, txn_id
    return request


def deferred_add_frame(entry_id: int, body: bytes) -> bytes:
    deferred = request(entry_id, ADD_ENTRY)
    add = deferred.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body, add.writeFlags = LEDGER_ID, entry_id, KEY, body, 1
    return encode_frame(deferred.SerializeToString())


def force_request() -> Request:
    forced = request(1_000_000, FORCE_LEDGER)
    forced.forceLedgerRequest.ledgerId = LEDGER_ID
    return forced


async def force(writer: FramePeer, last_add_confirmed: int) -> None:
    """What a writer with deferred sync does when its application forces the ledger: FORCE, then an explicit LAC."""
    forced = force_request()
    write_lac = request(1_000_001, WRITE_LAC)
    lac = write_lac.writeLacRequest
    lac.ledgerId, lac.lac, lac.masterKey = LEDGER_ID, last_add_confirmed, KEY
    lac.body = explicit_lac(LEDGER_ID, last_add_confirmed)
    for each in (forced, write_lac):
        writer.send(encode_frame(each.SerializeToString()))
        assert await status(writer) == EOK


async def status(writer: FramePeer) -> int:
    return Response.FromString((await writer.frame())[4:]).status


async def add_deferred(writer: FramePeer, peer: Peer, entry_ids: range) -> None:
    """Add entries whose LAC stays behind, as without a force."""
    writer.send(*(deferred_add_frame(each, peer.body(LEDGER_ID, each, lac=-1)) for each in entry_ids))
    for _ in entry_ids:
        assert await status(writer) == EOK


async def test_a_kill_behind_an_answered_force_keeps_the_entries_and_the_explicit_lac(bookie: BookieUnderTest) -> None:
    async with bookie.running() as (process, peer), peer_of(bookie.port) as writer:
        for first in range(0, 300, 100):
            await add_deferred(writer, peer, range(first, first + 100))
            await force(writer, first + 99)
        process.kill()
    async with bookie.running() as (_, peer):
        for entry_id in range(300):
            assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id, lac=-1)
        assert (await peer.read_lac(LEDGER_ID)).lac_body == explicit_lac(LEDGER_ID, 299)
        assert (await peer.read_with_lac(LEDGER_ID, 0))[1] == 299


@pytest.mark.strace
async def test_a_force_is_answered_behind_the_sync_of_all_adds_that_were_answered(
    bookie: BookieUnderTest, tmp_path: Path
) -> None:
    """Adds with deferred sync are answered when their bytes are written, and ordinary ones next to them when synced."""
    log = tmp_path / "strace.log"
    ordinary = range(10_000, 10_300)
    slow_sync = "inject=fdatasync:delay_enter=10ms"  # in memory a sync could end before any answer
    async with bookie.running(strace(log, "-e", slow_sync)) as (process, peer), peer_of(bookie.port) as writer:
        adding = asyncio.ensure_future(add_until(peer, ordinary.start, len(ordinary), in_flight=5))
        for first in range(0, 300, 20):
            await add_deferred(writer, peer, range(first, first + 20))
            await force(writer, first + 19)
        assert len(await adding) == len(ordinary)
    written: dict[str, set[Entry]] = {}
    durable: set[Entry] = set()
    answered: set[Entry] = set()
    forced_count = early_count = 0
    for event in events(await finished(log, process.pid)):
        match event:
            case JournalWrite(descriptor, entries):
                written.setdefault(descriptor, set()).update(entries)
            case SyncEnd(descriptor, is_ok=True):
                durable |= written.pop(descriptor, set())
            case Acknowledgement(entries):
                answered.update(entries)
                assert answered <= durable.union(*written.values()), "acknowledged before it was written"
                assert {each for each in entries if each[1] in ordinary} <= durable, "acknowledged before its sync"
                early_count += not durable.issuperset(entries)
            case ForcedLedgers():
                assert answered <= durable, "forced before the sync"
                forced_count += 1
    assert forced_count == 15
    assert early_count, "else nothing was deferred"
    assert len(answered) == 300 + len(ordinary)


async def test_a_kill_behind_an_answered_force_keeps_entries_that_are_not_journaled(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    """Java answers the force without a checkpoint."""
    settings = ("--set", "journalWriteData=false", "--set", "flushInterval=3600000")
    bookie = BookieUnderTest(tmp_path, metadata_uri, store, *settings)
    async with bookie.running() as (process, peer), peer_of(bookie.port) as writer:
        for entry_id in range(100):
            assert await peer.add(LEDGER_ID, entry_id) is Status.OK
        writer.send(encode_frame(force_request().SerializeToString()))
        assert await status(writer) == EOK
        process.kill()
    async with bookie.running() as (_, peer):
        for entry_id in range(100):
            assert await peer.read(LEDGER_ID, entry_id) == peer.body(LEDGER_ID, entry_id)
