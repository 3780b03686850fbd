"""The locations of a read-only bookie built anew while it serves: nothing is denied, nothing added, no fence lost."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.admin.api import JobState, StepProgress
from bkctl.runtime.bookie.boot.process import real_ports, running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.disks.modes import ReadOnlyReason
from bkctl.runtime.bookie.metrics.catalogue import bookie_metrics
from bkctl.runtime.bookie.online_rebuild import _LANES_AT_REST, OnlineRebuild
from bkctl.runtime.bookie.serving.reads import LISTS_LANE, READS_LANE, URGENT_READS_LANE
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import (
    ConflictError,
    NoSuchEntryError,
    NoSuchLedgerError,
    RefusedError,
    UnknownLedgerStateError,
)
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.bookie_status import read_bookie_status
from bkctl.storage.config import StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import IndexDamagedError, IndexMissingError, JournalFullError, StorageError
from bkctl.storage.filenames import LOCATIONS_DATABASE, REPLACED_SUFFIX
from bkctl.storage.index.ledger_index import LEDGERS_NOTED, NEEDS_INTEGRITY_CHECK
from bkctl.storage.operator_mode import OperatorMode
from bkctl.storage.ports import DiskSpace
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.metrics.test_exposition import samples_of
from tests.storage.engines import open_storage
from tests.storage.rebuild.test_crash import EveryChangePhotographed
from tests.storage.rebuilds import rebuild, rows_of
from tests.until import until

pytestmark = pytest.mark.cluster

LEDGERS = range(1, 5)
ENTRIES = range(30)


class Running:
    """A bookie in this process, and a client of it."""

    def __init__(self, server: BookieServer, peer: Peer) -> None:
        self.server = server
        self.peer = peer

    @property
    def rebuild(self) -> OnlineRebuild:
        assert self.server.view.online_rebuild is not None
        return self.server.view.online_rebuild

    async def begin(self) -> asyncio.Task[object]:
        """A rebuild that has begun: adds are refused, negative answers unknown."""
        task: asyncio.Task[object] = asyncio.ensure_future(self.rebuild.run(StepProgress()))
        await asyncio.sleep(0)
        assert not task.done()
        return task

    async def begin_held(self) -> tuple[asyncio.Task[object], HeldDisk]:
        """A rebuild that has recorded the ledgers, and builds no index before it may go on."""
        disk = self.rebuild._filesystem = SlowBegin()
        task = await self.begin()
        assert await asyncio.to_thread(disk.has_begun.wait, 60)
        return task, disk


class HeldDisk(OsFileSystem):
    """The real disk, which waits at one change."""

    def __init__(self) -> None:
        self.has_begun = threading.Event()
        self.may_go_on = threading.Event()

    def hold(self) -> None:
        self.has_begun.set()
        assert self.may_go_on.wait(60)


class SlowBegin(HeldDisk):
    """Waits when the directory of the new index has been made."""

    def make_directories(self, path: str) -> None:
        super().make_directories(path)
        self.hold()


class SlowExchange(HeldDisk):
    """Waits before the old index is moved away."""

    def rename(self, source: str, target: str) -> None:
        if target.endswith(REPLACED_SUFFIX):
            self.hold()
        super().rename(source, target)


class DiskThatFills(OsFileSystem):
    """The real disk, which says when told that nothing is free."""

    is_full = False

    def space(self, path: str) -> DiskSpace:
        space = super().space(path)
        return space._replace(usable_bytes=0) if self.is_full else space


@contextlib.asynccontextmanager
async def booted(config: BookieConfig, filesystem: OsFileSystem | None = None) -> AsyncIterator[Running]:
    ports = real_ports()
    if filesystem is not None:
        ports = dataclasses.replace(ports, file_system=filesystem)
    async with running_bookie(config, ports) as server:

        async def resolve(_: str) -> tuple[str, int]:
            return "127.0.0.1", server.port

        pool = BookiePool(resolve, ClientConfig(), LoopClock())
        try:
            yield Running(server, Peer(pool, server.bookie_id))
        finally:
            await pool.close()


@pytest.fixture
async def config(bookie_config: BookieConfig) -> BookieConfig:
    """Of a read-only bookie that holds entries."""
    async with booted(bookie_config) as running:
        for ledger_id in LEDGERS:
            for entry_id in ENTRIES:
                assert await running.peer.add(ledger_id, entry_id) is Status.OK
    return msgspec.structs.replace(bookie_config, is_read_only=True)


async def require_entries(peer: Peer, *, is_rebuilt: bool) -> None:
    """Every entry is served; what is not here is denied by the index of always, and by a rebuilt one not yet."""
    for ledger_id in LEDGERS:
        for entry_id in ENTRIES:
            assert await peer.read(ledger_id, entry_id) == peer.body(ledger_id, entry_id)
        with pytest.raises(UnknownLedgerStateError if is_rebuilt else NoSuchEntryError):
            await peer.read(ledger_id, len(ENTRIES))
    with pytest.raises(NoSuchLedgerError):
        await peer.read(99, 0)


async def test_the_same_rows_in_a_new_database_that_goes_on_serving(config: BookieConfig) -> None:
    directory = Path(config.storage.ledger_directories[0]) / "current" / LOCATIONS_DATABASE
    async with booted(config) as running:
        inode = directory.stat().st_ino
        report = await running.rebuild.run(StepProgress())
        assert report.is_complete
        assert [each.row_count for each in report.directories] == [len(LEDGERS) * len(ENTRIES)]
        assert directory.stat().st_ino != inode
        await require_entries(running.peer, is_rebuilt=True)
        await running.rebuild.run(StepProgress())
        await require_entries(running.peer, is_rebuilt=True)
    rows = rows_of(config.storage, LOCATIONS_DATABASE)
    assert len(rows) == len(LEDGERS) * len(ENTRIES)
    async with booted(msgspec.structs.replace(config, is_read_only=False)) as running:
        await require_entries(running.peer, is_rebuilt=True)
        assert await running.peer.add(1, 500) is Status.UNKNOWN_LEDGER_STATE
        assert await running.peer.add(1, 500, recovery=True) is Status.OK


async def test_afterwards_nothing_is_denied_of_a_ledger_that_may_have_been_in_a_lost_log(config: BookieConfig) -> None:
    """A log that is gone leaves no trace in the others. The answers are those of a start with limbo (test_limbo)."""
    for log in (Path(config.storage.ledger_directories[0]) / "current").glob("*.log"):
        log.unlink()
    async with booted(config) as running:
        peer = running.peer
        report = await running.rebuild.run(StepProgress())
        assert report.is_complete
        assert [(each.row_count, each.limbo_count) for each in report.directories] == [(0, len(LEDGERS))]
        for ledger_id in LEDGERS:
            with pytest.raises(UnknownLedgerStateError):
                await peer.read(ledger_id, 0)
            with pytest.raises(UnknownLedgerStateError):
                await peer.read(ledger_id, -1)
            with pytest.raises(UnknownLedgerStateError):
                await peer.read_lac(ledger_id)
            with pytest.raises(UnknownLedgerStateError):
                await peer.list_entries(ledger_id)
            assert await peer.add(ledger_id, 100, high_priority=True) is Status.UNKNOWN_LEDGER_STATE
        assert await peer.add(1, 100, recovery=True, high_priority=True) is Status.OK
        assert await peer.read_with_lac(1, 100) == (peer.body(1, 100), None)
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(2, 0, fence_with=KEY)
        assert await peer.add(2, 100, high_priority=True) is Status.FENCED


async def test_several_directories_are_rebuilt_and_doubted_one_by_one(
    bookie_config: BookieConfig, tmp_path: Path
) -> None:
    directories = tuple(str(tmp_path / name) for name in ("ledgers-0", "ledgers-1"))
    storage = msgspec.structs.replace(bookie_config.storage, ledger_directories=directories)
    config = msgspec.structs.replace(bookie_config, storage=storage)
    async with booted(config) as running:
        for ledger_id in LEDGERS:
            assert await running.peer.add(ledger_id, 0) is Status.OK
    for log in (tmp_path / "ledgers-1" / "current").glob("*.log"):
        log.unlink()
    async with booted(msgspec.structs.replace(config, is_read_only=True)) as running:
        report = await running.rebuild.run(StepProgress())
        assert [(each.row_count, each.limbo_count) for each in report.directories] == [(2, 2), (0, 2)]
        assert await running.peer.read(2, 0) == running.peer.body(2, 0)
        for ledger_id, entry_id in ((1, 0), (3, 0), (2, 1), (4, 1)):
            with pytest.raises(UnknownLedgerStateError):
                await running.peer.read(ledger_id, entry_id)


async def test_a_ledger_that_had_no_row_when_the_rebuild_began_is_denied_as_ever(config: BookieConfig) -> None:
    """Nothing of it can be in a log, and none is added meanwhile: the ledger rows are kept and whole."""
    async with booted(config) as running:
        peer = running.peer
        task, disk = await running.begin_held()
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(50, 0, fence_with=KEY)
        disk.may_go_on.set()
        await task
        with pytest.raises(NoSuchEntryError):
            await peer.read(50, 0)
        assert await peer.add(60, 0, high_priority=True) is Status.OK
        with pytest.raises(NoSuchEntryError):
            await peer.read(60, 1)
        with pytest.raises(NoSuchLedgerError):
            await peer.read(99, 0)


async def test_meanwhile_every_add_is_refused_and_nothing_is_denied(config: BookieConfig) -> None:
    async with booted(config) as running:
        peer = running.peer
        assert await peer.add(1, 100, high_priority=True) is Status.OK
        task, disk = await running.begin_held()
        assert await peer.add(1, 101) is Status.READ_ONLY
        assert await peer.add(1, 101, high_priority=True) is Status.READ_ONLY
        assert await peer.add(1, 101, recovery=True, high_priority=True) is Status.READ_ONLY
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(1, 101)
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(99, 0)
        assert await peer.read(2, 5) == peer.body(2, 5)
        with pytest.raises(ConflictError):
            await running.rebuild.run(StepProgress())
        disk.may_go_on.set()
        await task
        with pytest.raises(UnknownLedgerStateError):
            await peer.read(1, 101)
        assert await peer.read(1, 100) == peer.body(1, 100)
        assert await peer.add(1, 101, recovery=True, high_priority=True) is Status.OK


async def test_a_fence_that_arrives_meanwhile_stays(config: BookieConfig) -> None:
    async with booted(config) as running:
        task, disk = await running.begin_held()
        assert await running.peer.read(3, 0, fence_with=KEY) == running.peer.body(3, 0)
        disk.may_go_on.set()
        await task
        assert await running.peer.add(3, 100, high_priority=True) is Status.FENCED
    async with booted(msgspec.structs.replace(config, is_read_only=False)) as running:
        assert await running.peer.add(3, 100) is Status.FENCED


async def test_a_writable_bookie_is_registered_as_read_only_first_and_as_writable_afterwards(
    bookie_config: BookieConfig, store: ZooKeeperStore
) -> None:
    registrations = RegistrationClient(store, parse_metadata_uri(bookie_config.metadata_uri).root)
    directory = Path(bookie_config.storage.ledger_directories[0]) / "current"
    disks = msgspec.structs.replace(bookie_config.disks, is_status_kept=True)
    async with booted(msgspec.structs.replace(bookie_config, disks=disks)) as running:
        assert await running.peer.add(1, 0) is Status.OK
        task, disk = await running.begin_held()
        assert await running.peer.add(1, 1) is Status.READ_ONLY
        assert running.server.bookie_id in await registrations.read_only()
        status = read_bookie_status(OsFileSystem(), [str(directory)])
        assert status is not None
        assert not status.is_read_only, "a kill now must not leave the bookie read-only"
        disk.may_go_on.set()
        await task
        assert await running.peer.add(9, 0) is Status.OK

        async def is_writable() -> bool:
            return running.server.bookie_id in await registrations.writable()

        await until(is_writable)


async def test_the_mode_before_comes_back_after_a_cancel(bookie_config: BookieConfig) -> None:
    async with booted(bookie_config) as running:
        assert await running.peer.add(1, 0) is Status.OK
        modes = running.server.view.modes
        for is_manual in (False, True):
            if is_manual:
                modes.follow_order(OperatorMode(is_read_only=True, since_ms=0, written_ms=0))
            task, disk = await running.begin_held()
            task.cancel()
            disk.may_go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert modes.reasons == ((ReadOnlyReason.MANUAL,) if is_manual else ())


async def test_refused_if_the_settings_forbid_read_only_mode(bookie_config: BookieConfig) -> None:
    disks = msgspec.structs.replace(bookie_config.disks, is_read_only_mode_enabled=False)
    async with booted(msgspec.structs.replace(bookie_config, disks=disks)) as running:
        with pytest.raises(RefusedError, match="readOnlyModeEnabled"):
            await running.rebuild.run(StepProgress())
        assert await running.peer.add(1, 0) is Status.OK
        with pytest.raises(NoSuchEntryError):
            await running.peer.read(1, 1)


async def test_without_room_for_a_checkpoint_it_is_refused_and_holds_nothing(bookie_config: BookieConfig) -> None:
    """A rebuild that waited would keep the collector from freeing the space."""
    disk = DiskThatFills()
    async with booted(bookie_config, disk) as running:
        assert await running.peer.add(1, 0) is Status.OK
        modes = running.server.view.modes
        disk.is_full = True
        for _ in ("found while it waits", "known before"):
            with pytest.raises(RefusedError, match=r"no space for a checkpoint.*free disk space"):
                await running.rebuild.run(StepProgress())
            assert ReadOnlyReason.NO_ROOM in modes.reasons
            assert ReadOnlyReason.REBUILD not in modes.reasons
            assert running.rebuild._parts.collector._hold_count == 0
            assert not running.rebuild.report.directories
        with pytest.raises(RefusedError, match="no space for a checkpoint"):
            running.rebuild.require_room()
        disk.is_full = False
        await until(lambda: modes.missing_room is None)
        report = await running.rebuild.run(StepProgress())
        assert [each.row_count for each in report.directories] == [1]


async def test_without_room_for_a_journal_it_is_refused(config: BookieConfig) -> None:
    async with booted(config) as running:
        running.server.view.modes.note_journal(0, JournalFullError("no space left"))
        with pytest.raises(RefusedError, match="no space for a journal"):
            await running.rebuild.run(StepProgress())
        running.server.view.modes.note_journal(0, None)
        assert (await running.rebuild.run(StepProgress())).is_complete


async def test_a_cancel_between_two_directories_tells_which_has_the_new_index(
    bookie_config: BookieConfig, tmp_path: Path
) -> None:
    directories = tuple(str(tmp_path / name) for name in ("ledgers-0", "ledgers-1"))
    storage = msgspec.structs.replace(bookie_config.storage, ledger_directories=directories)
    async with booted(msgspec.structs.replace(bookie_config, storage=storage)) as running:
        for ledger_id in LEDGERS:
            assert await running.peer.add(ledger_id, 0) is Status.OK
        disk = running.rebuild._filesystem = SlowExchange()
        jobs = running.server.view.jobs
        job = jobs.begin("rebuild", running.rebuild.run, lambda: running.rebuild.report)
        assert await asyncio.to_thread(disk.has_begun.wait, 60)
        cancel = asyncio.ensure_future(jobs.cancel(job.id))
        await asyncio.sleep(0)
        disk.may_go_on.set()
        await cancel
        assert job.state is JobState.CANCELLED
        shown = [(each["ledger_directory"], each["limbo_count"]) for each in job.result["directories"]]
        assert shown == [(directories[0], 2)]


async def test_a_cancel_during_the_exchange_waits_for_it(config: BookieConfig) -> None:
    directory = Path(config.storage.ledger_directories[0]) / "current" / LOCATIONS_DATABASE
    async with booted(config) as running:
        inode = directory.stat().st_ino
        disk = running.rebuild._filesystem = SlowExchange()
        task = await running.begin()
        assert await asyncio.to_thread(disk.has_begun.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        disk.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert directory.stat().st_ino != inode
        await require_entries(running.peer, is_rebuilt=True)


async def test_the_ledgers_of_a_damaged_log_are_fenced_as_well(config: BookieConfig) -> None:
    damage(Path(config.storage.ledger_directories[0]) / "current" / "0.log")
    async with booted(config) as running:
        assert await running.peer.add(1, 100, high_priority=True) is Status.OK
        report = await running.rebuild.run(StepProgress())
        assert not report.is_complete
        assert report.directories[0].limbo_count == len(LEDGERS)
        with pytest.raises(UnknownLedgerStateError):
            await running.peer.read(1, 777)
        for ledger_id in LEDGERS:  # the first has been written to by this process
            assert await running.peer.add(ledger_id, 101, high_priority=True) is Status.FENCED
        await until(lambda: running.server.view.integrity_progress.rounds)
    # The repair found them gone from the metadata, so the collector will take them as they are.
    storage = open_storage(config.storage)
    assert all((row := storage.engines[0].rows.find(each)) is not None and row.is_limbo for each in LEDGERS)
    storage.close()


async def test_a_rebuild_that_nobody_waits_for_leaves_the_old_index(config: BookieConfig) -> None:
    async with booted(config) as running:
        task = await running.begin()
        await asyncio.sleep(0.1)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await require_entries(running.peer, is_rebuilt=False)
        assert await running.peer.add(1, 100, high_priority=True) is Status.OK
    assert not list(Path(config.storage.ledger_directories[0]).rglob("*.rebuilt"))


async def test_entries_that_come_in_by_another_way_are_not_lost(config: BookieConfig) -> None:
    log = next((Path(config.storage.ledger_directories[0]) / "current").glob("0.log"))
    async with booted(config) as running:
        task, disk = await running.begin_held()
        with log.open("ab") as stream:
            stream.write(b"something")
        disk.may_go_on.set()
        with pytest.raises(StorageError, match="try again"):
            await task
        await require_entries(running.peer, is_rebuilt=True)
    assert not list(log.parent.glob("*.rebuilt*"))


async def test_a_kill_at_any_change_leaves_the_old_index_or_the_new_one(config: BookieConfig, tmp_path: Path) -> None:
    root = Path(config.storage.ledger_directories[0]).parent
    disk = EveryChangePhotographed(root)
    async with booted(config) as running:
        running.rebuild._filesystem = disk
        task = await running.begin()
        assert await running.peer.read(3, 0, fence_with=KEY) == running.peer.body(3, 0)
        disk.photograph_into = tmp_path.parent / f"{tmp_path.name}-photographs"
        await task
    assert len(disk.photographs) > 5
    for _, photograph in disk.photographs:
        require_stored(moved(config.storage, root, photograph))
        shutil.rmtree(photograph)


async def test_a_kill_at_any_change_leaves_no_index_that_denies_what_a_lost_log_may_have_held(
    config: BookieConfig, tmp_path: Path
) -> None:
    """And no limbo of which the next start does not know that it has to be ended."""
    root = Path(config.storage.ledger_directories[0]).parent
    (root / "ledgers" / "current" / "0.log").unlink()
    disk = EveryChangePhotographed(root)
    async with booted(config, disk) as running:
        disk.photograph_into = tmp_path.parent / f"{tmp_path.name}-photographs"
        await running.rebuild.run(StepProgress())
        disk.photograph_into = None
    seen = set()
    for _, photograph in disk.photographs:
        storage = open_storage(moved(config.storage, root, photograph))
        storage.replay()
        engine = storage.engines[0]
        are_listed = all(engine.stored.list_entries(ledger_id) == list(ENTRIES) for ledger_id in LEDGERS)
        rows = [engine.rows.find(ledger_id) for ledger_id in LEDGERS]
        limbo_count = sum(row is not None and row.is_limbo for row in rows)
        assert are_listed or limbo_count == len(LEDGERS)
        assert engine.rows.read_flags() == NEEDS_INTEGRITY_CHECK | LEDGERS_NOTED or not limbo_count
        seen.add((are_listed, limbo_count > 0))
        storage.close()
        shutil.rmtree(photograph)
    assert seen == {(True, False), (True, True), (False, True)}, "kills before, between and after"


async def test_a_fence_that_a_damaged_log_is_the_reason_of_is_durable_before_anybody_is_told(
    config: BookieConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(config.storage.ledger_directories[0]).parent
    damage(root / "ledgers" / "current" / "0.log")
    async with booted(config) as running:
        checkpoints = running.rebuild._parts.path.checkpoints
        settle, reached, go_on = checkpoints.settle, asyncio.Event(), asyncio.Event()

        async def settle_later() -> None:
            if all(
                (row := running.rebuild._parts.storage.engines[0].rows.find(each)) and row.is_limbo for each in LEDGERS
            ):
                reached.set()
                await go_on.wait()
            await settle()

        monkeypatch.setattr(checkpoints, "settle", settle_later)
        task = await running.begin()
        await reached.wait()
        with contextlib.suppress(UnknownLedgerStateError):
            await running.peer.read(1, 0, fence_with=KEY)
        photograph = tmp_path.parent / f"{tmp_path.name}-photograph"
        shutil.copytree(root, photograph, ignore=shutil.ignore_patterns("*.sock"))
        go_on.set()
        await task
    storage = open_storage(moved(config.storage, root, photograph))
    storage.replay()
    row = storage.engines[0].rows.find(1)
    assert row is not None
    assert row.is_fenced
    storage.close()


def damage(log: Path) -> None:
    """What stands there now is no entry."""
    data = bytearray(log.read_bytes())
    data[1024 + 100 : 1024 + 400] = bytes(300)
    log.write_bytes(data)


def moved(config: StorageConfig, root: Path, target: Path) -> StorageConfig:
    """The same directories below another root."""
    return msgspec.structs.replace(
        config,
        journal_directories=tuple(path.replace(str(root), str(target)) for path in config.journal_directories),
        ledger_directories=tuple(path.replace(str(root), str(target)) for path in config.ledger_directories),
    )


def require_stored(config: StorageConfig) -> None:
    """A boot on these directories finds every entry and the fence; or it asks for a rebuild, which finds them."""
    try:
        storage: LedgerStorage = open_storage(config)
    except (IndexMissingError, IndexDamagedError):
        rebuild(config)
        storage = open_storage(config)
    storage.replay()
    row = storage.engine_of(3).rows.find(3)
    assert row is not None
    assert row.is_fenced
    for ledger_id in LEDGERS:
        engine = storage.engine_of(ledger_id)
        assert engine.stored.list_entries(ledger_id) == list(ENTRIES)
    storage.close()


async def test_lanes_stand_still_while_a_job_runs() -> None:
    workers = LaneWorkers()
    noted: list[str] = []
    try:
        slow = workers.run("reads", noted.append, "before")
        rest = asyncio.ensure_future(workers.run_at_rest(("reads", "writes"), "own", lambda: noted.append("at rest")))
        await asyncio.sleep(0)
        behind = [workers.run(lane, noted.append, lane) for lane in ("reads", "writes")]
        await asyncio.gather(slow, rest, *behind)
        assert noted[:2] == ["before", "at rest"]
        assert set(noted[2:]) == {"reads", "writes"}

        def fail() -> None:
            raise OSError("no disk")

        with pytest.raises(OSError, match="no disk"):
            await workers.run_at_rest(("reads",), "own", fail)
        await workers.run("reads", noted.append, "goes on")
    finally:
        await workers.close()


def test_all_lanes_that_read_the_index_rest_while_it_is_exchanged() -> None:
    assert {READS_LANE, URGENT_READS_LANE, LISTS_LANE} <= set(_LANES_AT_REST)


async def test_the_metrics_show_a_rebuild_and_its_progress(config: BookieConfig) -> None:
    async with booted(config) as running:
        progress = StepProgress()

        def shown() -> tuple[float, float]:
            found = samples_of(bookie_metrics(running.server.view).text())
            names = ("bkctl_index_rebuild_running", "bkctl_index_rebuild_step_share")
            return found[names[0], frozenset()], found[names[1], frozenset()]

        assert shown() == (0, 0)
        task = asyncio.ensure_future(running.rebuild.run(progress))
        await asyncio.sleep(0)
        progress.begin("reading the logs", 4)
        progress.advance(1)
        assert shown() == (1, 0.25)
        await task
        assert shown() == (0, 0)
