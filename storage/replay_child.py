"""What the child processes of a replay do: the groups of a stretch into sorted entry logs. See ``replay_ahead``.

A child takes whole groups of records that nothing is wrong with. It stops in front of whatever needs a judgement, a
sentence or an error: that is the part of the parent, which comes there by itself.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from storage.entry_log_format import (
    HEADER_BYTES,
    HEADER_MAP_FIELDS_OFFSET,
    encode_header,
    encode_ledgers_map,
    encode_map_fields,
)
from storage.framing import LENGTH_BYTES, ReadWindow, framed_bytes
from storage.ids import EntryId, EntryLocation, LedgerId, pack_location
from storage.journal_batch import batched, entries_by_ledger
from storage.journal_checked import JournalGroup, find_group_end, read_group
from storage.journal_format import VERSION_HEADER_BYTES, JournalRecord, JournalRecordKind, decode_record, decode_version
from storage.location_index import KEY_BYTES, encode_keys, encode_locations
from storage.memtable import Memtable
from storage.ports import ChildContext, ChildHandlers
from storage.replay_tasks import LedgerSummary, ReadStretch, StretchFound, StretchLog
from storage.setting import MEBIBYTE
from storage.step_sizes import USUAL_STEPS

_SLICE_ENTRY_COUNT: Final = 8192
_SLICE_BYTES: Final = MEBIBYTE
"""Entries framed and written at a time: they are still in the processor's cache then."""
_BATCH_ROW_COUNT: Final = 8192
"""Rows that the parent writes, and syncs, at a time; or a slice more."""


_ROW_MAKERS: Final = frozenset({JournalRecordKind.LEDGER_KEY, JournalRecordKind.FENCE})
_IDS = struct.Struct(">qq")


class _UnfitGroupError(Exception):
    """A record that the parent must look at itself."""


