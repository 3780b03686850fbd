"""Quorum coverage: have enough bookies answered to speak for every ack quorum? Source: protocol section 2.3.

A set of bookies covers when no ack quorum of any write quorum lies wholly outside it. It decides that fencing took hold
and that a last add confirmed was learned.
"""

from __future__ import annotations

from runtime.ledger.write_set import write_set


def negatives_needed(write_quorum_size: int, ack_quorum_size: int) -> int:
    """How many of an entry's write set must state that they lack it, before it counts as never acknowledged."""
    return write_quorum_size - ack_quorum_size + 1


class QuorumCoverage:
    """The bookies of one ensemble that are known to be fenced or to lack an entry, by index."""

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
