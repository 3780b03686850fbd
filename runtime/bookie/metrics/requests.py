"""Metrics of the request path: what clients ask for, and what waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from bkctl.runtime.admin.metric import AnyMetric, Metric, Scope
from bkctl.runtime.bookie.metrics.scopes import BOOKIE, LISTENER, REQUEST_PATH, on_loop, part
from bkctl.runtime.bookie.serving.request_path import RequestPath
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.net.request_measures import RequestMeasures
from bkctl.runtime.protocol.status import Status
from bkctl.storage.measures import Outcomes


def _adds_in_progress(path: RequestPath) -> int:
    return path.adds.waiting_count + sum(journal.queued_count for journal in path.journals)


def _failures(view: BookieView) -> Iterable[tuple[tuple[str, ...], int]]:
    failures = {} if view.listener is None else view.listener.measures.failures
    return [((operation, status.name), count) for (operation, status), count in failures.items()]


def _rejected_reads_count(requests: RequestMeasures) -> int:
    failures = requests.failures
    operations = ("READ_ENTRY", "READ_ENTRY_FENCE", "BATCH_READ_ENTRY")
    return sum(failures[operation, Status.TOO_MANY_REQUESTS] for operation in operations)


def _count(outcomes: Outcomes) -> int:
    return outcomes.succeeded.count + outcomes.failed.count


def _buffers_used_bytes(view: BookieView) -> int:
    """What Java has in direct memory: caches, journal queues and network buffers."""
    engines = () if view.storage is None else view.storage.engines
    caches_bytes = sum(engine.memtable_bytes + engine.read_cache.used_bytes for engine in engines)
    journals = () if view.path is None else view.path.journals
    network_bytes = 0 if view.listener is None else view.listener.budget.used_bytes
    return caches_bytes + sum(journal.queued_bytes for journal in journals) + network_bytes


def _buffers_max_bytes(view: BookieView) -> int:
    storage = view.config.storage
    caches_bytes = storage.engine.memtable_bytes_max + storage.engine.read_cache_bytes_max
    journals_bytes = storage.journal.queue_bytes_max * len(storage.journal_directories)
    return caches_bytes * len(storage.ledger_directories) + journals_bytes + view.config.connection_memory_bytes_max


_REQUESTS: Final = part(lambda view: None if view.listener is None else view.listener.measures)
_ON_LOOP: Final = on_loop(_REQUESTS)
_FAILURES: Final = Scope(("operation", "status"), _failures)


def _durations(meaning: str, read: Callable[[RequestMeasures], Outcomes], *names: str) -> list[Metric[RequestMeasures]]:
    """What Java has under several names."""
    return [_REQUESTS.duration(name, meaning, read) for name in names]


REQUESTS: Final[tuple[AnyMetric, ...]] = (
    _ON_LOOP.duration(
        "bookkeeper_server_ADD_ENTRY",
        "Adds, from their arrival until they are answered.",
        lambda requests: requests.adds,
    ),
    _REQUESTS.duration(
        "bookkeeper_server_ADD_ENTRY_REQUEST",
        "Adds, from their arrival until they are answered.",
        lambda requests: requests.adds,
    ),
    REQUEST_PATH.gauge(
        "bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
        "Adds that are not answered yet.",
        _adds_in_progress,
    ),
    REQUEST_PATH.gauge(
        "bookkeeper_server_ADD_ENTRY_BLOCKED",
        "Adds that wait because the write cache or the journal's queue is full.",
        lambda path: path.adds.waiting_count,
    ),
    REQUEST_PATH.duration(
        "bookkeeper_server_ADD_ENTRY_BLOCKED_WAIT",
        "How long adds waited for room; a failure was rejected in the end.",
        lambda path: path.adds.measures.waits,
    ),
    _REQUESTS.counter(
        "bookkeeper_server_ADD_ENTRY_REJECTED",
        "Adds rejected because they waited too long.",
        lambda requests: requests.failures["ADD_ENTRY", Status.TOO_MANY_REQUESTS],
    ),
    _ON_LOOP.duration(
        "bookkeeper_server_READ_ENTRY",
        "Reads of entries, from their turn until they are answered.",
        lambda requests: requests.begun_reads,
    ),
    _REQUESTS.duration(
        "bookkeeper_server_READ_ENTRY_REQUEST",
        "Reads of entries without a fence, from their arrival until they are answered.",
        lambda requests: requests.reads,
    ),
    LISTENER.gauge(
        "bookkeeper_server_READ_ENTRY_IN_PROGRESS",
        "Reads in progress; those answered from memory are never counted.",
        lambda listener: listener.read_lanes.under_way_count,
    ),
    LISTENER.gauge(
        "bookkeeper_server_READ_ENTRY_BLOCKED",
        "Reads that wait for their turn.",
        lambda listener: listener.read_lanes.waiting_count,
    ),
    *_durations(
        "How long reads waited for their turn.",
        lambda requests: requests.read_waits,
        "bookkeeper_server_READ_ENTRY_BLOCKED_WAIT",
        "bookkeeper_server_READ_ENTRY_SCHEDULING_DELAY",
    ),
    _REQUESTS.counter(
        "bookkeeper_server_READ_ENTRY_REJECTED",
        "Reads rejected because too many are waiting or unsent.",
        _rejected_reads_count,
    ),
    _REQUESTS.duration(
        "bookkeeper_server_READ_ENTRY_FENCE_REQUEST",
        "Reads that fence their ledger, from their arrival until they are answered.",
        lambda requests: requests.fencing_reads,
    ),
    REQUEST_PATH.duration(
        "bookkeeper_server_READ_ENTRY_FENCE_READ",
        "Reads that fence their ledger: reading the entry.",
        lambda path: path.handler.fence_measures.reads,
    ),
    REQUEST_PATH.duration(
        "bookkeeper_server_READ_ENTRY_FENCE_WAIT",
        "Reads that fence their ledger: until the fence is durable.",
        lambda path: path.handler.fence_measures.waits,
    ),
    _REQUESTS.duration(
        "bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST",
        "Long polls, from their arrival until they are answered.",
        lambda requests: requests.long_polls,
    ),
    REQUEST_PATH.duration(
        "bookkeeper_server_READ_ENTRY_LONG_POLL_WAIT",
        "How long polls waited for the LAC; a failure waited until its time was over.",
        lambda path: path.handles.polls.measures.waits,
    ),
    LISTENER.gauge(
        "bkctl_long_polls_waiting",
        "Long polls that wait for the LAC of their ledger.",
        lambda listener: listener.read_lanes.waiting_poll_count,
    ),
    _REQUESTS.counter(
        "bookkeeper_server_READ_LAST_ENTRY_NOENTRY_ERROR",
        "Reads of the last entry of a ledger that found none.",
        lambda requests: requests.absent_last_entries_count,
    ),
    _REQUESTS.duration(
        "bkctl_batch_read_request",
        "Reads of several entries at once (wire protocol v2), from their arrival until they are answered.",
        lambda requests: requests.batch_reads,
    ),
    *_durations(
        "Reads of the explicit LAC, from their arrival until they are answered.",
        lambda requests: requests.lac_reads,
        "bookkeeper_server_READ_LAC",
        "bookkeeper_server_READ_LAC_REQUEST",
    ),
    *_durations(
        "Writes of the explicit LAC, from their arrival until they are answered.",
        lambda requests: requests.lac_writes,
        "bookkeeper_server_WRITE_LAC",
        "bookkeeper_server_WRITE_LAC_REQUEST",
    ),
    *_durations(
        "Requests to make a ledger durable, from their arrival until they are answered.",
        lambda requests: requests.forced_ledgers,
        "bookkeeper_server_FORCE_LEDGER",
        "bookkeeper_server_FORCE_LEDGER_REQUEST",
    ),
    *_durations(
        "Requests for the disk space, from their arrival until they are answered.",
        lambda requests: requests.bookie_infos,
        "bookkeeper_server_GET_BOOKIE_INFO",
        "bookkeeper_server_GET_BOOKIE_INFO_REQUEST",
    ),
    *_durations(
        "Requests for the entries of a ledger, from their arrival until they are answered.",
        lambda requests: requests.entry_lists,
        "bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER",
        "bookkeeper_server_GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST",
    ),
    _REQUESTS.duration(
        "bookie_BOOKIE_ADD_ENTRY",
        "Adds, from their arrival until they are answered.",
        lambda requests: requests.adds,
    ),
    _REQUESTS.duration(
        "bookie_BOOKIE_RECOVERY_ADD_ENTRY",
        "Adds that came from a recovery; they are among the other adds, too.",
        lambda requests: requests.recovery_adds,
    ),
    _REQUESTS.sizes(
        "bookie_BOOKIE_ADD_ENTRY_BYTES",
        "Sizes of added entries.",
        lambda requests: requests.added_bytes,
    ),
    _REQUESTS.duration(
        "bookie_BOOKIE_READ_ENTRY",
        "Reads of entries, from their turn until they are answered.",
        lambda requests: requests.begun_reads,
    ),
    _REQUESTS.sizes(
        "bookie_BOOKIE_READ_ENTRY_BYTES",
        "Sizes of entries that were read.",
        lambda requests: requests.read_bytes,
    ),
    _REQUESTS.duration(
        "bookie_BOOKIE_GET_LIST_OF_ENTRIES_OF_LEDGER",
        "Requests for the entries of a ledger.",
        lambda requests: requests.entry_lists,
    ),
    _REQUESTS.counter(
        "bookie_BOOKIE_FORCE_LEDGER",
        "Requests to make a ledger durable.",
        lambda requests: _count(requests.forced_ledgers),
    ),
    _REQUESTS.counter(
        "bookie_WRITE_BYTES",
        "Bytes of entries that were added.",
        lambda requests: requests.added_bytes.succeeded.total,
    ),
    _REQUESTS.counter(
        "bookie_READ_BYTES",
        "Bytes of entries that were read.",
        lambda requests: requests.read_bytes.succeeded.total,
    ),
    _FAILURES.counter(
        "bkctl_requests_failed",
        "Requests that were not answered with OK, by operation and status.",
        lambda count: count,
    ),
    BOOKIE.gauge(
        "jvm_memory_direct_bytes_used",
        "Bytes in caches, journal queues and network buffers; a Java bookie has them in direct memory.",
        _buffers_used_bytes,
    ),
    BOOKIE.gauge(
        "jvm_memory_direct_bytes_max",
        "Limit of the bytes in caches, journal queues and network buffers, by the settings.",
        _buffers_max_bytes,
    ),
)
