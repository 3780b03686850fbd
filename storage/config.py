"""Settings of the storage floor: unit in the name, default and range beside it, then Java's key for the same thing.

A value out of range is a ValueError when the struct is made.
"""

from __future__ import annotations

import os

import msgspec

from storage.filenames import current_directory

MEBIBYTE = 1024 * 1024

QUEUE_BYTES_MIN = 64 * 1024
MEMTABLE_BYTES_MIN = 64 * 1024

JOURNAL_BLOCK_BYTES = 512
"""Granularity of ``alignment_bytes``, and the length of a journal's header."""

WHOLE_NUMBER_MAX = 2**63 - 1
"""Numbers of the formats, offsets among them, and of Java are 64-bit words with a sign."""

DURATION_S_MAX = 100 * 365 * 86_400
"""Whoever says "never" means no longer than this, and timers take no more than three times as much."""

JOURNAL_ALIGNMENT_BYTES_MAX = MEBIBYTE
"""Every group is padded to the alignment."""

JOURNAL_PREALLOCATION_BYTES_MAX = 2048 * MEBIBYTE
"""A journal as large as is usual in one step. What a crash leaves empty of a step is read through at the next start."""

GROUP_WAIT_S_MAX = 60.0
"""No client waits longer for an add."""

JOURNAL_VERSION_MIN = 4
JOURNAL_VERSION_MAX = 6
"""Versions of journal files that are written."""

