"""Metrics of the request path: what clients ask for, and what waits."""

from __future__ import annotations

from typing import Final

from runtime.bookie.metrics.metric import AnyMetric, gauge
from runtime.bookie.metrics.scopes import BOOKIE, LISTENER, REQUEST_PATH
from runtime.bookie.serving.request_path import RequestPath
from runtime.bookie.view import BookieView


def _adds_in_progress(path: RequestPath) -> int:
    return path.adds.waiting_count + sum(journal.queued_count for journal in path.journals)


def _buffers_used_bytes(view: BookieView) -> int:
    """What Java has in direct memory: caches, journal queues and network buffers."""
    engines = () if view.storage is None else view.storage.engines
    caches_bytes = sum(engine.memtable_bytes + engine.read_cache_bytes for engine in engines)
    journals = () if view.path is None else view.path.journals
    network_bytes = 0 if view.listener is None else view.listener.budget.used_bytes
    return caches_bytes + sum(journal.queued_bytes for journal in journals) + network_bytes


def _buffers_max_bytes(view: BookieView) -> int:
    storage = view.config.storage
    caches_bytes = storage.engine.memtable_bytes_max + storage.engine.read_cache_bytes_max
    journals_bytes = storage.journal.queue_bytes_max * len(storage.journal_directories)
    return caches_bytes * len(storage.ledger_directories) + journals_bytes + view.config.connection_memory_bytes_max


REQUESTS: Final[tuple[AnyMetric, ...]] = (
    gauge(
        "bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
        REQUEST_PATH,
        "Adds that are not answered yet.",
        _adds_in_progress,
    ),
    gauge(
        "bookkeeper_server_ADD_ENTRY_BLOCKED",
        REQUEST_PATH,
        "Adds that wait because the write cache or the journal's queue is full.",
        lambda path: path.adds.waiting_count,
    ),
    gauge(
        "bookkeeper_server_READ_ENTRY_IN_PROGRESS",
        LISTENER,
        "Reads in progress; those answered from memory are never counted.",
        lambda listener: listener.read_lanes.under_way_count,
    ),
    gauge(
        "bookkeeper_server_READ_ENTRY_BLOCKED",
        LISTENER,
        "Reads that wait for their turn.",
        lambda listener: listener.read_lanes.waiting_count,
    ),
    gauge(
        "jvm_memory_direct_bytes_used",
        BOOKIE,
        "Bytes in caches, journal queues and network buffers, which a Java bookie has in direct memory.",
        _buffers_used_bytes,
    ),
    gauge(
        "jvm_memory_direct_bytes_max",
        BOOKIE,
        "Limit of these bytes, by the settings.",
        _buffers_max_bytes,
    ),
)
