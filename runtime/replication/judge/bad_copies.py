"""Plan and report of the repair of bad copies: they are written again to the bookies that the metadata names. Pure.

A copy is written again if its bookie answered that it is missing, corrupt or damaged, another bookie has a good copy,
and all good copies are equal. A copy that is corrupt, or that its bookie cannot read from its disk, is written over
only on a bkctl bookie: Java keeps both records, and its read-ahead may return the bad one (H18). On other bookies its
stripe moves, and so does that of the second place of a bookie in an ensemble. A bookie that does not answer proves
nothing about its copy. The last segment of a ledger that is not closed is never touched: its writer, or a recovery,
decides what it contains. Source: replication section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.judge.copies import Copy, CopyState, LedgerCheck, compared_copies
from bkctl.runtime.replication.judge.findings import CopyFinding
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    Fragment,
    first_stored,
    format_ranges,
    fragments_naming,
    in_and_out_of,
    merge_ranges,
    repeats,
    segment_entries,
    stripe_count,
)
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure
from bkctl.runtime.replication.judge.targets import TargetForecast
from bkctl.storage.ids import INVALID_ENTRY_ID

MUST_MOVE = "a bad record is written over only on bkctl's bookies, so the stripe has to move: {0}"
MUST_SPREAD = "the bookie has two places in the ensemble, so the stripe of one has to move: {0}"
"""They begin the reasons why it does not."""

_REPEATED = (CopyState.REPEATED,)

BAD_STATES = frozenset({CopyState.MISSING, CopyState.CORRUPT, CopyState.FAILED})
"""What a bookie answers about a copy that is gone or damaged."""


class BadCopies(msgspec.Struct, frozen=True, kw_only=True):
    """Bad copies of a ledger on one bookie: they are written again, or their stripe moves.

    ``copies`` is smaller than the number of ``entries`` only if there were too many ranges to list. ``sources``:
    bookies that should have good ones. ``first_entry_id``: of the segment whose stripe, of ``stripe_entries``, moves,
    because some have bad records that must not be written over; None: they are written.
    """

    bookie_id: str
    states: tuple[CopyState, ...]
    copies: int
    entries: tuple[EntryRange, ...]
    sources: tuple[str, ...]
    bytes_to_copy: int
    """From the average size of the entries that were read."""
    first_entry_id: int | None = None
    stripe_entries: int = 0


class LedgerInPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Plan for one ledger. ``metadata_version`` None: it is deleted or unreadable.

    ``open_from``: first entry of the open last segment, which is left alone.
    """

    ledger_id: int
    metadata_version: int | None = None
    changes: tuple[BadCopies, ...] = ()
    left: tuple[LedgerFailure, ...] = ()
    open_from: int | None = None

    @property
    def writes(self) -> tuple[BadCopies, ...]:
        """Those to write again."""
        return tuple(each for each in self.changes if each.first_entry_id is None)

    @property
    def moves(self) -> tuple[BadCopies, ...]:
        """Those whose stripes move."""
        return tuple(each for each in self.changes if each.first_entry_id is not None)

    @property
    def bytes_to_copy(self) -> int:
        """An estimate."""
        return sum(each.bytes_to_copy for each in self.changes)

    @property
    def bad(self) -> dict[str, tuple[EntryRange, ...]]:
        """The entries of all these copies, by bookie."""
        ranges: dict[str, list[EntryRange]] = {}
        for each in self.changes:
            ranges.setdefault(each.bookie_id, []).extend(each.entries)
        return {bookie_id: merge_ranges(found) for bookie_id, found in ranges.items()}


class InPlacePlan(msgspec.Struct, frozen=True):
    """Plan for all ledgers that were verified. ``deleted``: those that do not exist."""

    ledgers: tuple[LedgerInPlace, ...]
    deleted: tuple[int, ...] = ()

    @property
    def to_repair(self) -> tuple[LedgerInPlace, ...]:
        """Ledgers with copies to write or stripes to move."""
        return tuple(ledger for ledger in self.ledgers if ledger.changes)

    @property
    def copies(self) -> int:
        """Bad copies to repair."""
        return sum(each.copies for ledger in self.ledgers for each in ledger.changes)

    @property
    def bytes_estimate(self) -> int:
        """Bytes to write."""
        return sum(ledger.bytes_to_copy for ledger in self.ledgers)

    @property
    def left(self) -> tuple[LedgerFailure, ...]:
        """Bad copies that stay."""
        return tuple(left for ledger in self.ledgers for left in ledger.left)


def left_copies(
    ledger_id: int, reason: FailureReason, bookie_id: str, copies: int, entries: tuple[EntryRange, ...], detail: str
) -> LedgerFailure:
    """Bad copies on one bookie that stay as they are."""
    return LedgerFailure(ledger_id, reason, entries, detail, bookie_id=bookie_id, copies=copies)


