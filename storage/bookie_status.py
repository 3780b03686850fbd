"""The file BOOKIE_STATUS: the mode of a bookie, for its next start. Source: storage section 8.

One line of UTF-8 in ``current`` of every ledger directory::

    1,<READ_ONLY|READ_WRITE>,<milliseconds since 1970 when written>,<true|false: set by hand>

Older releases leave the last field out; such a line counts as set by hand.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from storage.filenames import BOOKIE_STATUS
from storage.ports import FileSystem

_LAYOUT = "1"
_MODES = {"READ_ONLY": True, "READ_WRITE": False}
_TRUTHS = {"true": True, "false": False}
_LINE_BYTES_MAX = 256


class BookieStatus(msgspec.Struct, frozen=True):
    """What a bookie noted of its mode. ``is_manual``: somebody chose it, so that room on a disk does not change it."""

    is_read_only: bool
    written_ms: int
    is_manual: bool


def encode_bookie_status(status: BookieStatus) -> bytes:
    """Content of the file."""
    mode = "READ_ONLY" if status.is_read_only else "READ_WRITE"
    return f"{_LAYOUT},{mode},{status.written_ms},{str(status.is_manual).lower()}\n".encode("ascii")


def decode_bookie_status(data: bytes) -> BookieStatus | None:
    """The status, or None for anything that is none: another layout, a cut or damaged file."""
    line, _, _ = data[:_LINE_BYTES_MAX].decode("utf-8", "replace").partition("\n")
    layout, *fields = line.rstrip("\r").split(",")
    if layout != _LAYOUT or not 2 <= len(fields) <= 3:
        return None
    mode, written, manual = (*fields, "true")[:3]
    if mode not in _MODES or manual not in _TRUTHS or not (written.isascii() and written.isdigit()):
        return None
    return BookieStatus(_MODES[mode], int(written), _TRUTHS[manual])


def read_bookie_status(filesystem: FileSystem, directories: Sequence[str]) -> BookieStatus | None:
    """The newest status in these ``current`` folders; None when none of them has one. OSError."""
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
    """Write it in every one of these ``current`` folders, each whole or not at all (hazard H14).

    Returns the first error, or None. One folder is enough for it to be found, so all are tried: on a full disk one may
    have room and the others not.
    """
    first: OSError | None = None
    for directory in directories:
        try:
            filesystem.write_file_atomically(os.path.join(directory, BOOKIE_STATUS), encode_bookie_status(status))
        except OSError as error:
            first = first or error
    return first
