"""Making one ledger directory durable: the lane side of a checkpoint, in the order of storage section 5.8.

The order is log bytes, the locations that reference them, ledger rows, seals. Replay repairs a crash between any two
steps, because the mark moves only after the last one. While anything here runs, no other job may append to the entry
logs or write to the indexes: one lane does all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from bkctl.storage.engine.directory_files import DirectoryFiles
from bkctl.storage.engine.measures import EngineMeasures
from bkctl.storage.engine.memtable import Memtable
from bkctl.storage.ids import EntryId, LedgerId
from bkctl.storage.index.ledger_index import LedgerRow, LedgerRowChanges
from bkctl.storage.index.location_index import LOCATION_BYTES, encode_keys, encode_locations
from bkctl.storage.step_sizes import StepSizes


class DirectoryCheckpoint(msgspec.Struct, frozen=True):
    """What one checkpoint of a directory makes durable."""

    memtable: Memtable
    former: Memtable
    """What the checkpoint before wrote; no longer needed."""
    row_changes: LedgerRowChanges
    deleted_ledgers: tuple[LedgerId, ...]
    """Deleted since the last checkpoint. Their entries in ``memtable`` were added after the deletion (H6);
    ``row_changes`` shows whether each exists again."""
    deletions: Mapping[LedgerId, EntryId]
    """These, and those that earlier checkpoints began to delete; for each the first entry whose row may be left."""

    def without(self, deleted: tuple[LedgerId, ...]) -> DirectoryCheckpoint:
        """The job with further deleted ledgers, whose entries ``memtable`` no longer has."""
        # From entry 0 on, because the failed attempt may have written rows of any of them.
        deletions = {**self.deletions, **dict.fromkeys(deleted, 0)}
        ledgers = tuple(sorted({*self.deleted_ledgers, *deleted}))
        gone = set(deleted)
        rows = {ledger_id: row for ledger_id, row in self.row_changes.items() if ledger_id not in gone}
        return DirectoryCheckpoint(self.memtable, self.former, rows, ledgers, deletions)


class CheckpointDone(msgspec.Struct, frozen=True):
    """What a checkpoint wrote."""

    entry_count: int
    body_bytes: int
    deletions_left: Mapping[LedgerId, EntryId]
    """For the next checkpoint. The rows of these ledgers mark the deletion, so that it survives a restart."""


def go_on() -> None:
    """A ``pause`` that does nothing, for callers without concurrent work."""


class CheckpointWriter:
    """Writes the checkpoints of one ledger directory; its one lane calls it."""

    def __init__(self, files: DirectoryFiles, steps: StepSizes, measures: EngineMeasures) -> None:
        self._ledgers = files.ledgers
        self._locations = files.locations
        self._log_writer = files.log_writer
        self._steps = steps
        self._measures = measures

    def write(self, job: DirectoryCheckpoint, pause: Callable[[], None] = go_on) -> CheckpointDone:
        """Make a job durable; calls ``pause`` between its parts.

        Raises StorageError or OSError with nothing lost: the whole job can be written again, unless the error is an
        IndexFailedError. The mark may move only after this has returned for every directory.
        """
        measures, now_ns = self._measures, self._measures.now_ns
        with measures.flushes.timed(now_ns):
            deletions_left = self._delete(job, pause)
            with measures.flushes_of_entries.timed(now_ns):
                batches, body_bytes = self._write_entries(job.memtable, pause)
            with measures.flushes_of_locations.timed(now_ns):
                for keys, locations in batches:
                    self._locations.write(keys, locations)
                    pause()
            with measures.flushes_of_ledger_rows.timed(now_ns):
                # Even without entries: the mark must not pass the fence of an idle ledger that is not flushed (H1).
                changes: dict[LedgerId, LedgerRow | None] = {**dict.fromkeys(job.deletions), **job.row_changes}
                self._ledgers.write({each: row for each, row in changes.items() if each not in deletions_left})
            self._locations.seal()
            self._ledgers.seal()
            self._log_writer.prepare_next()
        measures.flushed_bytes.succeeded.add(body_bytes)
        entry_count = sum(len(locations) for _, locations in batches) // LOCATION_BYTES
        return CheckpointDone(entry_count, body_bytes, deletions_left)

    def _delete(self, job: DirectoryCheckpoint, pause: Callable[[], None]) -> dict[LedgerId, EntryId]:
        """Delete all rows of ledgers that exist again, and a bounded number of others; returns what is left."""
        # The row goes first, because a ledger row with half of its entries would wrongly deny the others. A marker
        # replaces it until the deletion has ended, so that a restart continues the deletion.
        self._ledgers.begin_deletes(job.deleted_ledgers)
        there_again = {each: first for each, first in job.deletions.items() if job.row_changes.get(each) is not None}
        batch_row_count_max = self._steps.delete_batch_row_count_max
        self._locations.delete_ledgers(there_again, None, pause, batch_row_count_max)
        others = {each: first for each, first in job.deletions.items() if each not in there_again}
        return self._locations.delete_ledgers(others, self._steps.deleted_row_count_max, pause, batch_row_count_max)

    def _write_entries(self, memtable: Memtable, pause: Callable[[], None]) -> tuple[list[tuple[bytes, bytes]], int]:
        """Append all entries in order and sync; returns joined keys and locations, which no index may hold before the
        sync, and the bytes of the bodies."""
        batches: list[tuple[bytes, bytes]] = []
        body_bytes = 0
        try:
            for part in memtable.slices(self._steps.slice_entry_count_max, self._steps.slice_bytes_max):
                locations = self._log_writer.append_columns(part.ledger_ids, part.bodies)
                batches.append((encode_keys(part.ledger_ids, part.entry_ids), encode_locations(locations)))
                body_bytes += part.body_bytes
                pause()
            self._log_writer.sync()
        except BaseException:
            # Rule: a failed sync is final for the file. The retry appends everything again, to a new log.
            self._log_writer.discard_unsynced()
            raise
        return batches, body_bytes
