"""Counters of a bookie's collector: plain numbers, changed on the loop; they can be read at any time."""

from __future__ import annotations

import msgspec

from storage.entry_log.usage import BUCKET_COUNT


class GarbageCollectionMetrics(msgspec.Struct):
    """Counters since the start of the process; the last five are current values."""

    rounds_count: int = 0
    rounds_failed_count: int = 0
    """Rounds in which a part failed; the next round retries it."""
    ledgers_deleted_count: int = 0
    """Ledgers that no longer had metadata."""
    ledgers_overreplicated_count: int = 0
    """Ledgers deleted because their metadata no longer references this bookie."""
    ledgers_kept_count: int = 0
    """How often a ledger looked deleted but was kept, because there was no proof."""
    logs_removed_count: int = 0
    reclaimed_bytes: int = 0
    """Size of the removed logs."""
    logs_compacted_count: int = 0
    """Removed logs from which entries were copied."""
    copied_entries_count: int = 0
    copied_bytes: int = 0
    """Of copied entries; the space gained is ``reclaimed_bytes`` less this."""
    major_compactions_count: int = 0
    """Completed ones, counted per ledger directory."""
    minor_compactions_count: int = 0
    compactions_failed_count: int = 0
    """Failures of both kinds and of index searches for logs; a later one retries."""
    compactions_stopped_count: int = 0
    """Compactions suspended while they ran, or stopped because a disk became fuller."""
    compactions_resumed_count: int = 0
    """Logs whose interrupted compaction was finished later."""

    compactions_running: int = 0
    """Ledger directories that are being compacted."""
    logs_quarantined: int = 0
    """Damaged logs, which are skipped."""
    logs_count: int = 0
    """Finished logs that have been measured."""
    remaining_bytes: int = 0
    """Bytes of existing ledgers in these logs."""
    usage_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKET_COUNT)
    """How many of these logs are in each tenth of usage."""
