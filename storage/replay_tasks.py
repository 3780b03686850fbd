"""What the parent and the children of a replay tell each other; see ``replay_ahead``."""

from __future__ import annotations

import msgspec

from storage.ids import EntryId, EntryLogId, JournalId, LedgerId
from storage.journal_format import JournalRecord


class ReadStretch(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Bring the groups of a journal file that begin in a range into entry logs. Paths are absolute."""

    path: str
    journal_id: JournalId
    journal_index: int
    journal_count: int
    start_offset: int
    """Where the first group begins; or, unless ``is_start_known``, where to look for the end of the one before."""
    is_start_known: bool
    stop_offset: int
    group_bytes_max: int
    body_bytes_max: int
    held_bytes_max: int
    """What a child may hold at a time, counted as a write cache counts; it ends early then."""
    log_ids: list[EntryLogId]
    """One for each ledger directory, in the order of the settings."""
    log_paths: list[str]
    """Where to make the logs; one that would hold no entry is not made."""


class LedgerSummary(msgspec.Struct, frozen=True, array_like=True):
    """What a stretch holds of one ledger."""

    ledger_id: LedgerId
    record_count: int
    last_add_confirmed: EntryId


class StretchLog(msgspec.Struct, frozen=True):
    """What a child put into one log, which is synced."""

    ledgers: list[LedgerSummary]
    keys: list[bytes]
    locations: list[bytes]
    """Keys and values of the rows that name the entries, in order and in batches (``LocationIndex.write``)."""


class StretchFound(msgspec.Struct, frozen=True):
    """What a child made of a stretch."""

    start_offset: int
    """Where its first group begins; -1: none was found."""
    end_offset: int
    """Behind the last group that was taken. It may lie before ``stop_offset``: what comes there is not for a child."""
    records: list[JournalRecord]
    """Those that are no entries, in order."""
    late_ledger_ids: list[LedgerId]
    """Ledgers of which a record that makes a row, a key or a fence, comes behind an entry."""
    logs: list[StretchLog]
    """One for each ledger directory; without rows where no log was made."""
