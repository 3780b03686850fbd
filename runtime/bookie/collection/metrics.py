"""Counters and durations of a bookie's collector: plain numbers, changed on the loop; readable at any time."""

from __future__ import annotations

import msgspec

from bkctl.storage.entry_log.usage import BUCKET_COUNT
from bkctl.storage.measures import Measures, Outcomes


class LogMetrics(msgspec.Struct):
    """Of the entry logs of one ledger directory. The last six are current values: of finished logs, when measured."""

    major_compactions_count: int = 0
    """Completed ones."""
    minor_compactions_count: int = 0
    deletion_reclaimed_bytes: int = 0
    """Size of removed logs in which nothing was in use."""
    compaction_reclaimed_bytes: int = 0
    """Size of other removed logs, less what was copied from them."""
    removals_failed_count: int = 0
    """Logs that could not be deleted; the next round retries."""

    compaction_progress: float = 0.0
    """Share of the logs that the running compaction has finished; 0 if none runs."""
    logs_count: int = 0
    logs_bytes: int = 0
    """Bytes of all entries that were written to these logs."""
    remaining_bytes: int = 0
    """Bytes of existing ledgers in these logs."""
    usage_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * BUCKET_COUNT)
    """How many of these logs are in each tenth of usage."""
    logs_quarantined: int = 0
    """Damaged logs, which are skipped."""


class GarbageCollectionMetrics(msgspec.Struct):
    """Counters of the whole bookie since the start of the process; the last two are current values."""

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
    """Logs from which entries were copied."""
    copied_entries_count: int = 0
    copied_bytes: int = 0
    """Of copied entries; the space gained is ``reclaimed_bytes`` less this."""
    compactions_failed_count: int = 0
    """Failures of both kinds and of index searches for logs; a later one retries."""
    compactions_stopped_count: int = 0
    """Compactions suspended while they ran, or stopped because a disk became fuller."""
    compactions_resumed_count: int = 0
    """Logs whose interrupted compaction was finished later."""

    deletion_stopped: int = 0
    """1 while no ledger is deleted because the metadata is older than it was, else 0."""
    compactions_running: int = 0
    """Ledger directories that are being compacted."""


class DirectoryTimings(Measures):
    """Durations of the collector's work in one ledger directory."""

    def __init__(self) -> None:
        super().__init__()
        self.measurings = Outcomes()
        """Measuring new logs and updating the usage of all logs, once in each round."""
        self.compactions = Outcomes()


class CollectionTimings(Measures):
    """Durations of the collector's work for all directories together."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = Outcomes()
        """A round in which a part failed is a failure."""
        self.ledgers = Outcomes()
        """The part of a round that deletes ledgers."""
