"""The autorecovery daemon: the office of the auditor, the worker, and the note in which others see what it does.

None of its parts can stop another. A part that fails is reported and started again. While Pulsar migrates the metadata
to another store, auditor and worker are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping
from typing import Any, Final, Protocol

import msgspec

from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.lane import end_tasks
from bkctl.runtime.autorecovery.office import AuditorOffice
from bkctl.runtime.errors import MetadataAuthError
from bkctl.runtime.metadata.pulsar_migration import FLAG_AGE_S_MAX, flag_path, read_migration
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, RecoveryNotes, WorkerStatus, daemon_key
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.ports import Clock
from bkctl.runtime.replication.judge.daemon_findings import refused_daemon
from bkctl.storage.errors import BkctlError

logger = logging.getLogger(__name__)

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
