"""Metrics of the ledger directories: caches, ledgers, entries."""

from __future__ import annotations

from typing import Final

from runtime.bookie.metrics.metric import AnyMetric, gauge
from runtime.bookie.metrics.scopes import BOOKIE, DIRECTORIES
from runtime.bookie.view import BookieView


def _write_cache_max_bytes(view: BookieView) -> int:
    storage = view.config.storage
    return storage.engine.memtable_bytes_max * len(storage.ledger_directories)


DIRECTORY: Final[tuple[AnyMetric, ...]] = (
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
        lambda engine: engine.read_cache_bytes,
    ),
    gauge(
        "bookie_read_cache_count",
        DIRECTORIES,
        "Entries in the read cache.",
        lambda engine: engine.read_cache_count,
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
        "bookie_entries_count",
        DIRECTORIES,
        "About how many entries are stored here, without those that are only in the write cache.",
        lambda engine: engine.stored_entry_count,
    ),
    gauge(
        "bkctl_limbo_ledgers",
        DIRECTORIES,
        "Ledgers in limbo: entries may be missing, and a missing entry is reported as unknown.",
        lambda engine: engine.limbo_count,
    ),
)
