"""Whether a peer that owes something goes on."""

from __future__ import annotations

from typing import NamedTuple

from runtime.protocol.framing import READ_BYTES


class Standing(NamedTuple):
    """Where a peer stands with what it owes: so many pieces done, so many bytes of the present one."""

    debt: str
    piece_count: int
    piece_bytes: int


class StandstillWatch:
    """Looks at one peer every so often. Trickling is no progress: a piece ends, or comes on by ``READ_BYTES``."""

    def __init__(self) -> None:
        self._since: Standing | None = None
        self._look_count = 0

    def look(self, now: Standing | None) -> int:
        """How many looks in a row found the peer where it was; None for a peer that owes nothing."""
        since = self._since
        if now is None or since is None or now[:2] != since[:2] or now.piece_bytes - since.piece_bytes >= READ_BYTES:
            self._since, self._look_count = now, 0
        else:
            self._look_count += 1
        return self._look_count
