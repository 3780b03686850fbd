"""What bookies hold of ledgers, compared with the write sets: of one ledger, and the sums of many. Pure.

A copy is known in one of two ways. It was *read*, and its digest and its equality with the others were checked. Or its
bookie *listed* it, which comes from the index of the bookie and does not prove that the entry log still has it. A copy
that was neither read nor listed is unknown, and never counts as good or as missing.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.cluster_audit.checked_ledgers import ranges_of
from bkctl.runtime.replication.cluster_audit.inventory_tables import (
    AFTER_END,
    BAD_COPIES,
    ELSEWHERE,
    BadCopyRange,
    BookieInventory,
    CheckedRange,
    LedgerHead,
    LostRange,
    UnknownEnd,
    UnnamedRange,
)
from bkctl.runtime.replication.cluster_audit.tables import FINDINGS_MAX, AuditReport, BookieReplication
from bkctl.runtime.replication.judge.copies import CopyState, LedgerCheck, ListedCopies
from bkctl.runtime.replication.judge.findings import CopyFinding
from bkctl.runtime.replication.judge.fragments import (
    EntryRange,
    in_and_out_of,
    merge_ranges,
    segment_entries,
    segments_of,
    stripe_count,
)


class InventoryWay(enum.Enum):
    """How an inventory knows the copies. The values appear in reports."""

    LISTED = "listed"
    """Bookies list what they hold."""
    SAMPLED = "sampled"
    """They list it, and the first, the last and some other entries are read."""
    ALL_ENTRIES = "all_entries"
    """Every copy is read."""


LISTED, READ = "listed", "read"
"""How a bad copy was found: ``BadCopyRange.known_by``."""

ListsByBookie = Mapping[str, ListedCopies | None]
"""What bookies list of a ledger; None: it gave no list."""


class LedgerEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about one ledger, up to ``last_entry_id``, its proven end.

    ``listed``: None if no bookie was asked for a list. ``check``: of the entries ``read``; None: none was read.
    ``removed``: bookies that were given up, each with the first entry of a segment: no copy is expected there, nor of
    the ``accepted`` entries.
    """

    last_entry_id: int
    listed: ListsByBookie | None = None
    check: LedgerCheck | None = None
    read: tuple[EntryRange, ...] = ()
    problem: str | None = None
    removed: frozenset[tuple[int | None, str]] = frozenset()
    accepted: tuple[EntryRange, ...] = ()


def knows_all_copies(summary: Mapping[str, int | None]) -> bool:
    """Whether an inventory with these counts of its summary left out no ledger, no end and no copy."""
    return (
        summary.get("unknown_copies") == 0 and not summary.get("left_out_ledgers") and not summary.get("unknown_ends")
    )


