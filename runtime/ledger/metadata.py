"""Ledger metadata and its structural rules. Source: metadata sections 6 and 8.1, protocol section 1.1."""

from __future__ import annotations

import bisect
import enum
import re

import msgspec

from bkctl.runtime.protocol.digest import DigestType
from bkctl.storage.ids import INVALID_ENTRY_ID

__all__ = ["DigestType", "LedgerMetadata", "LedgerState", "Segment"]

_ENTRIES_MAX = 2**63 - 1
_BOOKIE_ID = re.compile(r"[A-Za-z0-9.\-:-_]+")  # the range from colon to underscore is part of the rule
_HOST_AND_PORT = re.compile(r"(?P<host>.+):(?P<port>\d{1,5})")


class LedgerState(enum.IntEnum):
    """State in the metadata; it only moves forward."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class Segment(msgspec.Struct, frozen=True, gc=False):
    """The entries from ``first_entry_id`` up to the next segment are on this ensemble."""

    first_entry_id: int
    ensemble: tuple[str, ...]


class LedgerMetadata(msgspec.Struct, frozen=True):
    """A ledger's metadata in the metadata store; does not contain the ledger id.

    ``length`` (payload bytes) and ``last_entry_id`` are valid only if CLOSED. ``ctime_ms`` None: not stored.
    ``format_version`` is the format it was read in; a rewrite keeps it.
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
    def sizes(self) -> tuple[int, int]:
        """Ensemble size and write quorum size, which say where each entry is."""
        return self.ensemble_size, self.write_quorum_size

    @property
    def entry_count(self) -> int | None:
        """Number of entries of a closed ledger; None if it is not closed, or if its end is invalid."""
        count = self.last_entry_id + 1
        return count if self.is_closed and 0 <= count <= _ENTRIES_MAX else None

    def created_ms(self, node_ctime_ms: int | None) -> int | None:
        """Creation time in ms since 1970: the stored one unless it is -1, else its node's (metadata section 6.6)."""
        return node_ctime_ms if self.ctime_ms is None or self.ctime_ms < 0 else self.ctime_ms

    @property
    def last_segment(self) -> Segment:
        """The segment that a writer appends to."""
        return self.segments[-1]

    def segment_index_of(self, entry_id: int) -> int:
        """Index of the segment that contains ``entry_id``: the last one that starts at or before it."""
        index = bisect.bisect_right(self.segments, entry_id, key=_first_entry_id) - 1
        assert index >= 0, "the first segment starts at entry 0"
        return index

    def segment_of(self, entry_id: int) -> Segment:
        """The segment that contains ``entry_id``."""
        return self.segments[self.segment_index_of(entry_id)]

    def bookies(self) -> frozenset[str]:
        """All bookies in any segment."""
        return frozenset(bookie_id for segment in self.segments for bookie_id in segment.ensemble)


def _first_entry_id(segment: Segment) -> int:
    return segment.first_entry_id


def is_valid_bookie_id(text: str) -> bool:
    """Whether Java accepts it as a bookie id. One registration with an invalid id makes every Java client hang.

    Java also accepts ``.`` and ``..``, but ZooKeeper allows no such nodes, so no bookie can register with them.
    """
    return _BOOKIE_ID.fullmatch(text) is not None and text.lower() != "readonly" and text not in {".", ".."}


def parse_host_and_port(bookie_id: str) -> tuple[str, int] | None:
    """Host and port of an id in the form ``host:port``; None for any other id."""
    found = _HOST_AND_PORT.fullmatch(bookie_id)
    if found is None:
        return None
    port = int(found["port"])
    return (found["host"], port) if 0 < port < 65536 else None
