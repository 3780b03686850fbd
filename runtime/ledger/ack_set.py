"""Answers to one add. Source: protocol section 2.2."""

from __future__ import annotations


class AckSet:
    """Which members of an entry's write set acknowledged it and which failed, by ensemble index.

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
