"""The last mark of a journal: 16 bytes, i64 journal id and i64 offset, in every ledger directory.

Everything before the mark is durable in the ledger storage of all directories; replay starts there. Source: storage
section 3.9; hazard H14 (rewriting in place) is excluded by replacing the file.

``lastMark`` has no checksum: one flipped bit could make replay skip acknowledged entries. So each one has a mark record
next to it, the same position with a checksum, and replay trusts the record. ``lastMark`` is written for Java, and read
only in directories in which bkctl has not published a mark yet.
"""

from __future__ import annotations

import contextlib
import enum
import os
import struct
from collections.abc import Iterator, Sequence

import msgspec

from bkctl.storage.advice import without_path
from bkctl.storage.checked_text import decode_checked_numbers, encode_checked_numbers
from bkctl.storage.config import StorageConfig
from bkctl.storage.errors import JournalError, StorageError
from bkctl.storage.filenames import current_directory, last_mark_file_name, mark_record_file_name
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.ports import FileSystem

NO_MARK = LogMark(0, 0)
"""Mark for replaying everything."""

_MARK = struct.Struct(">qq")
_RECORD_FORMAT = "bkctl mark 1"
_RECORD_NAMES = ("journal", "offset")


def read_last_mark(
    fs: FileSystem, ledger_directories: Sequence[str], journal_index: int, journal_count: int
) -> LogMark:
    """Largest mark of a journal over all ledger directories (``current``); ``NO_MARK`` if there is none.

    The largest is right because a mark is published only after every directory was flushed; a full directory keeps an
    older mark. Missing and short files are skipped. OSError when one cannot be read.
    """
    name = last_mark_file_name(journal_index, journal_count)
    marks = (_read_mark(fs, os.path.join(directory, name)) for directory in ledger_directories)
    return max((mark for mark in marks if mark is not None), default=NO_MARK)


def find_replay_start(
    fs: FileSystem, ledger_directories: Sequence[str], journal_index: int, journal_count: int, *, is_cataloged: bool
) -> LogMark:
    """Where replay of a journal starts: never after what is durable in our ledger storage.

    ``is_cataloged``: whether bkctl has written to this journal; it publishes a mark record before that.

    - There are intact records: the largest one. If ``lastMark`` is larger, it is damaged, or a Java bookie moved it
      after flushing to its own index: either way the records in between must be replayed. A smaller one is ignored.
    - No record is intact although there must be one: ``NO_MARK``. Replaying too much is harmless, as the files from the
      true mark on always exist.
    - There never was a record: ``lastMark``, as Java reads it.
    """
    name = mark_record_file_name(journal_index, journal_count)
    found = [_read_record(fs, os.path.join(directory, name)) for directory in ledger_directories]
    records = [record for record, _ in found if record is not None]
    if records:
        return max(records)
    if is_cataloged or any(exists for _, exists in found):
        return NO_MARK
    return read_last_mark(fs, ledger_directories, journal_index, journal_count)


def write_last_mark(
    fs: FileSystem, ledger_directories: Sequence[str], mark: LogMark, journal_index: int, journal_count: int
) -> list[OSError]:
    """Publish a mark durably, with its record, in ``ledger_directories``; a larger record is left unchanged.

    Corrects a ``lastMark`` that contradicts its record. ``NO_MARK`` writes only a record: Java has no such mark.
    Returns the errors of directories that could not be written, for instance full ones: they keep an older mark, and
    the largest one applies. StorageError if all failed: the checkpoint has then failed, and no journal may be deleted.
    """
    names = last_mark_file_name(journal_index, journal_count), mark_record_file_name(journal_index, journal_count)
    failures: list[OSError] = []
    for directory in ledger_directories:
        mark_path, record_path = (os.path.join(directory, name) for name in names)
        try:
            record, _ = _read_record(fs, record_path)
            if record is not None and record > mark:
                continue
            if mark != NO_MARK and _read_mark(fs, mark_path) != mark:
                fs.write_file_atomically(mark_path, _MARK.pack(*mark))
            if record != mark:
                fs.write_file_atomically(record_path, encode_mark_record(mark))
        except OSError as error:
            failures.append(OSError(error.errno, f"cannot write the log mark: {error.strerror}", mark_path))
    if len(failures) == len(ledger_directories):
        [first, *_] = failures
        raise StorageError(f"{first.filename}: {first.strerror}") from first
    return failures


