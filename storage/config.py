"""Settings of the storage layer. Values out of range are always rejected; see ``bkctl.storage.setting``."""

from __future__ import annotations

import itertools
import os
from typing import Annotated

import msgspec

from bkctl.storage.errors import UnpairedIndexError
from bkctl.storage.filenames import current_directory
from bkctl.storage.setting import MEBIBYTE, WHOLE_NUMBER_MAX, Java, Setting, require_ranges

JOURNAL_BLOCK_BYTES = 512
"""Granularity of ``alignment_bytes``, and the length of a journal's header."""

JOURNAL_VERSION_MIN = 4
JOURNAL_VERSION_MAX = 6
"""Range of the journal file versions that we write."""

ENTRY_LOG_SIZE_BYTES_MAX = 1024 * MEBIBYTE
"""Offsets inside an entry log must stay below 2^31."""


# fmt: off
# A setting takes at most three lines here; the formatter would use nine.


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ValueError(sentence)


class JournalConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One journal directory."""

    format_version: Annotated[int, Setting("Version of new journal files; all versions are read. Explicit LACs need 6",
        low=JOURNAL_VERSION_MIN, high=JOURNAL_VERSION_MAX, java=Java("journalFormatVersionToWrite"))] = 6
    size_bytes_max: Annotated[int, Setting("Size after which a new journal file is started",
        unit="bytes", low=4096, java=Java("journalMaxSizeMB", "MiB"))] = 2048 * MEBIBYTE
    preallocation_bytes: Annotated[int, Setting(
        "Step by which a journal file grows; at least alignment_bytes, and rounded down to a multiple of it",
        unit="bytes", low=JOURNAL_BLOCK_BYTES, high=2048 * MEBIBYTE,
        java=Java("journalPreAllocSizeMB", "MiB"))] = 16 * MEBIBYTE
    alignment_bytes: Annotated[int, Setting("Every group of records is padded to a multiple of this",
        unit="bytes", low=JOURNAL_BLOCK_BYTES, high=MEBIBYTE, step=JOURNAL_BLOCK_BYTES,
        java=Java("journalAlignmentSize"))] = 512
    backup_count_max: Annotated[int, Setting("Journal files older than the mark that are kept",
        unit="files", low=0, java=Java("journalMaxBackups"))] = 5
    is_data_written: Annotated[bool, Setting(
        "Write adds to the journal; if false, a crash loses the adds since the last checkpoint",
        java=Java("journalWriteData"))] = True
    is_data_synced: Annotated[bool, Setting(
        "Sync adds before they are acknowledged; if false, a power cut loses acknowledged adds",
        java=Java("journalSyncData"))] = True
    sync_interval_s: Annotated[float, Setting("Longest time between two syncs when adds do not wait for a sync",
        unit="s", above=0, java=Java("journalPageCacheFlushIntervalMSec", "ms"))] = 1.0
    is_dropped_from_page_cache: Annotated[bool, Setting("Remove synced journal data from the page cache",
        java=Java("journalRemoveFromPageCache"))] = True
    group_wait_s: Annotated[float, Setting(
        "How long a record may wait for others to share its sync; Java's default is 2 ms", unit="s", low=0, high=60,
        java=Java("journalMaxGroupWaitMSec", "ms"))] = 0.0
    is_flushed_when_queue_empty: Annotated[bool, Setting("Ignore group_wait_s when no record is queued",
        java=Java("journalFlushWhenQueueEmpty"))] = False
    group_bytes_max: Annotated[int, Setting(
        "A group of this size does not wait; 0: no limit. Java's default is 512 KiB", unit="bytes", low=0,
        java=Java("journalBufferedWritesThreshold"))] = MEBIBYTE
    group_record_count_max: Annotated[int, Setting("A group of this many records does not wait; 0: no limit",
        unit="records", low=0, java=Java("journalBufferedEntriesThreshold"))] = 0
    queue_record_count_max: Annotated[int, Setting("Records in the journal queue above which adds wait",
        unit="records", low=1, java=Java("journalQueueSize"))] = 10_000
    queue_bytes_max: Annotated[int, Setting(
        "Bytes in the queue of one journal above which adds wait; the Java key is the sum of all journals",
        unit="bytes", low=64 * 1024,
        java=Java("journalMaxMemorySizeMb", "MiB", shared_by="journalDirectories"))] = 64 * MEBIBYTE

    def __post_init__(self) -> None:
        require_ranges(self)
        _require(self.preallocation_bytes >= self.alignment_bytes, "preallocation_bytes must reach alignment_bytes")


class EntryLogConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The entry logs of one ledger directory."""

    size_bytes_max: Annotated[int, Setting("Size above which a new entry log is started",
        unit="bytes", low=4096, high=ENTRY_LOG_SIZE_BYTES_MAX, java=Java("logSizeLimit"))] = ENTRY_LOG_SIZE_BYTES_MAX
    entry_bytes_max: Annotated[int, Setting("Largest entry in a log; a larger length is reported as damage",
        unit="bytes", low=1024, high=ENTRY_LOG_SIZE_BYTES_MAX,
        java=Java("nettyMaxFrameSizeBytes", is_capped=True))] = 5 * MEBIBYTE
    is_next_log_prepared: Annotated[bool, Setting("Create the next entry log before it is needed",
        java=Java("entryLogFilePreallocationEnabled"))] = True
    unsynced_bytes_max: Annotated[int, Setting("Sync during a checkpoint after this many bytes; 0: only at its end",
        unit="bytes", low=0, java=Java("flushEntrylogBytes"))] = 0
    open_files_max: Annotated[int, Setting("Entry logs kept open for reading; Java keeps all of them open",
        unit="files", low=1)] = 256

    def __post_init__(self) -> None:
        require_ranges(self)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One ledger directory with its index and caches."""

    memtable_bytes_max: Annotated[int, Setting(
        "Write cache of one ledger directory; the Java key is the sum of all directories", unit="bytes", low=64 * 1024,
        java=Java("dbStorage_writeCacheMaxSizeMb", "MiB", shared_by="ledgerDirectories"))] = 128 * MEBIBYTE
    read_cache_bytes_max: Annotated[int, Setting(
        "Read cache of one ledger directory; the Java key is the sum of all directories", unit="bytes", low=0,
        java=Java("dbStorage_readAheadCacheMaxSizeMb", "MiB", shared_by="ledgerDirectories"))] = 32 * MEBIBYTE
    read_ahead_count_max: Annotated[int, Setting("Entries that a sequential read loads ahead; 0: none",
        unit="entries", low=0, java=Java("dbStorage_readAheadCacheBatchSize"))] = 100
    read_ahead_bytes_max: Annotated[int, Setting(
        "Bytes that a sequential read loads ahead; 0, and at most: half the read cache", unit="bytes", low=0,
        java=Java("dbStorage_readAheadCacheBatchBytesSize", off_from=-WHOLE_NUMBER_MAX))] = 0
    ledger_rows_bytes_max: Annotated[int, Setting(
        "Memory for ledger rows (keys, fences, explicit LACs) of one ledger directory: half for those used last; if "
        "changed ones fill a quarter, new ledgers wait for a checkpoint. Java keeps all rows in memory",
        unit="bytes", low=64 * 1024)] = 128 * MEBIBYTE
    entry_log: EntryLogConfig = EntryLogConfig()

    def __post_init__(self) -> None:
        require_ranges(self)


def normal_directory(path: str) -> str:
    """Make a path absolute; remove repeated slashes, a trailing slash and "." parts. "" stays "".

    Links and ".." parts stay, because ".." after a link does not lead back to the previous part. Only leading ".."
    parts of a relative path are resolved: the path of the working directory contains no links.
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
    """All directories of a bookie. Their number and order decide where a ledger is stored."""

    journal_directories: Annotated[tuple[str, ...], Setting("Journal directories, all different",
        unset="required", java=Java("journalDirectories", older="journalDirectory"), flag="--journal-dir",
        variable="BKCTL_BOOKIE_JOURNAL_DIRS", toml="bookie.journal_directories")]
    ledger_directories: Annotated[tuple[str, ...], Setting("Ledger directories, all different",
        unset="required", java=Java("ledgerDirectories"), flag="--ledger-dir",
        variable="BKCTL_BOOKIE_LEDGER_DIRS", toml="bookie.ledger_directories")]
    index_directories: Annotated[tuple[str, ...], Setting(
        "Index directory per ledger directory", unset="the ledger directories",
        java=Java("indexDirectories"), flag="--index-dir", variable="BKCTL_BOOKIE_INDEX_DIRS",
        toml="bookie.index_directories")] = ()
    journal: JournalConfig = JournalConfig()
    engine: EngineConfig = EngineConfig()

    @property
    def effective_index_directories(self) -> tuple[str, ...]:
        """The index directories: by position those of the ledger directories, if they are as many."""
        return self.index_directories or self.ledger_directories

    @property
    def engine_directories(self) -> list[tuple[str, str]]:
        """The ``current`` directories (ledger directory, index directory) of each engine, by position;
        UnpairedIndexError."""
        self.require_paired_indexes()
        pairs = zip(self.ledger_directories, self.effective_index_directories, strict=True)
        return [(current_directory(ledger), current_directory(index)) for ledger, index in pairs]

    @property
    def store_directories(self) -> list[str]:
        """The ``current`` directories of all engines, for ledgers and indexes, without duplicates."""
        return list(dict.fromkeys(itertools.chain.from_iterable(self.engine_directories)))

    @property
    def all_directories(self) -> list[str]:
        """All journal, ledger and index directories without duplicates, in the order of the settings."""
        return list(dict.fromkeys((*self.journal_directories, *self.ledger_directories, *self.index_directories)))

    def __post_init__(self) -> None:
        for directories in (self.journal_directories, self.ledger_directories, self.index_directories):
            _require(all(directories), "the name of a directory is empty")
            _require(len(set(directories)) == len(directories), "a directory is listed twice")
        _require(bool(self.journal_directories), "journal_directories must name at least one directory")
        _require(bool(self.ledger_directories), "ledger_directories must name at least one directory")

    def require_paired_indexes(self) -> None:
        """UnpairedIndexError unless each ledger directory has an index directory: a bkctl bookie needs that. Java's
        InterleavedLedgerStorage does not, so commands that need no index accept its settings."""
        indexes, ledgers = len(self.effective_index_directories), len(self.ledger_directories)
        if indexes != ledgers:
            raise UnpairedIndexError(
                f"ledger directories: {ledgers}, index directories: {indexes}. Java's InterleavedLedgerStorage and "
                "SortedLedgerStorage accept this, but a bkctl bookie has one index for each ledger directory. List as "
                "many index directories as ledger directories, or none. The directories of a Java bookie with this "
                "setup cannot be taken over: replace it (bkctl decommission) by a new bookie"
            )
