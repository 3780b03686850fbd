"""When a periodic check runs. Java's auditor and ours share the node that says when a check last reached its end.

A check is due when that time is ``interval_s`` ago, at once if it is unknown, and not before if it is in the future.
"""

from __future__ import annotations

import logging
from typing import Generic, TypeVar

from runtime.errors import MetadataFormatError
from runtime.metadata.replication.recovery_notes import CheckNote, MetadataCheckNote
from runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from runtime.ports import Clock

ResultT = TypeVar("ResultT", bound=MetadataCheckNote)

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 600.0
"""A check that is not due looks at least this often whether an operator has made it due."""
REPEAT_FIRST_S = 300.0
"""Pause before the first repeat of a check that could not read everything; it doubles after each further one."""
REPEATS_PER_INTERVAL = 10
"""The pause before a repeat is at most this part of the interval."""
DISABLED = "autorecovery is disabled: nothing is checked"


class CheckTimes:
    """The times of one periodic check."""

    def __init__(self, switches: ReplicationSwitches, check: PeriodicCheck, clock: Clock, interval_s: float) -> None:
        self._switches = switches
        self._check = check
        self._clock = clock
        self.interval_s = interval_s

    async def last_ms(self) -> int | None:
        """When the check last reached its end; None if that is unknown. One operation."""
        try:
            return await self._switches.check_time_ms(self._check)
        except MetadataFormatError as error:
            logger.warning("ignored, and replaced by the next check: %s", error)
            return None

    async def due_in_s(self) -> float:
        """Time until the check is due. One operation."""
        last_ms = await self.last_ms()
        return 0.0 if last_ms is None else wait_s(last_ms, self._clock.now_ms(), self.interval_s)

    def ms_until(self, time_ms: int) -> int:
        """Time until then; 0 if it is over."""
        return max(0, time_ms - self._clock.now_ms())

    async def note_end(self, ended_ms: int) -> None:
        """The check has reached its end. One operation."""
        await self._switches.set_check_time_ms(self._check, ended_ms)


def wait_s(last_ms: int, now_ms: int, interval_s: float) -> float:
    """Time until a check is due that last ended at ``last_ms``. Pure."""
    age_s = max(0, now_ms - last_ms) / 1000
    return max(0.0, interval_s - age_s)


def repeat_in_s(repeats: int, interval_s: float) -> float:
    """Pause before a check that could not read everything is repeated; ``repeats`` so far. Pure."""
    return min(REPEAT_FIRST_S * 2.0 ** min(repeats, 20), interval_s / REPEATS_PER_INTERVAL)


def unread_text(result: MetadataCheckNote) -> str:
    """The ledgers that a result lacks, for its summary. Pure."""
    return f", {result.unreadable.ledgers} could not be read" if result.unreadable.ledgers else ""


class StoredResult(Generic[ResultT]):
    """The last result of a check, which a successor knows too. A check repeats no work if only storing it failed.

    One that could not read all ledgers stores no time, which other auditors would believe, and is repeated.
    """

    def __init__(self, times: CheckTimes, note: CheckNote[ResultT]) -> None:
        self.last: ResultT | None = None
        self._times = times
        self._note = note
        self._is_stored = True
        self._repeats = 0
        self._repeat_ms = 0

    async def due_in_s(self) -> float:
        """Time until the check is due. One operation, two the first time, more after an error."""
        if self.last is None:
            self.last = await self._note.find()
        if not self._is_stored:
            await self._store()
        return max(await self._times.due_in_s(), self._times.ms_until(self._repeat_ms) / 1000)

    async def keep(self, result: ResultT) -> float:
        """The check has reached its end; returns the time until it is due again. Two operations."""
        self.last, self._is_stored = result, False
        if result.unreadable.ledgers:
            pause_s = repeat_in_s(self._repeats, self._times.interval_s)
            self._repeats, self._repeat_ms = self._repeats + 1, result.ended_ms + round(pause_s * 1000)
        else:
            pause_s, self._repeats, self._repeat_ms = self._times.interval_s, 0, 0
        await self._store()
        return pause_s

    async def _store(self) -> None:
        assert self.last is not None
        await self._note.put(self.last)
        if not self.last.unreadable.ledgers:
            await self._times.note_end(self.last.ended_ms)
        self._is_stored = True
