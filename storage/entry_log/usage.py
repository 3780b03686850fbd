"""How much of each entry log is in use, and which logs to compact. Pure. Source: storage sections 4.7, 7.1 and 7.3.

A log never changes: the bytes of deleted ledgers stay in it, and compaction copies the rest elsewhere so that the log
can be deleted. Its usage is the share of its bytes that belongs to existing ledgers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from bkctl.storage.ids import EntryLogId, LedgerId

BUCKET_COUNT: Final = 10
"""Logs are grouped by tenths of usage; the emptiest come first."""


class LogUsage(msgspec.Struct, frozen=True):
    """Bytes of a finished log, size words included. Compact (16 bytes per ledger), as there may be very many."""

    log_id: EntryLogId
    total_bytes: int
    """Bytes of all entries that were written to it."""
    remaining_bytes: int
    """Bytes of ledgers that still exist, including outdated copies of entries."""
    _ledger_ids: array[int]
    _sizes_bytes: array[int]

    @classmethod
    def of_new(cls, log_id: EntryLogId, ledger_bytes: Mapping[LedgerId, int]) -> LogUsage:
        """A log from which no ledger is known to be deleted."""
        sizes_bytes = array("q", ledger_bytes.values())
        total_bytes = sum(sizes_bytes)
        return cls(log_id, total_bytes, total_bytes, array("q", ledger_bytes), sizes_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether none of its ledgers exists."""
        return not self._ledger_ids

    def of_existing(self, ledger: Callable[[LedgerId], object]) -> LogUsage:
        """The same log without the ledgers for which ``ledger`` returns None; itself if there are none."""
        rows = list(map(ledger, self._ledger_ids))
        if None not in rows:
            return self
        ledger_ids = array("q", (each for each, row in zip(self._ledger_ids, rows, strict=True) if row is not None))
        sizes_bytes = array("q", (size for size, row in zip(self._sizes_bytes, rows, strict=True) if row is not None))
        return LogUsage(self.log_id, self.total_bytes, sum(sizes_bytes), ledger_ids, sizes_bytes)

    def usage(self, target_bytes: int = 0) -> float:
        """Share of the log that is in use, from 0 to 1.

        ``target_bytes`` above 0 (useTargetEntryLogSizeForGc): relative to a log of that size, so that small logs have a
        low usage and are merged; a log that is fully in use stays at 1.
        """
        if not self.total_bytes:
            return 0.0
        if self.remaining_bytes >= self.total_bytes:
            return 1.0
        return self.remaining_bytes / max(self.total_bytes, target_bytes)


def usage_bucket(usage: float) -> int:
    """Tenth of usage, 0 to 9."""
    return min(BUCKET_COUNT - 1, int(usage * BUCKET_COUNT))


def usage_buckets(logs: Iterable[LogUsage]) -> list[int]:
    """Number of logs in each tenth of usage."""
    counts = [0] * BUCKET_COUNT
    for log in logs:
        counts[usage_bucket(log.usage())] += 1
    return counts


def logs_to_compact(logs: Iterable[LogUsage], threshold: float, target_bytes: int = 0) -> list[LogUsage]:
    """Logs with a usage below ``threshold``, the lowest tenth first, within a tenth the lowest id first."""
    ranked = ((log.usage(target_bytes), log) for log in logs)
    chosen = [(usage_bucket(usage), log.log_id, log) for usage, log in ranked if usage < threshold]
    return [log for _, _, log in sorted(chosen, key=lambda each: each[:2])]
