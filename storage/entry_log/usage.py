"""What is left of an entry log, and which logs are worth compacting. Pure. Source: storage sections 4.7, 7.1 and 7.3.

A log is never changed: deleted ledgers leave their bytes behind in it, and compaction copies what is left elsewhere so
that the log can go. Its usage is the part of its bytes that belongs to ledgers which still exist.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from storage.ids import EntryLogId, LedgerId

BUCKET_COUNT: Final = 10
"""Logs are told apart by tenths of usage: the emptiest come first."""


class LogUsage(msgspec.Struct, frozen=True):
    """Bytes of a finished log, size words included. 16 bytes for each ledger in it: there may be very many of both."""

    log_id: EntryLogId
    total_bytes: int
    """Of all the entries that were written to it."""
    remaining_bytes: int
    """Of ledgers that still exist; some may be copies that nobody reads any more."""
    _ledger_ids: array[int]
    _sizes_bytes: array[int]

    @classmethod
    def of_new(cls, log_id: EntryLogId, ledger_bytes: Mapping[LedgerId, int]) -> LogUsage:
        """A log of which nothing is known to be gone."""
        sizes_bytes = array("q", ledger_bytes.values())
        total_bytes = sum(sizes_bytes)
        return cls(log_id, total_bytes, total_bytes, array("q", ledger_bytes), sizes_bytes)

    @property
    def is_empty(self) -> bool:
        """Whether no ledger is left in it."""
        return not self._ledger_ids

    def of_existing(self, ledger: Callable[[LedgerId], object]) -> LogUsage:
        """The same log without the ledgers for which ``ledger`` gives None; itself when there are none."""
        rows = list(map(ledger, self._ledger_ids))
        if None not in rows:
            return self
        ledger_ids = array("q", (each for each, row in zip(self._ledger_ids, rows, strict=True) if row is not None))
        sizes_bytes = array("q", (size for size, row in zip(self._sizes_bytes, rows, strict=True) if row is not None))
        return LogUsage(self.log_id, self.total_bytes, sum(sizes_bytes), ledger_ids, sizes_bytes)

    def usage(self, target_bytes: int = 0) -> float:
        """Part of the log that is left, from 0 to 1.

        ``target_bytes`` above 0 (useTargetEntryLogSizeForGc): measured against a log of that size, so that small logs
        count as little used and are merged; one in full use stays 1.
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
    """How many logs there are in each tenth of usage."""
    counts = [0] * BUCKET_COUNT
    for log in logs:
        counts[usage_bucket(log.usage())] += 1
    return counts


def logs_to_compact(logs: Iterable[LogUsage], threshold: float, target_bytes: int = 0) -> list[LogUsage]:
    """Logs with a usage below ``threshold``, the lowest tenth first, in a tenth by id: the oldest."""
    ranked = ((log.usage(target_bytes), log) for log in logs)
    chosen = [(usage_bucket(usage), log.log_id, log) for usage, log in ranked if usage < threshold]
    return [log for _, _, log in sorted(chosen, key=lambda each: each[:2])]
