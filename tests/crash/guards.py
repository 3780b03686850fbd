"""Guards of the storage engine, each with the way to switch it off: a crash must then lose something.

A guard that can be switched off with no cut turning red is either not needed or not watched. ``WRITING`` ones are
switched off in the workload, ``BOOTING`` ones where the reopened storage is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bkctl.storage.adapters.filesystem import OsFile, OsFileSystem
from bkctl.storage.adapters.index_store import PlyvelIndexStore
from bkctl.storage.engine.checkpoint import CheckpointDone, CheckpointWriter, go_on
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.relocation import EntryRelocation
from bkctl.storage.ids import LogMark
from bkctl.storage.index import seal
from bkctl.storage.index.kept_files import KeptFiles
from bkctl.storage.journal.damage import GroupDamage
from bkctl.storage.journal.format import encode_ledger_key_record
from bkctl.storage.journal.writer import JournalWriter

SwitchOff = Callable[[pytest.MonkeyPatch], None]

WRITING: dict[str, SwitchOff] = {}
BOOTING: dict[str, SwitchOff] = {}

_KEY_RECORD_IDS = encode_ledger_key_record(0, b"")[8:16]


def _in(table: dict[str, SwitchOff]) -> Callable[[SwitchOff], SwitchOff]:
    def register(switch_off: SwitchOff) -> SwitchOff:
        table[switch_off.__name__.strip("_").replace("_", "-")] = switch_off
        return switch_off

    return register


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _without_syncs_of(patch: pytest.MonkeyPatch, suffix: str) -> None:
    for name in ("sync", "sync_data"):
        original = getattr(OsFile, name)

        def sync_others(file: OsFile, original: Callable[[OsFile], None] = original) -> None:
            if not file.path.endswith(suffix):
                original(file)

        patch.setattr(OsFile, name, sync_others)


def _without_directory_syncs_of(patch: pytest.MonkeyPatch, part: str) -> None:
    original = OsFileSystem.sync_directory

    def sync_others(self: OsFileSystem, path: str) -> None:
        if part not in path:
            original(self, path)

    patch.setattr(OsFileSystem, "sync_directory", sync_others)


@_in(WRITING)
def _journal_sync(patch: pytest.MonkeyPatch) -> None:
    """A group is acknowledged as soon as it is written."""
    _without_syncs_of(patch, ".txn")


@_in(WRITING)
def _whole_sectors_in_a_write(patch: pytest.MonkeyPatch) -> None:
    """A group is written in pieces that end anywhere."""
    patch.setattr("bkctl.storage.journal.group.JOURNAL_BLOCK_BYTES", 1)


@_in(WRITING)
def _journal_name_sync(patch: pytest.MonkeyPatch) -> None:
    """The name of a new journal is left to the kernel."""
    _without_directory_syncs_of(patch, "/journal-")


@_in(WRITING)
def _entry_log_sync(patch: pytest.MonkeyPatch) -> None:
    """The index names entries whose log is not synced."""
    _without_syncs_of(patch, ".log")


@_in(WRITING)
def _entry_log_name_sync(patch: pytest.MonkeyPatch) -> None:
    """The index names entries in a log whose name is left to the kernel."""
    original = OsFileSystem.sync_directory
    patch.setattr(OsFileSystem, "write_file_atomically", _replaced_without_directory_sync)

    def sync_others(self: OsFileSystem, path: str) -> None:
        if not path.endswith("current") or "/ledgers-" not in path:
            original(self, path)

    patch.setattr(OsFileSystem, "sync_directory", sync_others)


def _replaced_without_directory_sync(_: OsFileSystem, path: str, data: bytes) -> None:
    file = OsFileSystem().open(path, writable=True) if OsFileSystem().exists(path) else OsFileSystem().create(path)
    file.truncate(0)
    file.pwrite(data, 0)
    file.sync()
    file.close()


@_in(WRITING)
def _index_name_sync(patch: pytest.MonkeyPatch) -> None:
    """Names of new files of the index database are left to the kernel."""
    _without_directory_syncs_of(patch, "/ldb-")


@_in(WRITING)
def _index_sync(patch: pytest.MonkeyPatch) -> None:
    """Batches of the index are left to the kernel."""

    def write(self: Any, puts: Any, deletes: Any = ()) -> None:
        with self._database.write_batch(transaction=False, sync=False) as batch:
            for key, value in puts:
                batch.put(key, value)
            for key in deletes:
                batch.delete(key)

    patch.setattr(PlyvelIndexStore, "write", write)


@_in(WRITING)
def _atomic_replacement(patch: pytest.MonkeyPatch) -> None:
    """Small files are rewritten in place, unsynced (H14)."""

    def rewrite(_: OsFileSystem, path: str, data: bytes) -> None:
        with open(path, "wb") as file:
            file.write(data)

    patch.setattr(OsFileSystem, "write_file_atomically", rewrite)


@_in(WRITING)
def _rows_of_idle_ledgers(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint without entries writes no ledger rows, and the mark moves (H1)."""
    write = CheckpointWriter.write

    def write_if_entries(self: CheckpointWriter, job: Any, *pace: Any) -> CheckpointDone:
        return write(self, job, *pace) if job.memtable.used_bytes else CheckpointDone(0, 0, {})

    patch.setattr(CheckpointWriter, "write", write_if_entries)


