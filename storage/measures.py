"""Measures of a running bookie: durations in nanoseconds, or sizes, counted in buckets.

A measure is written by one thread and can be read by another at any moment. The writer only adds to plain numbers, so
neither needs a lock; a reader may miss what is being added. A timer calls ``rotate`` at the end of each window.

On the path of adds a value is only appended to a list (``Timing.note``), which costs a tenth of counting it. The reader
counts what is in the list, and a timer does so several times per second (``count_noted``).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

NowNs: TypeAlias = Callable[[], int]
"""A clock that never goes backwards, in nanoseconds."""

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
WINDOW_S: Final = 60.0
"""Usual time between two rotations."""

_FINE_BITS: Final = 3
"""Each power of two has 2 ** 3 buckets; smaller values have one bucket each."""
_VALUE_BITS_MAX: Final = 63
_BUCKET_COUNT: Final = (_VALUE_BITS_MAX - _FINE_BITS + 1) << _FINE_BITS
_NO_SAMPLES: Final = (math.nan,) * len(QUANTILES)


class Timing:
    """Durations or sizes: how many, their sum, and their quantiles in the last full window.

    A quantile is the middle of a bucket: at most one sixteenth away from a value that was added. The thread that reads
    it counts what was noted, so a writer in another thread uses either ``add`` or ``note``.
    """

    __slots__ = ("_counts", "_counts_at_end", "_counts_at_start", "_noted", "_quantiles", "_total", "note")

    def __init__(self) -> None:
        self._total = 0
        self._noted: list[tuple[int, int]] = []
        self.note: Final = self._noted.append
        """Take a value and how many times it counts; both are counted later."""
        self._counts = [0] * _BUCKET_COUNT
        self._counts_at_start = self._counts_at_end = [0] * _BUCKET_COUNT
        self._quantiles: tuple[float, ...] | None = _NO_SAMPLES

    def add(self, value: int, count: int = 1) -> None:
        """Count a value from 0 to 2 ** 63 - 1, ``count`` times."""
        shift = value.bit_length() - (_FINE_BITS + 1)
        self._counts[(shift << _FINE_BITS) + (value >> shift) if shift > 0 else value] += count
        self._total += value * count

    def add_sampled(self, samples: Sequence[int], count: int, total: int) -> None:
        """Count ``count`` values with the sum ``total``, of which some stand for all, in equal shares."""
        total += self._total
        shares = range(len(samples) + 1)
        ends = [count * share // len(samples) for share in shares]
        for value, start, end in zip(samples, ends, ends[1:], strict=False):
            self.add(value, end - start)
        self._total = total

    def count_noted(self) -> None:
        """Count what was noted since the last call."""
        length = len(self._noted)  # the writer may append meanwhile
        if not length:
            return
        counts, total = self._counts, 0
        for value, count in self._noted[:length]:
            shift = value.bit_length() - (_FINE_BITS + 1)
            counts[(shift << _FINE_BITS) + (value >> shift) if shift > 0 else value] += count
            total += value * count
        del self._noted[:length]
        self._total += total

    @property
    def count(self) -> int:
        """Number of values since the start."""
        self.count_noted()
        return sum(self._counts)

    @property
    def total(self) -> int:
        """Sum of all values since the start."""
        self.count_noted()
        return self._total

    def rotate(self) -> None:
        """End a window; the quantiles are those of this window from now on."""
        self.count_noted()
        self._counts_at_start, self._counts_at_end = self._counts_at_end, self._counts.copy()
        self._quantiles = None

    def quantiles(self) -> tuple[float, ...]:
        """Values at ``QUANTILES`` in the last full window; NaN if nothing was added in it."""
        if self._quantiles is None:
            self._quantiles = _quantiles_between(self._counts_at_start, self._counts_at_end)
        return self._quantiles


class Outcomes:
    """The same measure for what succeeded and for what failed."""

    __slots__ = ("failed", "succeeded")

    def __init__(self) -> None:
        self.succeeded = Timing()
        self.failed = Timing()

    def add(self, value: int, count: int = 1, *, is_success: bool = True) -> None:
        """Count a value, ``count`` times."""
        (self.succeeded if is_success else self.failed).add(value, count)

    def timed(self, now_ns: NowNs) -> _TimedBlock:
        """Count the duration of a ``with`` block, as a failure if it raises."""
        return _TimedBlock(self, now_ns)

    def count_noted(self) -> None:
        """Count what was noted in both."""
        self.succeeded.count_noted()
        self.failed.count_noted()

    def rotate(self) -> None:
        """End a window of both."""
        self.succeeded.rotate()
        self.failed.rotate()


class _TimedBlock:
    """Half the cost of a generator."""

    __slots__ = ("_began_ns", "_now_ns", "_outcomes")

    def __init__(self, outcomes: Outcomes, now_ns: NowNs) -> None:
        self._outcomes = outcomes
        self._now_ns = now_ns

    def __enter__(self) -> None:
        self._began_ns = self._now_ns()

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        elapsed_ns = self._now_ns() - self._began_ns
        (self._outcomes.succeeded if exc_type is None else self._outcomes.failed).add(elapsed_ns)


def no_clock() -> int:
    """For callers that look at no measure: all durations are 0."""
    return 0


class Measures:
    """Measures of one part of the bookie. A subclass has numbers, timings and further measures as attributes."""

    def __init__(self, now_ns: NowNs = no_clock) -> None:
        self.now_ns = now_ns

    def count_noted(self) -> None:
        """Count what was noted in all measures in this one."""
        for value in self._parts():
            value.count_noted()

    def rotate(self) -> None:
        """End a window of all measures in this one."""
        for value in self._parts():
            value.rotate()

    def _parts(self) -> list[Timing | Outcomes | Measures]:
        return [value for value in vars(self).values() if isinstance(value, Timing | Outcomes | Measures)]


def _quantiles_between(counts_at_start: list[int], counts_at_end: list[int]) -> tuple[float, ...]:
    sums = list(itertools.accumulate(map(int.__sub__, counts_at_end, counts_at_start)))
    if not sums[-1]:
        return _NO_SAMPLES
    return tuple(_middle(bisect_left(sums, math.ceil(quantile * sums[-1]))) for quantile in QUANTILES)


def _middle(bucket: int) -> float:
    """The middle of the values of a bucket."""
    shift = (bucket >> _FINE_BITS) - 1
    if shift <= 0:
        return float(bucket)
    first = ((bucket & (1 << _FINE_BITS) - 1) + (1 << _FINE_BITS)) << shift
    return first + ((1 << shift) - 1) / 2
