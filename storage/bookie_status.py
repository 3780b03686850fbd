"""The file BOOKIE_STATUS keeps a bookie's mode for its next start. Source: storage section 8.

One line of UTF-8 in ``current`` of every ledger directory::

    1,<READ_ONLY|READ_WRITE>,<milliseconds since 1970 when written>,<true|false: set by hand>

Older releases omit the last field; such a line counts as set by hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from bkctl.storage.file_copies import write_copies
from bkctl.storage.filenames import BOOKIE_STATUS
from bkctl.storage.ports import FileSystem

_LAYOUT = "1"
_MODES = {"READ_ONLY": True, "READ_WRITE": False}
_TRUTHS = {"true": True, "false": False}
_LINE_BYTES_MAX = 256


class BookieStatus(msgspec.Struct, frozen=True):
    """Saved mode of a bookie. ``is_manual``: an operator set it, so free disk space does not change it."""

    is_read_only: bool
    written_ms: int
    is_manual: bool


def encode_bookie_status(status: BookieStatus) -> bytes:
    """Content of the file."""
    mode = "READ_ONLY" if status.is_read_only else "READ_WRITE"
    return f"{_LAYOUT},{mode},{status.written_ms},{str(status.is_manual).lower()}\n".encode("ascii")


def decode_bookie_status(data: bytes) -> BookieStatus | None:
    """The status, or None if the data is invalid: another layout, truncated or damaged."""
    line, _, _ = data[:_LINE_BYTES_MAX].decode("utf-8", "replace").partition("\n")
    layout, *fields = line.rstrip("\r").split(",")
    if layout != _LAYOUT or not 2 <= len(fields) <= 3:
        return None
    mode, written, manual = (*fields, "true")[:3]
    if mode not in _MODES or manual not in _TRUTHS or not (written.isascii() and written.isdigit()):
        return None
    return BookieStatus(_MODES[mode], int(written), _TRUTHS[manual])


def read_bookie_status(filesystem: FileSystem, directories: Sequence[str]) -> BookieStatus | None:
    """The newest status in these ``current`` directories; None if there is none. OSError."""
    found: list[BookieStatus] = []
    for directory in directories:
        try:
            status = decode_bookie_status(filesystem.read_file(os.path.join(directory, BOOKIE_STATUS)))
        except FileNotFoundError:
            continue
        if status is not None:
            found.append(status)
    return max(found, key=lambda status: status.written_ms, default=None)


def write_bookie_status(filesystem: FileSystem, directories: Sequence[str], status: BookieStatus) -> OSError | None:
    """Write the status to each of these ``current`` directories, atomically (hazard H14).

    Returns the first error, or None. Tries all directories even after an error, because one copy is enough and only
    some of the disks may be full.
    """
    return next(iter(write_copies(filesystem, directories, BOOKIE_STATUS, encode_bookie_status(status))), None)
