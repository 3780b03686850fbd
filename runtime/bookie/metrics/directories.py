"""Metrics of the ledger directories: caches, ledgers, entries."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.admin.metric import counter, duration, gauge, sizes
from bkctl.runtime.bookie.metrics.scopes import BOOKIE, DIRECTORIES, on_loop
from bkctl.runtime.bookie.view import BookieView
from bkctl.storage.engine.engine import LedgerDirectoryEngine


def _write_cache_max_bytes(view: BookieView) -> int:
    storage = view.config.storage
    return storage.engine.memtable_bytes_max * len(storage.ledger_directories)


def _ledger_rows_max_bytes(view: BookieView) -> int:
    storage = view.config.storage
    return storage.engine.ledger_rows_bytes_max * len(storage.ledger_directories)


def _cache_misses_count(engine: LedgerDirectoryEngine) -> int:
    reads = engine.measures.disk_reads
    return reads.succeeded.count + reads.failed.count


_ON_LOOP: Final = on_loop(DIRECTORIES)

DIRECTORY: Final = (
    gauge(
        "bookie_write_cache_size",
        DIRECTORIES,
        "Bytes in the write cache.",
        lambda engine: engine.memtable_bytes,
    ),
    gauge(
        "bookie_write_cache_count",
        DIRECTORIES,
        "Entries in the write cache.",
        lambda engine: engine.memtable_entry_count,
    ),
    gauge(
        "bookie_write_cache_max_size",
        BOOKIE,
        "Limit of the write caches of all ledger directories, in bytes.",
        _write_cache_max_bytes,
    ),
    gauge(
        "bookie_read_cache_size",
        DIRECTORIES,
        "Bytes in the read cache.",
        lambda engine: engine.read_cache.used_bytes,
    ),
    gauge(
        "bookie_read_cache_count",
        DIRECTORIES,
        "Entries in the read cache.",
        lambda engine: len(engine.read_cache),
    ),
    gauge(
        "bookie_readahead_max_batch_size",
        BOOKIE,
        "Entries that a sequential read loads ahead at most.",
        lambda view: view.config.storage.engine.read_ahead_count_max,
    ),
    gauge(
        "bookie_ledgers_count",
        DIRECTORIES,
        "Ledgers on this bookie.",
        lambda engine: engine.ledger_count,
    ),
    gauge(
        "bkctl_ledger_rows_bytes",
        DIRECTORIES,
        "Memory of the ledger rows (keys, fences, explicit LACs) that are in memory.",
        lambda engine: engine.rows.memory_bytes,
    ),
    gauge(
        "bkctl_ledger_rows_max_bytes",
        BOOKIE,
        "Limit of the memory for ledger rows of all ledger directories, in bytes.",
        _ledger_rows_max_bytes,
    ),
    gauge(
        "bookie_entries_count",
        DIRECTORIES,
        "About how many entries are stored here, without those that are only in the write cache.",
        lambda engine: engine.stored_entry_count,
    ),
    gauge(
        "bkctl_limbo_ledgers",
        DIRECTORIES,
        "Ledgers in limbo: entries may be missing, and a missing entry is reported as unknown.",
        lambda engine: engine.rows.limbo_count,
    ),
    duration(
        "bookie_read_entry",
        _ON_LOOP,
        "Reads of entries that no cache has.",
        lambda engine: engine.measures.disk_reads,
    ),
    duration(
        "bookie_lookup_entry_location",
        DIRECTORIES,
        "Looking up an entry in the index.",
        lambda engine: engine.measures.lookups,
    ),
    counter(
        "bookie_read_locations_index_time",
        _ON_LOOP,
        "Milliseconds spent looking up entries in the index.",
        lambda engine: (engine.measures.lookups.succeeded.total + engine.measures.lookups.failed.total) / 1e6,
    ),
    counter(
        "bookie_read_entrylog_time",
        _ON_LOOP,
        "Milliseconds spent reading entries from the entry logs.",
        lambda engine: engine.measures.log_reads_ns / 1e6,
    ),
    duration(
        "bookie_get_last_entry_in_ledger",
        DIRECTORIES,
        "Searches of the last entry of a ledger.",
        lambda engine: engine.measures.last_entry_reads,
    ),
    counter(
        "bookie_read_cache_hits",
        DIRECTORIES,
        "Reads answered from the read cache.",
        lambda engine: engine.measures.read_cache_hits,
    ),
    counter(
        "bookie_read_cache_misses",
        DIRECTORIES,
        "Reads of entries that no cache has.",
        _cache_misses_count,
    ),
    counter(
        "bookie_write_cache_hits",
        DIRECTORIES,
        "Reads answered from the write cache.",
        lambda engine: engine.measures.write_cache_hits,
    ),
    counter(
        "bookie_write_cache_misses",
        DIRECTORIES,
        "Reads of entries that are not in the write cache.",
        lambda engine: engine.measures.read_cache_hits + _cache_misses_count(engine),
    ),
    sizes(
        "bookie_readahead_batch_count",
        DIRECTORIES,
        "Entries that a sequential read loaded ahead.",
        lambda engine: engine.measures.read_ahead_entries,
    ),
    sizes(
        "bookie_readahead_batch_size",
        DIRECTORIES,
        "Bytes that a sequential read loaded ahead.",
        lambda engine: engine.measures.read_ahead_bytes,
    ),
    counter(
        "bookie_readahead_time",
        _ON_LOOP,
        "Milliseconds of sequential reads that loaded entries ahead.",
        lambda engine: engine.measures.read_ahead_ns / 1e6,
    ),
    duration(
        "bookie_flush",
        DIRECTORIES,
        "Checkpoints, with the rests between their parts.",
        lambda engine: engine.measures.flushes,
    ),
    sizes(
        "bookie_flush_size",
        DIRECTORIES,
        "Bytes of entries that a checkpoint flushed.",
        lambda engine: engine.measures.flushed_bytes,
    ),
    duration(
        "bookie_flush_entrylog",
        DIRECTORIES,
        "The part of a checkpoint in the entry log.",
        lambda engine: engine.measures.flushes_of_entries,
    ),
    duration(
        "bookie_flush_locations_index",
        DIRECTORIES,
        "The part of a checkpoint in the location index.",
        lambda engine: engine.measures.flushes_of_locations,
    ),
    duration(
        "bookie_flush_ledger_index",
        DIRECTORIES,
        "The part of a checkpoint in the ledger index.",
        lambda engine: engine.measures.flushes_of_ledger_rows,
    ),
)
