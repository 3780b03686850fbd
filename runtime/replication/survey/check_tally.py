"""What a check of one ledger has counted so far, and the result. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.replication.judge.copies import Copy, CopyDefect, CopyState, LedgerCheck
from bkctl.runtime.replication.judge.fragments import EntryRange, EntryRangeSet, stripe_count
from bkctl.storage.ids import INVALID_ENTRY_ID

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
            copies_missing=self._counts[CopyState.MISSING],
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
