"""Metrics of garbage collection: entry logs, compaction, deleted ledgers."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.admin.metric import AnyMetric, counter, duration, gauge
from bkctl.runtime.bookie.metrics.scopes import COLLECTED_DIRECTORIES, COLLECTOR, CollectedDirectory
from bkctl.storage.entry_log.usage import BUCKET_COUNT


def _usage_bucket(index: int) -> AnyMetric:
    """Java has a metric for each tenth of usage."""
    percent = 100 // BUCKET_COUNT * (index + 1)

    def read(directory: CollectedDirectory) -> int:
        return directory.logs.usage_buckets[index]

    return gauge(
        f"bookie_entry_log_usage_buckets_le_{percent}",
        COLLECTED_DIRECTORIES,
        f"Entry logs of which {percent - 100 // BUCKET_COUNT} % to {percent} % is in use, as of the last round.",
        read,
    )


COLLECTION: Final = (
    gauge(
        "bookie_ACTIVE_LEDGER_TOTAL",
        COLLECTED_DIRECTORIES,
        "Ledgers that the collector considers.",
        lambda directory: directory.engine.ledger_count,
    ),
    counter(
        "bookie_DELETED_LEDGER_TOTAL",
        COLLECTED_DIRECTORIES,
        "Ledgers deleted by the collector.",
        lambda directory: directory.engine.delete_count,
    ),
    gauge(
        "bookie_ACTIVE_ENTRY_LOG_TOTAL",
        COLLECTED_DIRECTORIES,
        "Finished entry logs, as of the last round.",
        lambda directory: directory.logs.logs_count,
    ),
    gauge(
        "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES",
        COLLECTED_DIRECTORIES,
        "Bytes of existing ledgers in finished entry logs, as of the last round.",
        lambda directory: directory.logs.remaining_bytes,
    ),
    gauge(
        "bookie_ENTRY_LOG_SPACE_BYTES",
        COLLECTED_DIRECTORIES,
        "Bytes of all entries in finished entry logs, as of the last round.",
        lambda directory: directory.logs.logs_bytes,
    ),
    *map(_usage_bucket, range(BUCKET_COUNT)),
    counter(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES",
        COLLECTED_DIRECTORIES,
        "Size of deleted entry logs in which nothing was in use.",
        lambda directory: directory.logs.deletion_reclaimed_bytes,
    ),
    counter(
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
        COLLECTED_DIRECTORIES,
        "Size of compacted entry logs, less what was copied from them.",
        lambda directory: directory.logs.compaction_reclaimed_bytes,
    ),
    counter(
        "bookie_RECLAIM_FAILED_TO_DELETE",
        COLLECTED_DIRECTORIES,
        "Entry logs that could not be deleted; the next round tries again.",
        lambda directory: directory.logs.removals_failed_count,
    ),
    counter(
        "bookie_MAJOR_COMPACTION_TOTAL",
        COLLECTED_DIRECTORIES,
        "Major compactions that have ended.",
        lambda directory: directory.logs.major_compactions_count,
    ),
    counter(
        "bookie_MINOR_COMPACTION_TOTAL",
        COLLECTED_DIRECTORIES,
        "Minor compactions that have ended.",
        lambda directory: directory.logs.minor_compactions_count,
    ),
    gauge(
        "bookie_ENTRY_LOG_COMPACT_RATIO",
        COLLECTED_DIRECTORIES,
        "Share of the logs that the running compaction has finished; 0 if none runs.",
        lambda directory: directory.logs.compaction_progress,
    ),
    duration(
        "bookie_THREAD_RUNTIME",
        COLLECTED_DIRECTORIES,
        "Rounds, for all directories together; one in which a part failed is a failure.",
        lambda directory: directory.collection.rounds,
    ),
    duration(
        "bookie_GC_LEDGER_RUNTIME",
        COLLECTED_DIRECTORIES,
        "The part of a round that deletes ledgers, for all directories together.",
        lambda directory: directory.collection.ledgers,
    ),
    duration(
        "bookie_EXTRACT_META_RUNTIME",
        COLLECTED_DIRECTORIES,
        "Measuring new entry logs and updating the usage of all.",
        lambda directory: directory.timings.measurings,
    ),
    duration(
        "bookie_COMPACT_RUNTIME",
        COLLECTED_DIRECTORIES,
        "Compactions.",
        lambda directory: directory.timings.compactions,
    ),
    gauge(
        "bkctl_quarantined_logs",
        COLLECTED_DIRECTORIES,
        "Damaged entry logs, which garbage collection skips.",
        lambda directory: directory.logs.logs_quarantined,
    ),
    counter(
        "bkctl_gc_rounds",
        COLLECTOR,
        "Rounds of garbage collection.",
        lambda collection: collection.rounds_count,
    ),
    counter(
        "bkctl_gc_rounds_failed",
        COLLECTOR,
        "Rounds of garbage collection in which a part failed; the next round tries it again.",
        lambda collection: collection.rounds_failed_count,
    ),
    counter(
        "bkctl_gc_ledgers_overreplicated",
        COLLECTOR,
        "Ledgers whose copy was deleted because their metadata no longer names this bookie.",
        lambda collection: collection.ledgers_overreplicated_count,
    ),
    counter(
        "bkctl_gc_ledgers_kept",
        COLLECTOR,
        "How often a ledger looked deleted but was kept, because there was no proof.",
        lambda collection: collection.ledgers_kept_count,
    ),
    counter(
        "bkctl_gc_logs_removed",
        COLLECTOR,
        "Entry logs that were deleted.",
        lambda collection: collection.logs_removed_count,
    ),
    counter(
        "bkctl_compaction_copied_entries",
        COLLECTOR,
        "Entries copied by compactions.",
        lambda collection: collection.copied_entries_count,
    ),
    counter(
        "bkctl_compaction_copied_bytes",
        COLLECTOR,
        "Bytes of entries copied by compactions.",
        lambda collection: collection.copied_bytes,
    ),
    counter(
        "bkctl_compactions_failed",
        COLLECTOR,
        "Compactions, and searches of the index for them, that failed; a later one tries again.",
        lambda collection: collection.compactions_failed_count,
    ),
    gauge(
        "bkctl_gc_deletion_stopped",
        COLLECTOR,
        "1 while no ledger is deleted because the metadata is older than it was (bkctl bookie gc status), else 0.",
        lambda collection: collection.deletion_stopped,
    ),
    gauge(
        "bkctl_compactions_running",
        COLLECTOR,
        "Ledger directories that are being compacted.",
        lambda collection: collection.compactions_running,
    ),
)
