"""Tasks of the child process that reads whole entry logs for compaction, and the parts of its answers.

The child module is ``compaction_scan_child``. Both sides use this module, so it imports only what a bookie needs.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from bkctl.storage.ids import EntryId, EntryLogId, LedgerId

CHILD_MODULE: Final = "bkctl.storage.entry_log.compaction_scan_child"

ROWS_MAX: Final = 2048
"""Entries in one message."""

ROW: Final = struct.Struct("<qqqq")
"""Ledger id, entry id, offset of the body, bytes of the body."""


class MeasureLogs(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Report the contents of each log: one MeasuredLog or UnreadableLog for each."""

    directory: str
    log_ids: list[EntryLogId]


class ScanEntries(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """List the entries of a log: any number of ScannedRows, then a ScanEnd; or an UnreadableLog."""

    directory: str
    log_id: EntryLogId
    rows_max: int = ROWS_MAX


class ScannedRows(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Some entries of a log, in file order."""

    packed: bytes
    """Consecutive ``ROW`` structs."""


class ScanEnd(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A log was read to its end."""

    is_complete: bool
    """Whether the scan found every entry: the log's own map has the same bytes for each ledger."""


class MeasuredLog(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Bytes of each ledger in a log, size words included: from its map, otherwise counted."""

    log_id: EntryLogId
    ledger_bytes: dict[LedgerId, int]


class UnreadableLog(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A log that could not be read; ``reason`` is a sentence."""

    log_id: EntryLogId
    reason: str


ScanMessage: TypeAlias = ScannedRows | ScanEnd | MeasuredLog | UnreadableLog


def unpack_rows(rows: ScannedRows) -> Iterator[tuple[LedgerId, EntryId, int, int]]:
    """The fields of each ``ROW``."""
    return ROW.iter_unpack(rows.packed)
