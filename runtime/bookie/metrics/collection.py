"""Metrics of garbage collection: entry logs, compaction, deleted ledgers."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.admin.metric import AnyMetric
from bkctl.runtime.bookie.metrics.scopes import COLLECTED_DIRECTORIES, COLLECTOR, CollectedDirectory
from bkctl.storage.entry_log.usage import BUCKET_COUNT


def _usage_bucket(index: int) -> AnyMetric:
    """Java has a metric for each tenth of usage."""
    percent = 100 // BUCKET_COUNT * (index + 1)

    def read(directory: CollectedDirectory) -> int:
        return directory.logs.usage_buckets[index]

    return COLLECTED_DIRECTORIES.gauge(
        f"bookie_entry_log_usage_buckets_le_{percent}",
        f"Entry logs of which {percent - 100 // BUCKET_COUNT} % to {percent} % is in use, as of the last round.",
        read,
    )


COLLECTION: Final = (
    COLLECTED_DIRECTORIES.gauge(
        "bookie_ACTIVE_LEDGER_TOTAL",
        "Ledgers that the collector considers.",
        lambda directory: directory.engine.ledger_count,
    ),
    COLLECTED_DIRECTORIES.counter(
        "bookie_DELETED_LEDGER_TOTAL",
        "Ledgers deleted by the collector.",
        lambda directory: directory.engine.delete_count,
    ),
    COLLECTED_DIRECTORIES.gauge(
        "bookie_ACTIVE_ENTRY_LOG_TOTAL",
        "Finished entry logs, as of the last round.",
        lambda directory: directory.logs.logs_count,
    ),
    COLLECTED_DIRECTORIES.gauge(
        "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES",
        "Bytes of existing ledgers in finished entry logs, as of the last round.",
        lambda directory: directory.logs.remaining_bytes,
    ),
    COLLECTED_DIRECTORIES.gauge(
        "bookie_ENTRY_LOG_SPACE_BYTES",
        "Bytes of all entries in finished entry logs, as of the last round.",
        lambda directory: directory.logs.logs_bytes,
    ),
    *map(_usage_bucket, range(BUCKET_COUNT)),
    COLLECTED_DIRECTORIES.counter(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES",
        "Size of deleted entry logs in which nothing was in use.",
        lambda directory: directory.logs.deletion_reclaimed_bytes,
    ),
    COLLECTED_DIRECTORIES.counter(
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
        "Size of compacted entry logs, less what was copied from them.",
        lambda directory: directory.logs.compaction_reclaimed_bytes,
    ),
    COLLECTED_DIRECTORIES.counter(
        "bookie_RECLAIM_FAILED_TO_DELETE",
        "Entry logs that could not be deleted; the next round tries again.",
        lambda directory: directory.logs.removals_failed_count,
    ),
    COLLECTED_DIRECTORIES.counter(
        "bookie_MAJOR_COMPACTION_TOTAL",
        "Major compactions that have ended.",
        lambda directory: directory.logs.major_compactions_count,
    ),
    COLLECTED_DIRECTORIES.counter(
        "bookie_MINOR_COMPACTION_TOTAL",
        "Minor compactions that have ended.",
        lambda directory: directory.logs.minor_compactions_count,
    ),
    COLLECTED_DIRECTORIES.gauge(
        "bookie_ENTRY_LOG_COMPACT_RATIO",
        "Share of the logs that the running compaction has finished; 0 if none runs.",
        lambda directory: directory.logs.compaction_progress,
    ),
    COLLECTED_DIRECTORIES.duration(
        "bookie_THREAD_RUNTIME",
        "Rounds, for all directories together; one in which a part failed is a failure.",
        lambda directory: directory.collection.rounds,
    ),
    COLLECTED_DIRECTORIES.duration(
        "bookie_GC_LEDGER_RUNTIME",
        "The part of a round that deletes ledgers, for all directories together.",
        lambda directory: directory.collection.ledgers,
    ),
    COLLECTED_DIRECTORIES.duration(
        "bookie_EXTRACT_META_RUNTIME",
        "Measuring new entry logs and updating the usage of all.",
        lambda directory: directory.timings.measurings,
    ),
    COLLECTED_DIRECTORIES.duration(
        "bookie_COMPACT_RUNTIME",
        "Compactions.",
        lambda directory: directory.timings.compactions,
    ),
    COLLECTED_DIRECTORIES.gauge(
        "bkctl_quarantined_logs",
        "Damaged entry logs, which garbage collection skips.",
        lambda directory: directory.logs.logs_quarantined,
    ),
    COLLECTOR.counter(
        "bkctl_gc_rounds",
        "Rounds of garbage collection.",
        lambda collection: collection.rounds_count,
    ),
    COLLECTOR.counter(
        "bkctl_gc_rounds_failed",
        "Rounds of garbage collection in which a part failed; the next round tries it again.",
        lambda collection: collection.rounds_failed_count,
    ),
    COLLECTOR.counter(
        "bkctl_gc_ledgers_overreplicated",
        "Ledgers whose copy was deleted because their metadata no longer names this bookie.",
        lambda collection: collection.ledgers_overreplicated_count,
    ),
    COLLECTOR.counter(
        "bkctl_gc_ledgers_kept",
        "How often a ledger looked deleted but was kept, because there was no proof.",
        lambda collection: collection.ledgers_kept_count,
    ),
    COLLECTOR.counter(
        "bkctl_gc_logs_removed",
        "Entry logs that were deleted.",
        lambda collection: collection.logs_removed_count,
    ),
    COLLECTOR.counter(
        "bkctl_compaction_copied_entries",
        "Entries copied by compactions.",
        lambda collection: collection.copied_entries_count,
    ),
    COLLECTOR.counter(
        "bkctl_compaction_copied_bytes",
        "Bytes of entries copied by compactions.",
        lambda collection: collection.copied_bytes,
    ),
    COLLECTOR.counter(
        "bkctl_compactions_failed",
        "Compactions, and searches of the index for them, that failed; a later one tries again.",
        lambda collection: collection.compactions_failed_count,
    ),
    COLLECTOR.gauge(
        "bkctl_gc_deletion_stopped",
        "1 while no ledger is deleted because the metadata is older than it was (bkctl bookie gc status), else 0.",
        lambda collection: collection.deletion_stopped,
    ),
    COLLECTOR.gauge(
        "bkctl_compactions_running",
        "Ledger directories that are being compacted.",
        lambda collection: collection.compactions_running,
    ),
)
