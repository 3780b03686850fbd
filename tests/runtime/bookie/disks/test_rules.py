from __future__ import annotations

import itertools

import pytest

from bkctl.runtime.bookie.disks.rules import (
    BookieDisks,
    DiskSample,
    DiskState,
    DiskVerdict,
    judge,
    next_check_s,
    next_state,
)
from bkctl.runtime.config import DiskConfig

CONFIG = DiskConfig(full_fraction=0.8, almost_full_fraction=0.5, recovered_fraction=0.6)
ROOM_BYTES = 100
W, A, F = DiskState.WRITABLE, DiskState.ALMOST_FULL, DiskState.FULL

USED = {"low": 300, "almost": 550, "between": 700, "full": 850, "brim": 950}
"""Bytes used of 1000; at the brim there is no room for high priority."""


def sample(name: str, used_bytes: int) -> DiskSample:
    return DiskSample(name, 1000, 1000 - used_bytes)


@pytest.mark.parametrize(
    ("before", "used_bytes", "after"),
    [
        (W, 500, W),
        (W, 501, A),
        (W, 800, A),
        (W, 801, F),
        (A, 500, W),
        (A, 700, A),
        (A, 801, F),
        (F, 801, F),
        (F, 800, F),
        (F, 600, F),
        (F, 599, A),
        (F, 500, W),
        (F, 0, W),
    ],
)
def test_one_disk(before: DiskState, used_bytes: int, after: DiskState) -> None:
    assert next_state(before, sample("d", used_bytes).used_fraction, CONFIG) is after


def test_a_disk_that_cannot_tell_its_size_is_never_full() -> None:
    assert DiskSample("d", 0, 0).used_fraction == 0.0


@pytest.mark.parametrize("used", range(0, 1001, 10))
def test_between_the_marks_nothing_changes_for_good(used: int) -> None:
    """No flapping: a disk whose usage stays what it is changes its state once at most."""
    fraction = used / 1000
    for state in DiskState:
        first = next_state(state, fraction, CONFIG)
        assert next_state(first, fraction, CONFIG) is first


def test_by_default_there_is_a_gap_between_full_and_recovered() -> None:
    config = DiskConfig()
    assert config.recovered_fraction_or_default == pytest.approx(0.925)
    assert next_state(F, 0.94, config) is F
    assert next_state(W, 0.94, config) is A
    assert DiskConfig(recovered_fraction=0.95).recovered_fraction_or_default == 0.95, "what Java does can be had"


def run(
    before: tuple[DiskState, ...], journal: str, ledgers: tuple[str, ...], indexes: tuple[str, ...], *, any_full: bool
) -> DiskVerdict:
    config = DiskConfig(
        full_fraction=0.8, almost_full_fraction=0.5, recovered_fraction=0.6, is_read_only_when_any_is_full=any_full
    )
    disks = BookieDisks(
        (sample("journal", USED[journal]),),
        tuple(sample(f"ledger{i}", USED[used]) for i, used in enumerate(ledgers)),
        tuple(sample(f"index{i}", USED[used]) for i, used in enumerate(indexes)),
    )
    return judge(before, disks, config, ROOM_BYTES)


@pytest.mark.parametrize("any_full", [True, False])
@pytest.mark.parametrize("start", [W, F])
def test_every_round_of_two_positions_and_a_journal(any_full: bool, start: DiskState) -> None:
    """All 3125 samples from both starts, judged here by the sentences of the sheet."""
    is_full = {"low": False, "almost": False, "between": start is F, "full": True, "brim": True}
    for journal, ledger0, ledger1, index0, index1 in itertools.product(USED, repeat=5):
        verdict = run((start,) * 5, journal, (ledger0, ledger1), (index0, index1), any_full=any_full)
        positions = [is_full[ledger0] or is_full[index0], is_full[ledger1] or is_full[index1]]
        full_count = sum(positions)
        assert verdict.is_read_only == (is_full[journal] or full_count >= (1 if any_full else 2))
        refused = {0, 1} if verdict.is_read_only else {i for i, full in enumerate(positions) if full}
        assert verdict.refused_positions == refused
        high = (
            {i for i, pair in enumerate([(ledger0, index0), (ledger1, index1)]) if "brim" not in pair}
            if journal != "brim"
            else set()
        )
        assert verdict.high_priority_positions == high
        assert (verdict.level is F) == bool(full_count)
        assert {change.sample.directory for change in verdict.changes} == {
            name
            for name, used in zip(
                ("journal", "ledger0", "ledger1", "index0", "index1"),
                (journal, ledger0, ledger1, index0, index1),
                strict=True,
            )
            if (start is W and used != "low") or (start is F and not is_full[used])
        }


def test_a_round_builds_on_the_one_before() -> None:
    states: tuple[DiskState, ...] = (W,) * 3
    modes = []
    for used in ("low", "almost", "between", "full", "between", "almost", "low"):
        verdict = run(states, "low", (used,), (used,), any_full=True)
        states = verdict.states
        modes.append(verdict.is_read_only)
    assert modes == [False, False, False, True, True, False, False]


def test_the_thresholds_must_fit_together() -> None:
    with pytest.raises(ValueError, match=r"diskUsageWarnThreshold\) is 0.9 and must not be above .* 0.85"):
        DiskConfig(full_fraction=0.85)
    with pytest.raises(ValueError, match="diskUsageLwmThreshold"):
        DiskConfig(recovered_fraction=0.96)


def test_room_for_writes_of_high_priority_follows_from_the_room_for_logs() -> None:
    assert DiskConfig().high_priority_room_bytes_or_default(7) == 7
    assert DiskConfig(checkpoint_reserve_bytes=5).high_priority_room_bytes_or_default(7) == 5
    assert (
        DiskConfig(checkpoint_reserve_bytes=5, high_priority_room_bytes=0).high_priority_room_bytes_or_default(7) == 0
    )


@pytest.mark.parametrize(
    ("missing_bytes", "state", "seconds"),
    [
        (100 * 2**30, W, 10.0),
        (5 * 2**30, A, 5.0),
        (2**20, A, 0.1),
        (0, A, 0.1),
        (-(2**30), F, 10.0),
    ],
)
def test_the_next_look_comes_before_a_disk_can_be_full(missing_bytes: int, state: DiskState, seconds: float) -> None:
    total_bytes = 2**40
    one = DiskSample("d", total_bytes, round(total_bytes * 0.2) + missing_bytes)
    assert next_check_s(BookieDisks((), (one,), (one,)), (state, state), CONFIG) == pytest.approx(seconds, rel=1e-3)
