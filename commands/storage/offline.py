"""Finds the file that a ``bkctl storage`` command refers to by id, file name or path, and checks offsets in it."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.filenames import (
    current_directory,
    entry_log_file_name,
    journal_file_name,
    parse_entry_log_file_name,
    parse_journal_file_name,
)
from bkctl.storage.framing import ReadWindow
from bkctl.storage.journal.format import VERSION_HEADER_BYTES, VERSION_MAX, VERSION_MIN, data_start, decode_version
from bkctl.storage.journal.items import item_around
from bkctl.storage.ports import FileSystem
from bkctl.storage.words import counted

_HEXADECIMAL = re.compile(r"0[xX]([0-9a-fA-F]{1,16})")
_DECIMAL = re.compile(r"[0-9]{1,19}")


class NumberedKind(NamedTuple):
    """A kind of numbered files, and the options that select their directories."""

    noun: str
    article: str
    file_name: Callable[[int], str]
    parse_name: Callable[[str], int | None]


JOURNAL = NumberedKind("journal", "a", journal_file_name, parse_journal_file_name)
ENTRY_LOG = NumberedKind("entry log", "an", entry_log_file_name, parse_entry_log_file_name)


class NumberedFile(NamedTuple):
    """One file: the directory that holds it (``current``), and its id."""

    directory: str
    number: int
    path: str


def find_file(fs: FileSystem, kind: NumberedKind, text: str, directories: Sequence[str]) -> NumberedFile:
    """Find the file for ``text`` in exactly one of the configured ``directories``.

    InvalidArgumentError for an invalid text, or when several directories have the file; NotFoundError, OSError.
    """
    current_directories = [current_directory(directory) for directory in directories]
    if is_path(text):
        file = find_by_path(fs, kind, text)
        current = next((each for each in current_directories if os.path.samefile(each, file.directory)), None)
        if current is None:
            raise InvalidArgumentError(
                f"{text} is not in any of the bookie's directories: {', '.join(current_directories)}"
            )
        return NumberedFile(current, file.number, os.path.join(current, os.path.basename(text)))
    number = _parse_id(kind, text)
    name = kind.file_name(number)
    found = [current for current in current_directories if fs.exists(os.path.join(current, name))]
    if not found:
        raise NotFoundError(f"no {kind.noun} {name} in {', '.join(current_directories)}")
    if len(found) > 1:
        raise InvalidArgumentError(
            f"{counted(len(found), 'directory', 'directories')} have {kind.article} {kind.noun} {name}: "
            f"give the path of one: {', '.join(os.path.join(current, name) for current in found)}"
        )
    return _readable(NumberedFile(found[0], number, os.path.join(found[0], name)))


def find_by_path(fs: FileSystem, kind: NumberedKind, path: str) -> NumberedFile:
    """The file at a path, in any directory; InvalidArgumentError, NotFoundError, OSError."""
    number = kind.parse_name(os.path.basename(path))
    if number is None:
        example = kind.file_name(0x1F)
        raise InvalidArgumentError(
            f"{path} is not named like {kind.article} {kind.noun}: its name must be like {example}"
        )
    if not fs.exists(path):
        raise NotFoundError(f"no {kind.noun} {path}")
    return _readable(NumberedFile(os.path.dirname(path), number, path))


def _readable(file: NumberedFile) -> NumberedFile:
    """The same; NotFoundError if it is not a file, OSError without permission: neither is damage."""
    if not os.path.isfile(file.path):
        is_lost_link = os.path.islink(file.path) and not os.path.exists(file.path)
        raise NotFoundError(f"{file.path} is {'a broken link' if is_lost_link else 'not a file'}")
    with open(file.path, "rb"):
        return file


def is_path(text: str) -> bool:
    """Whether an argument is a path, so that no settings are needed to find the file."""
    return os.sep in text


def _parse_id(kind: NumberedKind, text: str) -> int:
    by_name = kind.parse_name(text)
    if by_name is not None:
        return by_name
    if found := _HEXADECIMAL.fullmatch(text):
        return int(found[1], 16)
    if _DECIMAL.fullmatch(text):
        return int(text)
    raise InvalidArgumentError(
        f"'{text}' is not {kind.article} {kind.noun}: use a decimal id, 0x and hexadecimal digits, a file name like "
        f"{kind.file_name(0x1F)}, or a path"
    )


def require_journal_start(file_system: FileSystem, path: str, start: int) -> None:
    """InvalidArgumentError unless a record may begin at ``start`` (0: the first one); OSError.

    Marks may be at the end of the file, so it is valid. After damage every offset is valid.
    """
    if start == 0:
        return
    _require_inside(path, start)
    # In Java's own files, the byte after a record's start may look like a record of an unknown type, so only a scan
    # from the beginning is reliable.
    with contextlib.closing(file_system.open(path)) as file:
        window = ReadWindow(file)
        version = decode_version(window.read(VERSION_HEADER_BYTES, 0))
        if not VERSION_MIN <= version <= VERSION_MAX:
            return  # the scan reports it
        first = data_start(version)
        _require_behind_header(path, start, first, "records")
        around = item_around(window, version, first, start)
    if around is not None:
        raise InvalidArgumentError(
            f"no record of {path} begins at {start}: one begins at {around[0]}, and goes up to {around[1]}"
        )


def require_log_range(path: str, start: int, stop: int | None) -> None:
    """InvalidArgumentError unless the frames from ``start`` to ``stop`` may be in an entry log; OSError."""
    if stop is not None and stop < start:
        raise InvalidArgumentError(f"--from {start} --to {stop}: the range ends before it starts")
    if start > 0:
        _require_inside(path, start)
        _require_behind_header(path, start, HEADER_BYTES, "entries")


def _require_inside(path: str, start: int) -> None:
    size_bytes = os.path.getsize(path)
    if start > size_bytes:
        raise InvalidArgumentError(f"--from {start} is after the end of {path}, which has {size_bytes} bytes")


def _require_behind_header(path: str, start: int, first: int, what: str) -> None:
    if start < first:
        raise InvalidArgumentError(f"--from {start} is in the header of {path}: its {what} begin at {first}")
