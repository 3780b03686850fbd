"""The last mark of a journal: 16 bytes, i64 journal id and i64 offset, in every ledger directory.

Everything before the mark is durable in the ledger storage of all directories; replay starts there. Source: storage
section 3.9; hazard H14 (rewriting in place) is excluded by replacing the file.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Sequence

from storage.errors import StorageError
from storage.filenames import last_mark_file_name
from storage.ids import LogMark
from storage.ports import FileSystem

NO_MARK = LogMark(0, 0)
"""Replay everything."""

_MARK = struct.Struct(">qq")


def read_last_mark(
    fs: FileSystem, ledger_directories: Sequence[str], journal_index: int, journal_count: int
) -> LogMark:
    """Largest mark of a journal over all ledger directories (their ``current`` folders); ``NO_MARK`` without any.

    The largest is right because a mark is published only when every directory was flushed; one that was full keeps an
    older mark. Missing and short files are skipped. OSError when one cannot be read.
    """
    name = last_mark_file_name(journal_index, journal_count)
    marks = (_read_mark(fs, os.path.join(directory, name)) for directory in ledger_directories)
    return max((mark for mark in marks if mark is not None), default=NO_MARK)


def write_last_mark(
    fs: FileSystem, ledger_directories: Sequence[str], mark: LogMark, journal_index: int, journal_count: int
) -> None:
    """Publish a mark durably in every one of ``ledger_directories``; a file with a larger one is left alone.

    StorageError when a directory could not be written: the checkpoint has failed then, and no journal may be deleted.
    """
    name = last_mark_file_name(journal_index, journal_count)
    data = _MARK.pack(*mark)
    for directory in ledger_directories:
        path = os.path.join(directory, name)
        try:
            published = _read_mark(fs, path)
            if published is None or published < mark:
                fs.write_file_atomically(path, data)
        except OSError as error:
            raise StorageError(f"{path}: the log mark cannot be written: {error}") from error


def _read_mark(fs: FileSystem, path: str) -> LogMark | None:
    with contextlib.suppress(FileNotFoundError):
        data = fs.read_file(path)
        if len(data) >= _MARK.size:
            return LogMark(*_MARK.unpack_from(data))
    return None