@_in(WRITING)
def _failed_half_first(patch: pytest.MonkeyPatch) -> None:
    """What a failed checkpoint could not write is forgotten, and the next one moves the mark past it (H2)."""
    end = LedgerStorage.end_checkpoint

    def forget(self: LedgerStorage, checkpoint: Any) -> None:
        end(self, checkpoint)
        self._marks_due = None

    def drop(self: LedgerDirectoryEngine, job: Any) -> None:
        self.end_checkpoint(job, CheckpointDone(0, 0, {}))

    patch.setattr(LedgerDirectoryEngine, "abort_checkpoint", drop)
    patch.setattr(LedgerStorage, "end_checkpoint", forget)


@_in(WRITING)
def _key_before_the_records(patch: pytest.MonkeyPatch) -> None:
    """A ledger's key is not journaled, so that replay takes its entries for those of a deleted ledger (H3)."""
    write_group = JournalWriter.write_group

    def without_keys(self: JournalWriter, records: Sequence[bytes]) -> LogMark:
        return write_group(self, [record for record in records if record[8:16] != _KEY_RECORD_IDS])

    patch.setattr(JournalWriter, "write_group", without_keys)


@_in(WRITING)
def _mark_of_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """The mark says how far the journal is when a checkpoint ends, instead of when it began (H4)."""
    write = LedgerStorage.write_checkpoint

    def take_late(self: LedgerStorage, checkpoint: Any, *pace: Any) -> None:
        checkpoint.marks = tuple(journal.durable_position for journal in self.journals)
        write(self, checkpoint, *pace)

    patch.setattr(LedgerStorage, "write_checkpoint", take_late)


@_in(WRITING)
def _mark_after_the_flush(patch: pytest.MonkeyPatch) -> None:
    """The mark moves before the directories are flushed."""
    write = LedgerStorage.write_checkpoint

    def publish_first(self: LedgerStorage, checkpoint: Any, *pace: Any) -> None:
        self._publish(checkpoint.marks)
        write(self, checkpoint, *pace)

    patch.setattr(LedgerStorage, "write_checkpoint", publish_first)


@_in(WRITING)
def _deletes_before_adds(patch: pytest.MonkeyPatch) -> None:
    """Entries of a deleted ledger are deleted after those that came behind the deletion were written (H6)."""
    write = CheckpointWriter.write

    def delete_last(self: CheckpointWriter, job: Any, *pace: Any) -> CheckpointDone:
        done = write(self, type(job)(job.memtable, job.former, job.row_changes, (), {}), *pace)
        self._locations.delete_ledgers(job.deletions, None, go_on, self._steps.delete_batch_row_count_max)
        return done

    patch.setattr(CheckpointWriter, "write", delete_last)


@_in(WRITING)
def _whole_deletion_before_reuse(patch: pytest.MonkeyPatch) -> None:
    """A ledger that was used again is deleted in parts like any other, over several checkpoints."""

    def delete_parts(self: CheckpointWriter, job: Any, pause: Any) -> Any:
        self._ledgers.begin_deletes(job.deleted_ledgers)
        return self._locations.delete_ledgers(
            job.deletions, self._steps.deleted_row_count_max, pause, self._steps.delete_batch_row_count_max
        )

    patch.setattr(CheckpointWriter, "_delete", delete_parts)


@_in(WRITING)
def _copies_synced_before_their_source_goes(patch: pytest.MonkeyPatch) -> None:
    """Compaction lets the index name copies that are not synced."""
    relocate = EntryRelocation.relocate

    def relocate_unsynced(self: EntryRelocation, moves: Any) -> int:
        self._discards_seen = None
        return relocate(self, moves)

    patch.setattr(EntryRelocation, "sync_logs", _nothing)
    patch.setattr(EntryRelocation, "relocate", relocate_unsynced)


@_in(WRITING)
def _copies_only_of_what_the_index_names(patch: pytest.MonkeyPatch) -> None:
    """Compaction copies each entry it finds, and an old copy takes the place of a newer one."""

    def any_location(_: EntryRelocation, keys: Any) -> Any:
        return _Anything(len(keys))

    patch.setattr(EntryRelocation, "current_locations", any_location)


class _Anything:
    """As many locations as asked for, each of them the one that is expected."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Any:
        return iter([_Equal()] * self._count)


class _Equal:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@_in(BOOTING)
def _seal(patch: pytest.MonkeyPatch) -> None:
    """LevelDB may lose the end of its log without anybody noticing."""

    def last_there_is(store: Any, path: str, record: seal.SealRecord) -> int:
        return max(seal._numbers(store, path, 0), default=record.number)

    patch.setattr(seal, "_verified_end", last_there_is)


@_in(BOOTING)
def _kept_files(patch: pytest.MonkeyPatch) -> None:
    """A database is opened as an opening left it that the power cut off."""
    patch.setattr(KeptFiles, "restore", _nothing)


@_in(BOOTING)
def _creation_begins_again(patch: pytest.MonkeyPatch) -> None:
    """A database whose creation was cut off is opened with what is there of it."""
    patch.setattr(seal, "remove_files", _nothing)


@_in(BOOTING)
def _torn_records_dropped(patch: pytest.MonkeyPatch) -> None:
    """Of a torn group whatever has a length is taken for what was written."""
    patch.setattr(GroupDamage, "is_missing", _nothing)


WRITING_AND_BOOTING = {"seal": "index-sync"}
"""Guards of the boot that have something to notice only if another one is off where the data is written."""
