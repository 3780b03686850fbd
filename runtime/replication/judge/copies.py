"""Stored copies of entries as the rules see them, and the result of a check of all copies. Pure.

Source: replication section 3, the classification rule. OK with a correct digest is present; OK with a wrong one is
corrupt; "no such entry" and "no such ledger" are missing; everything else is unknown and never counts as missing
(bk#1197: one timeout marked thousands of healthy ledgers). An error answer, for example for a damaged record in an
entry log, is a separate state, because that bookie is up.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from bkctl.runtime.protocol.entry_body import DecodedEntry
from bkctl.runtime.replication.judge.fragments import EntryRange
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
