"""Plan and report of a repair in place: bad copies are written again to the bookies that the metadata names. Pure.

A copy is written again if its bookie answered that it is missing, corrupt or damaged, another bookie has a good copy,
and all good copies are equal. A bookie that does not answer proves nothing about its copy. The last segment of a ledger
that is not closed is never touched: its writer, or a recovery, decides what it contains. Source: replication section 5.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

import msgspec

from runtime.ledger.metadata import LedgerMetadata
from runtime.replication.checker import LedgerCheck
from runtime.replication.copies import Copy, CopyState, marked_different
from runtime.replication.findings import findings_of
from runtime.replication.fragments import EntryRange, in_and_out_of, joined, segment_entries

BAD_STATES = frozenset({CopyState.MISSING, CopyState.CORRUPT, CopyState.FAILED})
"""What a bookie answers about a copy that is gone or damaged."""


class LeftReason(enum.Enum):
    """Why bad copies are not written again."""

    LOST = "no bookie has a good copy"
    UNREADABLE = "no good copy can be read now"
    DIFFERENT = "the copies differ"
    UNREACHABLE = "the bookie does not answer"
    READ_ONLY = "the bookie is read-only"
    REFUSED = "the bookie did not store the copy"
    STILL_BAD = "the bookie still returns a bad copy"
    LOCKED = "another process has the replication lock"
    METADATA_UNREADABLE = "the ledger metadata cannot be read"


class LeftCopies(msgspec.Struct, frozen=True):
    """Bad copies of a ledger on one bookie that stay as they are; ``detail`` says more, for the first of them.

    Without bookie and entries if nothing is known about the copies.
    """

    ledger_id: int
    reason: LeftReason
    bookie_id: str = ""
    copies: int = 0
    entries: tuple[EntryRange, ...] = ()
    detail: str = ""


class CopiesToWrite(msgspec.Struct, frozen=True):
    """Bad copies of a ledger on one bookie. ``sources``: bookies that should have good ones.

    ``copies`` is smaller than the number of ``entries`` only if there were too many ranges to list.
    """

    bookie_id: str
    state: CopyState
    copies: int
    entries: tuple[EntryRange, ...]
    sources: tuple[str, ...]


class LedgerInPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Plan for one ledger. ``metadata_version`` None: it is deleted or unreadable.

    ``open_from``: first entry of the open last segment, which is left alone.
    """

    ledger_id: int
    metadata_version: int | None = None
    writes: tuple[CopiesToWrite, ...] = ()
    left: tuple[LeftCopies, ...] = ()
    entry_bytes: int = 0
    open_from: int | None = None

    @property
    def copies(self) -> int:
        """Copies to write."""
        return sum(each.copies for each in self.writes)


class InPlacePlan(msgspec.Struct, frozen=True):
    """Plan for all ledgers that were verified. ``deleted``: those that do not exist."""

    ledgers: tuple[LedgerInPlace, ...]
    deleted: tuple[int, ...] = ()

    @property
    def to_write(self) -> tuple[LedgerInPlace, ...]:
        """Ledgers with copies to write."""
        return tuple(ledger for ledger in self.ledgers if ledger.writes)

    @property
    def copies(self) -> int:
        """Copies to write."""
        return sum(ledger.copies for ledger in self.ledgers)

    @property
    def bytes_estimate(self) -> int:
        """Bytes to write, from the average size of the entries that were read."""
        return sum(ledger.copies * ledger.entry_bytes for ledger in self.ledgers)

    @property
    def left(self) -> tuple[LeftCopies, ...]:
        """Bad copies that stay."""
        return tuple(left for ledger in self.ledgers for left in ledger.left)


class LedgerRewritten(msgspec.Struct, frozen=True, kw_only=True):
    """Result for one ledger: verified copies, their bytes, and what is left."""

    ledger_id: int
    copies: int = 0
    bytes_written: int = 0
    left: tuple[LeftCopies, ...] = ()
    was_deleted: bool = False


class InPlaceReport(msgspec.Struct, frozen=True):
    """Results of a run, and bad copies that the plan had already left."""

    plan: InPlacePlan
    results: tuple[LedgerRewritten, ...]
    seconds: float

    @property
    def copies_written(self) -> int:
        """Copies that were written and read back."""
        return sum(result.copies for result in self.results)

    @property
    def bytes_written(self) -> int:
        """Their bytes."""
        return sum(result.bytes_written for result in self.results)

    @property
    def left(self) -> tuple[LeftCopies, ...]:
        """All bad copies that stay, by ledger."""
        found = [*self.plan.left, *(left for result in self.results for left in result.left)]
        return tuple(sorted(found, key=lambda left: (left.ledger_id, left.bookie_id)))

    @property
    def copies_not_needed(self) -> int:
        """Planned copies that were good, moved or deleted before they were written."""
        left = sum(left.copies for result in self.results for left in result.left)
        return max(0, self.plan.copies - self.copies_written - left)

    @property
    def is_complete(self) -> bool:
        """Whether no bad copy that was found is left."""
        return not self.left


