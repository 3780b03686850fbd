"""What is to be done with one ledger."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.config import OpenLedgers
from bkctl.runtime.replication.judge.fragments import EntryRange, Fragment, fragments_naming
from bkctl.runtime.replication.plan.job_file import JobRange
from bkctl.runtime.replication.policy import Policy


class LedgerTask(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done with one ledger: bookies to replace, and bad copies to write again.

    ``leaving``: bookies to replace wherever the ledger names them; one that still serves is the preferred source of its
    own entries. ``leaving_segments``: the same, but only in the segments that begin with these entries. ``bad``:
    entries whose copies were found bad, by the bookie that the metadata names for them. ``unreachable``: bookies that
    are never asked. No stripe moves to any of these.

    ``earlier_segment``: the last segment of an open ledger when it was first read, long enough ago for its writer to
    replace a leaving bookie; None: it was not read then. ``ranges``: what an earlier run copied of the ledger.
    ``stored``: metadata that was read before, used if its version is still stored. ``bytes_to_copy``: an estimate, for
    the progress of the run. ``is_drain``: the leaving bookies
    serve, so a writer moves on with its next add. ``is_data_first``, ``must_improve``: see ``CopyNeed``.
    """

    ledger_id: int
    leaving: frozenset[str] = frozenset()
    leaving_segments: Mapping[int, frozenset[str]] = {}
    bad: Mapping[str, tuple[EntryRange, ...]] = {}
    unreachable: frozenset[str] = frozenset()
    earlier_segment: Segment | None = None
    ranges: tuple[JobRange, ...] = ()
    stored: Versioned[LedgerMetadata] | None = None
    bytes_to_copy: int = 0
    is_drain: bool = False
    is_data_first: bool = False
    must_improve: bool = False

    def fragments(self, metadata: LedgerMetadata) -> list[Fragment]:
        """The segments that reference a leaving bookie, in their order."""
        found = [*fragments_naming(metadata, self.leaving)] if self.leaving else []
        for first_entry_id, leaving in self.leaving_segments.items():
            matching = fragments_naming(metadata, leaving)
            found += [each for each in matching if each.entries.first_entry_id == first_entry_id]
        return found

    def begun(self, first_entry_id: int, ensemble_index: int) -> JobRange | None:
        """What an earlier run copied of a stripe."""
        stripe = (first_entry_id, ensemble_index)
        return next((each for each in self.ranges if (each.first_entry_id, each.ensemble_index) == stripe), None)

    def leaving_in(self, first_entry_id: int) -> frozenset[str]:
        """The bookies to replace in the segment that begins with this entry."""
        return self.leaving | self.leaving_segments.get(first_entry_id, frozenset())

    def why_left_open(self, metadata: LedgerMetadata, policy: Policy) -> str | None:
        """Why an open last segment with a leaving bookie must be left alone; None: fence and close the ledger."""
        if policy.open_ledgers is OpenLedgers.FENCE or metadata.state is not LedgerState.OPEN:
            return None
        last = metadata.last_segment
        names = ", ".join(sorted(self.leaving_in(last.first_entry_id).intersection(last.ensemble)))
        if self.earlier_segment is None or policy.leaves_writers(is_drain=self.is_drain):
            return f"its last segment is open and references {names}"
        is_unchanged = self.earlier_segment == last
        return None if is_unchanged else f"its writer is active and its last segment still references {names}"
