"""The tables of an audit's report that an inventory fills, and what rows of tables have in common. Data only."""

from __future__ import annotations

import msgspec

BAD_COPIES = ("missing_copies", "corrupt_copies", "failed_copies", "different_copies")
"""Fields of ``BookieInventory`` that count bad copies."""
ELSEWHERE, AFTER_END = "elsewhere", "after_end"
"""Why the metadata does not name a copy: ``UnnamedRange.copy``."""


class Sums(msgspec.Struct):
    """Counters that can be added to those of other ledgers."""

    def add(self, other: Sums) -> None:
        """Add every counter of ``other``, which is of the same type; of two times, the older remains."""
        for name in self.__struct_fields__:
            value, more = getattr(self, name), getattr(other, name)
            if name.endswith("_ms"):
                setattr(self, name, min((time for time in (value, more) if time is not None), default=None))
            elif isinstance(value, int):
                setattr(self, name, value + more)


class LedgerHead(msgspec.Struct, frozen=True):
    """What all lists of ledgers with readable metadata say about one."""

    ledger_id: int
    ledger_state: str
    """``open``, ``in_recovery`` or ``closed``."""
    owner: str | None
    """In words; None if unknown."""
    created_ms: int | None
    """None if unknown."""


class BookieInventory(Sums):
    """What one bookie holds of the ledgers that the metadata places on it, or that it was asked about."""

    bookie_id: str
    ledgers: int = 0
    """Of which it should have entries."""
    expected_copies: int = 0
    """Those that it should have; the sum of the next seven."""
    read_copies: int = 0
    """Read and good."""
    listed_copies: int = 0
    """In its list, and not read."""
    unknown_copies: int = 0
    """Neither."""
    missing_copies: int = 0
    corrupt_copies: int = 0
    failed_copies: int = 0
    """It answered with an error."""
    different_copies: int = 0
    """From other copies."""
    lists_asked: int = 0
    """Of how many ledgers its list was needed."""
    lists_unanswered: int = 0
    """Of how many it gave none; after one request without an answer it is not asked again."""
    unnamed_copies: int = 0
    """Those that it lists and the metadata does not name."""
    requests: int = 0
    """Lists, and reads of one or up to 64 entries."""
    waited_us: int = 0
    """Sum of the times of the answers in microseconds; requests run at the same time."""


class BadCopyRange(LedgerHead, frozen=True):
    """Bad copies of a ledger on one bookie."""

    bookie_id: str
    copy: str
    """``missing``, ``corrupt``, ``failed`` (the bookie answered with an error) or ``different``."""
    known_by: str
    """``read`` or ``listed``."""
    first_entry_id: int
    last_entry_id: int
    """The bad copies are those of the entries of this range that the bookie should store."""
    copies: int
    """How many."""
    is_open: bool = False
    """Some are in the last segment of a ledger that is not closed: ``ledger close`` first, then ``recover ledger``."""
    is_lost: bool = False
    """No other bookie has a good copy of any of them either, so that no command can write them again."""


class LostRange(LedgerHead, frozen=True):
    """Entries of which all bookies of the write set answered, and none has a good copy."""

    first_entry_id: int
    last_entry_id: int
    entries: int
    """How many."""
    has_errors: bool = False
    """Some bookies answered with an error, and may read them once its cause is fixed. Else the entries are lost."""


class UnknownEnd(LedgerHead, frozen=True):
    """A ledger whose bookies do not say where it ends, as when too few of them can read their last entry."""

    first_entry_id: int
    """The first one that was not examined; those before it are certainly part of the ledger."""
    problem: str


class UnnamedRange(LedgerHead, frozen=True):
    """Copies that a bookie lists and the metadata does not name. This is no proof that they are not needed."""

    bookie_id: str
    copy: str
    """``elsewhere`` (the metadata places them on others) or ``after_end`` (after the last entry of a closed ledger)."""
    first_entry_id: int
    last_entry_id: int
    copies: int
    """How many."""


class CheckedRange(msgspec.Struct, frozen=True):
    """Ids of ledgers that an inventory with limited time has begun: all from the first to the last."""

    ledger_id: int
    last_ledger_id: int
