"""Checks offsets: otherwise a wrong argument looks like an empty file, or like damage."""

from __future__ import annotations

import os

from bkctl.commands.errors import InvalidArgumentError
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.framing import ReadWindow
from bkctl.storage.journal.format import VERSION_HEADER_BYTES, VERSION_MAX, VERSION_MIN, data_start, decode_version
from bkctl.storage.journal.items import item_around
from bkctl.storage.ports import FileSystem


def require_journal_start(file_system: FileSystem, path: str, start: int) -> None:
    """InvalidArgumentError unless a record may begin at ``start`` (0: the first one); OSError.

    Marks may be at the end of the file, so it is valid. After damage every offset is valid.
    """
    if start == 0:
        return
    _require_inside(path, start)
    # In Java's own files, the byte after a record's start may look like a record of an unknown type, so only a scan
    # from the beginning is reliable.
    file = file_system.open(path)
    try:
        window = ReadWindow(file)
        version = decode_version(window.read(VERSION_HEADER_BYTES, 0))
        if not VERSION_MIN <= version <= VERSION_MAX:
            return  # the scan reports it
        first = data_start(version)
        _require_behind_header(path, start, first, "records")
        around = item_around(window, version, first, start)
    finally:
        file.close()
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