def encode_mark_record(mark: LogMark) -> bytes:
    """Text of a mark record."""
    return encode_checked_numbers(_RECORD_FORMAT, dict(zip(_RECORD_NAMES, mark, strict=True)))


def decode_mark_record(data: bytes) -> LogMark | None:
    """The mark, or None for bytes that ``encode_mark_record`` does not produce."""
    numbers = decode_checked_numbers(_RECORD_FORMAT, _RECORD_NAMES, data)
    return None if numbers is None else LogMark(*numbers)


def decode_last_mark(data: bytes) -> LogMark | None:
    """The mark in ``lastMark``; None if it is too short. Only the first 16 bytes of a longer file count."""
    return LogMark(*_MARK.unpack_from(data)) if len(data) >= _MARK.size else None


def _read_mark(fs: FileSystem, path: str) -> LogMark | None:
    with contextlib.suppress(FileNotFoundError):
        return decode_last_mark(fs.read_file(path))
    return None


def _read_record(fs: FileSystem, path: str) -> tuple[LogMark | None, bool]:
    """The record, if it is intact, and whether the file exists."""
    try:
        return decode_mark_record(fs.read_file(path)), True
    except FileNotFoundError:
        return None, False


class MarkState(enum.StrEnum):
    """State of a mark's file."""

    INTACT = "intact"
    MISSING = "missing"
    SHORT = "short"
    """A lastMark below 16 bytes, left by a crash of a Java bookie. It counts as missing."""
    DAMAGED = "damaged"
    """A record of ours whose checksum does not match."""
    UNREADABLE = "unreadable"
    """The file exists but cannot be read."""


class MarkFile(msgspec.Struct, frozen=True):
    """One file that holds a mark, or should hold one."""

    journal_index: int
    path: str
    is_record: bool
    """Whether it is our record, which has a checksum, rather than the ``lastMark`` that Java reads."""
    state: MarkState
    mark: LogMark | None


class JournalMarks(msgspec.Struct, frozen=True):
    """All marks of one journal."""

    journal_index: int
    directory: str
    """Configured journal directory."""
    files: tuple[MarkFile, ...]
    replay_start: LogMark | None
    """None: the boot would fail before it finds one (``trouble``)."""
    trouble: str | None


def survey_marks(fs: FileSystem, config: StorageConfig) -> Iterator[JournalMarks]:
    """The marks of each journal, in the order of the settings."""
    journal_count = len(config.journal_directories)
    ledger_directories = [current_directory(directory) for directory in config.ledger_directories]
    for index, directory in enumerate(config.journal_directories):
        files = tuple(
            _examine(fs, os.path.join(current, name_of(index, journal_count)), index, is_record=is_record)
            for current in ledger_directories
            for name_of, is_record in ((last_mark_file_name, False), (mark_record_file_name, True))
        )
        start, trouble = None, None
        try:
            catalog = read_catalog(fs, current_directory(directory))
            start = find_replay_start(fs, ledger_directories, index, journal_count, is_cataloged=bool(catalog.journals))
        except JournalError as error:
            trouble = str(error)
        except OSError as error:  # a boot fails there, too
            trouble = f"{error.filename}: {without_path(error)}"
        yield JournalMarks(index, directory, files, start, trouble)


def _examine(fs: FileSystem, path: str, journal_index: int, *, is_record: bool) -> MarkFile:
    mark = None
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        state = MarkState.MISSING
    except OSError:
        state = MarkState.UNREADABLE
    else:
        if is_record:
            mark = decode_mark_record(data)
            state = MarkState.DAMAGED if mark is None else MarkState.INTACT
        else:
            mark = decode_last_mark(data)
            state = MarkState.SHORT if mark is None else MarkState.INTACT
    return MarkFile(journal_index, path, is_record, state, mark)
