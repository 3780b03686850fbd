"""Which compaction runs: every combination of due, suspended, enabled, forced."""

from __future__ import annotations

import itertools

import pytest

from bkctl.runtime.bookie.collection.long_work import (
    CompactionKind,
    CompactionState,
    DiskReaction,
    due_compaction,
    note_compaction,
)
from bkctl.runtime.bookie.disks.rules import DiskState
from bkctl.runtime.config import CompactionConfig, GarbageCollectionConfig, MajorCompactionConfig

NOW_S = 1_000_000.0


def config(*, minor: bool = True, major: bool = True, is_allowed: bool = False) -> GarbageCollectionConfig:
    return GarbageCollectionConfig(
        wait_s=1,
        minor=CompactionConfig(interval_s=100 if minor else 0),
        major=MajorCompactionConfig(interval_s=1000 if major else 0),
        is_forced_compaction_allowed=is_allowed,
    )


def suspended(*, minor: bool, major: bool) -> frozenset[CompactionKind]:
    chosen = {CompactionKind.MINOR: minor, CompactionKind.MAJOR: major}
    return frozenset(kind for kind, is_suspended in chosen.items() if is_suspended)


@pytest.mark.parametrize(
    ("is_minor_due", "is_major_due", "is_minor_suspended", "is_major_suspended", "is_minor_on", "is_major_on"),
    list(itertools.product((False, True), repeat=6)),
)
@pytest.mark.parametrize(("is_forced", "is_allowed"), list(itertools.product((False, True), repeat=2)))
def test_every_combination(
    is_minor_due: bool,
    is_major_due: bool,
    is_minor_suspended: bool,
    is_major_suspended: bool,
    is_minor_on: bool,
    is_major_on: bool,
    is_forced: bool,
    is_allowed: bool,
) -> None:
    state = CompactionState(
        last_minor_s=NOW_S - (101 if is_minor_due else 99),
        last_major_s=NOW_S - (1001 if is_major_due else 999),
        suspended=suspended(minor=is_minor_suspended, major=is_major_suspended),
    )
    settings = config(minor=is_minor_on, major=is_major_on, is_allowed=is_allowed)
    kind = due_compaction(settings, state, NOW_S, is_forced=is_forced)

    may_run_minor = not is_minor_suspended and (is_minor_on or (is_forced and is_allowed))
    may_run_major = not is_major_suspended and (is_major_on or (is_forced and is_allowed))
    if may_run_major and (is_major_due or is_forced):
        assert kind is CompactionKind.MAJOR
    elif may_run_minor and (is_minor_due or is_forced):
        assert kind is CompactionKind.MINOR
    else:
        assert kind is None


def test_a_threshold_of_one_is_never_forced_on() -> None:
    settings = GarbageCollectionConfig(
        wait_s=1,
        minor=CompactionConfig(threshold=0),
        major=MajorCompactionConfig(threshold=1, interval_s=0),
        is_forced_compaction_allowed=True,
    )
    assert due_compaction(settings, CompactionState(NOW_S, NOW_S), NOW_S, is_forced=True) is None


def test_a_major_compaction_counts_as_a_minor_one() -> None:
    state = CompactionState(0, 0)
    note_compaction(state, CompactionKind.MINOR, 5)
    assert (state.last_minor_s, state.last_major_s) == (5, 0)
    note_compaction(state, CompactionKind.MAJOR, 7)
    assert (state.last_minor_s, state.last_major_s) == (7, 7)


@pytest.mark.parametrize("level", list(DiskState))
@pytest.mark.parametrize("is_forced_when_full", [False, True])
def test_reaction_to_each_state_of_the_disks(level: DiskState, is_forced_when_full: bool) -> None:
    """Storage section 7.5."""
    settings = GarbageCollectionConfig(is_forced_when_full=is_forced_when_full)
    reaction = DiskReaction.to(level, settings)
    is_full, is_scarce = level is DiskState.FULL, level is not DiskState.WRITABLE
    assert reaction.is_forced == (is_scarce and is_forced_when_full)
    assert reaction.suspended == suspended(
        minor=is_full and not is_forced_when_full, major=is_scarce and not is_forced_when_full
    )
    assert reaction.is_room_scarce == is_full


@pytest.mark.parametrize(("by_disks", "by_operator"), list(itertools.product((False, True), repeat=2)))
def test_what_the_disks_suspend_and_what_an_operator_does_add_up(by_disks: bool, by_operator: bool) -> None:
    state = CompactionState(0, 0, suspended(minor=by_operator, major=not by_operator))
    due = due_compaction(config(), state, NOW_S, by_disks=suspended(minor=by_disks, major=by_disks), is_forced=False)
    if by_disks:
        assert due is None
    else:
        assert due is (CompactionKind.MAJOR if by_operator else CompactionKind.MINOR)
    assert state.suspended == suspended(minor=by_operator, major=not by_operator)
