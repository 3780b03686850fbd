"""Metadata of a ledger and its legal shapes. Source: metadata section 6, protocol section 1.1."""

from __future__ import annotations

import bisect
import enum

import msgspec

from runtime.protocol.digest import DigestType
from storage.ids import INVALID_ENTRY_ID

__all__ = ["DigestType", "LedgerMetadata", "LedgerState", "Segment"]

_ENTRIES_MAX = 2**63 - 1


class LedgerState(enum.IntEnum):
    """State stored in the metadata; it only moves forward."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class Segment(msgspec.Struct, frozen=True, gc=False):
    """Entries from ``first_entry_id`` on live on this ensemble, up to the next segment's start."""

    first_entry_id: int
    ensemble: tuple[str, ...]


class LedgerMetadata(msgspec.Struct, frozen=True):
    """All that the metadata store keeps of a ledger; the ledger id is not part of it.

    ``length`` (payload bytes) and ``last_entry_id`` mean something only when CLOSED. ``ctime_ms`` None: not stored.
    ``format_version`` is the serialised form it was read in, and is kept on a rewrite.
    """

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = INVALID_ENTRY_ID
    length: int = 0
    digest_type: DigestType | None = None
    password: bytes | None = None
    ctime_ms: int | None = None
    custom_metadata: tuple[tuple[str, bytes], ...] = ()
    creator_token: int = 0
    format_version: int = 3

    @property
    def is_closed(self) -> bool:
        """Whether the end is final."""
        return self.state is LedgerState.CLOSED

    @property
    def entry_count(self) -> int | None:
        """Entries of a closed ledger; None while it is not closed, and for an end that no ledger can have."""
        count = self.last_entry_id + 1
        return count if self.is_closed and 0 <= count <= _ENTRIES_MAX else None

    @property
    def last_segment(self) -> Segment:
        """Segment that a writer appends to."""
        return self.segments[-1]

    def segment_index_of(self, entry_id: int) -> int:
        """Index of the segment that holds ``entry_id``: the greatest start at or below it."""
        index = bisect.bisect_right(self.segments, entry_id, key=_first_entry_id) - 1
        assert index >= 0, "the first segment starts at entry 0"
        return index

    def segment_of(self, entry_id: int) -> Segment:
        """Segment that holds ``entry_id``."""
        return self.segments[self.segment_index_of(entry_id)]

    def bookies(self) -> frozenset[str]:
        """Every bookie that any segment names."""
        return frozenset(bookie_id for segment in self.segments for bookie_id in segment.ensemble)


def _first_entry_id(segment: Segment) -> int:
    return segment.first_entry_id
