"""One bookie from boot to stop. Order of the steps: storage section 10, metadata section 8.3.

Boot, everything that can refuse before anything is changed: bind the port (connections are closed until the end), reach
the cluster, check the cookies, lock the folders, check again, stamp a new bookie; open the storage, replay the journal,
flush; leave the DIRTY marks; serve; register. So nobody finds a registered bookie that refuses requests.

Stop: unregister, so that nobody chooses it; stop listening; commit what is queued; a last checkpoint; remove the DIRTY
marks if all of that went well.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self

from runtime.bookie.adds import AddPath
from runtime.bookie.checkpoint_pace import CheckpointPace
from runtime.bookie.checkpoints import CheckpointService
from runtime.bookie.cookie_check import require_same_cookie
from runtime.bookie.disk_monitor import DiskMonitor
from runtime.bookie.disk_rules import DiskState, DiskVerdict
from runtime.bookie.folder_claim import claim_folders
from runtime.bookie.garbage_collector import GarbageCollector
from runtime.bookie.garbage_collector_parts import assemble_garbage_collector
from runtime.bookie.group_commit import GroupCommit
from runtime.bookie.handler import BookieRequestHandler
from runtime.bookie.identity import resolve_identity
from runtime.bookie.integrity import IntegrityService
from runtime.bookie.integrity_refill import IntegrityProgress
from runtime.bookie.ledger_handles import LedgerHandles
from runtime.bookie.live_settings import LiveSettings
from runtime.bookie.mode_files import ModeFiles
from runtime.bookie.modes import BookieModes, sentence
from runtime.bookie.online_rebuild import BookieParts, OnlineRebuild
from runtime.bookie.peers import new_peers
from runtime.bookie.port_error import port_error
from runtime.bookie.storage_boot import BOOT_LANE, StorageBoot
from runtime.config import BookieConfig
from runtime.errors import BookieFailedError
from runtime.metadata.cookies import CookieStore
from runtime.metadata.ledgers import LedgerStore, open_ledger_store
from runtime.metadata.registration import BookieRegistration
from runtime.metadata.request_budget import BudgetedStore, share_of_budget
from runtime.metadata.service_info import rpc_service_info
from runtime.metadata.uri import MetadataUri, parse_metadata_uri
from runtime.metadata.zookeeper import ZooKeeperStore
from runtime.net.listener import BookieListener
from runtime.net.listener_limits import ListenerLimits
from runtime.net.loop import LaneWorkers, LoopClock
from runtime.ports import BookieInfo
from storage import filenames
from storage.child_pool import ChildProcesses
from storage.dirty_marks import (
    crash_risk,
    leave_dirty_marks,
    read_dirty_marks,
    read_machine_boot,
    remove_dirty_marks,
)
from storage.disk_room import DiskRoom
from storage.errors import StorageError
from storage.filesystem import OsFileSystem
from storage.index_store import open_plyvel
from storage.ledger_storage import LedgerStorage

logger = logging.getLogger(__name__)


class BookieServer:
    """A bookie in this process; ``async with`` boots it and stops it in order."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._identity = resolve_identity(config)
        self._file_system = OsFileSystem()
        self._children = ChildProcesses()
        self._machine_boot = read_machine_boot(self._file_system)
        self._disk_level = DiskState.WRITABLE
        self._modes = BookieModes(
            is_forced_read_only=config.is_read_only,
            is_read_only_mode_enabled=config.disks.is_read_only_mode_enabled,
            position_count=len(config.storage.ledger_directories),
        )
        self._live = LiveSettings(config)
        self.reload = self._live.reload
        """Take over new rates; other changes are logged."""
        self._clock = LoopClock()
        self._workers = LaneWorkers()
        self._undo = contextlib.AsyncExitStack()
        self._undo.push_async_callback(self._workers.close)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed.add_done_callback(_retrieve)
        self.bookie_id = ""
        """Known once the port is."""
        self.port = 0
        """Where it listens, once booted."""
        self.garbage_collector: GarbageCollector | None = None
        """Once booted."""
        self.online_rebuild: OnlineRebuild | None = None
        """Once booted."""
        self._known_as: tuple[str, ...] = ()
        self._instance_id: str | None = None
        self.integrity_progress = IntegrityProgress()
        """What became of the entries that were lost, if any were."""
        self.repair: IntegrityService | None = None
        """Once booted."""

    async def __aenter__(self) -> Self:
        try:
            await self._boot()
        except BaseException:
            await self._undo.aclose()
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._undo.__aexit__(exc_type, exc, traceback)

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set.

        Raises what makes going on impossible: BookieFailedError for the journal or the index, RegistrationError.
        """
        self._failed.add_done_callback(lambda _: stop.set())
        await stop.wait()
        if self._failed.done():
            with _failing_bookie():
                self._failed.result()

    async def _boot(self) -> None:
        config = self._config
        listener = BookieListener(
            ListenerLimits(
                frame_bytes_max=config.frame_bytes_max,
                connections_max=config.connections_max,
                memory_bytes_max=config.connection_memory_bytes_max,
                stall_s_max=config.connection_stall_s_max,
            )
        )
        self.port = await self._bind(listener)
        self.bookie_id = self._identity.bookie_id(self.port)
        uri = parse_metadata_uri(config.metadata_uri)
        store = await ZooKeeperStore.connect(uri.servers, config.zookeeper)
        self._undo.push_async_callback(store.close)
        storage_boot, storage = await self._open_storage(store, uri)
        checkpoints = self._new_checkpoints(storage)
        mode_files = ModeFiles(
            self._file_system,
            self._ledger_folders(),
            self._modes,
            self._workers,
            self._clock,
            is_kept=config.disks.is_status_kept and not config.is_read_only,
        )
        disks = await self._check_disks(mode_files)
        await checkpoints.begin()
        ledgers = await self._open_ledgers(store, uri)
        is_repair_due = await storage_boot.note_losses(storage, self.bookie_id, checkpoints.flush, store, ledgers)
        handler = self._start_lanes(storage, checkpoints)
        leave_dirty_marks(
            self._file_system, self._ledger_folders(), crash_risk(config.storage.journal), self._machine_boot
        )
        listener.serve(handler)
        registration = self._new_registration(store, uri)
        self._undo.push_async_callback(listener.close)
        self._undo.push_async_callback(registration.unregister)
        await mode_files.write()
        mode = self._modes.mode
        await registration.register(mode)
        for service in (self._modes.follow(mode, registration.register, mode_files.write), disks.run()):
            self._undo.push_async_callback(_end, self._watch(service))
        collector = await self._start_garbage_collector(storage, checkpoints, store, uri)
        self.repair = repair = self._start_repair(storage, checkpoints, store, ledgers)
        if is_repair_due:
            repair.request()
        parts = BookieParts(
            storage, self._handles, self._modes, self._adds, self._journals, checkpoints, collector, repair
        )
        self.online_rebuild = OnlineRebuild(
            parts, self._file_system, open_plyvel, self._children, config.storage, self._workers, self._fail
        )
        logger.info("bookie %s serves on port %d", self.bookie_id, self.port)

    async def _bind(self, listener: BookieListener) -> int:
        try:
            port = await listener.open(self._identity.bind_host, self._config.port)
        except OSError as error:
            raise port_error(error, self._config, self._file_system) from error
        self._undo.push_async_callback(listener.close)
        # A bookie that fails answers nothing more, however long the rest of its stop takes.
        self._failed.add_done_callback(lambda _: listener.stop())
        return port

    async def _open_storage(self, store: ZooKeeperStore, uri: MetadataUri) -> tuple[StorageBoot, LedgerStorage]:
        claim = await claim_folders(
            self._file_system,
            self._config,
            self.bookie_id,
            self.port,
            store,
            uri,
            lambda: self._open_ledgers(store, uri),
            self._machine_boot,
        )
        for lock in claim.locks:
            self._undo.callback(lock.release)
        self._known_as, self._instance_id, self._cookie = claim.known_as, claim.instance_id, claim.cookie
        marks = read_dirty_marks(self._file_system, self._ledger_folders(), self._machine_boot)
        boot = StorageBoot(
            self._file_system, self._children, self._config.storage, marks, self._workers, self._disk_room()
        )
        storage = await boot.open(open_plyvel, self._clock.now_ms(), claim.locks)
        # In the lane: a boot that is stopped leaves a job there, which has to end first.
        self._undo.push_async_callback(self._workers.run, BOOT_LANE, storage.close)
        await boot.replay(storage)
        return boot, storage

    def _new_registration(self, store: ZooKeeperStore, uri: MetadataUri) -> BookieRegistration:
        return BookieRegistration(
            store,
            uri.root,
            self.bookie_id,
            rpc_service_info(self._identity.host, self.port, f"bkctl {importlib.metadata.version('bkctl')}"),
            clock=self._clock,
            session_timeout_ms=self._config.zookeeper.session_timeout_ms,
            on_failed=self._fail,
            require_cookie=functools.partial(
                require_same_cookie, CookieStore(store, uri.root), self._config.storage, self._cookie
            ),
        )

    def _budgeted(self, store: ZooKeeperStore) -> BudgetedStore:
        budget = share_of_budget(self._config.zookeeper)
        self._live.on_change(lambda changed: budget.set_rate(changed.zookeeper.scan_operations_per_s_max or None))
        return BudgetedStore(store, budget)

    async def _open_ledgers(self, store: ZooKeeperStore, uri: MetadataUri) -> LedgerStore:
        layout = self._config.zookeeper.layout
        return await open_ledger_store(self._budgeted(store), uri.root, uri.tree, layout_config=layout)

    def _start_repair(
        self, storage: LedgerStorage, checkpoints: CheckpointService, store: ZooKeeperStore, ledgers: LedgerStore
    ) -> IntegrityService:
        peers = new_peers(store, ledgers, self._clock, self._config.frame_bytes_max)
        service = IntegrityService(
            self.bookie_id,
            storage,
            peers,
            self._workers,
            checkpoints,
            self._config.integrity,
            self.integrity_progress,
            allows_add=lambda ledger_id: self._modes.allows_add(ledger_id, is_high_priority=True),
        )
        self._live.on_change(lambda changed: service.set_bytes_per_s_max(changed.integrity.bytes_per_s_max))
        self._undo.push_async_callback(peers.bookies.close)
        self._undo.push_async_callback(_end, self._watch(service.run()))
        return service

    def _new_checkpoints(self, storage: LedgerStorage) -> CheckpointService:
        pace = CheckpointPace(time.monotonic, time.sleep)
        return CheckpointService(
            storage, self._workers, self._config.flush_interval_s, self._disk_room(), self._modes, pace
        )

    def _disk_room(self) -> DiskRoom:
        config = self._config.storage
        directories = (*config.ledger_directories, *config.index_directories)
        return DiskRoom(self._file_system, directories, self._config.disks.checkpoint_reserve_bytes)

    async def _start_garbage_collector(
        self, storage: LedgerStorage, checkpoints: CheckpointService, store: ZooKeeperStore, uri: MetadataUri
    ) -> GarbageCollector:
        collector = self.garbage_collector = await assemble_garbage_collector(
            self._config,
            uri,
            store,
            self._file_system,
            self._children,
            storage,
            self._workers,
            self._clock,
            self._disk_room(),
            known_as=self._known_as,
            instance_id=self._instance_id,
            forget_handle=self._handles.forget,
            flush=checkpoints.flushed,
            live=self._live,
        )
        self._modes.on_no_room(collector.request)
        collector.note_disk_level(self._disk_level)
        task = self._watch(collector.run())
        self._undo.push_async_callback(_end_after, collector.stop, task)
        return collector

    async def _check_disks(self, mode_files: ModeFiles) -> DiskMonitor:
        """A first look, by the mode that the last process kept. NoWritableDiskError, DiskUnusableError."""
        monitor = DiskMonitor(
            self._file_system,
            self._config.storage,
            self._config.disks,
            self._workers,
            self._clock,
            self._note_disks,
            was_full=mode_files.restore(),
        )
        await monitor.check()
        return monitor

    def _note_disks(self, verdict: DiskVerdict) -> None:
        self._disk_level = verdict.level
        self._modes.note_disks(verdict)
        if self.garbage_collector is not None:
            self.garbage_collector.note_disk_level(verdict.level)

    def _ledger_folders(self) -> list[str]:
        return [filenames.current_directory(directory) for directory in self._config.storage.ledger_directories]

    def _start_lanes(self, storage: LedgerStorage, checkpoints: CheckpointService) -> BookieRequestHandler:
        config = self._config
        journals = [
            GroupCommit(
                writer,
                self._workers,
                f"journal-{index}",
                config.storage.journal,
                on_disk_room=functools.partial(self._modes.note_journal, index),
            )
            for index, writer in enumerate(storage.journals)
        ]
        handles = self._handles = LedgerHandles(storage, journals)
        self._journals = journals
        adds = self._adds = AddPath(handles, self._clock, config.throttle_max_s, checkpoints.request)
        checkpoints.on_caches_swapped(adds.retry_waiting)
        for journal in journals:
            journal.on_room(adds.retry_waiting)
        self._modes.on_no_room(adds.refuse_waiting)
        handler = BookieRequestHandler(storage, handles, adds, self._workers, self._disk_space, self._modes)
        services = [self._watch(journal.run()) for journal in journals]
        services.append(self._watch(checkpoints.run()))

        async def stop() -> None:
            """Commit and flush everything; skipped when the journal or the index has failed: replay decides then."""
            for journal in journals:
                journal.give_up_room()
            await handler.drain()
            for journal in journals:
                journal.stop()
            checkpoints.stop()
            await asyncio.gather(*services, return_exceptions=True)
            if not self._failed.done():
                with _failing_bookie("stopped without its last flush, which the next start makes up for: "):
                    await checkpoints.flush()
                    remove_dirty_marks(self._file_system, self._ledger_folders())

        self._undo.push_async_callback(stop)
        return handler

    def _watch(self, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(service)
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _disk_space(self) -> BookieInfo:
        """Sums over the distinct file systems of the ledger directories (wire 5.7)."""
        spaces = (self._file_system.space(directory) for directory in self._config.storage.ledger_directories)
        by_filesystem = {space.filesystem_id: space for space in spaces}
        return BookieInfo(
            total_bytes=sum(space.total_bytes for space in by_filesystem.values()),
            free_bytes=sum(space.usable_bytes for space in by_filesystem.values()),
        )


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _end_after(stop: Callable[[], Awaitable[None]], task: asyncio.Task[None]) -> None:
    await stop()
    await asyncio.wait([task])


@contextlib.contextmanager
def _failing_bookie(beginning: str = "") -> Iterator[None]:
    """What happens to the disk from now on is a failure of the running bookie, not of its start."""
    try:
        yield
    except (StorageError, OSError) as error:
        raise BookieFailedError(beginning + sentence(error)) from error


def _retrieve(failed: asyncio.Future[None]) -> None:
    """A failure that nobody waits for any more is no second error."""
    failed.exception()
