"""What the collector of a bookie has done: plain numbers, changed on the loop, read whenever somebody asks."""

from __future__ import annotations

import msgspec

from storage.entry_log.usage import BUCKET_COUNT


class GarbageCollectionMetrics(msgspec.Struct):
    """Counts since the start of the process, but for the last five."""

    rounds_count: int = 0
    rounds_failed_count: int = 0
    """Rounds in which a part could not be done; the next one tries again."""
    ledgers_deleted_count: int = 0
    """Ledgers that were gone from the metadata."""
    ledgers_overreplicated_count: int = 0
    """Ledgers deleted because the metadata no longer names this bookie."""
    ledgers_kept_count: int = 0
    """Times that a ledger could have been taken for deleted and was kept, for want of proof."""
    logs_removed_count: int = 0
    reclaimed_bytes: int = 0
    """Of the logs that were removed."""
    logs_compacted_count: int = 0
    """Of the logs that were removed, those with survivors."""
    copied_entries_count: int = 0
    copied_bytes: int = 0
    """Of the survivors; what was won is ``reclaimed_bytes`` less this."""
    major_compactions_count: int = 0
    """That were run to their end; each ledger directory has its own."""
    minor_compactions_count: int = 0
    compactions_failed_count: int = 0
    """Of both kinds, and searches of the index for logs: a part could not be done; a later one tries again."""
    compactions_stopped_count: int = 0
    """Suspended while they ran, or not to be gone on with on a disk that has become fuller."""
    compactions_resumed_count: int = 0
    """Logs whose compaction was finished after it had been cut off."""

    compactions_running: int = 0
    """Ledger directories that are being compacted."""
    logs_quarantined: int = 0
    """Damaged logs that are left alone."""
    logs_count: int = 0
    """Finished logs whose contents are known."""
    remaining_bytes: int = 0
    """Of ledgers that exist, in these logs."""
    usage_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKET_COUNT)
    """How many of these logs there are in each tenth of usage."""
