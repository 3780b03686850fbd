"""Counting durations and sizes: totals are exact, quantiles within the width of a bucket, windows do not overlap."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.measures import QUANTILES, Measures, Outcomes, Timing

_VALUES = st.lists(
    st.tuples(st.integers(0, 2**63 - 1) | st.integers(0, 40) | st.integers(0, 2**20), st.integers(1, 1000)),
    min_size=1,
    max_size=30,
)


def _exact(values: list[int], quantile: float) -> int:
    """The smallest value that at least this share of all values does not exceed."""
    return sorted(values)[math.ceil(quantile * len(values)) - 1]


@given(_VALUES)
def test_quantiles_are_within_a_sixteenth_of_the_exact_ones(counted: list[tuple[int, int]]) -> None:
    timing = Timing()
    for value, count in counted:
        timing.add(value, count)
    timing.rotate()
    every = [value for value, count in counted for _ in range(count)]
    assert timing.count == len(every)
    assert timing.total == sum(every)
    for quantile, found in zip(QUANTILES, timing.quantiles(), strict=True):
        assert found == pytest.approx(_exact(every, quantile), rel=1 / 16)


@given(_VALUES, st.integers(0, 30))
def test_what_is_noted_counts_like_what_is_added(counted: list[tuple[int, int]], first_length: int) -> None:
    added, noted = Timing(), Timing()
    for value, count in counted:
        added.add(value, count)
    for pair in counted[:first_length]:
        noted.note(pair)
    noted.count_noted()
    for pair in counted[first_length:]:
        noted.note(pair)
    assert (noted.count, noted.total) == (added.count, added.total)
    added.rotate()
    noted.rotate()
    assert noted.quantiles() == added.quantiles()


@given(st.integers(0, 15))
def test_small_values_have_buckets_of_their_own(value: int) -> None:
    timing = Timing()
    timing.add(value)
    timing.rotate()
    assert timing.quantiles() == (value,) * len(QUANTILES)


@given(st.lists(st.integers(0, 2**40), min_size=1), st.integers(0, 100), st.integers(0, 2**50))
def test_samples_stand_for_all_values_in_equal_shares(samples: list[int], more_count: int, total: int) -> None:
    sampled, every = Timing(), Timing()
    sampled.add_sampled(samples, len(samples) + more_count, total)
    assert (sampled.count, sampled.total) == (len(samples) + more_count, total)
    sampled.rotate()
    for value in samples:
        every.add(value)
    every.rotate()
    if not more_count:
        assert sampled.quantiles() == every.quantiles()
    assert sampled.quantiles()[-1] == every.quantiles()[-1]


def test_quantiles_cover_the_last_full_window_only() -> None:
    timing = Timing()
    timing.add(7, 1000)
    assert all(map(math.isnan, timing.quantiles()))  # the first window has not ended
    timing.rotate()
    assert timing.quantiles() == (7.0,) * len(QUANTILES)
    timing.add(3)
    assert timing.quantiles() == (7.0,) * len(QUANTILES)
    timing.rotate()
    assert timing.quantiles() == (3.0,) * len(QUANTILES)
    timing.rotate()
    assert all(map(math.isnan, timing.quantiles()))
    assert (timing.count, timing.total) == (1001, 7003)


def test_a_timed_block_counts_as_a_failure_if_it_raises() -> None:
    outcomes, clock = Outcomes(), iter((5, 8, 10, 30))
    with outcomes.timed(lambda: next(clock)):
        pass
    with pytest.raises(OSError, match="no"), outcomes.timed(lambda: next(clock)):
        raise OSError("no")
    assert (outcomes.succeeded.count, outcomes.succeeded.total) == (1, 3)
    assert (outcomes.failed.count, outcomes.failed.total) == (1, 20)


class _Disk(Measures):
    def __init__(self) -> None:
        super().__init__()
        self.sync = Timing()


class _Bookie(Measures):
    def __init__(self) -> None:
        super().__init__()
        self.add = Outcomes()
        self.disk = _Disk()
        self.bytes_written = 5


def test_measures_rotate_all_that_they_contain() -> None:
    bookie = _Bookie()
    timings = (bookie.add.succeeded, bookie.add.failed, bookie.disk.sync)
    for value, timing in enumerate(timings):
        timing.add(value)
    bookie.rotate()
    assert [timing.quantiles()[0] for timing in timings] == [0.0, 1.0, 2.0]
