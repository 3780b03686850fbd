"""Making one ledger directory durable: the lane side of a checkpoint, in the order of storage section 5.8.

Log bytes first, then the locations that name them, then the ledger rows, then the seals. A crash between any two steps
is mended by replay, because the mark moves only after the last one. Not while anything here runs may another job append
to the entry logs or write to the indexes: there is one lane for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from storage.entry_log_writer import EntryLogWriter
from storage.ids import LedgerId
from storage.ledger_index import LedgerIndex, LedgerRowChanges
from storage.location_index import LocationIndex, encode_keys, encode_locations
from storage.memtable import Memtable

SLICE_ENTRY_COUNT_MAX: Final = 8192
SLICE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bounds of one append to the entry log and of the index batch that names it: a lane must not hold the interpreter."""


class CheckpointJob(msgspec.Struct, frozen=True):
    """What one checkpoint of a directory makes durable."""

    memtable: Memtable
    row_changes: LedgerRowChanges
    deleted_ledgers: tuple[LedgerId, ...]
    """Ledgers to delete first: entries of them in ``memtable`` were added after the deletion (H6). ``row_changes`` says
    of each whether it is there again."""


class CheckpointDone(msgspec.Struct, frozen=True):
    """What a checkpoint wrote."""

    entry_count: int
    body_bytes: int


def go_on() -> None:
    """The pace of a checkpoint that nobody works beside."""


class CheckpointWriter:
    """Writes the checkpoints of one ledger directory; its one lane calls it."""

    def __init__(self, ledgers: LedgerIndex, locations: LocationIndex, log_writer: EntryLogWriter) -> None:
        self._ledgers = ledgers
        self._locations = locations
        self._log_writer = log_writer

    def write(self, job: CheckpointJob, pause: Callable[[], None] = go_on) -> CheckpointDone:
        """Make a job durable; ``pause`` is called between its parts.

        Raises StorageError or OSError with nothing lost: the job can be written again, whole, unless the error is an
        IndexFailedError. The mark may move only when this has returned for every directory.
        """
        if job.deleted_ledgers:
            # The row goes first: a row whose entries are half deleted would deny entries as a matter of fact. What
            # takes its place, until the rows are written below, makes a boot in between finish the deletion.
            self._ledgers.begin_deletes(job.deleted_ledgers)
            self._locations.delete_ledgers(job.deleted_ledgers)
        batches, done = self._write_entries(job.memtable, pause)
        for keys, locations in batches:
            self._locations.write(keys, locations)
            pause()
        # Also when there was no entry: the fence of an idle ledger is behind the mark like everything else (H1).
        self._ledgers.write(job.row_changes)
        self._locations.seal()
        self._ledgers.seal()
        self._log_writer.prepare_next()
        return done

    def _write_entries(
        self, memtable: Memtable, pause: Callable[[], None]
    ) -> tuple[list[tuple[bytes, bytes]], CheckpointDone]:
        """Append all entries in order and sync; returns joined keys and locations, which no index may hold earlier."""
        batches: list[tuple[bytes, bytes]] = []
        entry_count = body_bytes = 0
        try:
            for part in memtable.slices(SLICE_ENTRY_COUNT_MAX, SLICE_BYTES_MAX):
                locations = self._log_writer.append(part.bodies)
                batches.append((encode_keys(part.ids), encode_locations(locations)))
                entry_count += len(part.bodies)
                body_bytes += part.body_bytes
                pause()
            self._log_writer.sync()
        except BaseException:
            # Rule: a failed sync is final for the file. The retry appends everything again, to a new log.
            self._log_writer.discard_unsynced()
            raise
        return batches, CheckpointDone(entry_count, body_bytes)
