"""Result of a check of all copies of a ledger. Pure."""

from __future__ import annotations

import msgspec

from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.storage.ids import INVALID_ENTRY_ID


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
    the whole ledger, if its metadata cannot be read or its end is unknown. ``is_deleted``: the ledger was deleted
    during the check; this is not a finding.
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