def plan_in_place(
    check: LedgerCheck, metadata: LedgerMetadata, version: int, writable: Collection[str]
) -> LedgerInPlace:
    """Decide about each bad copy that a check found. ``writable``: bookies that accept entries."""
    different = joined(
        entries for defect in check.defects if defect.state is CopyState.DIFFERENT for entries in defect.entries
    )
    writes: list[CopiesToWrite] = []
    left: list[LeftCopies] = []
    reasons = {(defect.bookie_id, defect.state): defect.reason for defect in check.defects}
    ranges: dict[tuple[str, CopyState], list[EntryRange]] = {}
    counts: dict[tuple[str, CopyState], int] = {}
    for finding in findings_of(check):
        key = (finding.bookie_id, finding.state)
        ranges.setdefault(key, []).append(finding.entries)
        counts[key] = counts.get(key, 0) + finding.copies
    for (bookie_id, state), found in ranges.items():
        rest, copies, detail = tuple(found), counts[bookie_id, state], reasons[bookie_id, state]
        for reason, entries in (
            (LeftReason.LOST, check.lost),
            (LeftReason.UNREADABLE, check.unreadable),
            (LeftReason.DIFFERENT, different),
            (LeftReason.UNREACHABLE, () if state in BAD_STATES else found),
            (LeftReason.READ_ONLY, () if bookie_id in writable else found),
        ):
            inside, rest = in_and_out_of(rest, entries)
            count = min(copies, sum(each.count for each in inside))
            copies -= count
            if count:
                left.append(LeftCopies(check.ledger_id, reason, bookie_id, count, inside, detail))
        if copies and rest:
            writes.append(CopiesToWrite(bookie_id, state, copies, rest, _sources(metadata, bookie_id, rest)))
    good = check.copies_good + check.copies_different
    return LedgerInPlace(
        ledger_id=check.ledger_id,
        metadata_version=version,
        writes=tuple(writes),
        left=tuple(left),
        entry_bytes=check.bytes_read // good if good else 0,
        open_from=None if metadata.is_closed else metadata.last_segment.first_entry_id,
    )


def _sources(metadata: LedgerMetadata, bookie_id: str, entries: Sequence[EntryRange]) -> tuple[str, ...]:
    """The other bookies of the segments that have these entries."""
    found: set[str] = set()
    for index, segment in enumerate(metadata.segments):
        inside, _ = in_and_out_of(entries, (segment_entries(metadata, index),))
        if inside:
            found.update(segment.ensemble)
    return tuple(sorted(found - {bookie_id}))


class EntryVerdict(msgspec.Struct, frozen=True):
    """What to do about an entry: write ``source`` to ``targets``, or leave these targets for a reason."""

    source: Copy | None = None
    targets: tuple[str, ...] = ()
    left: tuple[tuple[str, LeftReason, str], ...] = ()


def judge_entry(copies: Sequence[Copy], planned: Collection[str]) -> EntryVerdict:
    """Decide again from the copies of the whole write set; ``planned``: bookies whose copies may be written."""
    judged = marked_different(copies)
    targets = tuple(copy.bookie_id for copy in judged if copy.bookie_id in planned and copy.state in BAD_STATES)
    left = [
        (copy.bookie_id, LeftReason.UNREACHABLE, copy.reason)
        for copy in judged
        if copy.bookie_id in planned and copy.state is CopyState.UNREACHABLE
    ]
    sources = [copy for copy in judged if copy.state is CopyState.PRESENT]
    states = {copy.state for copy in judged}
    if not targets:
        return EntryVerdict(left=tuple(left))
    if CopyState.DIFFERENT in states:
        reason = LeftReason.DIFFERENT
    elif sources:
        return EntryVerdict(sources[0], targets, tuple(left))
    else:
        is_unknown = not states.isdisjoint({CopyState.UNREACHABLE, CopyState.FAILED})
        reason = LeftReason.UNREADABLE if is_unknown else LeftReason.LOST
    answers = ", ".join(f"{copy.bookie_id}: {copy.reason or 'a copy'}" for copy in judged)
    return EntryVerdict(left=(*left, *((target, reason, answers) for target in targets)))
