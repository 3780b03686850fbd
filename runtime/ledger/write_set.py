"""Quorum rules: which bookies hold an entry, and when enough of them have answered. Pure.

An entry is on the bookies of its write set, by round robin over the ensemble. Source: protocol sections 2.1, 2.2, 2.3,
4.3 and 9.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterable


def write_set(entry_id: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Ensemble indexes that hold ``entry_id``, in sending order: ``(entry_id + i) mod E`` for i below Qw."""
    return _write_sets(ensemble_size, write_quorum_size)[entry_id % ensemble_size]


def is_in_write_set(entry_id: int, index: int, ensemble_size: int, write_quorum_size: int) -> bool:
    """Whether the bookie at ``index`` of the ensemble holds ``entry_id``."""
    return (index - entry_id) % ensemble_size < write_quorum_size


@functools.lru_cache(maxsize=256)
def _write_sets(ensemble_size: int, write_quorum_size: int) -> tuple[tuple[int, ...], ...]:
    """Every write set, by its first index: there are only E of them."""
    assert ensemble_size >= write_quorum_size > 0
    return tuple(tuple((first + i) % ensemble_size for i in range(write_quorum_size)) for first in range(ensemble_size))


class AckSet:
    """Answers to one add: which members of the write set acknowledged it and which failed, by ensemble index.

    The sets are bit masks: one of these lives for every add under way.
    """

    __slots__ = ("_ack_quorum_size", "_acked", "_failed", "_failures_max")

    def __init__(self, write_quorum_size: int, ack_quorum_size: int) -> None:
        assert write_quorum_size >= ack_quorum_size > 0
        self._ack_quorum_size = ack_quorum_size
        self._failures_max = write_quorum_size - ack_quorum_size
        self._acked = 0
        self._failed: dict[int, str] | None = None

    def ack(self, index: int) -> bool:
        """Count an acknowledgement, which overrides a failure; whether the ack quorum is reached."""
        self._acked |= 1 << index
        if self._failed is not None:
            self._failed.pop(index, None)
        return self.is_complete

    def fail(self, index: int, bookie_id: str) -> bool:
        """Count a failure, which overrides an acknowledgement; whether the ack quorum has become impossible."""
        self._acked &= ~(1 << index)
        if self._failed is None:
            self._failed = {}
        self._failed[index] = bookie_id
        return len(self._failed) > self._failures_max

    def unset(self, index: int) -> bool:
        """Forget an index, whose bookie was replaced; whether the ack quorum is still reached without it."""
        self._acked &= ~(1 << index)
        if self._failed is not None:
            self._failed.pop(index, None)
        return self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether the ack quorum is reached."""
        return self._acked.bit_count() >= self._ack_quorum_size

    @property
    def failed(self) -> dict[int, str]:
        """Failed indexes and the bookies they stood for."""
        return dict(self._failed or {})


def negatives_needed(write_quorum_size: int, ack_quorum_size: int) -> int:
    """How many of an entry's write set must state that they lack it, before it counts as never acknowledged."""
    return write_quorum_size - ack_quorum_size + 1


class QuorumCoverage:
    """The bookies of one ensemble that are known to be fenced or to lack an entry, by index.

    A set of bookies covers when no ack quorum of any write quorum lies wholly outside it. It decides that fencing took
    hold and that a last add confirmed was learned.
    """

    def __init__(self, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
        assert ensemble_size >= write_quorum_size >= ack_quorum_size > 0
        self._ack_quorum_size = ack_quorum_size
        self._write_sets = [write_set(first, ensemble_size, write_quorum_size) for first in range(ensemble_size)]
        self._unknown = set(range(ensemble_size))

    def mark_known(self, index: int) -> None:
        """The bookie answered OK, no such entry or no such ledger. Errors and silence are not known."""
        self._unknown.discard(index)

    @property
    def is_covered(self) -> bool:
        """Whether every write quorum has fewer than an ack quorum of unknown members."""
        return all(
            sum(index in self._unknown for index in indexes) < self._ack_quorum_size for indexes in self._write_sets
        )


def choose_ensemble(
    writable: Iterable[str], size: int, exclude: Iterable[str], random_source: random.Random
) -> tuple[str, ...] | None:
    """A random ensemble of ``size`` writable bookies outside ``exclude``; None when there are too few.

    No bookie appears twice. The same seed and the same bookies give the same answer, in whatever order they come.
    """
    candidates = _candidates(writable, exclude)
    return tuple(random_source.sample(candidates, size)) if len(candidates) >= size else None


def choose_replacement(
    writable: Iterable[str], ensemble: Iterable[str], exclude: Iterable[str], random_source: random.Random
) -> str | None:
    """A writable bookie that is neither in the ensemble nor excluded; None when there is none."""
    candidates = _candidates(writable, [*ensemble, *exclude])
    return random_source.choice(candidates) if candidates else None


def _candidates(writable: Iterable[str], exclude: Iterable[str]) -> list[str]:
    return sorted(set(writable).difference(exclude))