ENTRY_LOG_SIZE_BYTES_MAX = 1024 * MEBIBYTE
"""Offsets inside an entry log must stay below 2^31."""


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One journal directory (storage section 3.8). Every size is at least what the text says, else ValueError."""

    format_version: int = 6
    """Version of new files: 4, 5 or 6; all are read. Java: journalFormatVersionToWrite."""

    size_bytes_max: int = 2048 * MEBIBYTE
    """A file that has grown past this is followed by the next; 4 KiB or more. Java: journalMaxSizeMB."""

    preallocation_bytes: int = 16 * MEBIBYTE
    """Step by which a file grows; at least ``alignment_bytes``, rounded down to it; at most 2 GiB. Java:
    journalPreAllocSizeMB."""

    alignment_bytes: int = 512
    """Every group ends on a multiple of this, itself a multiple of 512, at most 1 MiB. Java: journalAlignmentSize."""

    backup_count_max: int = 5
    """Files older than the mark that are kept; 0 or more. Java: journalMaxBackups."""

    is_data_written: bool = True
    """False: adds are not journaled, and acknowledged as soon as the write cache has them; a crash loses what no
    checkpoint has written. Keys, fences and explicit LACs are journaled all the same. Java: journalWriteData."""

    is_data_synced: bool = True
    """False: adds are acknowledged when the kernel has them; a power cut loses what was not synced since. Fences,
    explicit LACs and forced ledgers still wait for a sync. Java: journalSyncData."""

    sync_interval_s: float = 1.0
    """Longest time between two syncs where adds wait for none; above 0. Java: journalPageCacheFlushIntervalMSec."""

    is_dropped_from_page_cache: bool = True
    """Whether the kernel is told that what was synced will not be read again. Java: journalRemoveFromPageCache."""

    group_wait_s: float = 0.0
    """How long a record may wait for others to share its sync; 0: not at all, as groups gather while the one before is
    synced; at most 60. Java: journalMaxGroupWaitMSec, there 2 ms."""

    is_flushed_when_queue_empty: bool = False
    """Whether nothing waits, whatever ``group_wait_s`` says. Java: journalFlushWhenQueueEmpty."""

    group_bytes_max: int = MEBIBYTE
    """A group that has reached this waits no longer; 0: no such limit. Java: journalBufferedWritesThreshold, there
    512 KiB."""

    group_record_count_max: int = 0
    """A group with so many records waits no longer; 0: no such limit. Java: journalBufferedEntriesThreshold."""

    queue_record_count_max: int = 10_000
    """Records queued for the journal beyond which adds wait; 1 or more. Java: journalQueueSize."""

    queue_bytes_max: int = 64 * MEBIBYTE
    """Bytes queued for the journal beyond which adds wait; 64 KiB or more. Java: journalMaxMemorySizeMb, which is the
    sum over all journal directories."""

    def __post_init__(self) -> None:
        _require(JOURNAL_VERSION_MIN <= self.format_version <= JOURNAL_VERSION_MAX, "format_version must be 4, 5 or 6")
        _require(self.size_bytes_max >= 4096, "size_bytes_max must be at least 4 KiB")
        _require(
            JOURNAL_BLOCK_BYTES <= self.alignment_bytes <= JOURNAL_ALIGNMENT_BYTES_MAX
            and self.alignment_bytes % JOURNAL_BLOCK_BYTES == 0,
            "alignment_bytes must be a multiple of 512, at most 1 MiB",
        )
        _require(self.preallocation_bytes >= self.alignment_bytes, "preallocation_bytes must reach alignment_bytes")
        _require(
            self.preallocation_bytes <= JOURNAL_PREALLOCATION_BYTES_MAX, "preallocation_bytes must be at most 2 GiB"
        )
        _require(self.group_wait_s <= GROUP_WAIT_S_MAX, "group_wait_s must be at most 60")
        _require(self.backup_count_max >= 0, "backup_count_max must not be negative")
        _require(self.sync_interval_s > 0, "sync_interval_s must be above 0")
        for name in ("group_wait_s", "group_bytes_max", "group_record_count_max"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative")
        _require(self.queue_record_count_max >= 1, "queue_record_count_max must be at least 1")
        _require(self.queue_bytes_max >= QUEUE_BYTES_MIN, "queue_bytes_max must be at least 64 KiB")


class EntryLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The entry logs of one ledger directory (storage sections 4.5 and 4.8)."""

    size_bytes_max: int = ENTRY_LOG_SIZE_BYTES_MAX
    """A log is rolled before an entry would pass this; 4 KiB to 1 GiB. Java: logSizeLimit."""

    entry_bytes_max: int = 5 * MEBIBYTE
    """Larger size words are damage, not entries; 1 KiB to 1 GiB. Java: nettyMaxFrameSizeBytes."""

    is_next_log_prepared: bool = True
    """Whether the log that will follow the active one is made beforehand. Java: entryLogFilePreallocationEnabled."""

    unsynced_bytes_max: int = 0
    """Sync in mid-checkpoint after so many bytes, so that its end need not wait for all of them; 0: never. Java:
    flushEntrylogBytes."""

    open_files_max: int = 256
    """Logs kept open for reading; 1 or more. Java has no such key: it keeps all of them open."""

    def __post_init__(self) -> None:
        _require(4096 <= self.size_bytes_max <= ENTRY_LOG_SIZE_BYTES_MAX, "size_bytes_max must be from 4 KiB to 1 GiB")
        _require(
            1024 <= self.entry_bytes_max <= ENTRY_LOG_SIZE_BYTES_MAX, "entry_bytes_max must be from 1 KiB to 1 GiB"
        )
        _require(self.unsynced_bytes_max >= 0, "unsynced_bytes_max must not be negative")
        _require(self.open_files_max >= 1, "open_files_max must be at least 1")


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger directory with its index and caches (storage sections 5.3 and 5.4)."""

    memtable_bytes_max: int = 128 * MEBIBYTE
    """Write cache of the directory, both halves together; 64 KiB or more. Java: dbStorage_writeCacheMaxSizeMb, which is
    the sum over all ledger directories."""

    read_cache_bytes_max: int = 32 * MEBIBYTE
    """Bodies kept after a read; 0 or more. Java: dbStorage_readAheadCacheMaxSizeMb, again the sum."""

    read_ahead_count_max: int = 100
    """Entries that a sequential read brings into the read cache beyond its own; 0: none. Java:
    dbStorage_readAheadCacheBatchSize."""

    read_ahead_bytes_max: int = 0
    """Bytes of them; never more than half the read cache, which 0 stands for. Java:
    dbStorage_readAheadCacheBatchBytesSize."""

    entry_log: EntryLogConfig = EntryLogConfig()
    """The entry logs of the directory."""

    def __post_init__(self) -> None:
        _require(self.memtable_bytes_max >= MEMTABLE_BYTES_MIN, "memtable_bytes_max must be at least 64 KiB")
        _require(self.read_cache_bytes_max >= 0, "read_cache_bytes_max must not be negative")
        _require(self.read_ahead_count_max >= 0, "read_ahead_count_max must not be negative")
        _require(self.read_ahead_bytes_max >= 0, "read_ahead_bytes_max must not be negative")


def normal_directory(path: str) -> str:
    """The path as an absolute one, without repeated slashes, a slash at its end, and "." parts; "" stays "".

    Links and ".." parts stay: behind a link, ".." leads elsewhere than the text suggests. Only ".." at the beginning of
    a relative path is resolved, because the working directory is known without links.
    """
    if not path:
        return path
    parts = [part for part in path.split("/") if part not in {"", "."}]
    if not os.path.isabs(path):
        base = os.getcwd()  # noqa: TID251  only paths from settings are relative
        while parts and parts[0] == "..":
            base = os.path.dirname(base)
            del parts[0]
        parts = [*(part for part in base.split("/") if part), *parts]
    return "/" + "/".join(parts)


class StorageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """All directories of a bookie. Their count and order decide where a ledger lives (storage section 1)."""

    journal_directories: tuple[str, ...]
    """One or more, all different. Java: journalDirectories."""

    ledger_directories: tuple[str, ...]
    """One or more, all different. Java: ledgerDirectories."""

    index_directories: tuple[str, ...] = ()
    """As many as ledger directories, paired by position; empty: the ledger directories. Java: indexDirectories."""

    journal: JournalConfig = JournalConfig()
    """Each journal directory."""

    engine: EngineConfig = EngineConfig()
    """Each ledger directory."""

    @property
    def paired_index_directories(self) -> tuple[str, ...]:
        """The index directory of each ledger directory, by position."""
        return self.index_directories or self.ledger_directories

    @property
    def engine_folders(self) -> list[tuple[str, str]]:
        """The ``current`` folders of each engine, that of the ledger directory and that of the index, by position."""
        pairs = zip(self.ledger_directories, self.paired_index_directories, strict=True)
        return [(current_directory(ledger), current_directory(index)) for ledger, index in pairs]

    @property
    def all_directories(self) -> list[str]:
        """Every directory, once each: those of journals, ledgers and indexes, in the order of the settings."""
        return list(dict.fromkeys((*self.journal_directories, *self.ledger_directories, *self.index_directories)))

    def __post_init__(self) -> None:
        for directories in (self.journal_directories, self.ledger_directories, self.index_directories):
            _require(all(directories), "the name of a directory is empty")
            _require(len(set(directories)) == len(directories), "a directory is listed twice")
        _require(bool(self.journal_directories), "journal_directories must name at least one directory")
        _require(bool(self.ledger_directories), "ledger_directories must name at least one directory")
        _require(
            len(self.index_directories) in {0, len(self.ledger_directories)},
            "index_directories must be as many as ledger_directories, or none",
        )
