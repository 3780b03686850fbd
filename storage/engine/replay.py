"""Applying the journals to the ledger storage at boot. Rules: storage section 3.11.

Nothing here publishes a mark: the caller does so once everything applied is durable.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from bkctl.storage.advice import LOST_DATA_ADVICE, with_path
from bkctl.storage.config import EngineConfig
from bkctl.storage.disk_room import DiskRoom, is_out_of_room
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.engine.memtable import ENTRY_OVERHEAD_BYTES
from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.errors import (
    CorruptFileError,
    IndexFailedError,
    MasterKeyMismatchError,
    MemtableFullError,
    NoRoomToStartError,
    StorageError,
)
from bkctl.storage.filenames import journal_file_name
from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.ids import EntryId, JournalId, LedgerId, LogMark
from bkctl.storage.index.ledger_index import EXPLICIT_LAC_BYTES_MIN, LedgerIndex
from bkctl.storage.journal.catalog import JournalCatalog
from bkctl.storage.journal.format import GROUP_BYTES_MAX, JournalRecord, JournalRecordKind
from bkctl.storage.journal.group import JournalGroup
from bkctl.storage.journal.reader import JournalScan, journals_to_replay
from bkctl.storage.ports import FileSystem
from bkctl.storage.setting import MEBIBYTE


class DroppedTail(msgspec.Struct, frozen=True):
    """The end of a journal file without a complete record: not synced when the bookie stopped, so not acknowledged."""

    path: str
    offset: int
    """Where the last good record ends."""
    dropped_bytes: int
    reason: str
    is_read_alike: bool
    """Whether the file's end is judged the same when it is no longer the newest file."""


class ReplayReport(msgspec.Struct):
    """Result of a replay. Counts are numbers of records."""

    file_count: int = 0
    entry_count: int = 0
    ledger_key_count: int = 0
    fence_count: int = 0
    explicit_lac_count: int = 0
    skipped_count: int = 0
    """Records of ledgers with neither a key record nor a row: deleted ones (storage section 3.11)."""
    unknown_count: int = 0
    """Records of types unknown to this version; skipped for compatibility with later ones (storage section 3.6)."""
    dropped_tails: list[DroppedTail] = []
    unflushed_bytes: int = 0
    """Bytes left in the write caches because a disk has no room for them: marks do not move, journals are kept."""


