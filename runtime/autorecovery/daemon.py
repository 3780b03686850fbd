"""The autorecovery daemon: the office of the auditor, the worker, and the note in which others see what it does.

None of its parts can stop another. A part that fails is reported and started again. While Pulsar migrates the metadata
to another store, auditor and worker are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.lane import end_tasks, is_set_within
from bkctl.runtime.errors import MetadataAuthError, NodeExistsError, NoNodeError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.pulsar_migration import FLAG_AGE_S_MAX, flag_path, read_migration
from bkctl.runtime.metadata.replication.directories import UnderReplicationTree
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.format import encode_pulsar_auditor
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, RecoveryNotes, WorkerStatus, daemon_key
from bkctl.runtime.metadata.store import MetadataStore, Node
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.judge.daemon_findings import refused_daemon
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

PULSAR_ABSENCE_S: Final = 60.0
"""How long Pulsar's auditor must be gone before another one runs: in this time Pulsar elects the next."""
RESIGN_S_MAX: Final = 2.0
"""How long giving back the office may take; after that it ends with the session."""
_AUDITOR_END_S_MAX: Final = 3.0
_ELECTION_PAUSE_FIRST_S: Final = 1.0
_ELECTION_PAUSE_MAX_S: Final = 30.0
NOTE_STEP_S: Final = 1.0
NOTE_INTERVAL_S_MIN: Final = 10.0
NOTE_INTERVAL_S_MAX: Final = 60.0
ACCESS_INTERVAL_S: Final = 60.0
"""How often some bookies are asked whether they accept this daemon."""
ASKED_MAX: Final = 32
"""So many, and those that refused it the last time: else each bookie of a large cluster would have a connection from
the daemon of each other one."""
END_S_MAX: Final = 6.0
"""How long the parts may take to end: they give locks and vote back."""
_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 60.0
_STABLE_S: Final = 60.0
_REFUSAL: Final = "access"


