"""Reading journal files: the records for replay, and what a crash or damage left.

A crash can truncate the newest file, and can leave holes of zeros in unsynced data: both end the file and are reported.
Bytes that no crash explains raise CorruptFileError. Files written by this bookie have additional guarantees, so more
damage can be detected in them (``damage``). Source: storage sections 3.5 and 3.11; hazard H21 is excluded by refusing
zeros.
"""

from __future__ import annotations

import enum
import os
import struct
from collections.abc import Iterator

import msgspec

from bkctl.storage.advice import LOST_DATA_ADVICE
from bkctl.storage.config import JOURNAL_BLOCK_BYTES
from bkctl.storage.errors import CorruptFileError, JournalError
from bkctl.storage.filenames import JOURNAL_CATALOG, journal_file_name, parse_journal_file_name
from bkctl.storage.framing import LENGTH_BYTES, ReadWindow
from bkctl.storage.ids import JournalId, LogMark
from bkctl.storage.journal.catalog import NO_CATALOG, CatalogedJournal, JournalCatalog
from bkctl.storage.journal.damage import GroupDamage, require_whole_file
from bkctl.storage.journal.format import (
    GROUP_BYTES_MAX,
    HEADER_BYTES,
    PADDING_MARK,
    PADDING_VERSION_MIN,
    VERSION_HEADER_BYTES,
    VERSION_MAX,
    VERSION_MIN,
    JournalRecord,
    data_start,
    decode_record,
    decode_version,
)
from bkctl.storage.journal.group import JournalGroup, read_group
from bkctl.storage.journal.items import ItemKind, JournalItem, read_item
from bkctl.storage.ports import FileSystem

_PADDING_WORD = struct.pack(">i", PADDING_MARK)


class JournalEndReason(enum.Enum):
    """Reason for the end of a scan."""

    ZEROS = "zeros up to the end of the file"
    END_OF_FILE = "end of the file"
    TORN_RECORD = "a record that the file does not contain completely"
    HOLE = "zeros followed by data"


class JournalEnd(msgspec.Struct, frozen=True):
    """How a scan ended. Nothing was lost if ``dropped_bytes`` is 0."""

    reason: JournalEndReason
    data_end_offset: int
    """End of the last group, or of the last complete record."""
    resume_offset: int
    """Where a mark may be set once the records are durable in ledger storage. The end of the file if its tail was
    dropped, so that the tail is not read again when the file is no longer the newest one."""
    dropped_bytes: int
    """Bytes other than zeros, or between such, that no record came from: unsynced or damaged."""