class _Stretch:
    """The records of the groups taken so far."""

    def __init__(self, task: ReadStretch, version: int) -> None:
        self._task = task
        self._version = version
        self._tables = [Memtable(sys.maxsize) for _ in task.log_ids]
        self._record_counts: Counter[LedgerId] = Counter()
        self._last_adds_confirmed: dict[LedgerId, EntryId] = {}
        self.records: list[JournalRecord] = []
        self.late_ledger_ids: list[LedgerId] = []

    @property
    def is_full(self) -> bool:
        """Whether this child holds as much as it may."""
        return sum(table.used_bytes for table in self._tables) >= self._task.held_bytes_max

    def take(self, groups: Sequence[JournalGroup]) -> None:
        """Take all groups or, with _UnfitGroupError, none of them. Only one that holds nothing but entries is taken
        together with others."""
        ledgers, others = entries_by_ledger(groups)
        if others and len(groups) > 1:
            raise _UnfitGroupError
        try:
            records = [decode_record(data, offset, self._version) for offset, data in others]
        except ValueError as error:
            raise _UnfitGroupError from error
        for ledger_id, entries in ledgers.items():
            is_ours = ledger_id >= 0 and ledger_id % self._task.journal_count == self._task.journal_index
            if not is_ours or max(map(len, entries.bodies)) > self._task.body_bytes_max:
                raise _UnfitGroupError
        self.records += records
        for record in records:
            if record.kind in _ROW_MAKERS and self._is_behind_entry(groups[0], record):
                self.late_ledger_ids.append(record.ledger_id)
        for ledger_id, (entry_ids, bodies, last_adds_confirmed) in ledgers.items():
            self._tables[ledger_id % len(self._tables)].put_many(ledger_id, entry_ids, bodies)
            self._record_counts[ledger_id] += len(bodies)
            known = self._last_adds_confirmed.get(ledger_id, last_adds_confirmed[0])
            self._last_adds_confirmed[ledger_id] = max(known, *last_adds_confirmed)

    def _is_behind_entry(self, group: JournalGroup, record: JournalRecord) -> bool:
        """Whether the stretch has an entry of a record's ledger in front of the record, which is in this group."""
        if self._record_counts[record.ledger_id]:
            return True
        index = record.offset - group.start_offset + group.starts[0]
        ids = (_IDS.unpack_from(group.data, start + LENGTH_BYTES) for start in group.starts if start < index)
        return any(ledger_id == record.ledger_id and entry_id >= 0 for ledger_id, entry_id in ids)

    def write_logs(self, context: ChildContext) -> list[StretchLog]:
        """Write a log for each ledger directory that has entries, and sync it. OSError."""
        places = zip(self._tables, self._task.log_ids, self._task.log_paths, strict=True)
        return [self._write_log(table, log_id, path, context) for table, log_id, path in places]

    def _write_log(self, table: Memtable, log_id: int, path: str, context: ChildContext) -> StretchLog:
        log = StretchLog([], [], [])
        if table.used_bytes == 0:
            return log
        ledger_bytes: Counter[LedgerId] = Counter()
        position = HEADER_BYTES
        file = context.file_system.create(path)
        try:
            file.pwrite(encode_header(), 0)
            for part in table.slices(_SLICE_ENTRY_COUNT, _SLICE_BYTES):
                file.pwrite(framed_bytes(part.bodies), position)
                first = pack_location(EntryLocation(log_id, position + LENGTH_BYTES))
                frame_bytes = map(LENGTH_BYTES.__add__, map(len, part.bodies))
                bounds = list(itertools.accumulate(frame_bytes, initial=first))
                if not log.keys or len(log.keys[-1]) >= _BATCH_ROW_COUNT * KEY_BYTES:
                    log.keys.append(b"")
                    log.locations.append(b"")
                log.keys[-1] += encode_keys(part.ledger_ids, part.entry_ids)
                log.locations[-1] += encode_locations(bounds[:-1])
                start = 0
                for ledger_id, run in itertools.groupby(part.ledger_ids):
                    end = start + len(list(run))
                    ledger_bytes[ledger_id] += bounds[end] - bounds[start]
                    start = end
                position += bounds[-1] - first
                context.report(1)
            file.pwrite(encode_ledgers_map(ledger_bytes), position)
            file.pwrite(encode_map_fields(position, len(ledger_bytes)), HEADER_MAP_FIELDS_OFFSET)
            file.sync()
        finally:
            file.close()
        for ledger_id in ledger_bytes:
            confirmed = self._last_adds_confirmed[ledger_id]
            log.ledgers.append(LedgerSummary(ledger_id, self._record_counts[ledger_id], confirmed))
        return log


def read_stretch(task: ReadStretch, context: ChildContext) -> StretchFound:
    """The groups of a stretch, up to the first that is not whole or needs a look."""
    file = context.file_system.open(task.path)
    try:
        window = ReadWindow(file)
        start: int | None = task.start_offset
        if not task.is_start_known:
            start = find_group_end(window, task.journal_id, task.start_offset, task.group_bytes_max, task.stop_offset)
        if start is None:
            return StretchFound(-1, -1, [], [], [])
        stretch = _Stretch(task, decode_version(window.read(VERSION_HEADER_BYTES, 0)))
        end = start
        for groups in batched(_whole_groups(window, task, start), USUAL_STEPS.replay_batch_bytes):
            assert isinstance(groups, list)
            taken = _take(stretch, groups)
            context.report(1)
            if taken:
                end = groups[taken - 1].end_offset
            if taken < len(groups) or stretch.is_full:
                break
        return StretchFound(start, end, stretch.records, stretch.late_ledger_ids, stretch.write_logs(context))
    finally:
        file.close()


def _whole_groups(window: ReadWindow, task: ReadStretch, offset: int) -> Iterator[JournalGroup]:
    while offset < task.stop_offset:
        group = read_group(window, task.journal_id, offset, task.group_bytes_max)
        if group is None or not group.is_whole:
            return
        yield group
        offset = group.end_offset


def _take(stretch: _Stretch, groups: list[JournalGroup]) -> int:
    """Take the groups in front of the first unfit one; returns how many."""
    try:
        stretch.take(groups)
    except _UnfitGroupError:
        for count, group in enumerate(groups):
            try:
                stretch.take([group])
            except _UnfitGroupError:
                return count
    return len(groups)


HANDLERS: ChildHandlers = {ReadStretch: read_stretch}
