"""Every mark of a bookie's journals, file by file, and where replay would start: for people who look into the files.

What the marks mean and which one counts is ``log_mark``'s; this only looks at each, the unreadable ones too.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator

import msgspec

from storage.advice import without_path
from storage.config import StorageConfig
from storage.errors import JournalError
from storage.filenames import current_directory, last_mark_file_name, mark_record_file_name
from storage.ids import LogMark
from storage.journal.catalog import read_catalog
from storage.journal.log_mark import decode_last_mark, decode_mark_record, find_replay_start
from storage.ports import FileSystem


class MarkState(enum.StrEnum):
    """What a file of a mark is."""

    INTACT = "intact"
    MISSING = "missing"
    SHORT = "short"
    """A lastMark below 16 bytes: what a crash of a Java bookie leaves. It counts as missing."""
    DAMAGED = "damaged"
    """A record of ours whose checksum does not fit."""
    UNREADABLE = "unreadable"
    """The system says that it is there, and does not give it."""


class MarkFile(msgspec.Struct, frozen=True):
    """One file that holds a mark, or should."""

    journal_index: int
    path: str
    is_record: bool
    """Whether it is our record, with a checksum, and not the ``lastMark`` that Java reads."""
    state: MarkState
    mark: LogMark | None


class JournalMarks(msgspec.Struct, frozen=True):
    """All marks of one journal."""

    journal_index: int
    directory: str
    """Configured journal directory."""
    files: tuple[MarkFile, ...]
    replay_start: LogMark | None
    """None: the boot would stop before it finds one (``trouble``)."""
    trouble: str | None


def survey_marks(fs: FileSystem, config: StorageConfig) -> Iterator[JournalMarks]:
    """The marks of each journal, in the order of the settings."""
    journal_count = len(config.journal_directories)
    ledger_directories = [current_directory(directory) for directory in config.ledger_directories]
    for index, directory in enumerate(config.journal_directories):
        files = tuple(
            _look(fs, os.path.join(folder, name_of(index, journal_count)), index, is_record=is_record)
            for folder in ledger_directories
            for name_of, is_record in ((last_mark_file_name, False), (mark_record_file_name, True))
        )
        start, trouble = None, None
        try:
            catalog = read_catalog(fs, current_directory(directory))
            start = find_replay_start(fs, ledger_directories, index, journal_count, is_cataloged=bool(catalog.journals))
        except JournalError as error:
            trouble = str(error)
        except OSError as error:  # a boot stops there, too
            trouble = f"{error.filename}: {without_path(error)}"
        yield JournalMarks(index, directory, files, start, trouble)


def _look(fs: FileSystem, path: str, journal_index: int, *, is_record: bool) -> MarkFile:
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
