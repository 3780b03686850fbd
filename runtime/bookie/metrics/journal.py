"""Metrics of the journals: their queues, groups and syncs."""

from __future__ import annotations

from typing import Final

from runtime.bookie.metrics.metric import AnyMetric, counter, gauge
from runtime.bookie.metrics.scopes import BOOKIE, JOURNALS

JOURNAL: Final[tuple[AnyMetric, ...]] = (
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
)
