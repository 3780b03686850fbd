"""Marked ledgers that could not be repaired: why, and when any worker may try again. Shared through notes in ZooKeeper.

The pause doubles with each attempt. A ledger that only an event can help, for example the return of a bookie, is tried
rarely, and once after each event.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote, NoteDirectory
from bkctl.runtime.ports import Clock

RARE_FACTOR = 12
"""A ledger that only an event can help is tried after this many times the longest pause."""
DETAIL_CHARS_MAX = 2000
CLOCK_DIFFERENCE_MS_MAX = 60_000
"""Clocks of hosts may differ by this much before a note is not believed."""


class RepairFailure(NamedTuple):
    """Why a marked ledger is not repaired. ``is_rare``: another try helps only after an event."""

    reason: str
    detail: str
    is_rare: bool = False


class FailedLedgers:
    """The notes about failed ledgers. ``worker``: shown in the notes."""

    def __init__(
        self, notes: NoteDirectory[FailedLedgerNote], clock: Clock, config: AutorecoveryConfig, worker: str
    ) -> None:
        self._notes = notes
        self._clock = clock
        self._config = config
        self._worker = worker

    def is_rare(self, note: FailedLedgerNote) -> bool:
        """Whether another try can help only after an event."""
        return note.retry_ms - note.last_ms >= int(1000 * pause_s(self._config, 1, is_rare=True))

    async def find(self, ledger_id: int) -> FailedLedgerNote | None:
        """The note about a ledger; None if there is none, or if it cannot be read. One operation."""
        try:
            found = await self._notes.find(str(ledger_id))
        except MetadataFormatError:
            return None
        return None if found is None else believed(found.value, self._clock.now_ms(), self._config)

    async def note(self, ledger_id: int, former: FailedLedgerNote | None, failure: RepairFailure) -> FailedLedgerNote:
        """Record a failed attempt. Call it under the ledger's lock. One operation, two the first time."""
        now_ms = self._clock.now_ms()
        attempts = 1 if former is None else former.attempts + 1
        note = FailedLedgerNote(
            worker=self._worker,
            attempts=attempts,
            first_ms=now_ms if former is None else former.first_ms,
            last_ms=now_ms,
            retry_ms=now_ms + int(pause_s(self._config, attempts, is_rare=failure.is_rare) * 1000),
            reason=failure.reason,
            detail=failure.detail[:DETAIL_CHARS_MAX],
        )
        await self._notes.put(str(ledger_id), note)
        return note

    async def forget(self, ledger_id: int) -> None:
        """The ledger is repaired or deleted. One operation."""
        await self._notes.remove(str(ledger_id))


def believed(note: FailedLedgerNote, now_ms: int, config: AutorecoveryConfig) -> FailedLedgerNote:
    """The note with times that a right clock could have written. Pure.

    A note from the future is due now, and none is due later than the longest pause after its last attempt.
    """
    if note.last_ms > now_ms + CLOCK_DIFFERENCE_MS_MAX:
        return msgspec.structs.replace(note, last_ms=now_ms, retry_ms=now_ms)
    longest_ms = int(1000 * pause_s(config, 1, is_rare=True))
    return msgspec.structs.replace(note, retry_ms=min(note.retry_ms, note.last_ms + longest_ms))


def pause_s(config: AutorecoveryConfig, attempts: int, *, is_rare: bool) -> float:
    """Pause after this many failed attempts. Pure."""
    if is_rare:
        return RARE_FACTOR * config.failed_ledger_pause_max_s
    first_s, max_s = config.failed_ledger_pause_first_s, config.failed_ledger_pause_max_s
    return float(min(first_s * 2 ** min(attempts - 1, 60), max_s))
