"""When the check of copies reaches which ledger, and what its answers mean. Pure.

A round reaches each ledger once and is spread over the period. The next round begins when the period is over.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from runtime.autorecovery.check_times import wait_s
from runtime.metadata.replication.recovery_notes import CopyCheckCounts, CopyCheckNote
from runtime.replication.checker import CopyDefect, LedgerCheck
from runtime.replication.copies import CopyState
from runtime.replication.fragments import EntryRange, in_and_out_of

LEDGERS_AT_ONCE = 64
CATCH_UP_MAX = 10
"""A round that is late runs at most this many times faster than a round that is on time."""


def current_round(note: CopyCheckNote | None, last_ms: int | None, now_ms: int, period_s: float) -> CopyCheckNote:
    """The round to go on with, or the next one. ``last_ms``: when a check of all ledgers last reached its end.

    A round that began before another auditor finished a check is not needed.
    """
    period_ms = round(period_s * 1000)
    is_due = last_ms is None or not wait_s(last_ms, now_ms, period_s)
    is_replaced = note is not None and last_ms is not None and note.began_ms < last_ms <= now_ms
    if note is None or is_replaced or note.began_ms > now_ms + period_ms:
        began_ms = now_ms if is_due or last_ms is None else min(last_ms, now_ms)
        last = (None, None) if note is None else (note.last, note.last_ended_ms)
        return CopyCheckNote(began_ms=began_ms, last=last[0], last_ended_ms=last[1])
    if note.began_ms > now_ms and is_due:
        return msgspec.structs.replace(note, began_ms=now_ms)
    return note


def next_round(note: CopyCheckNote, now_ms: int, period_s: float) -> CopyCheckNote:
    """The round after this one, which has reached all ledgers now."""
    began_ms = max(now_ms, note.began_ms + round(period_s * 1000))
    return CopyCheckNote(began_ms=began_ms, last=note.counts, last_ended_ms=now_ms)


class Pace(NamedTuple):
    """Check ``ledgers`` now, and the next ones after ``seconds``."""

    ledgers: int
    seconds: float


def pace(began_ms: int, now_ms: int, period_s: float, ledgers_left: int) -> Pace:
    """Spread the ledgers that are left over the rest of the period."""
    rest_s = max(period_s - (now_ms - began_ms) / 1000, period_s / CATCH_UP_MAX)
    each_s = rest_s / max(1, ledgers_left)
    count = min(LEDGERS_AT_ONCE, max(1, math.ceil(1 / each_s)))
    return Pace(count, count * each_s)


class CopyVerdict(NamedTuple):
    """``bad_bookies``: they lack entries, or have damaged ones, that are not lost. ``lost``: no bookie has them."""

    bad_bookies: frozenset[str]
    lost: tuple[EntryRange, ...]

    def confirmed_by(self, later: CopyVerdict) -> CopyVerdict:
        """What a second look found too."""
        return CopyVerdict(self.bad_bookies & later.bad_bookies, later.lost if self.lost else ())


def judge_check(check: LedgerCheck) -> CopyVerdict:
    """What the answers prove. A bookie that does not answer, or only may lack entries, proves nothing (bk#1197)."""
    bad = {
        defect.bookie_id
        for defect in check.defects
        if is_proven_bad(defect) and in_and_out_of(defect.entries, check.lost)[1]
    }
    return CopyVerdict(frozenset(bad), check.lost)


def is_proven_bad(defect: CopyDefect) -> bool:
    """Whether the bookie has no good copies, rather than no answer."""
    return defect.state in {CopyState.MISSING, CopyState.CORRUPT} or defect.is_damaged


def with_check(counts: CopyCheckCounts, check: LedgerCheck, verdict: CopyVerdict) -> CopyCheckCounts:
    """The counts with one more ledger. ``verdict``: what was confirmed."""
    if check.is_deleted:
        return counts
    bad = sum(defect.copies for defect in check.defects if is_proven_bad(defect))
    found = {
        "marked": bool(verdict.bad_bookies),
        "lost": bool(verdict.lost),
        "different": check.copies_different > 0,
        "unreadable": check.problem is not None,
    }
    changed = {name: getattr(counts, name).plus(check.ledger_id) for name, applies in found.items() if applies}
    return msgspec.structs.replace(
        counts,
        ledgers=counts.ledgers + 1,
        copies=counts.copies + check.copies_expected,
        copies_bad=counts.copies_bad + bad,
        copies_unknown=counts.copies_unknown + check.copies_expected - check.copies_good - check.copies_different - bad,
        bytes_read=counts.bytes_read + check.bytes_read,
        **changed,
    )