class JournalScan:
    """The records of one file; iterate once. Afterwards ``end`` says how the file ended.

    Iterating raises CorruptFileError, with the offset, for bytes that no crash explains, and OSError when the file
    cannot be read. Records of type UNKNOWN are included: the caller skips them (storage section 3.6). The caller also
    checks whether a ledger belongs to this journal.
    """

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        start_offset: int = 0,
        *,
        is_newest: bool,
        cataloged: CatalogedJournal | None = None,
        unsynced_bytes_max: int = 2 * GROUP_BYTES_MAX,
    ) -> None:
        """``start_offset``: 0 or less means after the header. ``is_newest``: no file of the journal has a larger id.

        ``cataloged``: the file's line in the catalog, if this bookie wrote it. ``unsynced_bytes_max``: maximum length
        of a group in it.
        """
        self._fs = fs
        self.path = path
        self._start_offset = start_offset
        self._is_newest = is_newest
        self._cataloged = cataloged
        self._unsynced_bytes_max = unsynced_bytes_max
        self._file_version = VERSION_MAX
        self._dropped_bytes = 0
        self._end: JournalEnd | None = None
        self.is_read_alike = False
        """Whether the file's end is judged by its own groups, so that ``is_newest`` does not matter."""

    @property
    def end(self) -> JournalEnd:
        """How the file ended; RuntimeError before all records were read."""
        if self._end is None:
            raise RuntimeError(f"{self.path} has not been read to its end")
        return self._end

    def __iter__(self) -> Iterator[JournalRecord]:
        for unit in self.units():
            if isinstance(unit, JournalGroup):
                yield from self.decode(unit)
            else:
                yield unit

    def units(self) -> Iterator[JournalGroup | JournalRecord]:
        """Like iterating, but with each group that has a correct checksum as a whole, for callers that apply groups."""
        file = self._fs.open(self.path)
        try:
            window = ReadWindow(file)
            version = self._file_version = self._version(window)
            offset = max(self._start_offset, data_start(version))
            if offset > max(window.size_bytes, HEADER_BYTES):
                raise CorruptFileError(self.path, window.size_bytes, f"truncated: the log mark is {offset}, it ends")
            yield from self._units(window, version, offset)
        finally:
            file.close()

    def decode(self, group: JournalGroup) -> Iterator[JournalRecord]:
        """Records of a group of this file; CorruptFileError."""
        offset = group.start_offset
        for data in group.records:
            try:
                yield decode_record(data, offset, self._file_version)
            except ValueError as error:
                raise CorruptFileError(self.path, offset, str(error)) from error
            offset += LENGTH_BYTES + len(data)

    def _version(self, window: ReadWindow) -> int:
        version = decode_version(window.read(VERSION_HEADER_BYTES, 0))
        if not VERSION_MIN <= version <= VERSION_MAX:
            raise CorruptFileError(self.path, 0, f"unknown journal version {version}")
        return version

    def _units(self, window: ReadWindow, version: int, offset: int) -> Iterator[JournalGroup | JournalRecord]:
        journal = self._cataloged
        if journal is None:
            yield from self._foreign_records(window, version, offset, is_newest=self._is_newest)
            return
        require_whole_file(window, self.path, journal)
        damage = GroupDamage(window, self.path, journal, self._unsynced_bytes_max)
        if version >= PADDING_VERSION_MIN and (not journal.is_loose or journal.end_offset > 0):
            self.is_read_alike = True
            yield from self._own_records(window, version, offset, damage, journal)
            return
        # More than the last group can be torn, or group boundaries are unknown. A complete file was synced.
        yield from self._foreign_records(window, version, offset, is_newest=self._is_newest and journal.end_offset == 0)
        damage.require_end(self.end.data_end_offset)

    def _own_records(
        self, window: ReadWindow, version: int, offset: int, damage: GroupDamage, journal: CatalogedJournal
    ) -> Iterator[JournalGroup | JournalRecord]:
        """Records of a file that this bookie wrote: it ends after a group, or in a group that a crash can have torn."""
        group_start = offset
        are_zeros_missing = False
        while True:
            if journal.has_checksums and offset == group_start:
                group = read_group(window, journal.journal_id, offset, self._unsynced_bytes_max)
                if group is not None and group.is_whole:
                    yield group
                    group_start = offset = group.end_offset
                    continue
                # A group without a valid checksum was never complete: torn records must not replace older copies.
                are_zeros_missing = group is None or damage.require_torn_group(group)
            item = read_item(window, version, offset)
            if item.kind is ItemKind.RECORD and item.record is not None:
                if are_zeros_missing and damage.is_missing(group_start, offset, item.end_offset - offset):
                    self._dropped_bytes += item.end_offset - offset
                else:
                    yield item.record
                offset = item.end_offset
            elif item.kind is ItemKind.PADDING and item.end_offset % JOURNAL_BLOCK_BYTES == 0:
                if journal.has_checksums:
                    damage.require_checksum(group_start, offset)
                group_start = offset = item.end_offset
            elif item.kind is ItemKind.ZERO_RECORD:
                # It was never acknowledged. Its length word still leads to the next record.
                damage.require_torn(group_start, offset, 0, item.reason)
                self._dropped_bytes += item.end_offset - offset
                offset = item.end_offset
            else:
                break
        self._finish_own(window, group_start, offset, item, damage)

    def _finish_own(
        self, window: ReadWindow, group_start: int, offset: int, item: JournalItem, damage: GroupDamage
    ) -> None:
        is_group_end = offset == group_start
        if offset > self._start_offset:  # a mark may be at the end of a file whose tail was dropped
            damage.require_longer_file(offset)
        if item.kind is ItemKind.END and is_group_end and offset >= window.size_bytes:
            damage.require_end(offset)
            self._finish(JournalEndReason.END_OF_FILE, offset, offset)
            return
        data_end = window.data_end(offset)
        if item.kind is ItemKind.ZEROS and is_group_end and data_end == offset:
            damage.require_end(offset)
            self._finish(JournalEndReason.ZEROS, offset, offset)
            return
        damage.require_torn(group_start, offset, item.evidence_bytes, item.reason)
        self._dropped_bytes += data_end - offset
        reason = JournalEndReason.HOLE if item.kind is ItemKind.ZEROS else JournalEndReason.TORN_RECORD
        self._finish(reason, offset, window.size_bytes)

    def _foreign_records(
        self, window: ReadWindow, version: int, offset: int, *, is_newest: bool
    ) -> Iterator[JournalRecord]:
        """Records of a file without guarantees: any end of the newest one may be the result of a crash.

        Java writes many groups before it syncs the first of them, so a later group after a hole proves nothing.
        """
        if version == VERSION_MIN:
            self._require_first_record(window)
        start = offset
        while True:
            item = read_item(window, version, offset)
            if item.kind is ItemKind.RECORD and item.record is not None:
                yield item.record
            elif item.kind is ItemKind.ZERO_RECORD:
                if not is_newest:
                    raise CorruptFileError(self.path, offset, item.reason)
                self._dropped_bytes += item.end_offset - offset
            elif item.kind is not ItemKind.PADDING:
                break
            offset = item.end_offset
        if item.kind is ItemKind.BAD:
            raise CorruptFileError(self.path, offset, item.reason)
        if item.kind is ItemKind.ZEROS:
            is_resumed = version >= PADDING_VERSION_MIN and offset == start
            self._finish_zeros(window, offset, is_resumed=is_resumed, is_newest=is_newest)
        elif item.kind is ItemKind.CUT_PADDING:
            # The group's records are complete, so nothing is lost.
            self._finish(JournalEndReason.END_OF_FILE, offset, window.size_bytes)
        else:
            word = window.read(LENGTH_BYTES, offset)
            # No length begins like a padding mark: the file was cut in padding, and the group's records are complete.
            is_cut_padding = item.kind is ItemKind.END and _PADDING_WORD.startswith(word)
            self._finish_cut(window, offset + len(word) if is_cut_padding else offset)

    def _require_first_record(self, window: ReadWindow) -> None:
        """A file without a header has version 1, which no bookie writes today, or has lost its header."""
        if window.size_bytes < VERSION_HEADER_BYTES:
            return
        item = read_item(window, VERSION_MIN, 0)
        is_empty = item.kind is ItemKind.ZEROS and window.skip_zeros(0) == window.size_bytes
        if item.kind is not ItemKind.RECORD and not is_empty:
            raise CorruptFileError(self.path, 0, "neither a journal header nor a record")

    def _finish_zeros(self, window: ReadWindow, offset: int, *, is_resumed: bool, is_newest: bool) -> None:
        """End at a zero length word: the end of the journal, unless there is data after the zeros."""
        data_end = window.data_end(offset)
        if data_end == offset:
            self._finish(JournalEndReason.ZEROS, offset, offset)
            return
        # A mark is a group's end and so aligned, or the position where an earlier replay stopped: data after that was
        # reported then, and the file has not grown since (storage section 3.9).
        is_replayed_before = is_resumed and offset % JOURNAL_BLOCK_BYTES != 0
        if not is_newest and not is_replayed_before:
            raise CorruptFileError(self.path, offset, f"zeros followed by data, up to offset {data_end},")
        self._dropped_bytes += data_end - offset
        self._finish(JournalEndReason.HOLE, offset, window.size_bytes)

    def _finish_cut(self, window: ReadWindow, offset: int) -> None:
        """End at an incomplete record."""
        data_end = window.data_end(offset)
        if data_end == offset:
            self._finish(JournalEndReason.END_OF_FILE, offset, max(offset, window.size_bytes))
            return
        self._dropped_bytes += data_end - offset
        self._finish(JournalEndReason.TORN_RECORD, offset, window.size_bytes)

    def _finish(self, reason: JournalEndReason, data_end_offset: int, resume_offset: int) -> None:
        self._end = JournalEnd(reason, data_end_offset, resume_offset, self._dropped_bytes)


