"""When the check of copies reaches which ledger, and what its answers mean. Pure.

A round reaches each ledger once and is spread over the period. Ledgers with copies that could not be read are read
again, with growing pauses. The next round begins when the period is over, and a round with unknown copies is not done.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from bkctl.runtime.autorecovery.check_times import repeat_in_s, wait_s
from bkctl.runtime.metadata.replication.recovery_notes import CopyCheckCounts, CopyCheckNote, LedgerCount
from bkctl.runtime.replication.judge.copies import CopyDefect, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange, in_and_out_of

LEDGERS_AT_ONCE = 64
CATCH_UP_MAX = 10
"""A round that is late runs at most this many times faster than a round that is on time."""
REPEATS_MAX = 8
"""After these the next round begins: all ledgers are due again."""
AGAIN_MAX = 5_000
"""Ledgers that a note can hold: with more, the round is repeated as a whole."""


def current_round(note: CopyCheckNote | None, last_ms: int | None, now_ms: int, period_s: float) -> CopyCheckNote:
    """The round to go on with, or the next one. ``last_ms``: when a check of all ledgers last reached its end.

    A round that began before another auditor finished a check is not needed.
    """
    period_ms = round(period_s * 1000)
    is_due = not wait_s(last_ms, now_ms, period_s)
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
    return CopyCheckNote(began_ms=began_ms, last=note.found, last_ended_ms=now_ms)


def repeat_or_next_round(note: CopyCheckNote, now_ms: int, period_s: float) -> CopyCheckNote:
    """What follows after all ledgers of a round, or of its repeat, were reached, but some copies could not be read."""
    if note.repeats >= REPEATS_MAX or not note.counts.is_complete:
        return next_round(note, now_ms, period_s)
    repeat_ms = now_ms + round(repeat_in_s(note.repeats, period_s) * 1000)
    return msgspec.structs.replace(note, repeats=note.repeats + 1, repeat_ms=repeat_ms, last_ledger_id=-1)


def span_of(note: CopyCheckNote, period_s: float) -> tuple[int, float]:
    """When the round or its repeat began, and the time over which it is spread: a repeat takes as long as its pause."""
    if not note.repeats:
        return note.began_ms, period_s
    return note.repeat_ms, repeat_in_s(note.repeats - 1, period_s)


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
        """What a second check found too."""
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
    return defect.state is CopyState.MISSING or defect.has_bad_record


def is_unknown(defect: CopyDefect) -> bool:
    """Whether the copies were not read: no answer, or one that says nothing about them."""
    return defect.state is not CopyState.DIFFERENT and not is_proven_bad(defect)


def with_check(note: CopyCheckNote, check: LedgerCheck, verdict: CopyVerdict) -> CopyCheckNote:
    """The round with one more ledger, or with another check of one. ``verdict``: what was confirmed."""
    found = counts_of(check, verdict)
    if found.is_complete and check.ledger_id not in note.again:
        return msgspec.structs.replace(note, counts=note.counts + found)
    again = {ledger_id: former for ledger_id, former in note.again.items() if ledger_id != check.ledger_id}
    if not found.is_complete and len(again) < AGAIN_MAX:
        again[check.ledger_id] = found
        return msgspec.structs.replace(note, again=again)
    return msgspec.structs.replace(note, counts=note.counts + found, again=again)


def counts_of(check: LedgerCheck, verdict: CopyVerdict) -> CopyCheckCounts:
    """What was found in one ledger. ``verdict``: what was confirmed."""
    if check.is_deleted:
        return CopyCheckCounts()
    bad = sum(defect.copies for defect in check.defects if is_proven_bad(defect))
    found = {
        "marked": bool(verdict.bad_bookies),
        "lost": bool(verdict.lost),
        "different": check.copies_different > 0,
        "unreadable": check.problem is not None,
    }
    this = LedgerCount(1, (check.ledger_id,))
    return CopyCheckCounts(
        ledgers=1,
        copies=check.copies_expected,
        copies_bad=bad,
        copies_unknown=check.copies_expected - check.copies_good - check.copies_different - bad,
        bytes_read=check.bytes_read,
        **{name: this for name, applies in found.items() if applies},
    )
