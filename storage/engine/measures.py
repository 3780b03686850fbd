"""Measures of one ledger directory. The loop changes those of reads, the checkpoint lane those of flushes."""

from __future__ import annotations

from typing import Final

from bkctl.storage.measures import Measures, NowNs, Outcomes, no_clock


class EngineMeasures(Measures):
    """Durations, sizes and numbers since the start."""

    def __init__(self, now_ns: NowNs) -> None:
        super().__init__(now_ns)
        self.write_cache_hits = 0
        self.read_cache_hits = 0
        self.disk_reads = Outcomes()
        """Reads of entries that no cache has; one that finds no entry is a success."""
        self.lookups = Outcomes()
        """Their part in the index."""
        self.log_reads_ns = 0
        """Their part in the entry logs."""
        self.last_entry_reads = Outcomes()
        """Searches of the last entry of a ledger, each with a read of that entry."""
        self.read_ahead_entries = Outcomes()
        """Entries that a sequential read read ahead."""
        self.read_ahead_bytes = Outcomes()
        self.read_ahead_ns = 0
        """Duration of these reads, the requested entry included."""
        self.flushes = Outcomes()
        """Checkpoints of this directory, with the rests between their parts."""
        self.flushed_bytes = Outcomes()
        """Bytes of the entries of a checkpoint."""
        self.flushes_of_entries = Outcomes()
        """Their part in the entry log."""
        self.flushes_of_locations = Outcomes()
        self.flushes_of_ledger_rows = Outcomes()


class ReadWatch:
    """Splits the duration of a read: each ``end`` method counts the time since the last one. One job uses it."""

    __slots__ = ("_now_ns", "_since_ns", "index_ns", "last_entry_ns", "log_ns")

    def __init__(self, now_ns: NowNs) -> None:
        self._now_ns = now_ns
        self._since_ns = now_ns()
        self.last_entry_ns = 0
        self.index_ns = 0
        self.log_ns = 0

    def end_last_entry(self) -> None:
        """The last entry of the ledger was searched for."""
        self.last_entry_ns += self._lap_ns()

    def end_lookup(self) -> None:
        """The entry was looked up in the index."""
        self.index_ns += self._lap_ns()

    def end_log_read(self) -> None:
        """It was read from an entry log."""
        self.log_ns += self._lap_ns()

    def _lap_ns(self) -> int:
        now_ns = self._now_ns()
        elapsed_ns, self._since_ns = now_ns - self._since_ns, now_ns
        return elapsed_ns


UNWATCHED: Final = ReadWatch(no_clock)
"""For reads that no measure is about."""
