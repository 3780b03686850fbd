"""The tables of an audit's report that an inventory fills. Data only."""

from __future__ import annotations

import msgspec

from bkctl.runtime.replication.cluster_audit.table_bases import LedgerHead, Sums


class BookieInventory(Sums):
    """What one bookie holds of the ledgers that the metadata places on it, if an inventory was taken.

    Each expected copy counts in exactly one of the seven fields after ``expected_copies``. ``read_copies`` were read
    and are good; ``listed_copies`` are in the bookie's list and were not read; ``unknown_copies`` are neither.
    ``lists_asked``: of how many ledgers its list was needed; ``lists_unanswered``: of how many it gave none, because it
    did not answer, and is not asked again after that. ``unnamed_copies``: what it lists and the metadata does not name.
    ``requests``: lists, and reads of one or some entries; ``waited_us``: the sum of their times in microseconds.
    """

    bookie_id: str
    ledgers: int = 0
    expected_copies: int = 0
    read_copies: int = 0
    listed_copies: int = 0
    unknown_copies: int = 0
    missing_copies: int = 0
    corrupt_copies: int = 0
    failed_copies: int = 0
    different_copies: int = 0
    lists_asked: int = 0
    lists_unanswered: int = 0
    unnamed_copies: int = 0
    requests: int = 0
    waited_us: int = 0


BAD_COPIES = ("missing_copies", "corrupt_copies", "failed_copies", "different_copies")
"""Fields of ``BookieInventory`` that count bad copies."""


class BadCopyRange(LedgerHead, frozen=True):
    """Bad copies of a ledger on one bookie: those of the entries of this range that it should store.

    ``copy``: "missing", "corrupt", "failed" (the bookie answered with an error) or "different". ``known_by``: "read" or
    "listed". ``copies`` is smaller than what it should store only if there were too many ranges.
    """

    bookie_id: str
    copy: str
    known_by: str
    first_entry_id: int
    last_entry_id: int
    copies: int


class LostRange(LedgerHead, frozen=True):
    """Entries of which all bookies of the write set answered, and none has a good copy."""

    first_entry_id: int
    last_entry_id: int
    entries: int


ELSEWHERE, AFTER_END = "elsewhere", "after_end"
"""Why the metadata does not name a copy: ``UnnamedRange.copy``."""


class UnnamedRange(LedgerHead, frozen=True):
    """Copies that a bookie lists and the metadata does not name. They may be what a repair or a writer left.

    ``copy``: "elsewhere" (the metadata places these entries on other bookies) or "after_end" (after the last entry of a
    closed ledger).
    """

    bookie_id: str
    copy: str
    first_entry_id: int
    last_entry_id: int
    copies: int


class CheckedRange(msgspec.Struct, frozen=True):
    """Ids of ledgers that an inventory with limited time has examined: all from the first to the last."""

    ledger_id: int
    last_ledger_id: int
