"""What a run does with each of its ledgers."""

from __future__ import annotations

from typing import NamedTuple

from runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from runtime.metadata.store import Versioned
from runtime.replication.config import OpenLedgers
from runtime.replication.judge.fragments import Fragment, fragments_naming
from runtime.replication.plan.job_file import JobRange


class RepairOrder(NamedTuple):
    """What a run does with each of its ledgers.

    ``leaving``: bookies to replace; one that still serves is the preferred source of its own entries. ``unreachable``:
    bookies that are never asked. Neither are targets. ``seen``: the last segment of an open ledger at a first look,
    long enough ago for its writer to replace a leaving bookie; None: there was no such look. ``ranges``: what an
    earlier run copied of the ledger. ``stored``: metadata that was read before, used if its version is still stored.
    ``segments``: first entries of the segments to repair; None: all.
    ``is_data_first`` and ``must_improve``: see ``CopyNeed``.
    """

    leaving: frozenset[str]
    unreachable: frozenset[str]
    open_ledgers: OpenLedgers = OpenLedgers.WAIT
    seen: Segment | None = None
    ranges: tuple[JobRange, ...] = ()
    stored: Versioned[LedgerMetadata] | None = None
    segments: frozenset[int] | None = None
    is_data_first: bool = False
    must_improve: bool = False

    def fragments(self, metadata: LedgerMetadata) -> list[Fragment]:
        """The segments to repair that reference a leaving bookie, in their order."""
        return [
            fragment
            for fragment in fragments_naming(metadata, self.leaving)
            if self.segments is None or fragment.entries.first_entry_id in self.segments
        ]

    def why_left_open(self, metadata: LedgerMetadata) -> str | None:
        """Why an open last segment with a leaving bookie must be left alone; None: fence and close the ledger."""
        named = ", ".join(sorted(self.leaving.intersection(metadata.last_segment.ensemble)))
        if self.open_ledgers is OpenLedgers.FENCE or metadata.state is not LedgerState.OPEN:
            return None
        if self.open_ledgers is OpenLedgers.WAIT and self.seen is not None:
            is_same = self.seen == metadata.last_segment
            return None if is_same else f"its writer is active and its last segment still references {named}"
        return f"its last segment is open and references {named}"
