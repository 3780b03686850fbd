"""Metrics of a Java bookie that this bookie does not have, and why."""

from __future__ import annotations

from typing import Final

_POOLS = (
    "BookieHighPriorityThread_max_queue_size",
    "BookieHighPriorityThread_threads",
    "BookieReadThreadPool_max_queue_size",
    "BookieReadThreadPool_task_execution",
    "BookieReadThreadPool_task_queued",
    "BookieReadThreadPool_threads",
    "BookieWriteThreadPool_max_queue_size",
    "BookieWriteThreadPool_task_execution",
    "BookieWriteThreadPool_task_queued",
    "BookieWriteThreadPool_threads",
    "thread_executor_completed",
    "thread_executor_queue",
    "thread_executor_tasks_completed",
    "thread_executor_tasks_failed",
    "thread_executor_tasks_rejected",
)
_JVM = (
    "gc_collection_seconds",
    "memory_bytes_committed",
    "memory_bytes_init",
    "memory_bytes_max",
    "memory_bytes_used",
    "memory_objects_pending_finalization",
    "memory_pool_bytes_committed",
    "memory_pool_bytes_init",
    "memory_pool_bytes_max",
    "memory_pool_bytes_used",
    "memory_pool_collection_committed_bytes",
    "memory_pool_collection_init_bytes",
    "memory_pool_collection_max_bytes",
    "memory_pool_collection_used_bytes",
    "threads_current",
    "threads_daemon",
    "threads_deadlocked",
    "threads_deadlocked_monitor",
    "threads_peak",
    "threads_started",
    "threads_state",
)

MISSING: Final[dict[str, tuple[str, ...]]] = {
    "An event loop does this work; there are no pools of threads with queues.": tuple(
        f"bookkeeper_server_{name}" for name in _POOLS
    ),
    "`bookkeeper_server_READ_ENTRY_LONG_POLL_REQUEST` includes it; the waiting has a metric of its own.": tuple(
        f"bookkeeper_server_READ_ENTRY_LONG_POLL_{name}" for name in ("PRE_WAIT", "READ")
    ),
    "Adds do not wait for a thread.": ("bookkeeper_server_WRITE_THREAD_QUEUED_LATENCY",),
    "All answers of one turn of the event loop leave a connection in one write, which does not wait.": (
        "bookkeeper_server_CHANNEL_WRITE",
    ),
    "The write cache is a dictionary in memory; timing each entry would cost more than storing it.": (
        "bookie_add_entry",
    ),
    "`bookkeeper_server_ADD_ENTRY_BLOCKED_WAIT` has the adds that wait, for all directories together.": (
        "bookie_throttled_write",
        "bookie_throttled_write_requests",
    ),
    "The thread that writes a group of records also syncs it, each group by itself.": (
        "bookie_journal_JOURNAL_FORCE_WRITE_ENQUEUE",
        "bookie_journal_JOURNAL_FORCE_WRITE_GROUPING_TOTAL",
    ),
    "Records are in their group as soon as they are queued; there is no step before the write.": (
        "bookie_journal_JOURNAL_PROCESS_TIME_LATENCY",
    ),
    "`bookkeeper_server_FORCE_LEDGER` has the duration, for all journals together.": (
        "bookie_journal_JOURNAL_FORCE_LEDGER",
    ),
    "It counts the time of a thread that this bookie does not have.": (
        "bookie_db_storage_thread_time",
        "bookie_journal_callback_time",
        "bookie_sync_thread_time",
    ),
    "LevelDB compacts the index by itself and does not count how often.": ("bookie_ENTRY_LOCATION_COMPACTION_TOTAL",),
    "The bookie does not check itself; `bkctl bookie sanity` does.": ("bookie_SERVER_SANITY",),
    "The bookie neither reads nor changes the ACL of an existing node.": (
        "bookie_bookie_zk_get_acl",
        "bookie_bookie_zk_set_acl",
    ),
    "There is no JVM; `process_*` and `python_gc_*` describe the process.": tuple(f"jvm_{name}" for name in _JVM),
}
"""Names by reason. A test compares them with the names of a running Java bookie."""
