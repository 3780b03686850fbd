"""Marked ledgers that could not be repaired: why, and when any worker may try again. Shared in ZooKeeper. Pure.

The pause doubles with each attempt. A ledger that only an event can help, for example the return of a bookie, is tried
rarely, and once after each event.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote

EVENT_PAUSE_FACTOR = 12
"""A ledger that only an event can help is tried after this many times the longest pause."""
DETAIL_CHARS_MAX = 2000
CLOCK_DIFFERENCE_MS_MAX = 60_000
"""Clocks of hosts may differ by this much before a note is not believed."""


class RepairFailure(NamedTuple):
    """Why a marked ledger is not repaired. ``needs_event``: another try helps only after an event."""

    reason: str
    detail: str
    needs_event: bool = False


def combined(failures: Iterable[RepairFailure]) -> RepairFailure:
    """One for all failures of a ledger: the first reason that another try can help, else the first."""
    ordered = sorted(failures, key=lambda failure: failure.needs_event)
    return ordered[0]._replace(detail="; ".join(dict.fromkeys(failure.detail for failure in ordered)))


def note_of(
    failure: RepairFailure, former: FailedLedgerNote | None, now_ms: int, config: AutorecoveryConfig, worker: str
) -> FailedLedgerNote:
    """The note about a failed attempt, after the one about the ``former``."""
    attempts = 1 if former is None else former.attempts + 1
    return FailedLedgerNote(
        worker=worker,
        attempts=attempts,
        first_ms=now_ms if former is None else former.first_ms,
        last_ms=now_ms,
        retry_ms=now_ms + int(pause_s(config, attempts, needs_event=failure.needs_event) * 1000),
        reason=failure.reason,
        detail=failure.detail[:DETAIL_CHARS_MAX],
    )


def needs_event(note: FailedLedgerNote, config: AutorecoveryConfig) -> bool:
    """Whether another try can help only after an event."""
    return note.retry_ms - note.last_ms >= int(1000 * pause_s(config, 1, needs_event=True))


def believed(note: FailedLedgerNote, now_ms: int, config: AutorecoveryConfig) -> FailedLedgerNote:
    """The note with times that a right clock could have written.

    A note from the future is due now, and none is due later than the longest pause after its last attempt.
    """
    if note.last_ms > now_ms + CLOCK_DIFFERENCE_MS_MAX:
        return msgspec.structs.replace(note, last_ms=now_ms, retry_ms=now_ms)
    longest_ms = int(1000 * pause_s(config, 1, needs_event=True))
    return msgspec.structs.replace(note, retry_ms=min(note.retry_ms, note.last_ms + longest_ms))


def pause_s(config: AutorecoveryConfig, attempts: int, *, needs_event: bool) -> float:
    """Pause after this many failed attempts."""
    if needs_event:
        return EVENT_PAUSE_FACTOR * config.failed_ledger_pause_max_s
    first_s, max_s = config.failed_ledger_pause_first_s, config.failed_ledger_pause_max_s
    return float(min(first_s * 2 ** min(attempts - 1, 60), max_s))
