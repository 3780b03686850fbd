"""Detects a peer that stopped within a frame, or that no longer reads its answers."""

from __future__ import annotations

from typing import NamedTuple

from bkctl.runtime.protocol.framing import READ_BYTES


class Standing(NamedTuple):
    """Progress of a peer with a frame or its answers: finished pieces, and bytes of the current piece."""

    debt: str
    piece_count: int
    piece_bytes: int


class StandstillWatch:
    """Detects a stalled peer. Progress is a finished piece or ``READ_BYTES`` more of it; trickling does not count."""

    def __init__(self) -> None:
        self._since: Standing | None = None
        self._stalled_count = 0

    def stalled_checks(self, now: Standing | None) -> int:
        """Number of consecutive checks without progress. ``now`` is None if the peer owes nothing."""
        since = self._since
        if now is None or since is None or now[:2] != since[:2] or now.piece_bytes - since.piece_bytes >= READ_BYTES:
            self._since, self._stalled_count = now, 0
        else:
            self._stalled_count += 1
        return self._stalled_count
