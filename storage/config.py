"""Settings of the storage floor: unit in the name, default and range beside it, then Java's key for the same thing.

A value out of range is a ValueError when the struct is made.
"""

from __future__ import annotations

import msgspec

MEBIBYTE = 1024 * 1024

JOURNAL_BLOCK_BYTES = 512
"""Granularity of ``alignment_bytes``, and the length of a journal's header."""

ENTRY_LOG_SIZE_BYTES_MAX = 1024 * MEBIBYTE
"""Offsets inside an entry log must stay below 2^31."""


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One journal directory (storage section 3.8)."""

    size_bytes_max: int = 2048 * MEBIBYTE
    """A file that has grown past this is followed by the next; 4 KiB or more. Java: journalMaxSizeMB."""

    preallocation_bytes: int = 16 * MEBIBYTE
    """Step by which a file grows; at least ``alignment_bytes``, rounded down to it. Java: journalPreAllocSizeMB."""

    alignment_bytes: int = 512
    """Every group ends on a multiple of this, itself a multiple of 512. Java: journalAlignmentSize."""

    backup_count_max: int = 5
    """Files older than the mark that are kept; 0 or more. Java: journalMaxBackups."""

    def __post_init__(self) -> None:
        _require(self.size_bytes_max >= 4096, "size_bytes_max must be at least 4 KiB")
        _require(
            self.alignment_bytes >= JOURNAL_BLOCK_BYTES and self.alignment_bytes % JOURNAL_BLOCK_BYTES == 0,
            "alignment_bytes must be a multiple of 512",
        )
        _require(self.preallocation_bytes >= self.alignment_bytes, "preallocation_bytes must reach alignment_bytes")
        _require(self.backup_count_max >= 0, "backup_count_max must not be negative")


class EntryLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The entry logs of one ledger directory (storage sections 4.5 and 4.8)."""

    size_bytes_max: int = ENTRY_LOG_SIZE_BYTES_MAX
    """A log is rolled before an entry would pass this; 4 KiB to 1 GiB. Java: logSizeLimit."""

    entry_bytes_max: int = 5 * MEBIBYTE
    """Larger size words are damage, not entries; 1 KiB to 1 GiB. Java: nettyMaxFrameSizeBytes."""

    open_files_max: int = 256
    """Logs kept open for reading; 1 or more. Java has no such key: it keeps all of them open."""

    def __post_init__(self) -> None:
        _require(4096 <= self.size_bytes_max <= ENTRY_LOG_SIZE_BYTES_MAX, "size_bytes_max must be from 4 KiB to 1 GiB")
        _require(
            1024 <= self.entry_bytes_max <= ENTRY_LOG_SIZE_BYTES_MAX, "entry_bytes_max must be from 1 KiB to 1 GiB"
        )
        _require(self.open_files_max >= 1, "open_files_max must be at least 1")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)