def bad_records_on(check: LedgerCheck) -> frozenset[str]:
    """Bookies on which a check found bad records, see ``Copy``."""
    return frozenset(defect.bookie_id for defect in check.defects if defect.has_bad_record)


def plan_in_place(
    check: LedgerCheck,
    metadata: LedgerMetadata,
    version: int,
    writable: Collection[str],
    bkctl: Collection[str],
    forecast: Callable[[LedgerMetadata, Fragment], TargetForecast] = lambda *_: TargetForecast(),
    found_before: Sequence[CopyFinding] = (),
) -> LedgerInPlace:
    """Decide about each bad copy that a check found. Those that could not be read are left for that reason, whatever is
    known about the other copies of their entries.

    ``writable``: bookies that accept entries. ``bkctl``: those of ``bad_records_on`` that run bkctl. ``forecast``: what
    is known about the targets for a stripe. ``found_before``: by an earlier check; in the open last segment it stays.
    """
    different = merge_ranges(
        entries for defect in check.defects if defect.state is CopyState.DIFFERENT for entries in defect.entries
    )
    changes: list[BadCopies] = []
    to_move: dict[str, list[BadCopies]] = {}
    left: list[LedgerFailure] = []
    entry_bytes = check.bytes_read // max(1, check.copies_good + check.copies_different)
    for defect in check.defects:
        bookie_id, found = defect.bookie_id, check.ranges_of(defect)
        rest, copies = found, defect.copies
        must_move = defect.state is CopyState.REPEATED or (defect.has_bad_record and bookie_id not in bkctl)
        for reason, entries in (
            (FailureReason.REFUSES_CLIENT, found if defect.is_refused else ()),
            (FailureReason.UNREACHABLE, found if defect.is_unknown else ()),
            (FailureReason.LOST, check.lost),
            (FailureReason.UNREADABLE, check.unreadable),
            (FailureReason.DIFFERENT, found if defect.state is CopyState.DIFFERENT else different),
            (FailureReason.READ_ONLY, () if must_move or bookie_id in writable else found),
        ):
            inside, rest = in_and_out_of(rest, entries)
            count = min(copies, _copies_on(metadata, bookie_id, inside))
            copies -= count
            if count:
                left.append(left_copies(check.ledger_id, reason, bookie_id, count, inside, defect.reason))
        if copies and rest:
            planned = BadCopies(
                bookie_id=bookie_id,
                states=(defect.state,),
                copies=copies,
                entries=rest,
                sources=_sources(metadata, bookie_id, rest),
                bytes_to_copy=copies * entry_bytes,
            )
            (to_move.setdefault(bookie_id, []) if must_move else changes).append(planned)
    for bad in to_move.values():
        stripes, to_leave = _stripes(check, metadata, bad, entry_bytes, forecast)
        changes += stripes
        left += to_leave
    return LedgerInPlace(
        ledger_id=check.ledger_id,
        metadata_version=version,
        changes=tuple(changes),
        left=(*left, *_in_open_segment(check.ledger_id, metadata, found_before)),
        open_from=None if metadata.is_closed else metadata.last_segment.first_entry_id,
    )


def _in_open_segment(
    ledger_id: int, metadata: LedgerMetadata, found_before: Sequence[CopyFinding]
) -> Iterator[LedgerFailure]:
    """Those copies that an earlier check found there, on bookies that still should have them."""
    if metadata.is_closed:
        return
    segment = metadata.last_segment
    for bookie_id in segment.ensemble:
        copies, ranges = 0, []
        for each in found_before:
            inside = EntryRange(max(each.first_entry_id, segment.first_entry_id), each.last_entry_id)
            count = stripe_count(inside, segment.ensemble.index(bookie_id), *metadata.sizes) if inside.count else 0
            if each.bookie_id == bookie_id and count:
                copies += min(count, each.copies)
                ranges.append(inside)
        if copies:
            detail = "its last segment is open"
            yield left_copies(ledger_id, FailureReason.OPEN, bookie_id, copies, merge_ranges(ranges), detail)


def _copies_on(metadata: LedgerMetadata, bookie_id: str, entries: Sequence[EntryRange]) -> int:
    """How many of these entries the bookie should have: a range may have entries of other bookies, too."""
    count = 0
    for number, segment in enumerate(metadata.segments):
        if bookie_id in segment.ensemble:
            inside, _ = in_and_out_of(entries, (segment_entries(metadata, number),))
            index = segment.ensemble.index(bookie_id)
            count += sum(stripe_count(each, index, *metadata.sizes) for each in inside)
    return count


def _sources(metadata: LedgerMetadata, bookie_id: str, entries: Sequence[EntryRange]) -> tuple[str, ...]:
    """The other bookies of the segments that have these entries."""
    found: set[str] = set()
    for index, segment in enumerate(metadata.segments):
        inside, _ = in_and_out_of(entries, (segment_entries(metadata, index),))
        if inside:
            found.update(segment.ensemble)
    return tuple(sorted(found - {bookie_id}))


