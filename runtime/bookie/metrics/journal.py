"""Metrics of the journals: their queues, groups and syncs."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.admin.metric import counter, duration, gauge, sizes
from bkctl.runtime.bookie.metrics.scopes import BOOKIE, JOURNALS

JOURNAL: Final = (
    gauge(
        "bookie_JOURNAL_QUEUE_MAX_SIZE",
        BOOKIE,
        "Records in the queue of one journal above which adds wait.",
        lambda view: view.config.storage.journal.queue_record_count_max,
    ),
    counter(
        "bookie_journal_JOURNAL_QUEUE_SIZE",
        JOURNALS,
        "Records that wait for their sync; it also falls.",
        lambda journal: journal.queued_count,
    ),
    counter(
        "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
        JOURNALS,
        "Groups of records that are being written, or wait for that; it also falls.",
        lambda journal: journal.complete_groups_count,
    ),
    gauge(
        "bookie_journal_JOURNAL_MEMORY_USED",
        JOURNALS,
        "Bytes of records that wait for their sync.",
        lambda journal: journal.queued_bytes,
    ),
    gauge(
        "bookie_journal_JOURNAL_MEMORY_MAX",
        JOURNALS,
        "Bytes in the queue above which adds wait.",
        lambda journal: journal.queue_bytes_max,
    ),
    duration(
        "bookie_journal_JOURNAL_ADD_ENTRY",
        JOURNALS,
        "Records, from the queue until they are durable.",
        lambda journal: journal.measures.commits,
    ),
    duration(
        "bookie_journal_JOURNAL_QUEUE_LATENCY",
        JOURNALS,
        "Records, from the queue until they are written.",
        lambda journal: journal.measures.queue,
    ),
    duration(
        "bookie_journal_JOURNAL_FLUSH_LATENCY",
        JOURNALS,
        "Writing a group of records to the page cache.",
        lambda journal: journal.measures.writes,
    ),
    duration(
        "bookie_journal_JOURNAL_SYNC",
        JOURNALS,
        "Syncs of the journal.",
        lambda journal: journal.measures.syncs,
    ),
    duration(
        "bookie_journal_JOURNAL_CREATION_LATENCY",
        JOURNALS,
        "Creating a journal file.",
        lambda journal: journal.measures.created_files,
    ),
    sizes(
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES",
        JOURNALS,
        "Records of a group.",
        lambda journal: journal.measures.group_records,
    ),
    sizes(
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES",
        JOURNALS,
        "Bytes of a group.",
        lambda journal: journal.measures.group_bytes,
    ),
    counter(
        "bookie_journal_JOURNAL_NUM_FLUSH_MAX_WAIT",
        JOURNALS,
        "Groups that waited for more records as long as the settings ask for.",
        lambda journal: journal.measures.groups_by_wait_count,
    ),
    counter(
        "bookie_journal_JOURNAL_NUM_FLUSH_MAX_OUTSTANDING_BYTES",
        JOURNALS,
        "Groups that reached the limit of their size.",
        lambda journal: journal.measures.groups_by_size_count,
    ),
    counter(
        "bookie_journal_JOURNAL_NUM_FLUSH_EMPTY_QUEUE",
        JOURNALS,
        "Groups of all records that were queued.",
        lambda journal: journal.measures.groups_by_empty_queue_count,
    ),
    counter(
        "bookie_journal_JOURNAL_WRITE_BYTES",
        JOURNALS,
        "Bytes written to journals, padding included.",
        lambda journal: journal.measures.written_bytes,
    ),
)
