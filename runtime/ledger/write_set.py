"""Quorum rules: which bookies store an entry, and when enough of them have answered. Pure.

Write sets are assigned round robin over the ensemble. Source: protocol sections 2.1, 2.2 and 2.3.
"""

from __future__ import annotations

import functools


def write_set(entry_id: int, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Ensemble indexes that store ``entry_id``, in sending order: ``(entry_id + i) mod E`` for i below Qw."""
    return _write_sets(ensemble_size, write_quorum_size)[entry_id % ensemble_size]


def is_in_write_set(entry_id: int, index: int, ensemble_size: int, write_quorum_size: int) -> bool:
    """Whether the bookie at ``index`` of the ensemble stores ``entry_id``."""
    return (index - entry_id) % ensemble_size < write_quorum_size


@functools.lru_cache(maxsize=256)
def _write_sets(ensemble_size: int, write_quorum_size: int) -> tuple[tuple[int, ...], ...]:
    """All E write sets, by first index."""
    assert ensemble_size >= write_quorum_size > 0
    return tuple(tuple((first + i) % ensemble_size for i in range(write_quorum_size)) for first in range(ensemble_size))


class AckSet:
    """Answers to one add, by ensemble index: which members of the write set acknowledged it and which failed.

    The sets are bit masks to save memory, because there is one instance per add in flight.
    """

    __slots__ = ("_ack_quorum_size", "_acked", "_failed", "_failures_max")

    def __init__(self, write_quorum_size: int, ack_quorum_size: int) -> None:
        assert write_quorum_size >= ack_quorum_size > 0
        self._ack_quorum_size = ack_quorum_size
        self._failures_max = write_quorum_size - ack_quorum_size
        self._acked = 0
        self._failed: dict[int, str] | None = None

    def ack(self, index: int) -> bool:
        """Record an acknowledgement, which overrides a failure. Returns whether the ack quorum is reached."""
        self._acked |= 1 << index
        if self._failed is not None:
            self._failed.pop(index, None)
        return self.is_complete

    def fail(self, index: int, bookie_id: str) -> bool:
        """Record a failure, which overrides an acknowledgement. Returns whether the ack quorum is now impossible."""
        self._acked &= ~(1 << index)
        if self._failed is None:
            self._failed = {}
        self._failed[index] = bookie_id
        return len(self._failed) > self._failures_max

    def unset(self, index: int) -> bool:
        """Remove an index whose bookie was replaced. Returns whether the ack quorum is still reached without it."""
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
        """Failed bookies, by index."""
        return dict(self._failed or {})


def negatives_needed(write_quorum_size: int, ack_quorum_size: int) -> int:
    """How many bookies of the write set must report "no such entry" to prove that an entry was never acknowledged."""
    return write_quorum_size - ack_quorum_size + 1


class QuorumCoverage:
    """The bookies of one ensemble that are known to be fenced or not to have an entry, by index.

    A set of bookies is a coverage if every ack quorum of every write quorum contains one of them. Coverage proves that
    fencing is effective, and that a last add confirmed is complete.
    """

    def __init__(self, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int) -> None:
        assert ensemble_size >= write_quorum_size >= ack_quorum_size > 0
        self._ack_quorum_size = ack_quorum_size
        self._write_sets = [write_set(first, ensemble_size, write_quorum_size) for first in range(ensemble_size)]
        self._unknown = set(range(ensemble_size))

    def note_known(self, index: int) -> None:
        """Record that a bookie answered OK, no such entry or no such ledger. Other errors and timeouts do not count."""
        self._unknown.discard(index)

    @property
    def is_covered(self) -> bool:
        """Whether every write quorum has fewer than an ack quorum of unknown members."""
        return not self.missing

    @property
    def missing(self) -> frozenset[int]:
        """The unknown members of the write quorums that are not covered: entries may exist that only they have."""
        unknown = (self._unknown.intersection(indexes) for indexes in self._write_sets)
        return frozenset().union(*(each for each in unknown if len(each) >= self._ack_quorum_size))