def _places(metadata: LedgerMetadata, bookie_id: str) -> Iterator[tuple[Fragment, int]]:
    """The segments that name a bookie, once for each of its places in their ensembles."""
    for fragment in fragments_naming(metadata, (bookie_id,)):
        for index in fragment.bookie_indexes:
            yield msgspec.structs.replace(fragment, bookie_indexes=(index,)), index


def _stripes(
    check: LedgerCheck,
    metadata: LedgerMetadata,
    bad: Sequence[BadCopies],
    entry_bytes: int,
    forecast: Callable[[LedgerMetadata, Fragment], TargetForecast],
) -> tuple[list[BadCopies], list[LedgerFailure]]:
    """The stripes of one bookie that have bad records, or repeat others (one item for each state): those to move, and
    those that stay."""
    bookie_id = bad[0].bookie_id
    copies = {each.states: each.copies for each in bad}
    moves: list[BadCopies] = []
    left: list[LedgerFailure] = []
    for fragment, index in _places(metadata, bookie_id):
        is_repeat = index in repeats(metadata, fragment.segment_index)
        of_place = [each for each in bad if is_repeat or each.states != _REPEATED]
        ranges = {each.states: in_and_out_of(each.entries, (fragment.entries,))[0] for each in of_place}
        counts = {states: min(copies[states], sum(each.count for each in found)) for states, found in ranges.items()}
        if fragment.is_open or not any(counts.values()):
            continue
        copies |= {states: copies[states] - count for states, count in counts.items()}
        count, inside = sum(counts.values()), merge_ranges(each for found in ranges.values() for each in found)
        without_copy, _ = in_and_out_of(merge_ranges((*check.lost, *check.unreadable)), (fragment.entries,))
        without_copy = tuple(
            each for each in without_copy if first_stored(each, index, *metadata.sizes) != INVALID_ENTRY_ID
        )
        why_no_target = forecast(metadata, fragment).why_none
        if without_copy:
            detail = f"entries {format_ranges(without_copy)}"
            left.append(left_copies(check.ledger_id, FailureReason.STRIPE, bookie_id, count, inside, detail))
        elif why_no_target is not None:
            why = MUST_SPREAD if is_repeat else MUST_MOVE
            reason, detail = FailureReason.NOT_ENOUGH_BOOKIES, why.format(why_no_target)
            left.append(left_copies(check.ledger_id, reason, bookie_id, count, inside, detail))
        else:
            entries = stripe_count(fragment.entries, index, *metadata.sizes)
            moves.append(
                BadCopies(
                    bookie_id=bookie_id,
                    states=tuple(state for states, number in counts.items() if number for state in states),
                    copies=count,
                    entries=inside,
                    sources=_sources(metadata, bookie_id, inside),
                    bytes_to_copy=entries * entry_bytes,
                    first_entry_id=fragment.entries.first_entry_id,
                    stripe_entries=entries,
                )
            )
    return moves, left


class EntryVerdict(msgspec.Struct, frozen=True):
    """What to do about a bookie's copy of an entry: write ``source``, move its stripe, or leave it for a reason."""

    source: Copy | None = None
    must_move: bool = False
    left: tuple[FailureReason, str] | None = None


def unread_reason(copy: Copy) -> FailureReason:
    """Why a copy that could not be read stays as it is."""
    return FailureReason.REFUSES_CLIENT if copy.is_refused else FailureReason.UNREACHABLE


def judge_entry(copies: Sequence[Copy], target: str, *, is_bkctl: bool) -> EntryVerdict:
    """Decide again about the copy of ``target``, which runs bkctl or not, from the copies of the whole write set."""
    judged = compared_copies(copies)
    own = next(copy for copy in judged if copy.bookie_id == target)
    if own.state is CopyState.UNREACHABLE:
        return EntryVerdict(left=(unread_reason(own), own.reason))
    if own.state not in BAD_STATES:
        return EntryVerdict()
    states = {copy.state for copy in judged}
    if CopyState.DIFFERENT in states:
        reason = FailureReason.DIFFERENT
    elif CopyState.PRESENT in states:
        if own.has_bad_record and not is_bkctl:
            return EntryVerdict(must_move=True)
        return EntryVerdict(next(copy for copy in judged if copy.state is CopyState.PRESENT))
    else:
        is_unknown = not states.isdisjoint({CopyState.UNREACHABLE, CopyState.FAILED})
        reason = FailureReason.UNREADABLE if is_unknown else FailureReason.LOST
    return EntryVerdict(left=(reason, ", ".join(f"{copy.bookie_id}: {copy.reason or 'a copy'}" for copy in judged)))
