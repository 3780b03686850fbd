"""Making one ledger directory durable: the lane side of a checkpoint, in the order of storage section 5.8.

Log bytes first, then the locations that name them, then the ledger rows, then the seals. A crash between any two steps
is mended by replay, because the mark moves only after the last one. Not while anything here runs may another job append
to the entry logs or write to the indexes: there is one lane for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from storage.engine.directory_files import DirectoryFiles
from storage.engine.memtable import Memtable
from storage.ids import EntryId, LedgerId
from storage.index.ledger_index import LedgerRow, LedgerRowChanges
from storage.index.location_index import LOCATION_BYTES, encode_keys, encode_locations
from storage.step_sizes import StepSizes


class CheckpointJob(msgspec.Struct, frozen=True):
    """What one checkpoint of a directory makes durable."""

    memtable: Memtable
    row_changes: LedgerRowChanges
    deleted_ledgers: tuple[LedgerId, ...]
    """Deleted since the last checkpoint. Entries of them in ``memtable`` were added after the deletion (H6);
    ``row_changes`` says of each whether it is there again."""
    deletions: Mapping[LedgerId, EntryId]
    """These, and those that earlier checkpoints began to delete; of each the entry from which on rows may be left."""

    def without(self, deleted: tuple[LedgerId, ...]) -> CheckpointJob:
        """The job with the deletion of further ledgers, of which ``memtable`` has no entry any more."""
        # From the first entry on: the try that failed may have written rows of any of them.
        deletions = {**self.deletions, **dict.fromkeys(deleted, 0)}
        ledgers = tuple(sorted({*self.deleted_ledgers, *deleted}))
        gone = set(deleted)
        rows = {ledger_id: row for ledger_id, row in self.row_changes.items() if ledger_id not in gone}
        return CheckpointJob(self.memtable, rows, ledgers, deletions)


class CheckpointDone(msgspec.Struct, frozen=True):
    """What a checkpoint wrote."""

    entry_count: int
    body_bytes: int
    deletions_left: Mapping[LedgerId, EntryId]
    """For the next checkpoint. The rows of these ledgers say that they are being deleted, to a boot too."""


def go_on() -> None:
    """The pace of a checkpoint that nobody works beside."""


class CheckpointWriter:
    """Writes the checkpoints of one ledger directory; its one lane calls it."""

    def __init__(self, files: DirectoryFiles, steps: StepSizes) -> None:
        self._ledgers = files.ledgers
        self._locations = files.locations
        self._log_writer = files.log_writer
        self._steps = steps

    def write(self, job: CheckpointJob, pause: Callable[[], None] = go_on) -> CheckpointDone:
        """Make a job durable; ``pause`` is called between its parts.

        Raises StorageError or OSError with nothing lost: the job can be written again, whole, unless the error is an
        IndexFailedError. The mark may move only when this has returned for every directory.
        """
        deletions_left = self._delete(job, pause)
        batches, body_bytes = self._write_entries(job.memtable, pause)
        for keys, locations in batches:
            self._locations.write(keys, locations)
            pause()
        # Also when there was no entry: the fence of an idle ledger is behind the mark like everything else (H1).
        changes: dict[LedgerId, LedgerRow | None] = {**dict.fromkeys(job.deletions), **job.row_changes}
        self._ledgers.write({each: row for each, row in changes.items() if each not in deletions_left})
        self._locations.seal()
        self._ledgers.seal()
        self._log_writer.prepare_next()
        entry_count = sum(len(locations) for _, locations in batches) // LOCATION_BYTES
        return CheckpointDone(entry_count, body_bytes, deletions_left)

    def _delete(self, job: CheckpointJob, pause: Callable[[], None]) -> dict[LedgerId, EntryId]:
        """Delete ledgers: those that are there again whole, of the others as many rows as may be; what is left."""
        # The row goes first: a row whose entries are half deleted would deny entries as a matter of fact. What takes
        # its place, until the deletion has ended, makes a boot in between go on with it.
        self._ledgers.begin_deletes(job.deleted_ledgers)
        there_again = {each: first for each, first in job.deletions.items() if job.row_changes.get(each) is not None}
        batch_row_count_max = self._steps.delete_batch_row_count_max
        self._locations.delete_ledgers(there_again, None, pause, batch_row_count_max)
        others = {each: first for each, first in job.deletions.items() if each not in there_again}
        return self._locations.delete_ledgers(others, self._steps.deleted_row_count_max, pause, batch_row_count_max)

    def _write_entries(self, memtable: Memtable, pause: Callable[[], None]) -> tuple[list[tuple[bytes, bytes]], int]:
        """Append all entries in order and sync; returns joined keys and locations, which no index may hold earlier, and
        the bytes of the bodies."""
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
