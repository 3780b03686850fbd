"""Metrics of the journals: their queues, groups and syncs."""

from __future__ import annotations

from typing import Final

from bkctl.runtime.bookie.metrics.scopes import BOOKIE, JOURNALS

JOURNAL: Final = (
    BOOKIE.gauge(
        "bookie_JOURNAL_QUEUE_MAX_SIZE",
        "Records in the queue of one journal above which adds wait.",
        lambda view: view.config.storage.journal.queue_record_count_max,
    ),
    JOURNALS.counter(
        "bookie_journal_JOURNAL_QUEUE_SIZE",
        "Records that wait for their sync; it also falls.",
        lambda journal: journal.queued_count,
    ),
    JOURNALS.counter(
        "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
        "Groups of records that are being written, or wait for that; it also falls.",
        lambda journal: journal.complete_groups_count,
    ),
    JOURNALS.gauge(
        "bookie_journal_JOURNAL_MEMORY_USED",
        "Bytes of records that wait for their sync.",
        lambda journal: journal.queued_bytes,
    ),
    JOURNALS.gauge(
        "bookie_journal_JOURNAL_MEMORY_MAX",
        "Bytes in the queue above which adds wait.",
        lambda journal: journal.queue_bytes_max,
    ),
    JOURNALS.duration(
        "bookie_journal_JOURNAL_ADD_ENTRY",
        "Records, from the queue until they are durable.",
        lambda journal: journal.measures.commits,
    ),
    JOURNALS.duration(
        "bookie_journal_JOURNAL_QUEUE_LATENCY",
        "Records, from the queue until they are written.",
        lambda journal: journal.measures.queue,
    ),
    JOURNALS.duration(
        "bookie_journal_JOURNAL_FLUSH_LATENCY",
        "Writing a group of records to the page cache.",
        lambda journal: journal.measures.writes,
    ),
    JOURNALS.duration(
        "bookie_journal_JOURNAL_SYNC",
        "Syncs of the journal.",
        lambda journal: journal.measures.syncs,
    ),
    JOURNALS.duration(
        "bookie_journal_JOURNAL_CREATION_LATENCY",
        "Creating a journal file.",
        lambda journal: journal.measures.created_files,
    ),
    JOURNALS.sizes(
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES",
        "Records of a group.",
        lambda journal: journal.measures.group_records,
    ),
    JOURNALS.sizes(
        "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES",
        "Bytes of a group.",
        lambda journal: journal.measures.group_bytes,
    ),
    JOURNALS.counter(
        "bookie_journal_JOURNAL_NUM_FLUSH_MAX_WAIT",
        "Groups that waited for more records as long as the settings ask for.",
        lambda journal: journal.measures.groups_by_wait_count,
    ),
    JOURNALS.counter(
        "bookie_journal_JOURNAL_NUM_FLUSH_MAX_OUTSTANDING_BYTES",
        "Groups that reached the limit of their size.",
        lambda journal: journal.measures.groups_by_size_count,
    ),
    JOURNALS.counter(
        "bookie_journal_JOURNAL_NUM_FLUSH_EMPTY_QUEUE",
        "Groups of all records that were queued.",
        lambda journal: journal.measures.groups_by_empty_queue_count,
    ),
    JOURNALS.counter(
        "bookie_journal_JOURNAL_WRITE_BYTES",
        "Bytes written to journals, padding included.",
        lambda journal: journal.measures.written_bytes,
    ),
)
