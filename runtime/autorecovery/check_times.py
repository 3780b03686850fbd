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
DISABLED = "autorecovery is disabled: nothing is checked"


class CheckTimes:
    """The times of one periodic check."""

    def __init__(self, switches: ReplicationSwitches, check: PeriodicCheck, clock: Clock, interval_s: float) -> None:
        self._switches = switches
        self._check = check
        self._clock = clock
        self._interval_s = interval_s

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
        return 0.0 if last_ms is None else wait_s(last_ms, self._clock.now_ms(), self._interval_s)

    async def note_end(self, ended_ms: int) -> None:
        """The check has reached its end. One operation."""
        await self._switches.set_check_time_ms(self._check, ended_ms)


def wait_s(last_ms: int, now_ms: int, interval_s: float) -> float:
    """Time until a check is due that last ended at ``last_ms``. Pure."""
    age_s = max(0, now_ms - last_ms) / 1000
    return max(0.0, interval_s - age_s)


class StoredResult(Generic[ResultT]):
    """The last result of a check, which a successor knows too. A check repeats no work if only storing it failed."""

    def __init__(self, times: CheckTimes, note: CheckNote[ResultT]) -> None:
        self.last: ResultT | None = None
        self._times = times
        self._note = note
        self._is_stored = True

    async def due_in_s(self) -> float:
        """Time until the check is due. One operation, two the first time, more after an error."""
        if self.last is None:
            self.last = await self._note.find()
        if not self._is_stored:
            await self._store()
        return await self._times.due_in_s()

    async def keep(self, result: ResultT) -> None:
        """The check has reached its end. Two operations."""
        self.last, self._is_stored = result, False
        await self._store()

    async def _store(self) -> None:
        assert self.last is not None
        await self._note.put(self.last)
        await self._times.note_end(self.last.ended_ms)
        self._is_stored = True
