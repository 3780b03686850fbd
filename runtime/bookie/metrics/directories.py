"""Metrics of the ledger directories: caches, ledgers, entries."""

from __future__ import annotations

from typing import Final

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
    DIRECTORIES.gauge(
        "bookie_write_cache_size",
        "Bytes in the write cache.",
        lambda engine: engine.memtable_bytes,
    ),
    DIRECTORIES.gauge(
        "bookie_write_cache_count",
        "Entries in the write cache.",
        lambda engine: engine.memtable_entry_count,
    ),
    BOOKIE.gauge(
        "bookie_write_cache_max_size",
        "Limit of the write caches of all ledger directories, in bytes.",
        _write_cache_max_bytes,
    ),
    DIRECTORIES.gauge(
        "bookie_read_cache_size",
        "Bytes in the read cache.",
        lambda engine: engine.read_cache.used_bytes,
    ),
    DIRECTORIES.gauge(
        "bookie_read_cache_count",
        "Entries in the read cache.",
        lambda engine: len(engine.read_cache),
    ),
    BOOKIE.gauge(
        "bookie_readahead_max_batch_size",
        "Entries that a sequential read loads ahead at most.",
        lambda view: view.config.storage.engine.read_ahead_count_max,
    ),
    DIRECTORIES.gauge(
        "bookie_ledgers_count",
        "Ledgers on this bookie.",
        lambda engine: engine.ledger_count,
    ),
    DIRECTORIES.gauge(
        "bkctl_ledger_rows_bytes",
        "Memory of the ledger rows (keys, fences, explicit LACs) that are in memory.",
        lambda engine: engine.rows.memory_bytes,
    ),
    BOOKIE.gauge(
        "bkctl_ledger_rows_max_bytes",
        "Limit of the memory for ledger rows of all ledger directories, in bytes.",
        _ledger_rows_max_bytes,
    ),
    DIRECTORIES.gauge(
        "bookie_entries_count",
        "About how many entries are stored here, without those that are only in the write cache.",
        lambda engine: engine.stored_entry_count,
    ),
    DIRECTORIES.gauge(
        "bkctl_limbo_ledgers",
        "Ledgers in limbo: entries may be missing, and a missing entry is reported as unknown.",
        lambda engine: engine.rows.limbo_count,
    ),
    _ON_LOOP.duration(
        "bookie_read_entry",
        "Reads of entries that no cache has.",
        lambda engine: engine.measures.disk_reads,
    ),
    DIRECTORIES.duration(
        "bookie_lookup_entry_location",
        "Looking up an entry in the index.",
        lambda engine: engine.measures.lookups,
    ),
    _ON_LOOP.counter(
        "bookie_read_locations_index_time",
        "Milliseconds spent looking up entries in the index.",
        lambda engine: (engine.measures.lookups.succeeded.total + engine.measures.lookups.failed.total) / 1e6,
    ),
    _ON_LOOP.counter(
        "bookie_read_entrylog_time",
        "Milliseconds spent reading entries from the entry logs.",
        lambda engine: engine.measures.log_reads_ns / 1e6,
    ),
    DIRECTORIES.duration(
        "bookie_get_last_entry_in_ledger",
        "Searches of the last entry of a ledger.",
        lambda engine: engine.measures.last_entry_reads,
    ),
    DIRECTORIES.counter(
        "bookie_read_cache_hits",
        "Reads answered from the read cache.",
        lambda engine: engine.measures.read_cache_hits,
    ),
    DIRECTORIES.counter(
        "bookie_read_cache_misses",
        "Reads of entries that no cache has.",
        _cache_misses_count,
    ),
    DIRECTORIES.counter(
        "bookie_write_cache_hits",
        "Reads answered from the write cache.",
        lambda engine: engine.measures.write_cache_hits,
    ),
    DIRECTORIES.counter(
        "bookie_write_cache_misses",
        "Reads of entries that are not in the write cache.",
        lambda engine: engine.measures.read_cache_hits + _cache_misses_count(engine),
    ),
    DIRECTORIES.sizes(
        "bookie_readahead_batch_count",
        "Entries that a sequential read loaded ahead.",
        lambda engine: engine.measures.read_ahead_entries,
    ),
    DIRECTORIES.sizes(
        "bookie_readahead_batch_size",
        "Bytes that a sequential read loaded ahead.",
        lambda engine: engine.measures.read_ahead_bytes,
    ),
    _ON_LOOP.counter(
        "bookie_readahead_time",
        "Milliseconds of sequential reads that loaded entries ahead.",
        lambda engine: engine.measures.read_ahead_ns / 1e6,
    ),
    DIRECTORIES.duration(
        "bookie_flush",
        "Checkpoints, with the rests between their parts.",
        lambda engine: engine.measures.flushes,
    ),
    DIRECTORIES.sizes(
        "bookie_flush_size",
        "Bytes of entries that a checkpoint flushed.",
        lambda engine: engine.measures.flushed_bytes,
    ),
    DIRECTORIES.duration(
        "bookie_flush_entrylog",
        "The part of a checkpoint in the entry log.",
        lambda engine: engine.measures.flushes_of_entries,
    ),
    DIRECTORIES.duration(
        "bookie_flush_locations_index",
        "The part of a checkpoint in the location index.",
        lambda engine: engine.measures.flushes_of_locations,
    ),
    DIRECTORIES.duration(
        "bookie_flush_ledger_index",
        "The part of a checkpoint in the ledger index.",
        lambda engine: engine.measures.flushes_of_ledger_rows,
    ),
)
