"""The journal of one directory: groups of records, each written once and synced once.

A lane calls it, one call at a time. Everything is durable when ``write_group`` returns, so a file is complete and
synced before the next one is begun, and nothing is ever acknowledged across a roll. Source: storage sections 3.1 to 3.7
and 3.10; hazard H5 is excluded by this order.

The checks of ``damage`` at boot rely on three guarantees of this module: the previous group is synced when the next one
is written; the file length that a group needs is synced before the group is written; a file is in the catalog before
anything in it is acknowledged. If adds do not wait for a sync (``is_data_synced``), and in version 4, whose groups do
not end on sectors, the first one does not hold, and the catalog says so.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Final

from bkctl.storage.config import JOURNAL_BLOCK_BYTES, JournalConfig
from bkctl.storage.disk_room import file_limit_advice, is_out_of_room
from bkctl.storage.errors import JournalError, JournalFailedError, JournalFullError
from bkctl.storage.filenames import journal_file_name
from bkctl.storage.ids import JournalId, LogMark
from bkctl.storage.journal.catalog import CatalogedJournal, read_catalog, write_catalog
from bkctl.storage.journal.format import (
    GROUP_BYTES_MAX,
    HEADER_BYTES,
    PADDING_VERSION_MIN,
    data_start,
    encode_file_header,
)
from bkctl.storage.journal.group import EncodedGroup, encode_group
from bkctl.storage.journal.log_mark import NO_MARK
from bkctl.storage.journal.measures import JournalMeasures
from bkctl.storage.journal.reader import list_journals
from bkctl.storage.measures import NowNs, no_clock
from bkctl.storage.ports import RESERVE_BYTES_MIN, File, FileSystem
from bkctl.storage.setting import MEBIBYTE
from bkctl.storage.step_sizes import USUAL_STEPS, StepSizes

_DROP_STEP_BYTES: Final = 4 * MEBIBYTE
"""Step for dropping pages from the cache: the page in which the next group continues must stay."""


class JournalWriter:
    """Writes one journal. After a failed write or sync every call raises: replay determines what the disk holds."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        config: JournalConfig,
        journal_id: JournalId,
        replayed: LogMark,
        steps: StepSizes,
        now_ns: NowNs,
        *,
        is_held: bool,
    ) -> None:
        self.measures = JournalMeasures(now_ns)
        self._fs = fs
        self._directory = directory
        self._config = config
        self._steps = steps
        self._failure: Exception | None = None
        self._first_id = journal_id
        self._replayed = self._written = self._durable = replayed
        self._is_held = is_held
        self._is_loose = _is_loose(config)
        self._file: File
        self._is_begun = False

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        directory: str,
        config: JournalConfig,
        now_ms: int,
        replayed: LogMark = NO_MARK,
        *,
        is_held: bool = False,
        steps: StepSizes = USUAL_STEPS,
        now_ns: NowNs = no_clock,
    ) -> JournalWriter:
        """Begin a new file in ``directory``, the directory of the ``.txn`` files (``current``).

        Call this after replay and after the marks of replay were written: the other files are then no longer the
        newest, and a hole in them counts as corruption. The id follows the largest one there, or the clock in an empty
        directory. Does not raise if the disk has no room for the file: the first group creates it.

        ``replayed``: the position up to which replay has applied the journal. ``is_held``: a new file must wait until a
        mark reaches that position; until ``release`` every group is refused as if the disk were full.

        JournalFailedError if the file cannot be created, JournalError if the catalog is damaged.
        """
        try:
            journal_ids = list_journals(fs, directory)
            journal_id = (journal_ids[-1] if journal_ids else now_ms) + 1
            journal = cls(fs, directory, config, journal_id, replayed, steps, now_ns, is_held=is_held)
            if not is_held:
                with contextlib.suppress(JournalFullError):
                    journal._begin()
        except OSError as error:
            raise JournalFailedError(f"{directory}: cannot create a journal: {error}") from error
        return journal

    @property
    def durable_position(self) -> LogMark:
        """Position up to which everything is durable: the checkpoint token (storage section 5.8)."""
        return self._durable

    @property
    def has_unsynced(self) -> bool:
        """Whether some written data is not synced yet."""
        return self._written > self._durable

    def write_group(self, records: Sequence[bytes], *, is_synced: bool = True) -> LogMark:
        """Make ``records`` durable, in order, with one sync; returns the position after them.

        More than ``GROUP_BYTES_MAX`` become several groups, one after the other, each with its sync. A record is a
        payload without its length word: the body of an entry, or an encoded record of ``format``. Does nothing without
        records. ValueError, with nothing written, for a record that replay would refuse. JournalFullError if the disk
        has no room: acknowledge nothing; the same call may be repeated. JournalFailedError when a write or sync failed
        now or earlier: acknowledge no record of the group. ``is_synced`` False: written only, for adds that need not
        wait for a sync; unless the settings say that none does, the next group syncs it first. The caller bounds the
        group: copying 1 MiB takes about 0.2 ms, during which no other thread runs.
        """
        self._require_usable()
        if not records:
            return self._written
        if not self._is_loose:
            self.sync()
        with self._failing_for_good():
            if not self._is_begun:
                self._begin()
            if self._written.offset > self._config.size_bytes_max:
                self._roll()
            group = self._encode(records)
            if group.size_bytes <= GROUP_BYTES_MAX or len(records) == 1:
                self._write(group)
                if is_synced:
                    self._sync()
                return self._written
        # All records were validated above, so only a failing disk can separate the two halves.
        middle = len(records) // 2
        self.write_group(records[:middle], is_synced=is_synced)
        return self.write_group(records[middle:], is_synced=is_synced)

    def sync(self) -> LogMark:
        """Make everything written durable; returns the position after it. JournalFailedError."""
        self._require_usable()
        if self.has_unsynced:
            with self._failing_for_good():
                self._sync()
        return self._durable

    def remove_older_than(self, mark: LogMark) -> int:
        """Delete files that are completely before a published mark, except the newest ``backup_count_max``.

        Returns the number deleted. Does not touch the files that ``write_group`` uses, so it may run concurrently. The
        removals need not be durable: a file that reappears is older than the mark, and the next call deletes it.
        JournalError when a file cannot be deleted.
        """
        older = [journal_id for journal_id in list_journals(self._fs, self._directory) if journal_id < mark.journal_id]
        surplus = older[: max(0, len(older) - self._config.backup_count_max)]
        for journal_id in surplus:
            path = os.path.join(self._directory, journal_file_name(journal_id))
            try:
                self._fs.remove(path)
            except OSError as error:
                raise JournalError(f"{path}: cannot delete: {error}") from error
        return len(surplus)

    def release(self, mark: LogMark) -> None:
        """Note that a mark was published: once it covers what replay applied, a held journal may begin."""
        self._is_held = self._is_held and mark < self._replayed

    def close(self) -> None:
        """Close the file; safe to repeat. Syncs nothing."""
        if self._is_begun:
            self._file.close()

    @property
    def _path(self) -> str:
        return self._file.path if self._is_begun else self._directory

    def _begin(self) -> None:
        if self._is_held:
            raise JournalFullError(f"{self._directory}: no new journal before the contents of the last one are flushed")
        self._take(self._first_id, self._create_file(self._first_id, None))

    def _create_file(self, journal_id: JournalId, finished: LogMark | None) -> File:
        with self._reporting_no_room(), self.measures.created_files.timed(self.measures.now_ns):
            return _begin_file(self._fs, self._directory, self._config, journal_id, finished)

    def _take(self, journal_id: JournalId, file: File) -> None:
        self._file = file
        self._is_begun = True
        self._written = self._durable = LogMark(journal_id, data_start(self._config.format_version))
        self._preallocated_end = _step_bytes(self._config)
        self._touched_end = 0
        """Offset that a write without enough room may have reached."""
        self._dropped_end = 0

    def _encode(self, records: Sequence[bytes]) -> EncodedGroup:
        version = self._config.format_version
        signed_by = self._written.journal_id if version >= PADDING_VERSION_MIN else None
        alignment_bytes = self._config.alignment_bytes
        return encode_group(records, self._written.offset, alignment_bytes, signed_by, version, self._steps)

    def _write(self, group: EncodedGroup) -> None:
        journal_id, position = self._written
        end = position + group.size_bytes
        began_ns = self.measures.now_ns()
        try:
            self._write_parts(group, position, end)
        except BaseException as error:
            self.measures.writes.failed.add(self.measures.now_ns() - began_ns)
            if isinstance(error, OSError) and is_out_of_room(error):
                raise self._no_room(error) from error
            raise
        self.measures.writes.succeeded.note((self.measures.now_ns() - began_ns, 1))
        self._written = LogMark(journal_id, end)
        self.measures.written_bytes += group.size_bytes

    def _write_parts(self, group: EncodedGroup, position: int, end: int) -> None:
        self._extend(end)
        if self._touched_end > position:
            self._clear(position)
        if end - position >= RESERVE_BYTES_MIN:
            self._file.reserve(end - position, position)
        self._touched_end = end
        # A crash may tear several groups of a loose file, but a kill must tear none: so this is one write.
        writes = [list(itertools.chain(*group.writes))] if self._is_loose else group.writes
        for parts in writes:
            size_bytes = self._file.pwritev(parts, position)
            position += size_bytes
            if position < end:  # the disk writes it while the next parts are encoded
                self._file.begin_writing_back(size_bytes, position - size_bytes)
        assert position == end, "what was encoded is as long as was said"
        self._touched_end = 0

    def _clear(self, start: int) -> None:
        """Zero what is left of a group that found no room: a sector of the next group must hold its data or zeros.

        Only rewrites bytes that were written, so that there is room for them.
        """
        for offset in range(start, self._touched_end, MEBIBYTE):
            data = self._file.pread(min(MEBIBYTE, self._touched_end - offset), offset)
            length = len(data.rstrip(b"\0"))
            for first in range(0, length, JOURNAL_BLOCK_BYTES):
                sector = data[first : first + JOURNAL_BLOCK_BYTES]
                if any(sector):
                    self._file.pwrite(bytes(len(sector)), offset + first)
        _sync_data(self._file)
        self._touched_end = 0

    def _sync(self) -> None:
        began_ns = self.measures.now_ns()
        try:
            _sync_data(self._file)
        except BaseException:
            self.measures.syncs.failed.add(self.measures.now_ns() - began_ns)
            raise
        self.measures.syncs.succeeded.note((self.measures.now_ns() - began_ns, 1))
        self._durable = self._written
        if self._config.is_dropped_from_page_cache:
            size_bytes = self._durable.offset // _DROP_STEP_BYTES * _DROP_STEP_BYTES - self._dropped_end
            if size_bytes > 0:
                self._file.drop_from_cache(size_bytes, self._dropped_end)
                self._dropped_end += size_bytes

    def _extend(self, end: int) -> None:
        """Extend the file durably, step by step, past ``end``: a file that ends with its data counts as truncated."""
        if end < self._preallocated_end:
            return
        while end >= self._preallocated_end:
            _write_last_block(self._file, self._preallocated_end + _step_bytes(self._config), self._config)
            self._preallocated_end += _step_bytes(self._config)
        _sync_data(self._file)
        self._durable = self._written

    def _roll(self) -> None:
        # All groups of the old file must be durable before the first of the new one can be.
        if self.has_unsynced:
            self._sync()
        journal_id = self._durable.journal_id + 1
        file = self._create_file(journal_id, self._durable)
        self._file.close()
        self._take(journal_id, file)

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise JournalFailedError(f"{self._path}: an earlier write failed: {self._failure}") from self._failure

    @contextlib.contextmanager
    def _reporting_no_room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if is_out_of_room(error):
                raise self._no_room(error) from error
            raise

    def _no_room(self, error: OSError) -> JournalFullError:
        return JournalFullError(f"{self._path}: no space for the journal: {error}{file_limit_advice(error)}")

    @contextlib.contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        try:
            yield
        except JournalFullError:
            raise
        except JournalFailedError as error:
            self._failure = error
            raise
        except (OSError, JournalError) as error:
            # Rule: a failed sync is final. The kernel may have dropped the pages it could not write, and a second sync
            # would succeed without them.
            self._failure = error
            raise JournalFailedError(f"{self._path}: journal write failed: {error}") from error


