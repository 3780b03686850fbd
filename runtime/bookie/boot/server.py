"""One bookie from boot to stop. Order of the steps: storage section 10, metadata section 8.3.

The stages of a boot are in ``BookieServer._boot``. The ports are bound first (connections of clients are closed until
the bookie serves), every check that can refuse the start comes before the first change, and the registration comes
last, so that a registered bookie serves requests.

The stop undoes the stages in reverse order: unregister, so that no writer chooses this bookie; stop listening; commit
what is queued; write a last checkpoint; remove the DIRTY marks if all of that succeeded; close storage and session.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Self

import msgspec

from bkctl.runtime.admin.jobs import Jobs
from bkctl.runtime.admin.tcp_ports import require_token_file
from bkctl.runtime.bookie.admin.interface import AdminInterface, published_address, read_admin_secret
from bkctl.runtime.bookie.boot.directory_claim import DirectoryClaim, release
from bkctl.runtime.bookie.boot.listening import new_listener, require_startup_user, watch_certificate
from bkctl.runtime.bookie.boot.open_files import connections_warning, fit_open_files
from bkctl.runtime.bookie.boot.port_error import port_error
from bkctl.runtime.bookie.boot.stages import Stages
from bkctl.runtime.bookie.boot.start_record import log_start
from bkctl.runtime.bookie.boot.storage_boot import BOOT_LANE, StorageBoot
from bkctl.runtime.bookie.boot.trouble_watch import TroubleWatch, publish_troubles
from bkctl.runtime.bookie.collection.collector import GarbageCollector, assemble_garbage_collector
from bkctl.runtime.bookie.cookies.check import require_same_cookie
from bkctl.runtime.bookie.disks.mode_files import ModeFiles
from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.disks.monitor import DiskMonitor
from bkctl.runtime.bookie.disks.rules import DiskState, DiskVerdict
from bkctl.runtime.bookie.identity import BookieNames, resolve_identity
from bkctl.runtime.bookie.integrity.refill import IntegrityProgress, IntegrityTools
from bkctl.runtime.bookie.integrity.repair import IntegrityService
from bkctl.runtime.bookie.live_settings import LiveSettings
from bkctl.runtime.bookie.metrics.windows import run_windows
from bkctl.runtime.bookie.online_rebuild import BookieParts, OnlineRebuild
from bkctl.runtime.bookie.ports import BookieMetadata, BookiePorts
from bkctl.runtime.bookie.serving.checkpoints import CheckpointPace, CheckpointService, RetryDelays
from bkctl.runtime.bookie.serving.request_path import RequestPath
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.client.ports import ClientPorts, SuspectBookies
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.errors import BookieFailedError
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration, RegistrationClient
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.net.client_handshake import ClientSecurity
from bkctl.runtime.net.exhaustion import NO_THREAD, on_exhaustion
from bkctl.runtime.net.listener import BookieListener
from bkctl.storage import filenames
from bkctl.storage.advice import with_path
from bkctl.storage.dirty_marks import (
    crash_risk,
    leave_dirty_marks,
    read_dirty_marks,
    read_machine_boot,
    remove_dirty_marks,
)
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import StorageError

logger = logging.getLogger(__name__)


class BookieServer:
    """A bookie in this process; ``async with`` boots it and shuts it down cleanly."""

    def __init__(self, config: BookieConfig, ports: BookiePorts) -> None:
        open_files_max = ports.host.open_files_max()
        configured, config = config, fit_open_files(config, open_files_max)
        self._warning = connections_warning(configured, config, open_files_max)
        self._config = config
        self._ports = ports
        self._identity = resolve_identity(config, ports.host)
        self._machine_boot = read_machine_boot(ports.file_system)
        self._ledger_directories = [filenames.current_directory(path) for path in config.storage.ledger_directories]
        self._room = DiskRoom(
            ports.file_system,
            (*config.storage.ledger_directories, *config.storage.index_directories),
            config.disks.checkpoint_reserve_bytes,
        )
        self._disk_level = DiskState.WRITABLE
        self._modes = BookieModes(
            is_forced_read_only=config.is_read_only,
            is_read_only_mode_enabled=config.disks.is_read_only_mode_enabled,
            position_count=len(config.storage.ledger_directories),
        )
        self._live = LiveSettings(configured)
        self.view = BookieView(
            config=config,
            ports=ports,
            modes=self._modes,
            live=self._live,
            started_ms=ports.clock.now_ms(),
            jobs=Jobs(ports.clock),
            integrity_progress=IntegrityProgress(),
        )
        self._stages = Stages(self._note_stage, self.note_wait, ports.clock)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failed.add_done_callback(_retrieve)
        self._ignore_exhaustion = on_exhaustion(self._fail)

    @property
    def bookie_id(self) -> str:
        """Empty until the port is bound."""
        return self.view.bookie_id

    @property
    def port(self) -> int:
        """Port it listens on, once bound."""
        return self.view.port

    async def __aenter__(self) -> Self:
        try:
            await self._boot()
        except BaseException as error:
            await self._stop(error)
            raise
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop(exc)

    def reload(self, config: BookieConfig) -> None:
        """Apply the new rates of ``config``; other changes are only logged."""
        self._live.reload(config)

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set.

        Raises errors that end the bookie: BookieFailedError for the journal or the index, RegistrationError.
        """
        self._failed.add_done_callback(lambda _: stop.set())
        self.view.request_stop = stop.set
        await stop.wait()
        if self._failed.done():
            with _failing_bookie():
                self._failed.result()

    # -- the stages, in order ---------------------------------------------------------------------------------------

    async def _boot(self) -> None:
        run, config = self._stages.run, self._config
        listener = self.view.listener = await run("bind the port", self._bind(), BookieListener.close)
        await run("measure", self._begin(run_windows(self.view)), _end)
        watching = watch_certificate(listener, self._ports.clock)
        await run("watch the certificate", self._begin(watching), _end)
        await run("watch for troubles", self._begin(TroubleWatch(self.view).run()), _end)
        # Probes see from here on how the start proceeds.
        admin = AdminInterface(self.view)
        await run("open the admin port", admin.open_port(), lambda _: admin.close())
        uri = parse_metadata_uri(config.metadata_uri)
        connecting = self._ports.connect_metadata(uri.servers, config.zookeeper)
        store = await run("connect to the metadata store", connecting, lambda session: session.close())
        metadata = BookieMetadata(store, uri, config, self._live)
        names, boot, storage = await self._open_storage(metadata, admin)
        self.view.store, self.view.storage = store, storage
        pace = CheckpointPace(lambda: self._ports.clock.monotonic_ns() / 1e9, self._ports.workers.wait)
        delays = RetryDelays(config.disks.check_interval_s)
        checkpoints = CheckpointService(
            storage, self._ports.workers, config.flush_interval_s, self._room, self._modes, pace, delays
        )
        mode_files = self.view.mode_files = self._new_mode_files()
        disks = await run("check the disks", self._check_disks(mode_files, checkpoints))
        self.view.disks = disks
        ledgers = await metadata.open_ledgers(self._ports.clock)
        noting = boot.note_losses(storage, self.bookie_id, checkpoints.flush, store, ledgers)
        is_repair_due = await run("note lost entries", noting)
        path = await run("journals and checkpoints", self._start(storage, checkpoints, disks), self._flush)
        await run("write DIRTY marks", self._leave_dirty_marks())
        self.view.path = path
        await run("serve requests", self._serve(listener, path), BookieListener.close)
        registration = self.view.registration = self._new_registration(metadata, names)
        register, keep_status = registration.register, mode_files.write
        mode = await run("register", self._register(registration, mode_files), lambda _: registration.unregister())
        following = self._modes.follow(mode, self._ports.clock, register, keep_status)
        await run("follow the mode", self._begin(following), _end)
        await run("publish troubles", self._begin(publish_troubles(self.view, registration)), _end)
        await run("watch the disks", self._begin(disks.run()), _end)
        collector = await self._new_garbage_collector(names, metadata, path)
        await run("collect garbage", self._begin(collector.run()), functools.partial(_end_after, collector.stop))
        peers = self.view.peers = new_peers(self._ports, store, ledgers, config)
        repair = self._new_repair(storage, checkpoints, peers)
        await run("repair lost entries", self._begin(repair.run()), functools.partial(_end_repair, peers))
        if is_repair_due:
            repair.request()
        parts = BookieParts(storage, path, self._modes, collector, repair)
        self.view.online_rebuild = OnlineRebuild(parts, self._ports, config.storage, self._fail)
        if (daemon := self._ports.autorecovery) is not None:
            keeping = daemon.serve(config.metadata_uri, self.bookie_id)
            await run("run autorecovery", self._begin(keeping), _end)
        await run("accept jobs", self._accept_jobs(), lambda _: self.view.jobs.stop())
        await log_start(self.view)

    async def _bind(self) -> BookieListener:
        config = self._config
        if self._warning:
            logger.warning("%s", self._warning)
        await require_token_file(config.admin, functools.partial(read_admin_secret, self._ports))  # before any change
        require_startup_user(config, self._ports.host)
        ClientSecurity.of(config.client)  # refused here, not by the repair of lost entries after the cookie exists
        listener = new_listener(config, self._ports.clock)
        try:
            self.view.port = await listener.open(self._ports.listen, self._identity.bind_host, config.port)
        except OSError as error:
            raise port_error(error, config, self._ports.file_system, self._ports.host) from error
        self.view.bookie_id = self._identity.bookie_id(self.port)
        # A failed bookie sends no more answers, however long the rest of its stop takes.
        self._failed.add_done_callback(lambda _: listener.stop())
        return listener

    async def _open_storage(
        self, metadata: BookieMetadata, admin: AdminInterface
    ) -> tuple[BookieNames, StorageBoot, LedgerStorage]:
        run, workers = self._stages.run, self._ports.workers
        claim = DirectoryClaim(self._ports, metadata)
        names = await run("check the cookies", claim.check(self.bookie_id, self.port))
        self.view.instance_id = names.instance_id
        locks = await run("lock the directories", claim.lock(), release)
        check = await run("check the cookies again", claim.check_again(names))
        cookie = await run("write VERSION files", claim.stamp(names, check, self._machine_boot))
        marks = read_dirty_marks(self._ports.file_system, self._ledger_directories, self._machine_boot)
        # The directories are locked, so no other process has a socket.
        await run("open the admin socket", admin.open_socket(), lambda _: admin.close())
        boot = StorageBoot(self._ports, self._config.storage, marks, self._room)
        # Closed in the lane, because a cancelled replay leaves a job there that must end first.
        storage = await run("open the storage", boot.open(locks), lambda opened: workers.run(BOOT_LANE, opened.close))
        await run("replay the journals", boot.replay(storage, self._note_replay_step))
        return msgspec.structs.replace(names, cookie=cookie), boot, storage

    async def _check_disks(self, mode_files: ModeFiles, checkpoints: CheckpointService) -> DiskMonitor:
        """Start in the mode that the disks and the previous process require. NoWritableDiskError, DiskUnusableError."""
        monitor = DiskMonitor(
            self._ports.file_system,
            self._config.storage,
            self._config.disks,
            self._ports.workers,
            self._ports.clock,
            self._note_disks,
            was_full=mode_files.restore(),
        )
        await monitor.check()
        await checkpoints.begin()
        return monitor

    async def _start(self, storage: LedgerStorage, checkpoints: CheckpointService, disks: DiskMonitor) -> RequestPath:
        path = RequestPath(self._ports, self._config, storage, checkpoints, self._modes, disks)
        path.start(self._watch)
        return path

    async def _flush(self, path: RequestPath) -> None:
        """Commit and flush everything; without a flush if journal or index failed, so that the next start replays."""
        await path.stop()
        if not self._failed.done():
            with _failing_bookie("the final flush failed; the next start replays the journal: "):
                await path.checkpoints.flush()
                remove_dirty_marks(self._ports.file_system, self._ledger_directories)

    async def _leave_dirty_marks(self) -> None:
        risk = crash_risk(self._config.storage.journal)
        leave_dirty_marks(self._ports.file_system, self._ledger_directories, risk, self._machine_boot)

    async def _serve(self, listener: BookieListener, path: RequestPath) -> BookieListener:
        listener.serve(path.handler)
        return listener

    async def _register(self, registration: BookieRegistration, mode_files: ModeFiles) -> BookieMode:
        try:
            await mode_files.write()
            mode = self._modes.mode
            await registration.register(mode)
        except BaseException:
            await registration.unregister()
            raise
        return mode

    async def _begin(self, service: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._watch(service)

    async def _accept_jobs(self) -> None:
        self.view.is_running = True

    # -- parts of the stages ----------------------------------------------------------------------------------------

    def _new_mode_files(self) -> ModeFiles:
        return ModeFiles(
            self._ports.file_system,
            self._ledger_directories,
            self._modes,
            self._ports.workers,
            self._ports.clock,
            is_kept=self._config.disks.is_status_kept and not self._config.is_read_only,
        )

    def _new_registration(self, metadata: BookieMetadata, names: BookieNames) -> BookieRegistration:
        cookies = CookieStore(metadata.store, metadata.uri.root)
        return BookieRegistration(
            metadata.store,
            metadata.uri.root,
            self.bookie_id,
            rpc_service_info(
                self._identity.host,
                self.port,
                self._ports.release,
                http=published_address(self.view, self._identity.host),
                is_https=self._config.admin.is_tls_enabled,
                has_tls=self._config.tls is not None,
            ),
            clock=self._ports.clock,
            session_timeout_ms=self._config.zookeeper.session_timeout_ms,
            on_failed=self._fail,
            require_cookie=functools.partial(require_same_cookie, cookies, self._config.storage, names.cookie),
        )

    async def _new_garbage_collector(
        self, names: BookieNames, metadata: BookieMetadata, path: RequestPath
    ) -> GarbageCollector:
        collector = self.view.collector = await assemble_garbage_collector(
            self._config, self._ports, metadata, names, path, self._room, self._live
        )
        self._modes.on_no_room(collector.request)
        collector.note_disk_level(self._disk_level)
        return collector

    def _new_repair(
        self, storage: LedgerStorage, checkpoints: CheckpointService, peers: ClientPorts
    ) -> IntegrityService:
        tools = IntegrityTools(
            bookie_id=self.bookie_id,
            storage=storage,
            ports=peers,
            workers=self._ports.workers,
            checkpoints=checkpoints,
            progress=self.view.integrity_progress,
            allows_add=lambda ledger_id: self._modes.allows_add(ledger_id, is_high_priority=True),
        )
        service = self.view.repair = IntegrityService(tools, self._config.integrity)
        self._live.on_change(lambda changed: service.set_bytes_per_s_max(changed.integrity.bytes_per_s_max))
        return service

    async def _stop(self, cause: BaseException | None) -> None:
        self.view.is_running, self.view.is_stopping = False, True
        try:
            await self._stages.undo(cause)
        finally:
            self._ignore_exhaustion()

    def note_wait(self, name: str, seconds: float) -> None:
        """The stop, or the undo of a failed start, waits for the end of a part."""
        self.view.stop_waits_for = f"waiting for the end of: {name}"
        trouble = f" ({self.view.trouble_text})" if self.view.troubles else ""
        logger.warning("the stop has been waiting for %.0f s for the end of: %s%s", seconds, name, trouble)

    def _note_stage(self, name: str) -> None:
        self.view.stage = name

    def _note_replay_step(self) -> None:
        self.view.replay_step_count += 1

    def _note_disks(self, verdict: DiskVerdict) -> None:
        self._disk_level = verdict.level
        self._modes.note_disks(verdict)
        if self.view.collector is not None:
            self.view.collector.note_disk_level(verdict.level)

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


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def _end_repair(peers: ClientPorts, task: asyncio.Task[None]) -> None:
    await _end(task)
    await peers.bookies.close()


async def _end_after(stop: Callable[[], Awaitable[None]], task: asyncio.Task[None]) -> None:
    await stop()
    await asyncio.wait([task])


@contextlib.contextmanager
def _failing_bookie(beginning: str = "") -> Iterator[None]:
    """Turn errors of storage and machine into BookieFailedError: the running bookie failed, not its start."""
    try:
        yield
    except (StorageError, OSError) as error:
        raise BookieFailedError(beginning + with_path(error)) from error
    except MemoryError as error:
        raise BookieFailedError(f"{beginning}out of memory: give the bookie more, or lower its caches") from error
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        limits = "raise the limit of processes (ulimit -u), tasks (TasksMax of the service) or memory (ulimit -v)"
        raise BookieFailedError(f"{beginning}{error}: {limits}") from error


def _retrieve(failed: asyncio.Future[None]) -> None:
    """Retrieve the exception, so that asyncio does not log a failure without a waiter."""
    failed.exception()


def new_peers(ports: BookiePorts, store: MetadataStore, ledgers: LedgerStore, of_bookie: BookieConfig) -> ClientPorts:
    """Ports of a client; it connects to a bookie at the first request. The caller closes ``bookies``.

    The limit of this bookie's frames raises the client's limit if it is higher. ConfigurationError if a file of
    ``client`` cannot be used.
    """
    frame_bytes_max = max(ClientConfig().frame_bytes_max, of_bookie.frame_bytes_max)
    config = ClientConfig(frame_bytes_max=frame_bytes_max, security=of_bookie.client)
    registrations = RegistrationClient(store, ledgers.root)

    return ClientPorts(
        bookies=ports.connect_bookies(registrations.address, config),
        clock=ports.clock,
        ledgers=ledgers,
        registrations=registrations,
        suspects=SuspectBookies(ports.clock, config.suspect_bookie_s),
        config=config,
    )
