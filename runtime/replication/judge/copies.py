"""Stored copies of entries as the rules see them, and the result of a check of all copies. Pure.

Source: replication section 3, the classification rule. OK with a correct digest is present; OK with a wrong one is
corrupt; "no such entry" and "no such ledger" are missing; everything else is unknown and never counts as missing
(bk#1197: one timeout marked thousands of healthy ledgers). An error answer, for example for a damaged record in an
entry log, is a separate state, because that bookie is up.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, stripe_count
from bkctl.storage.ids import INVALID_ENTRY_ID


class CopyState(enum.Enum):
    """State of one bookie's copy of an entry."""

    PRESENT = "present"
    MISSING = "missing"
    CORRUPT = "corrupt"
    UNREACHABLE = "unreachable"
    """No answer: no connection, a timeout, or too many requests. The copy may be good."""
    FAILED = "failed"
    """The bookie answered with an error: the copy is damaged on disk or possibly lost, or the read was rejected."""
    DIFFERENT = "different"
    """The digest is correct, but payload or length differ from the other copies."""
    REPEATED = "repeated"
    """The metadata names the bookie for another copy of the entry, too, and it has one: a copy is missing."""


NAMED_TWICE = "its bookie is in the write set twice"


class ListedCopies(msgspec.Struct, frozen=True):
    """The entries of a ledger that a bookie lists, compared with those that it should store, up to the end of the
    ledger: its last entry, or the last add confirmed.

    ``elsewhere``: entries up to there that the metadata places on other bookies. ``after_end``: entries after the last
    one of a closed ledger. Lists with too many ranges end early.
    """

    missing: tuple[EntryRange, ...] = ()
    elsewhere: tuple[EntryRange, ...] = ()
    after_end: tuple[EntryRange, ...] = ()


class Copy(msgspec.Struct, frozen=True):
    """One bookie's copy of one entry. ``body`` and ``entry`` are set if it is present, otherwise ``reason``.

    ``is_damaged``: the state is FAILED because the bookie cannot read the copy from its disk. ``is_refused``: it is
    UNREACHABLE because the bookie does not accept this client.
    """

    bookie_id: str
    state: CopyState
    reason: str = ""
    body: bytes = b""
    entry: DecodedEntry | None = None
    is_damaged: bool = False
    is_refused: bool = False

    @property
    def content(self) -> tuple[int, bytes] | None:
        """Length and payload, which all good copies of an entry share; None without a good copy."""
        return None if self.entry is None else (self.entry.length, self.entry.payload)

    @property
    def has_bad_record(self) -> bool:
        """Whether its bookie has a record of the entry that is not good, and may serve it after a good one was added
        (H18)."""
        return self.state is CopyState.CORRUPT or self.is_damaged


def compared_copies(copies: Sequence[Copy]) -> list[Copy]:
    """The copies; those that differ from the majority are marked.

    Payload and length must be equal. The last add confirmed inside an entry may differ, because Java's recovery and
    re-replication write their own (replication section 4). Without a majority the first copy counts as correct.
    """
    contents = [copy.content for copy in copies if copy.content is not None]
    if len(contents) < 2 or all(content == contents[0] for content in contents):
        return list(copies)
    majority = max(contents, key=contents.count)
    return [
        copy
        if copy.content is None or copy.content == majority
        else msgspec.structs.replace(
            copy, state=CopyState.DIFFERENT, reason="payload or length differs from the other copies"
        )
        for copy in copies
    ]


class CopyDefect(msgspec.Struct, frozen=True):
    """Bad or unread copies on one bookie: one row per bookie and state. ``reason`` is that of the first copy.

    ``is_damaged``: the bookie cannot read some of them from its disk. ``is_refused``: it refuses this client.
    """

    bookie_id: str
    state: CopyState
    copies: int
    entries: tuple[EntryRange, ...]
    reason: str
    is_damaged: bool = False
    is_refused: bool = False

    @property
    def is_unknown(self) -> bool:
        """Whether the copies could not be read, so that they may be good."""
        return self.state is CopyState.UNREACHABLE

    @property
    def has_bad_record(self) -> bool:
        """Whether some have a bad record, see ``Copy``."""
        return self.state is CopyState.CORRUPT or self.is_damaged


class CopyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a check. Each copy counts in exactly one of the six fields after ``copies_expected``. Unreachable: the
    bookie did not answer. Failed: the bookie answered with an error. ``entries`` are those that were checked, of
    ``entries_total``."""

    entries: int = 0
    entries_total: int = 0
    copies_expected: int = 0
    copies_good: int = 0
    copies_missing: int = 0
    copies_corrupt: int = 0
    copies_unreachable: int = 0
    copies_failed: int = 0
    copies_different: int = 0
    bytes_read: int = 0


class LedgerCheck(CopyCounts, frozen=True, kw_only=True):
    """Result for one ledger.

    ``lost``: entries for which all bookies of the write set answered and none has a good copy; this is data loss.
    ``unreadable``: entries without a good copy for which at least one bookie did not answer or failed. ``failed``:
    those of them for which all bookies of the write set answered, some with an error. Entries of which a live bookie
    outside of the ensemble has a good copy are in none of these: a repair copies them. ``problem``: a sentence about
    the whole ledger, if its metadata cannot be read or its end is unknown; ``is_refused``: because this user may not
    read it. ``is_deleted``: the ledger was deleted during the check; this is not a finding.
    """

    ledger_id: int
    ledger_state: str | None = None
    last_entry_id: int = INVALID_ENTRY_ID
    """Last entry checked: the end of a closed ledger, otherwise the last add confirmed, or the last one found."""
    defects: tuple[CopyDefect, ...] = ()
    lost: tuple[EntryRange, ...] = ()
    unreadable: tuple[EntryRange, ...] = ()
    failed: tuple[EntryRange, ...] = ()
    problem: str | None = None
    is_refused: bool = False
    is_deleted: bool = False

    @property
    def is_clean(self) -> bool:
        """Whether all expected copies exist, with correct digests and equal contents."""
        return self.problem is None and self.copies_good == self.copies_expected

    def ranges_of(self, defect: CopyDefect) -> tuple[EntryRange, ...]:
        """Where its bad copies are. A check keeps a limited number of ranges; if there were more, one range covers all
        entries that it read."""
        is_whole = sum(each.count for each in defect.entries) == defect.copies
        return defect.entries if is_whole else (EntryRange(0, self.last_entry_id),)


class CheckTotals(CopyCounts, frozen=True, kw_only=True):
    """Sums over many ledgers; the progress callback receives the sums so far."""

    ledgers: int = 0
    ledgers_clean: int = 0

    def plus(self, check: LedgerCheck) -> CheckTotals:
        """The sums including one more ledger."""
        sums = {name: getattr(self, name) + getattr(check, name) for name in CopyCounts.__struct_fields__}
        return CheckTotals(ledgers=self.ledgers + 1, ledgers_clean=self.ledgers_clean + check.is_clean, **sums)


_PROOFS_OF_ENTRY = frozenset({CopyState.PRESENT, CopyState.DIFFERENT, CopyState.CORRUPT})
"""States of a copy that show that an entry was written."""


def _unknown_states(copies: Iterable[Copy]) -> set[CopyState]:
    """Those of the copies that prove no loss."""
    return {copy.state for copy in copies} & {CopyState.UNREACHABLE, CopyState.FAILED}


class _BadCopies(msgspec.Struct):
    """Copies on one bookie in one state. ``reason``: of the first, or of the first that is refused."""

    reason: str
    entries: EntryRangeSet = msgspec.field(default_factory=EntryRangeSet)
    is_damaged: bool = False
    is_refused: bool = False


class CheckTally:
    """Counts the copies of one ledger, entry by entry or in gaps; any order."""

    def __init__(self, entry_bytes: int) -> None:
        self.entry_bytes = entry_bytes
        """Expected size of the next entry: a moving average."""
        self.entries_total = 0
        self.last_entry_id = INVALID_ENTRY_ID
        """The highest that was counted."""
        self.absent = EntryRangeSet()
        """Named entries that are not confirmed, and that no bookie of their write sets has."""
        self.uncertain = EntryRangeSet()
        """Named entries that are not confirmed: no bookie that answers has them, and others did not answer."""
        self._entries = 0
        self._bytes_read = 0
        self._counts = dict.fromkeys(CopyState, 0)
        self._defects: dict[tuple[str, CopyState], _BadCopies] = {}
        self._lost = EntryRangeSet()
        self._unreadable = EntryRangeSet()
        self._failed = EntryRangeSet()

    def add_if_found(self, entry_id: int, copies: Sequence[Copy]) -> None:
        """Count an entry that is not confirmed, if any bookie has a copy, good or damaged."""
        if all(copy.state is CopyState.MISSING for copy in copies):
            self.absent.add(entry_id)
        elif any(copy.state in _PROOFS_OF_ENTRY or copy.is_damaged for copy in copies):
            self.entries_total += 1
            self.add(entry_id, copies, is_confirmed=False)
        else:
            self.uncertain.add(entry_id)
            self._unreadable.add(entry_id)

    def add(self, entry_id: int, copies: Sequence[Copy], *, is_confirmed: bool = True) -> None:
        """Count one entry. It is never lost unless ``is_confirmed``: no writer may have got an acknowledgement."""
        self._entries += 1
        self.last_entry_id = max(self.last_entry_id, entry_id)
        has_good_copy = False
        unknown = _unknown_states(copies)
        for copy in copies:
            if copy.body:
                self._bytes_read += len(copy.body)
                self.entry_bytes = (self.entry_bytes * 7 + len(copy.body)) // 8
            if copy.state in {CopyState.PRESENT, CopyState.DIFFERENT}:
                has_good_copy = True
            self._count(copy, EntryRange(entry_id, entry_id), 1)
        if not has_good_copy:
            (self._lost if is_confirmed and not unknown else self._unreadable).add(entry_id)
            if is_confirmed and unknown == {CopyState.FAILED}:
                self._failed.add(entry_id)

    def add_gap(
        self,
        metadata: LedgerMetadata,
        ensemble: Sequence[str],
        ranges: Sequence[EntryRange],
        copies: Mapping[str, Copy],
        *,
        is_guessed: bool,
    ) -> None:
        """Count entries of one segment that no bookie has, or that were not read. ``copies``: what all of them are."""
        unknown = _unknown_states(copies.values())
        for entries in ranges:
            self._entries += entries.count
            for index, bookie_id in enumerate(ensemble):
                count = stripe_count(entries, index, *metadata.sizes)
                if bookie_id in copies and count:
                    self._count(copies[bookie_id], entries, count)
            (self._unreadable if unknown else self._lost).add_range(entries)
            if unknown == {CopyState.FAILED} and not is_guessed:
                self._failed.add_range(entries)

    def _count(self, copy: Copy, entries: EntryRange, count: int) -> None:
        """Count copies of ``count`` of these entries on one bookie, all in the state of ``copy``."""
        self._counts[copy.state] += count
        if copy.state is CopyState.PRESENT:
            return
        found = self._defects.setdefault((copy.bookie_id, copy.state), _BadCopies(copy.reason))
        if copy.is_refused and not found.is_refused:
            found.is_refused, found.reason = True, copy.reason
        found.is_damaged = found.is_damaged or copy.is_damaged
        found.entries.add_range(entries, count)

    def add_gap_if_found(self, ranges: Sequence[EntryRange], copies: Mapping[str, Copy]) -> None:
        """Count entries that are not confirmed and that no bookie is known to have, as ``add_if_found`` does."""
        is_absent = all(copy.state is CopyState.MISSING for copy in copies.values())
        for entries in ranges:
            for counted in (self.absent,) if is_absent else (self.uncertain, self._unreadable):
                counted.add_range(entries)

    def result(self, ledger_id: int, ledger_state: str, last_entry_id: int, problem: str | None) -> LedgerCheck:
        """The counts as a result."""
        return LedgerCheck(
            ledger_id=ledger_id,
            ledger_state=ledger_state,
            last_entry_id=last_entry_id,
            entries=self._entries,
            entries_total=self.entries_total,
            copies_expected=sum(self._counts.values()),
            copies_good=self._counts[CopyState.PRESENT],
            copies_missing=self._counts[CopyState.MISSING] + self._counts[CopyState.REPEATED],
            copies_corrupt=self._counts[CopyState.CORRUPT],
            copies_unreachable=self._counts[CopyState.UNREACHABLE],
            copies_failed=self._counts[CopyState.FAILED],
            copies_different=self._counts[CopyState.DIFFERENT],
            bytes_read=self._bytes_read,
            defects=tuple(
                CopyDefect(*key, bad.entries.count, bad.entries.ranges(), bad.reason, bad.is_damaged, bad.is_refused)
                for key, bad in sorted(self._defects.items(), key=lambda item: (item[0][0], item[0][1].value))
            ),
            lost=self._lost.ranges(),
            unreadable=self._unreadable.ranges(),
            failed=self._failed.ranges(),
            problem=problem,
        )