class LedgerHoldings(msgspec.Struct, frozen=True, kw_only=True):
    """What the bookies hold of one ledger. ``unknown_end``: what follows is left out.

    ``lost``: entries of which all bookies of the write set answered, and none has a good copy.
    """

    bookies: tuple[BookieInventory, ...] = ()
    bad: tuple[BadCopyRange, ...] = ()
    lost: tuple[LostRange, ...] = ()
    unnamed: tuple[UnnamedRange, ...] = ()
    bytes_read: int = 0
    unknown_end: UnknownEnd | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found that a change of the metadata meanwhile could explain."""
        return not self.bad and not self.lost and not self.unnamed and self.unknown_end is None

    @property
    def is_examined(self) -> bool:
        """Whether some copy was read or listed, or none is expected."""
        if any(row.expected_copies for row in self.bookies):
            return any(row.unknown_copies < row.expected_copies for row in self.bookies)
        return self.unknown_end is None


class _Stripes:
    """The entries that one bookie should store of a ledger, up to its end."""

    def __init__(self, metadata: LedgerMetadata, bookie_id: str, found: LedgerEvidence) -> None:
        last_entry_id = found.last_entry_id
        self._sizes = metadata.sizes
        self._gap_max = metadata.ensemble_size - metadata.write_quorum_size
        self._parts = [
            (part, index)
            for entries, index in segments_of(metadata, bookie_id, last_entry_id)
            if (entries.first_entry_id, bookie_id) not in found.removed
            for part in in_and_out_of((entries,), found.accepted)[1]
        ]
        self.count = self.count_in(EntryRange(0, last_entry_id))
        self._open_from = None if metadata.is_closed else metadata.last_segment.first_entry_id

    def count_in(self, entries: EntryRange) -> int:
        """How many of these entries it should store."""
        return sum(stripe_count(entries.common(part), index, *self._sizes) for part, index in self._parts)

    def is_open(self, entries: EntryRange) -> bool:
        """Whether some are in the last segment, of a ledger that is not closed."""
        return self._open_from is not None and entries.last_entry_id >= self._open_from

    def is_within(self, found: BadCopyRange, ranges: Sequence[EntryRange]) -> bool:
        """Whether all entries of bad copies that it should store are in some of these ranges."""
        entries = EntryRange(found.first_entry_id, found.last_entry_id)
        return sum(map(self.count_in, in_and_out_of((entries,), ranges)[0])) == self.count_in(entries)

    def joined(self, ranges: Sequence[EntryRange]) -> Iterator[EntryRange]:
        """The ranges, as few as possible: entries between two that only other bookies store do not divide them."""
        last: EntryRange | None = None
        for each in ranges:
            gap = None if last is None else EntryRange(last.last_entry_id + 1, each.first_entry_id - 1)
            if last is not None and gap is not None and gap.count <= self._gap_max and not self.count_in(gap):
                last = EntryRange(last.first_entry_id, each.last_entry_id)
                continue
            if last is not None:
                yield last
            last = each
        if last is not None:
            yield last


def holdings_of(head: LedgerHead, metadata: LedgerMetadata, found: LedgerEvidence) -> LedgerHoldings:
    """Compare what was found out about a ledger with what its metadata places on each bookie."""
    bookies, bad, unnamed = [], [], []
    lost = sorted(_lost_ranges(head, metadata, found), key=lambda each: each.first_entry_id)
    without_copy = merge_ranges(EntryRange(each.first_entry_id, each.last_entry_id) for each in lost)
    for bookie_id in sorted({*metadata.bookies(), *(found.listed or ())}):
        stripes = _Stripes(metadata, bookie_id, found)
        more = list(_unnamed_on(bookie_id, head, found))
        unnamed += more
        if not stripes.count and not more:
            continue
        row, ranges = _holdings_on(bookie_id, head, stripes, found)
        row.unnamed_copies = sum(each.copies for each in more)
        bookies.append(row)
        bad += [msgspec.structs.replace(each, is_lost=stripes.is_within(each, without_copy)) for each in ranges]
    return LedgerHoldings(
        bookies=tuple(bookies),
        bad=tuple(bad),
        lost=tuple(lost),
        unnamed=tuple(unnamed),
        bytes_read=0 if found.check is None else found.check.bytes_read,
        unknown_end=None if found.problem is None else end_unknown(head, found.last_entry_id + 1, found.problem),
    )


def end_unknown(head: LedgerHead, first_entry_id: int, problem: str) -> UnknownEnd:
    """That it is unknown whether a ledger has entries from this one on."""
    return UnknownEnd(*_fields_of(head), first_entry_id, problem)


def _unnamed_on(bookie_id: str, head: LedgerHead, found: LedgerEvidence) -> Iterator[UnnamedRange]:
    listed = (found.listed or {}).get(bookie_id)
    if listed is None:
        return
    for copy, ranges in ((ELSEWHERE, listed.elsewhere), (AFTER_END, listed.after_end)):
        for each in ranges:
            entries = each.first_entry_id, each.last_entry_id
            yield UnnamedRange(*_fields_of(head), bookie_id, copy, *entries, each.count)


def _fields_of(head: LedgerHead) -> tuple[int, str, str | None, int | None]:
    return head.ledger_id, head.ledger_state, head.owner, head.created_ms


def _holdings_on(
    bookie_id: str, head: LedgerHead, stripes: _Stripes, found: LedgerEvidence
) -> tuple[BookieInventory, list[BadCopyRange]]:
    """The row of one bookie, and its bad copies."""
    row = BookieInventory(bookie_id, ledgers=int(stripes.count > 0), expected_copies=stripes.count)
    bad: list[BadCopyRange] = []
    read = known = found.read
    good = sum(map(stripes.count_in, read))

    def note(state: CopyState, ranges: Sequence[EntryRange], copies: int, known_by: str) -> None:
        name = f"{state.value}_copies"
        setattr(row, name, getattr(row, name) + copies)
        for each in stripes.joined(ranges):
            count = min(copies, stripes.count_in(each))
            entries = each.first_entry_id, each.last_entry_id
            is_open = stripes.is_open(each)
            bad.append(BadCopyRange(*_fields_of(head), bookie_id, state.value, known_by, *entries, count, is_open))

    for defect in () if found.check is None else found.check.defects:
        if defect.bookie_id != bookie_id:
            continue
        assert found.check is not None
        ranges = found.check.ranges_of(defect)
        asked_for = sum(stripes.count_in(each) for each in in_and_out_of(ranges, read)[0])
        good -= min(good, asked_for, defect.copies)
        known = merge_ranges((*known, *ranges))
        if defect.state is CopyState.UNREACHABLE:
            row.unknown_copies += defect.copies
        else:
            note(defect.state, ranges, defect.copies, READ)
    row.read_copies = good
    rest = stripes.count - sum(map(stripes.count_in, known))
    if found.listed is not None and bookie_id in found.listed:
        row.lists_asked = 1
        listed = found.listed[bookie_id]
        if listed is None:
            row.lists_unanswered = 1
        else:
            _, absent = in_and_out_of(listed.missing, known)
            if copies := sum(map(stripes.count_in, absent)):
                note(CopyState.MISSING, absent, copies, LISTED)
            row.listed_copies = rest - copies
            rest = 0
    row.unknown_copies += rest
    return row, bad


def _lost_ranges(head: LedgerHead, metadata: LedgerMetadata, found: LedgerEvidence) -> Iterator[LostRange]:
    lost, failed = ((), ()) if found.check is None else (found.check.lost, found.check.failed)
    for ranges, has_errors in ((merge_ranges((*_listed_nowhere(metadata, found), *lost)), False), (failed, True)):
        for each in ranges:
            yield LostRange(*_fields_of(head), each.first_entry_id, each.last_entry_id, each.count, has_errors)


def _listed_nowhere(metadata: LedgerMetadata, found: LedgerEvidence) -> Iterator[EntryRange]:
    """Entries that were not read, and that no bookie of their write set lists, although all gave a list."""
    missing = {bookie_id: listed.missing for bookie_id, listed in (found.listed or {}).items() if listed is not None}
    for number, segment in enumerate(metadata.segments):
        entries = segment_entries(metadata, number, found.last_entry_id)
        members = dict.fromkeys(segment.ensemble)
        ends: list[tuple[int, int]] = []
        for each in itertools.chain.from_iterable(missing.get(bookie_id, ()) for bookie_id in members):
            for inside in in_and_out_of((each,), (entries,))[0]:
                ends += [(inside.first_entry_id, 1), (inside.last_entry_id + 1, -1)]
        copies = min(metadata.write_quorum_size, len(members))
        known = merge_ranges((*found.read, *found.accepted))
        yield from in_and_out_of(tuple(_covered(sorted(ends), copies)), known)[1]


def _covered(ends: Iterable[tuple[int, int]], depth_min: int) -> Iterator[EntryRange]:
    """Entries that are in at least so many ranges. ``ends``: where a range begins (1) or has ended (-1), ascending."""
    depth, since = 0, 0
    for entry_id, groups in itertools.groupby(ends, key=lambda end: end[0]):
        if depth >= depth_min and entry_id > since:
            yield EntryRange(since, entry_id - 1)
        depth += sum(change for _, change in groups)
        since = entry_id


# --- of many ledgers ------------------------------------------------------------------------------------------------


class InventoryTotals(msgspec.Struct):
    """The sums over any number of ledgers, which can be merged. Lists may be longer than the limit until ``shorten``.

    ``checked``: the ledgers of which something is known now; None: the inventory had no limit of time. ``tried``: those
    of which nothing could be read or listed.
    ``silent``: bookies that did not answer a request for a list. ``counts``: by the fields of ``AuditSummary`` with
    these names.
    """

    bookies: dict[str, BookieInventory] = {}
    bad: list[BadCopyRange] = []
    lost: list[LostRange] = []
    unnamed: list[UnnamedRange] = []
    endless: list[UnknownEnd] = []
    checked: list[CheckedRange] | None = None
    tried: list[CheckedRange] = []
    silent: set[str] = set()
    counts: dict[str, int] = {}

    def add(self, holdings: LedgerHoldings) -> None:
        """Add one ledger."""
        self._add_bookies(holdings.bookies)
        self.bad.extend(holdings.bad)
        self.lost.extend(holdings.lost)
        self.unnamed.extend(holdings.unnamed)
        self.endless.extend(filter(None, (holdings.unknown_end,)))
        for name, number in (
            ("inventory_ledgers", 1),
            ("bad_copy_ledgers", bool(holdings.bad)),
            ("lost_entry_ledgers", bool(holdings.lost)),
            ("lost_entries", sum(each.entries for each in holdings.lost)),
            ("elsewhere_ledgers", any(each.copy == ELSEWHERE for each in holdings.unnamed)),
            ("after_end_ledgers", any(each.copy == AFTER_END for each in holdings.unnamed)),
            ("unknown_ends", holdings.unknown_end is not None),
            ("bytes_read", holdings.bytes_read),
        ):
            self._count(name, number)
        if len(self.bad) + len(self.lost) + len(self.unnamed) + len(self.endless) > 4 * FINDINGS_MAX:
            self.shorten()

    def add_requests(self, bookie_id: str, requests: int, waited_us: int) -> None:
        """Add what a bookie was asked, and the sum of the times that its answers took, in microseconds."""
        self._add_bookies([BookieInventory(bookie_id, requests=requests, waited_us=waited_us)])

    def note_checked(self, ledger_ids: Iterable[int], tried: Iterable[int], left_out: int) -> None:
        """Note of which ledgers something is known now, of which nothing although they were begun, and how many were
        not, because the time was over."""
        self.checked, self.tried = ranges_of(ledger_ids), ranges_of(tried)
        self._count("left_out_ledgers", left_out)

    def merge(self, other: InventoryTotals) -> None:
        """Add the totals of other ledgers."""
        self._add_bookies(other.bookies.values())
        self.bad.extend(other.bad)
        self.lost.extend(other.lost)
        self.unnamed.extend(other.unnamed)
        self.endless.extend(other.endless)
        if other.checked is not None:
            self.checked = [*(self.checked or ()), *other.checked]
        self.tried.extend(other.tried)
        self.silent |= other.silent
        for name, number in other.counts.items():
            self._count(name, number)
        self.shorten()

    def shorten(self) -> None:
        """Cut the lists to their limit: the ranges of the ledgers with the lowest ids stay."""
        lists: tuple[list[Any], ...] = (self.bad, self.lost, self.unnamed, self.endless)
        for each in lists:
            each.sort(key=_place)
            del each[FINDINGS_MAX:]

    def _add_bookies(self, rows: Iterable[BookieInventory]) -> None:
        for row in rows:
            if row.bookie_id in self.bookies:
                self.bookies[row.bookie_id].add(row)
            else:
                self.bookies[row.bookie_id] = row

    def _count(self, name: str, number: int) -> None:
        self.counts[name] = self.counts.get(name, 0) + number


def _place(row: BadCopyRange | LostRange | UnnamedRange | UnknownEnd) -> tuple[Any, ...]:
    bookie_id = row.bookie_id if isinstance(row, BadCopyRange | UnnamedRange) else ""
    return row.ledger_id, bookie_id, row.first_entry_id


def with_inventory(
    report: AuditReport, totals: InventoryTotals, way: InventoryWay, bad_copies_file: str | None
) -> AuditReport:
    """The report with what bookies hold. ``bad_copies_file``: the path of the file for ``recover ledger``."""
    totals.shorten()
    rows = [totals.bookies[each] for each in sorted(totals.bookies)]

    def total(names: Iterable[str]) -> int:
        return sum(getattr(row, name) for row in rows for name in names)

    counts: dict[str, Any] = {name: total((name,)) for name in _SUMMED}
    counts |= {name: totals.counts.get(name, 0) for name in _COUNTED} | {"bad_copies": total(BAD_COPIES)}
    counts |= {"left_out_ledgers": None if totals.checked is None else totals.counts.get("left_out_ledgers", 0)}
    counts |= {"inventory": way.value, "bad_copies_file": bad_copies_file if totals.bad else None}
    return msgspec.structs.replace(
        report,
        summary=msgspec.structs.replace(report.summary, **counts),
        bookies=tuple(_with_silence(report.bookies, totals)),
        holdings=tuple(rows),
        bad_copy_ranges=tuple(totals.bad),
        lost_ranges=tuple(totals.lost),
        unknown_ends=tuple(totals.endless),
        unnamed_ranges=tuple(totals.unnamed),
        checked_ranges=tuple(sorted(totals.checked or (), key=lambda each: each.ledger_id)),
        tried_ranges=tuple(sorted(totals.tried, key=lambda each: each.ledger_id)),
    )


def _with_silence(bookies: Iterable[BookieReplication], totals: InventoryTotals) -> Iterator[BookieReplication]:
    """Notes which bookies stopped answering: one that never gives a list may be healthy, and have Java's storage."""
    rows = totals.bookies
    stopped = {each for each in totals.silent & rows.keys() if rows[each].lists_asked > rows[each].lists_unanswered}
    for each in bookies:
        is_known = each.no_answer is not None or each.refusal is not None
        yield each if is_known or each.bookie_id not in stopped else msgspec.structs.replace(each, no_answer=_STOPPED)


_STOPPED = "it stopped answering during the inventory"
_SUMMED = ("expected_copies", "read_copies", "listed_copies", "unknown_copies", "unnamed_copies", "requests")
_COUNTED = (
    "inventory_ledgers", "bad_copy_ledgers", "lost_entry_ledgers", "lost_entries", "unknown_ends", "bytes_read",
    "elsewhere_ledgers", "after_end_ledgers",
)  # fmt: skip


def findings_of(rows: Iterable[BadCopyRange]) -> Iterator[CopyFinding]:
    """The bad copies that others can replace, as lines of a file for ``recover ledger``."""
    for row in (each for each in rows if not each.is_lost):
        yield CopyFinding(
            ledger_id=row.ledger_id,
            bookie_id=row.bookie_id,
            state=CopyState(row.copy),
            first_entry_id=row.first_entry_id,
            last_entry_id=row.last_entry_id,
            copies=row.copies,
        )