@dataclasses.dataclass(eq=False)
class AuditorOffice:
    """Stands for election, and runs an auditor while it is elected; steps down immediately when it is deposed.

    Pulsar's metadata driver elects an auditor of its own, the owner of the node ``leader``. By default no second one
    runs next to it. If the settings ask for one, it holds both offices, so that Pulsar's waits. ``daemon_id``: what the
    vote contains. ``is_pulsar_cluster``: that driver may elect an auditor later.
    """

    store: MetadataStore
    root: str
    daemon_id: str
    clock: Clock
    new_auditor: Callable[[], Auditor]
    is_beside_pulsar: bool = False
    is_pulsar_cluster: bool = False

    def __post_init__(self) -> None:
        self.auditor: Auditor | None = None
        self.problem: str | None = None
        """Why it does not stand for election, or what fails; None if there is nothing to report."""
        self._leader_path = Paths(self.root).pulsar_auditor
        self._tree = UnderReplicationTree(self.store, self.root)
        self._election = AuditorElection(self.store, self.root, self.daemon_id, self._depose)
        self._deposed = asyncio.Future[None]()

    async def serve(self) -> None:
        """Run until cancelled. Errors are reported, and the election is tried again."""
        retry_s = _ELECTION_PAUSE_FIRST_S
        try:
            while True:
                try:
                    await self._hold_once()
                    retry_s = _ELECTION_PAUSE_FIRST_S
                except Exception as error:  # the daemon must survive everything
                    retry_s = min(2 * retry_s, _ELECTION_PAUSE_MAX_S)
                    logger.debug("election of the auditor", exc_info=True)
                    self._report(f"the election of the auditor failed: {str(error) or type(error).__name__}")
                await self.clock.sleep(retry_s)
        finally:
            await self._resign()

    async def _hold_once(self) -> None:
        """Wait for the office, and hold it until deposed."""
        await self._wait_for_pulsar()
        self._deposed = asyncio.Future()
        if not self._election.is_elected:
            await self._election.campaign()
        watch = None
        try:
            if self.is_beside_pulsar:
                await self._take_leader()
            elif await self.store.exists(self._leader_path) is not None:
                return  # elected while this process waited
            watch = self.store.watch_node(self._leader_path, self._note_leader)
            self.problem = None
            await self._audit()
        finally:
            if watch is not None:
                watch.cancel()
            await self._resign()

    async def _audit(self) -> None:
        if self._deposed.done():
            return
        auditor = self.auditor = self.new_auditor()
        logger.info("this process is the auditor now")
        serving = asyncio.ensure_future(auditor.serve())
        try:
            await asyncio.wait((serving, self._deposed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.auditor = None
            await end_tasks((serving,), _AUDITOR_END_S_MAX)
        if serving.done() and not serving.cancelled():
            serving.result()

    def _depose(self, reason: str) -> None:
        """Another process deleted the vote, or the session expired."""
        self.problem = reason
        if not self._deposed.done():
            self._deposed.set_result(None)

    async def _resign(self) -> None:
        """Give back both offices; bounded."""
        try:
            async with asyncio.timeout(RESIGN_S_MAX):
                if self.is_beside_pulsar:
                    stat = await self.store.exists(self._leader_path)
                    if stat is not None and stat.ephemeral_owner == self.store.session_id:
                        with contextlib.suppress(NoNodeError):
                            await self.store.delete(self._leader_path)
                await self._election.resign()
        except (BkctlError, TimeoutError) as error:
            logger.warning("the office of the auditor may remain until the session ends: %s", str(error) or "no answer")

    # -- Pulsar's office --------------------------------------------------------------------------------------------

    async def _wait_for_pulsar(self) -> None:
        """Return when no auditor of Pulsar's driver is expected, or when this one is to run next to it."""
        if self.is_beside_pulsar:
            return
        if self.is_pulsar_cluster:
            self._report(
                "no auditor runs here: the metadata URI names Pulsar's metadata driver, which elects its own; set "
                "is_beside_pulsar_auditor to run one all the same"
            )
            await asyncio.Event().wait()
        wait_s = 0.0
        while True:
            changed = asyncio.Event()
            if await self.store.exists(self._leader_path, changed.set) is not None:
                self._report(
                    f"no auditor runs here: Pulsar's metadata driver has elected one ({self._leader_path}); set "
                    "is_beside_pulsar_auditor to run one all the same"
                )
                await changed.wait()
                wait_s = PULSAR_ABSENCE_S
                continue
            if not await is_set_within(changed, wait_s):
                return

    async def _take_leader(self) -> None:
        """Create Pulsar's node, when it is free, unless deposed meanwhile."""
        while not self._deposed.done():
            with contextlib.suppress(NodeExistsError):
                data = encode_pulsar_auditor(self.daemon_id)
                await self._tree.create_node(self._leader_path, data, is_ephemeral=True, is_open_acl=True)
                return
            changed = asyncio.Future[None]()
            stat = await self.store.exists(self._leader_path, functools.partial(changed.set_result, None))
            if stat is None:
                continue
            if stat.ephemeral_owner == self.store.session_id:
                return  # the answer to the creation was lost
            self._report(f"waiting for the end of the auditor of Pulsar's metadata driver ({self._leader_path})")
            await asyncio.wait((changed, self._deposed), return_when=asyncio.FIRST_COMPLETED)

    def _note_leader(self, node: Node | None) -> None:
        if self.is_beside_pulsar:
            if node is not None and node.stat.ephemeral_owner == self.store.session_id:
                return
            reason = f"another process deleted {self._leader_path}"
        elif node is None:
            return
        else:
            reason = f"Pulsar's metadata driver has elected an auditor ({self._leader_path})"
        if not self._deposed.done():
            logger.warning("this auditor steps down: %s", reason)
        self._depose(reason)

    def _report(self, problem: str) -> None:
        """Log a problem once, and keep it for the status."""
        if problem != self.problem:
            logger.warning("%s", problem)
        self.problem = problem


class WorkerPart(Protocol):
    """What repairs marked ledgers."""

    async def serve(self) -> None:
        """Repair until cancelled, then give all locks back."""

    def status(self) -> WorkerStatus:
        """What it did so far, and what it holds."""


@dataclasses.dataclass(eq=False)
class AutorecoveryDaemon:
    """One daemon on one session. ``office`` None: not an auditor. ``new_worker`` None: not a worker.

    ``who``: what its note always says. ``who.bookie_id`` is the name in its vote.
    """

    store: MetadataStore
    root: str
    clock: Clock
    who: DaemonNote
    office: AuditorOffice | None
    new_worker: Callable[[], WorkerPart] | None
    refused: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """How often each bookie did not accept this daemon."""
    ask_refusals: Callable[[Collection[str]], Awaitable[Mapping[str, str]]] | None = None
    """Asks these bookies, and some others, whether they accept this daemon: why those do not that do not."""

    def __post_init__(self) -> None:
        self.worker: WorkerPart | None = None
        self.problems: dict[str, str] = {}
        """What fails now, by the part that reports it."""
        self._refused_by = 0
        self._notes = RecoveryNotes(self.store, self.root)
        self._is_allowed = False
        self._written: tuple[int, DaemonNote] | None = None
        self._written_ns = 0

    async def serve(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set. MetadataAuthError: ZooKeeper no longer accepts this process."""
        tasks = [asyncio.ensure_future(each) for each in (self._work(), self._write_notes())]
        stopping = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait((*tasks, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks((*tasks, stopping), END_S_MAX)
        for task in done:
            task.result()

    @property
    def auditor(self) -> Auditor | None:
        """The auditor, while this process holds the office."""
        return None if self.office is None else self.office.auditor

    def status(self) -> DaemonNote:
        """What it does now."""
        auditor = self.auditor
        return msgspec.structs.replace(
            self.who,
            written_ms=self.clock.now_ms(),
            is_auditor=auditor is not None,
            lanes=() if auditor is None else tuple(msgspec.structs.replace(lane.status) for lane in auditor.lanes),
            worker=None if self.worker is None else self.worker.status(),
            alarm=None if auditor is None else auditor.liveness.alarm,
            refused_by=self._refused_by,
            refusal=self.problems.get(_REFUSAL),
        )

    @property
    def all_problems(self) -> tuple[str, ...]:
        """What fails now, in sentences."""
        office = () if self.office is None or self.office.problem is None else (self.office.problem,)
        return (*self.problems.values(), *office)

    # -- the work ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Run the parts while no migration of Pulsar forbids changes. Until that could be read, nothing runs."""
        running: list[asyncio.Future[None]] = []
        try:
            while True:
                await self._read_migration_flag()
                if not self._is_allowed:
                    await end_tasks(running, END_S_MAX)
                    running = []
                elif not running:
                    running = [asyncio.ensure_future(part) for part in self._parts()]
                await self.clock.sleep(FLAG_AGE_S_MAX)
        finally:
            await end_tasks(running, END_S_MAX)

    def _parts(self) -> Iterator[Coroutine[Any, Any, None]]:
        if self.office is not None:
            yield self.office.serve()
        if self.new_worker is not None:
            yield self._repair(self.new_worker)
        if self.ask_refusals is not None:
            yield self._watch_access(self.ask_refusals)

    async def _read_migration_flag(self) -> None:
        try:
            reason = await read_migration(self.store, self.root)
        except Exception as error:  # the daemon must survive everything
            self.report("migration", f"cannot read {flag_path(self.root)}: {str(error) or type(error).__name__}")
        else:
            self.report("migration", None if reason is None else f"auditor and worker are stopped: {reason}")
            self._is_allowed = reason is None

    async def _watch_access(self, ask: Callable[[Collection[str]], Awaitable[Mapping[str, str]]]) -> None:
        """Otherwise only a check or a repair that fails would show it, perhaps a week later."""
        refusals: Mapping[str, str] = {}
        while True:
            with contextlib.suppress(BkctlError):
                refusals = await ask(refusals.keys())
                self._refused_by = len(refusals)
                self.report(_REFUSAL, refused_daemon(refusals) if refusals else None)
            await self.clock.sleep(ACCESS_INTERVAL_S)

    async def _repair(self, new_worker: Callable[[], WorkerPart]) -> None:
        """Run a worker; if it fails, another one after a pause."""
        retry_s = _RETRY_FIRST_S
        while True:
            started_ns = self.clock.monotonic_ns()
            try:
                self.worker = new_worker()
                await self.worker.serve()
                reason = "it ended"
            except Exception as error:  # the daemon must survive everything
                logger.debug("worker", exc_info=True)
                reason = str(error) or type(error).__name__
            finally:
                self.worker = None
            if self.clock.monotonic_ns() - started_ns > _STABLE_S * 1e9:
                retry_s = _RETRY_FIRST_S
            logger.error("the worker failed and starts again in %g s: %s", retry_s, reason)
            await self.clock.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_MAX_S)

    def report(self, part: str, problem: str | None) -> None:
        """Log a problem once, and that it is over; keep it for the status."""
        before = self.problems.get(part)
        if problem is None:
            self.problems.pop(part, None)
            if before is not None:
                logger.info("over: %s", before)
        elif problem != before:
            self.problems[part] = problem
            logger.warning("%s", problem)

    # -- the note ---------------------------------------------------------------------------------------------------

    async def _write_notes(self) -> None:
        try:
            while True:
                try:
                    await self._write_note()
                    self.report("note", None)
                except MetadataAuthError as error:
                    if not self.store.session_id:
                        raise  # no later attempt would be accepted
                    self.report("note", f"cannot write the note of this daemon: {error}")
                except Exception as error:  # the daemon must survive everything
                    self.report("note", f"cannot write the note of this daemon: {str(error) or type(error).__name__}")
                await self.clock.sleep(NOTE_STEP_S)
        finally:
            if self._written is not None and self._written[0] == self.store.session_id:
                async with asyncio.timeout(END_S_MAX / 4):
                    await self._notes.daemons.remove(daemon_key(self._written[0]))

    async def _write_note(self) -> None:
        """Write the note if it is due: when something changed, an alarm at once, all else at most every 10 s; and at
        least every 60 s."""
        session_id, note, now_ns = self.store.session_id, self.status(), self.clock.monotonic_ns()
        if not session_id or not self._is_allowed:
            return
        if self._written is not None and self._written[0] == session_id:
            before, age_s = self._written[1], (now_ns - self._written_ns) / 1e9
            is_changed = msgspec.structs.replace(note, written_ms=before.written_ms) != before
            if note.alarm == before.alarm and age_s < (NOTE_INTERVAL_S_MIN if is_changed else NOTE_INTERVAL_S_MAX):
                return
        await self._notes.daemons.put(daemon_key(session_id), note)
        self._written, self._written_ns = (session_id, note), now_ns
