"""Rounds of the check of copies: when they begin, how fast they are, and what answers prove."""

from __future__ import annotations

import msgspec
import pytest

from bkctl.runtime.autorecovery.copy_check import (
    AGAIN_MAX,
    CATCH_UP_MAX,
    LEDGERS_AT_ONCE,
    CopyVerdict,
    current_round,
    judge_check,
    next_round,
    pace,
    repeat_or_next_round,
    span_of,
    with_check,
)
from bkctl.runtime.metadata.replication.recovery_notes import CopyCheckCounts, CopyCheckNote
from bkctl.runtime.replication.judge.copies import CopyDefect, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange

DAY_MS = 86_400_000
WEEK_S = 7 * 86_400.0
NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("last_days_ago", "began_days_ago"),
    [(None, 0), (30, 0), (7, 0), (6, 6), (0, 0), (-3, 0)],
    ids=["never", "overdue", "due", "not due", "just now", "in the future"],
)
def test_the_first_round_of_ours_begins_with_the_last_check_of_any_auditor(
    last_days_ago: int | None, began_days_ago: int
) -> None:
    last_ms = None if last_days_ago is None else NOW_MS - last_days_ago * DAY_MS
    assert current_round(None, last_ms, NOW_MS, WEEK_S).began_ms == NOW_MS - began_days_ago * DAY_MS


def note(began_days_ago: float, last_ledger_id: int = -1) -> CopyCheckNote:
    return CopyCheckNote(began_ms=int(NOW_MS - began_days_ago * DAY_MS), last_ledger_id=last_ledger_id)


def test_a_round_under_way_goes_on() -> None:
    for began, last_ms in ((1, None), (1, NOW_MS - 3 * DAY_MS), (20, None), (1, NOW_MS + DAY_MS)):
        assert current_round(note(began, 7), last_ms, NOW_MS, WEEK_S) == note(began, 7)


def test_a_round_ends_early_if_another_auditor_checked_everything_meanwhile() -> None:
    last_ms = NOW_MS - DAY_MS
    assert current_round(note(2, 7), last_ms, NOW_MS, WEEK_S) == CopyCheckNote(began_ms=last_ms)


def test_after_a_round_the_next_one_waits_for_the_end_of_the_period() -> None:
    done = CopyCheckNote(began_ms=NOW_MS - 5 * DAY_MS, last_ledger_id=7, counts=CopyCheckCounts(ledgers=3))
    waiting = next_round(done, NOW_MS, WEEK_S)
    assert waiting == CopyCheckNote(began_ms=NOW_MS + 2 * DAY_MS, last=done.counts, last_ended_ms=NOW_MS)
    assert current_round(waiting, NOW_MS, NOW_MS + DAY_MS, WEEK_S) == waiting
    forced = current_round(waiting, NOW_MS - 21 * DAY_MS, NOW_MS + DAY_MS, WEEK_S)
    assert (forced.began_ms, forced.last) == (NOW_MS + DAY_MS, done.counts)


def test_a_round_that_took_longer_is_followed_by_the_next_one() -> None:
    assert next_round(note(9), NOW_MS, WEEK_S).began_ms == NOW_MS


def test_a_note_far_in_the_future_is_not_waited_for() -> None:
    assert current_round(note(-8), NOW_MS, NOW_MS, WEEK_S).began_ms == NOW_MS


def test_the_pace_spreads_what_is_left_over_what_is_left_of_the_period() -> None:
    assert pace(NOW_MS, NOW_MS, WEEK_S, 7) == (1, 86_400.0)
    assert pace(NOW_MS - 6 * DAY_MS, NOW_MS, WEEK_S, 10) == (1, 8640.0)
    many = pace(NOW_MS, NOW_MS, WEEK_S, 6_048_000)
    assert many.ledgers == 10
    assert many.seconds == pytest.approx(1)
    assert pace(NOW_MS, NOW_MS, WEEK_S, 10**9).ledgers == LEDGERS_AT_ONCE


def test_a_repeat_is_spread_over_the_pause_before_it() -> None:
    unknown = CopyCheckCounts(ledgers=1, copies=6, copies_unknown=2)
    first = repeat_or_next_round(msgspec.structs.replace(note(6), again={7: unknown}), NOW_MS, WEEK_S)
    assert (first.repeats, span_of(first, WEEK_S)) == (1, (NOW_MS + 300_000, 300.0))
    second = repeat_or_next_round(first, first.repeat_ms, WEEK_S)
    assert span_of(second, WEEK_S) == (first.repeat_ms + 600_000, 600.0)
    assert span_of(note(6), WEEK_S) == (note(6).began_ms, WEEK_S)


def test_more_unknown_ledgers_than_a_note_holds_are_reached_by_the_next_round() -> None:
    checks = [LedgerCheck(ledger_id=each, copies_expected=2) for each in range(AGAIN_MAX + 2)]
    done = note(6)
    for each in checks:
        done = with_check(done, each, CopyVerdict(frozenset(), ()))
    assert (len(done.again), done.found.ledgers) == (AGAIN_MAX, AGAIN_MAX + 2)
    assert done.found.copies_unknown == 2 * (AGAIN_MAX + 2)
    following = repeat_or_next_round(done, NOW_MS, WEEK_S)
    assert (following.repeats, following.again, following.last) == (0, {}, done.found)


def test_a_late_round_is_no_burst() -> None:
    late, in_time = pace(NOW_MS - 20 * DAY_MS, NOW_MS, WEEK_S, 7), pace(NOW_MS, NOW_MS, WEEK_S, 7)
    assert late.seconds == pytest.approx(in_time.seconds / CATCH_UP_MAX)


def test_only_answers_prove_that_a_copy_is_bad() -> None:
    ranges = (EntryRange(0, 0), EntryRange(9, 9))
    defects = [
        CopyDefect("b1", CopyState.MISSING, 2, ranges, ""),
        CopyDefect("b2", CopyState.CORRUPT, 2, ranges, ""),
        CopyDefect("b3", CopyState.FAILED, 2, ranges, "", is_damaged=True),
        CopyDefect("b4", CopyState.FAILED, 2, ranges, ""),
        CopyDefect("b5", CopyState.UNREACHABLE, 2, ranges, ""),
        CopyDefect("b6", CopyState.DIFFERENT, 2, ranges, ""),
    ]
    check = LedgerCheck(ledger_id=1, defects=tuple(defects))
    assert judge_check(check) == (frozenset({"b1", "b2", "b3"}), ())


def test_bookies_that_only_lack_lost_entries_are_not_to_be_repaired() -> None:
    defects = (
        CopyDefect("b1", CopyState.MISSING, 1, (EntryRange(0, 0),), ""),
        CopyDefect("b2", CopyState.MISSING, 2, (EntryRange(0, 1),), ""),
    )
    lost = (EntryRange(0, 0),)
    assert judge_check(LedgerCheck(ledger_id=1, defects=defects, lost=lost)) == (frozenset({"b2"}), lost)