def _begin_file(
    fs: FileSystem, directory: str, config: JournalConfig, journal_id: JournalId, finished: LogMark | None
) -> File:
    """Create a journal file: header and first step of zeros, fsync, then its name made durable, then the catalog.

    ``finished``: the end of the file before it, if this process wrote that one. May be repeated after an error, as
    nothing in the file was acknowledged. If there is no room, no file is left.
    """
    catalog = read_catalog(fs, directory)
    present = list_journals(fs, directory)
    version = config.format_version
    begun = CatalogedJournal(
        journal_id,
        _step_bytes(config),
        has_checksums=version >= PADDING_VERSION_MIN,
        is_loose=_is_loose(config),
    )
    path = os.path.join(directory, journal_file_name(journal_id))
    is_new = journal_id not in present
    file = fs.create(path) if is_new else fs.open(path, writable=True)
    try:
        try:
            file.pwrite(encode_file_header(version), 0)
            _write_last_block(file, begun.step_bytes, config)
        except OSError:
            if is_new:  # otherwise every start on a full disk would leave a file
                with contextlib.suppress(OSError):
                    fs.remove(path)
            raise
        file.sync()
        fs.sync_directory(directory)
        write_catalog(fs, directory, catalog.with_next(begun, present, finished))
    except BaseException:
        file.close()
        raise
    return file


def _is_loose(config: JournalConfig) -> bool:
    return config.format_version < PADDING_VERSION_MIN or not config.is_data_synced


def _step_bytes(config: JournalConfig) -> int:
    return config.preallocation_bytes - config.preallocation_bytes % config.alignment_bytes


def _write_last_block(file: File, end: int, config: JournalConfig) -> None:
    """Make a file ``end`` bytes long. Sparse: writes only the last block."""
    # Does not overwrite the header if the step is no longer than it.
    start = max(end - config.alignment_bytes, HEADER_BYTES)
    file.pwrite(bytes(end - start), start)


def _sync_data(file: File) -> None:
    """Sync; any error is final."""
    try:
        file.sync_data()
    except OSError as error:
        raise JournalFailedError(f"{file.path}: cannot sync: {error}") from error