def list_journals(fs: FileSystem, directory: str) -> list[JournalId]:
    """Ids of the journal files in a directory, ascending as numbers. OSError if the directory cannot be read."""
    journal_ids = map(parse_journal_file_name, fs.list_directory(directory))
    return sorted(journal_id for journal_id in journal_ids if journal_id is not None)


def journals_to_replay(
    fs: FileSystem, directory: str, mark: LogMark, catalog: JournalCatalog = NO_CATALOG
) -> list[JournalId]:
    """Ids of the files that a replay from ``mark`` reads, ascending (storage section 3.11, step 1).

    JournalError when the file of the mark, or a later one that ``catalog`` lists, is missing: acknowledged entries in
    it would be lost silently. The catalog may list files older than the mark that were deleted since.
    """
    journal_ids = [journal_id for journal_id in list_journals(fs, directory) if journal_id >= mark.journal_id]
    if mark.journal_id > 0 and mark.journal_id not in journal_ids:
        raise _missing(directory, mark.journal_id, "the log mark")
    # A crash may leave newer files than the catalog lists, and the mark may be in one of them.
    listed = [journal.journal_id for journal in catalog.journals if journal.journal_id >= mark.journal_id]
    oldest = min([*journal_ids, *listed[-1:]], default=0)
    for journal_id in listed:
        if journal_id >= oldest and journal_id not in journal_ids:
            raise _missing(directory, journal_id, JOURNAL_CATALOG)
    return journal_ids


def _missing(directory: str, journal_id: JournalId, named_by: str) -> JournalError:
    path = os.path.join(directory, journal_file_name(journal_id))
    return JournalError(
        f"{path} is missing, but {named_by} references it: acknowledged entries may be in it; {LOST_DATA_ADVICE}"
    )