class ReplayTarget(Protocol):
    """What the records of a ledger are applied to: ``LedgerDirectoryEngine``, or a rehearsal. Errors as there."""

    rows: LedgerIndex

    def add(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        """Add an entry."""

    def add_many(
        self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: Sequence[bytes], last_add_confirmed: EntryId
    ) -> bool:
        """Add entries of one ledger; False, adding none, unless all fit."""

    def set_explicit_lac(self, ledger_id: LedgerId, body: bytes) -> bool:
        """Store an explicit LAC."""


TargetT = TypeVar("TargetT", bound=ReplayTarget)


class JournalReplay(Generic[TargetT]):
    """Replays the journals of a bookie, one after the other, into its engines."""

    def __init__(
        self,
        filesystem: FileSystem,
        engine_of: Callable[[LedgerId], TargetT],
        journal_count: int,
        record_bytes_max: int,
        make_room: Callable[[TargetT, bytes], bool],
        make_row_room: Callable[[TargetT], object],
        require_going: Callable[[], None],
        batch_bytes_min: int,
    ) -> None:
        """``record_bytes_max``: size of the largest record that may have been journaled.

        ``make_room``: called for an entry that a write cache has refused; returns whether it fits now.
        ``make_row_room``: called after each change of a ledger's row.
        ``require_going``: called between batches; an exception from it ends the replay. ``batch_bytes_min``: a batch
        ends with the group that reaches this size.
        """
        self._filesystem = filesystem
        self._engine_of = engine_of
        self._journal_count = journal_count
        self._make_room = make_room
        self._make_row_room = make_row_room
        self._require_going = require_going
        self._batch_bytes_min = batch_bytes_min
        self._unsynced_bytes_max = 2 * max(GROUP_BYTES_MAX, record_bytes_max)
        self._appliers = {
            JournalRecordKind.ENTRY: self._apply_entry,
            JournalRecordKind.LEDGER_KEY: self._apply_ledger_key,
            JournalRecordKind.FENCE: self._apply_fence,
            JournalRecordKind.EXPLICIT_LAC: self._apply_explicit_lac,
            JournalRecordKind.UNKNOWN: self._skip_unknown,
        }
        self.report = ReplayReport()

    def replay(self, directory: str, journal_index: int, mark: LogMark, catalog: JournalCatalog) -> LogMark:
        """Apply all records of a journal from ``mark`` on; returns the mark after them, or ``mark`` without files.

        Raises JournalError when a file is missing, CorruptFileError (with file, offset and advice) for damage that no
        crash explains, EntryTooLargeError for an entry over today's limit, and the errors of a checkpoint.
        """
        journal_ids: Sequence[JournalId] = journals_to_replay(self._filesystem, directory, mark, catalog)
        end = mark
        for journal_id in journal_ids:
            path = os.path.join(directory, journal_file_name(journal_id))
            start = mark.offset if journal_id == mark.journal_id else 0
            try:
                scan = JournalScan(
                    self._filesystem,
                    path,
                    start,
                    is_newest=journal_id == journal_ids[-1],
                    cataloged=catalog.find(journal_id),
                    unsynced_bytes_max=self._unsynced_bytes_max,
                )
                self._apply_all(scan, journal_index)
            except CorruptFileError as error:
                raise CorruptFileError(error.path, error.offset, error.reason, LOST_DATA_ADVICE) from error
            end = LogMark(journal_id, scan.end.resume_offset)
        return end

    def _apply_all(self, scan: JournalScan, journal_index: int) -> None:
        for unit in _batched(scan.units(), self._batch_bytes_min):
            self._require_going()
            if isinstance(unit, JournalRecord):
                self._apply(scan.path, journal_index, unit)
            elif not self._apply_entries(journal_index, unit):
                for group in unit:
                    self._apply_group(scan, journal_index, group)
        if scan.end.dropped_bytes:
            end = scan.end
            self.report.dropped_tails.append(
                DroppedTail(scan.path, end.data_end_offset, end.dropped_bytes, end.reason.value, scan.is_read_alike)
            )
        self.report.file_count += 1

    def _apply_group(self, scan: JournalScan, journal_index: int, group: JournalGroup) -> None:
        if not self._apply_entries(journal_index, [group]):
            for record in scan.decode(group):
                self._apply(scan.path, journal_index, record)

    def _apply_entries(self, journal_index: int, groups: list[JournalGroup]) -> bool:
        """Apply groups of entries by ledger; returns False, with nothing applied, if they hold other records."""
        ledgers = _entries_by_ledger(groups)
        if not ledgers or min(ledgers) < 0:
            return False
        if {ledger_id % self._journal_count for ledger_id in ledgers} != {journal_index}:
            return False
        for ledger_id, entries in ledgers.items():
            self._add_all(ledger_id, entries)
        return True

    def _add_all(self, ledger_id: LedgerId, entries: _LedgerEntries) -> None:
        entry_ids, bodies, last_adds_confirmed = entries
        engine = self._engine_of(ledger_id)
        if engine.rows.find(ledger_id) is None:
            self.report.skipped_count += len(bodies)
        elif engine.add_many(ledger_id, entry_ids, bodies, max(last_adds_confirmed)):
            self.report.entry_count += len(bodies)
        else:
            for entry_id, body in zip(entry_ids, bodies, strict=True):
                self._add(engine, ledger_id, entry_id, body)

    def _apply(self, path: str, journal_index: int, record: JournalRecord) -> None:
        # Records have no checksum; a ledger of another journal is one of the few signs of damage (H21).
        if record.ledger_id % self._journal_count != journal_index:
            raise CorruptFileError(
                path, record.offset, f"a record of ledger {record.ledger_id}, which belongs to another journal"
            )
        try:
            engine = self._engine_of(record.ledger_id)
            self._appliers[record.kind](engine, record)
        except (MasterKeyMismatchError, ValueError) as error:
            raise CorruptFileError(path, record.offset, str(error)) from error
        if record.kind is not JournalRecordKind.ENTRY:
            self._make_row_room(engine)

    def _apply_entry(self, engine: TargetT, record: JournalRecord) -> None:
        if engine.rows.find(record.ledger_id) is None:
            self.report.skipped_count += 1
            return
        self._add(engine, record.ledger_id, record.entry_id, record.payload)

    def _add(self, engine: TargetT, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        try:
            engine.add(ledger_id, entry_id, body)
        except MemtableFullError:
            if not self._make_room(engine, body):
                return
            engine.add(ledger_id, entry_id, body)
        self.report.entry_count += 1

    def _apply_ledger_key(self, engine: TargetT, record: JournalRecord) -> None:
        engine.rows.set_master_key(record.ledger_id, record.payload)
        self.report.ledger_key_count += 1

    def _apply_fence(self, engine: TargetT, record: JournalRecord) -> None:
        # Java drops the fence of a ledger whose row was never flushed, and the ledger takes adds again (H3).
        engine.rows.set_fenced(record.ledger_id)
        self.report.fence_count += 1

    def _apply_explicit_lac(self, engine: TargetT, record: JournalRecord) -> None:
        if len(record.payload) < EXPLICIT_LAC_BYTES_MIN:
            raise ValueError(f"an explicit LAC of {len(record.payload)} bytes")
        if engine.set_explicit_lac(record.ledger_id, record.payload):
            self.report.explicit_lac_count += 1
        else:
            self.report.skipped_count += 1

    def _skip_unknown(self, _engine: TargetT, _record: JournalRecord) -> None:
        self.report.unknown_count += 1


def checkpoint_now(engine: LedgerDirectoryEngine) -> None:
    """Run one checkpoint of a directory in this thread, for callers without lanes. Publishes no mark. No entry stays in
    memory."""
    job = engine.begin_checkpoint()
    try:
        done = engine.write_checkpoint(job)
    except BaseException:
        engine.abort_checkpoint(job)
        raise
    engine.end_checkpoint(job, done)
    job.memtable.release()


class _LedgerEntries(NamedTuple):
    """Entries of one ledger in journal order: three columns of the same length."""

    entry_ids: list[EntryId]
    bodies: list[bytes]
    last_adds_confirmed: list[EntryId]


_FRAME_HEAD = struct.Struct(">iqqq")
"""Length word, ledger id, entry id, last add confirmed. The padding after the shortest record is long enough for it."""


def _batched(
    units: Iterable[JournalGroup | JournalRecord], batch_bytes_min: int
) -> Iterator[list[JournalGroup] | JournalRecord]:
    """The same units in order. Consecutive groups form batches; a batch ends with the group that reaches
    ``batch_bytes_min``."""
    batch: list[JournalGroup] = []
    batch_bytes = 0
    for unit in units:
        if isinstance(unit, JournalGroup):
            batch.append(unit)
            batch_bytes += unit.padding_offset - unit.start_offset
            if batch_bytes < batch_bytes_min:
                continue
        if batch:
            yield batch
            batch, batch_bytes = [], 0
        if isinstance(unit, JournalRecord):
            yield unit
    if batch:
        yield batch


def _entries_by_ledger(groups: Sequence[JournalGroup]) -> dict[LedgerId, _LedgerEntries] | None:
    """The entries of whole groups, or None if the groups hold other records too."""
    entry_ids: defaultdict[LedgerId, list[EntryId]] = defaultdict(list)
    bodies: defaultdict[LedgerId, list[bytes]] = defaultdict(list)
    confirmed: defaultdict[LedgerId, list[EntryId]] = defaultdict(list)
    unpack = _FRAME_HEAD.unpack_from
    for group in groups:
        data = group.data
        for start in group.starts:
            length, ledger_id, entry_id, last_add_confirmed = unpack(data, start)
            if entry_id < 0 or length < ENTRY_HEADER_BYTES_MIN:
                return None
            first = start + LENGTH_BYTES
            entry_ids[ledger_id].append(entry_id)
            bodies[ledger_id].append(data[first : first + length])
            confirmed[ledger_id].append(last_add_confirmed)
    return {each: _LedgerEntries(ids, bodies[each], confirmed[each]) for each, ids in entry_ids.items()}


_CACHE_KEY: Final = "dbStorage_writeCacheMaxSizeMb"


class ReplayFlush:
    """The flushes of one replay. Without ``room`` they are always attempted, and errors are raised."""

    def __init__(self, engines: Sequence[LedgerDirectoryEngine], config: EngineConfig, room: DiskRoom | None) -> None:
        self._engines = engines
        self._config = config
        self._room = room
        self._left_out_bytes: dict[LedgerDirectoryEngine, int] = {}
        self.failure: StorageError | OSError | None = None
        """Why the applied records are not flushed; None when they are, or before ``finish``."""

    def make_room(self, engine: LedgerDirectoryEngine, body: bytes) -> bool:
        """Make room for an entry that a write cache refused; returns whether it fits now. If not, ``finish`` raises."""
        if engine not in self._left_out_bytes:
            is_last_half = engine.is_checkpoint_pending
            if self._flush([engine]):
                return True
            if not engine.is_checkpoint_pending:
                engine.postpone_checkpoint()
            if not is_last_half:
                return True
        # Replay continues to the end of the journals, because only then the error can say how much space is missing.
        left_out_bytes = self._left_out_bytes.get(engine, 0)
        self._left_out_bytes[engine] = left_out_bytes + len(body) + ENTRY_OVERHEAD_BYTES
        return False

    def make_row_room(self, engine: LedgerDirectoryEngine) -> None:
        """Flush an engine with too many changed rows. Without room on the disk they stay in memory."""
        if not engine.rows.has_room:
            self._flush([engine])

    def finish(self) -> bool:
        """Flush everything; returns whether that succeeded. NoRoomToStartError when entries were left out."""
        if self._left_out_bytes:
            raise self._refusal()
        return self._flush(self._engines)

    def _flush(self, engines: Sequence[LedgerDirectoryEngine]) -> bool:
        try:
            if self._room is not None:
                # A failed attempt would use up the room that is left.
                self._room.require_for_boot(sum(engine.checkpoint_bytes for engine in engines))
            for engine in engines:
                if engine.is_checkpoint_pending:  # the pending job comes first
                    checkpoint_now(engine)
                checkpoint_now(engine)
        except IndexFailedError:
            raise
        except (StorageError, OSError) as error:
            if self._room is None or not is_out_of_room(error):
                raise
            self.failure = error
            return False
        self.failure = None
        return True

    def _refusal(self) -> NoRoomToStartError:
        needed_bytes = {
            engine: engine.checkpoint_bytes + self._left_out_bytes.get(engine, 0) for engine in self._engines
        }
        reason = self.failure
        try:
            if self._room is not None:
                self._room.require_for_boot(sum(needed_bytes.values()))
        except OSError as error:
            reason = error
        # The first half may end with unused space too small for the next entry. The setting is a total of all.
        cache_bytes = (max(needed_bytes.values()) + self._config.entry_log.entry_bytes_max) * len(self._engines)
        # A later flush may have succeeded, but what was left out before it is still missing.
        cause = "" if reason is None else f"{with_path(reason)}: "
        return NoRoomToStartError(
            f"{cause}the journals have more entries than the write cache can hold until space is freed; "
            f"free disk space, or start with --set {_CACHE_KEY}={-(-cache_bytes // MEBIBYTE)}"
        )
