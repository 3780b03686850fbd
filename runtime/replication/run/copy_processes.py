"""Repairs ledgers in several processes. The replication locks keep them apart, as they do other tools.

If a process dies, another one is started and gets its ledgers: every ledger is decided again from its metadata, so
nothing else is needed. Its replication locks end with its ZooKeeper session. A process that is halted, or stuck, holds
its ledgers in the same way, so it is reported and then killed.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Self

import msgspec

from runtime import errors
from runtime.errors import CopyProcessError, MetadataError
from runtime.metadata.outage import MetadataOutage
from runtime.net.message_pipe import ChildProcess, start_child
from runtime.ports import Clock
from runtime.replication.judge.ledger_result import LedgerRepaired
from runtime.replication.plan.job_file import JobRange
from runtime.replication.turn.messages import (
    CopyMoment,
    CopyPace,
    CopyProcessSetup,
    CopySetup,
    FromProcess,
    LedgerFinished,
    LedgerWork,
    OutageNoted,
    ProcessFailed,
    RangeVerified,
    RepairSetup,
)
from storage.errors import BkctlError

MODULE: Final = "runtime.replication.run.copy_process"
_DEATHS_MAX: Final = 5
"""A run gives up after so many deaths of its processes: a reason like lack of memory would end all of them."""
_END_S_MAX: Final = 15.0
"""How long a process may take to end: it gives its locks back."""
_LEDGERS_NAMED_MAX: Final = 5


class SilenceLimits(msgspec.Struct, frozen=True):
    """When a process that has work but sends nothing is reported, and when it is killed. It reports every 0.2 s."""

    step_s: float = 1.0
    warn_s: float = 30.0
    kill_s: float = 60.0


class SilenceEvent(enum.Enum):
    """What the silence of a process calls for."""

    NONE = enum.auto()
    WARN = enum.auto()
    KILL = enum.auto()
    IS_OVER = enum.auto()
    """A silence that was reported."""


class ProcessSilence:
    """For how long one process with work has sent nothing.

    Time is counted in steps: if this process itself is halted for an hour, that is one step.
    """

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._is_heard = False
        self._is_reported = False
        self._silent_s = 0.0

    def note_message(self) -> None:
        """The process has sent something."""
        self._is_heard = True

    def step(self, *, has_work: bool) -> SilenceEvent:
        """Another step has passed."""
        if self._is_heard or not has_work:
            was_reported, self._is_reported = self._is_reported, False
            self._is_heard, self._silent_s = False, 0.0
            return SilenceEvent.IS_OVER if was_reported else SilenceEvent.NONE
        self._silent_s += self._limits.step_s
        if self._silent_s >= self._limits.kill_s:
            return SilenceEvent.KILL
        if self._silent_s >= self._limits.warn_s and not self._is_reported:
            self._is_reported = True
            return SilenceEvent.WARN
        return SilenceEvent.NONE


class CopyProcesses:
    """The copy processes of a run; use it as ``async with``. A process starts when all others are busy."""

    def __init__(
        self,
        processes: CopyProcessSetup,
        setup: RepairSetup,
        *,
        on_range: Callable[[JobRange], None],
        on_outage: Callable[[MetadataOutage], None],
        warn: Callable[[str], None],
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._warn = warn
        self._silence = SilenceLimits()
        self._watching: asyncio.Task[None] | None = None
        self._count = processes.count
        self._setup = CopySetup(processes, _share(setup, self._count))
        self._on_range = on_range
        self._on_outage = on_outage
        self._pace = CopyPace(bytes_per_s=None, bytes_per_s_per_bookie=None)
        self._processes: list[_Process] = []
        self._moments: dict[int, CopyMoment] = {}
        """By number of the process; numbers are not used again."""
        self._starting = asyncio.Lock()
        self._started_count = 0
        self._deaths = 0

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watching is not None
        self._watching.cancel()
        await asyncio.shield(asyncio.gather(*(process.end() for process in self._processes)))

    def moments(self) -> Sequence[CopyMoment]:
        """What each process has copied so far, and has in progress."""
        return list(self._moments.values())

    def set_pace(self, pace: CopyPace) -> None:
        """Divide the byte rates among the processes that have work."""
        self._pace = pace
        self._divide_pace()

    def _divide_pace(self) -> None:
        """An idle process gets a share as well: with its first ledger all shares change."""
        busy = sum(process.work_count > 0 for process in self._processes)
        for process in self._processes:
            process.set_pace(self._pace, max(1, busy + (process.work_count == 0)))

    async def repair(self, work: LedgerWork) -> LedgerRepaired:
        """The result for a ledger; CopyProcessError, MetadataError."""
        while True:
            process = await self._least_busy()
            try:
                return await process.repair(work, self._divide_pace)
            except _DiedError:
                await self._note_death(process)
            finally:
                self._divide_pace()

    async def _least_busy(self) -> _Process:
        async with self._starting:
            if len(self._processes) < self._count and all(process.work_count for process in self._processes):
                self._processes.append(await self._start())
        return min(self._processes, key=lambda process: process.work_count)

    async def _start(self) -> _Process:
        self._started_count += 1
        try:
            child: ChildProcess[FromProcess] = await start_child(MODULE, FromProcess)
        except OSError as error:
            raise CopyProcessError(f"cannot start a copy process: {error.strerror}") from error
        child.pipe.send(self._setup)
        number = self._started_count
        on_moment = partial(self._moments.__setitem__, number)
        return _Process(child, self._on_range, self._on_outage, on_moment, number, ProcessSilence(self._silence))

    async def _watch(self) -> None:
        while True:
            await self._clock.sleep(self._silence.step_s)
            for process in self._processes:
                self._judge_silence(process)

    def _judge_silence(self, process: _Process) -> None:
        name, limits = f"copy process {process.child.pid}", self._silence
        match process.silence.step(has_work=process.work_count > 0):
            case SilenceEvent.WARN:
                self._warn(
                    f"{name} has sent nothing for {limits.warn_s:g} s (halted?); it has {process.ledgers}; it is "
                    f"killed after {limits.kill_s:g} s"
                )
            case SilenceEvent.KILL:
                process.child.kill()
            case SilenceEvent.IS_OVER:
                self._warn(f"{name} works again")

    async def _note_death(self, process: _Process) -> None:
        """Count a death once, for the first of its ledgers that notices."""
        if process not in self._processes:
            return
        self._processes.remove(process)
        if process.number in self._moments:
            self._moments[process.number] = msgspec.structs.replace(self._moments[process.number], current=())
        self._deaths += 1
        status = await process.end()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
        if self._deaths > _DEATHS_MAX:
            raise CopyProcessError(f"{self._deaths} copy processes ended early; the last one {how}")
        self._warn(f"copy process {process.child.pid} {how}; another one repairs its ledgers")


class _DiedError(Exception):
    """The process ended before it finished a ledger."""


class _Process:
    """One process and the ledgers that it has."""

    def __init__(
        self,
        child: ChildProcess[FromProcess],
        on_range: Callable[[JobRange], None],
        on_outage: Callable[[MetadataOutage], None],
        on_moment: Callable[[CopyMoment], None],
        number: int,
        silence: ProcessSilence,
    ) -> None:
        self.child = child
        self.number = number
        self.silence = silence
        self._on_range = on_range
        self._on_outage = on_outage
        self._on_moment = on_moment
        self._pace = CopyPace(bytes_per_s=None, bytes_per_s_per_bookie=None)
        self._work: dict[int, asyncio.Future[LedgerRepaired]] = {}
        self._is_over = False
        self._receiving = asyncio.create_task(self._receive())

    @property
    def work_count(self) -> int:
        """Ledgers that are not finished."""
        return len(self._work)

    @property
    def ledgers(self) -> str:
        """The ledgers that are not finished, in words."""
        ids = sorted(self._work)
        more = f" and {len(ids) - _LEDGERS_NAMED_MAX} more" if len(ids) > _LEDGERS_NAMED_MAX else ""
        return f"ledger {', '.join(map(str, ids[:_LEDGERS_NAMED_MAX]))}{more}"

    def set_pace(self, pace: CopyPace, parts: int) -> None:
        """Give the process one of ``parts`` equal parts of the byte rates."""
        share = CopyPace(
            bytes_per_s=_part(pace.bytes_per_s, parts),
            bytes_per_s_per_bookie=_part(pace.bytes_per_s_per_bookie, parts),
        )
        if share != self._pace:
            self._pace = share
            self.child.pipe.send(share)

    async def repair(self, work: LedgerWork, on_begin: Callable[[], None]) -> LedgerRepaired:
        """The result of one ledger; _DiedError, and what made the process give up. ``on_begin``: it counts now."""
        if self._is_over:
            raise _DiedError
        future: asyncio.Future[LedgerRepaired] = asyncio.get_running_loop().create_future()
        self._work[work.ledger_id] = future
        on_begin()
        self.child.pipe.send(work)
        try:
            return await future
        finally:
            self._work.pop(work.ledger_id, None)

    async def end(self) -> int:
        """Let the process give its locks back and end; returns its exit status."""
        status = await self.child.end(_END_S_MAX)
        await self._receiving
        return status

    async def _receive(self) -> None:
        reason: BkctlError | _DiedError = _DiedError()
        while (message := await self.child.pipe.receive()) is not None:
            self.silence.note_message()
            match message:
                case LedgerFinished():
                    future = self._work.get(message.result.ledger_id)
                    if future is not None and not future.done():
                        future.set_result(message.result)
                case RangeVerified():
                    self._on_range(message.range)
                case CopyMoment():
                    self._on_moment(message)
                case OutageNoted():
                    self._on_outage(message.outage)
                case ProcessFailed():
                    reason = _error_of(message)
        self._is_over = True
        for future in self._work.values():
            if not future.done():
                future.set_exception(reason)


def _error_of(message: ProcessFailed) -> BkctlError:
    kind = getattr(errors, message.kind, None)
    if isinstance(kind, type) and issubclass(kind, MetadataError):
        return kind(message.sentence, message.path)
    return CopyProcessError(message.sentence)


def _share(setup: RepairSetup, count: int) -> RepairSetup:
    """The limits of one process."""
    config = msgspec.structs.replace(
        setup.config,
        bytes_in_flight_max=max(1, setup.config.bytes_in_flight_max // count),
        entries_in_flight_max=max(1, setup.config.entries_in_flight_max // count),
    )
    return msgspec.structs.replace(setup, config=config, process_count=count)


def _part(rate: int | None, count: int) -> int | None:
    return None if rate is None else max(1, rate // count)
