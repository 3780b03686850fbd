"""The file bkctl.mode keeps the mode that an operator set while the bookie ran, with the reason.

Text with a checksum in ``current`` of every ledger directory::

    bkctl mode 1
    mode read-only
    since 1795222657279
    written 1795222657279
    reason "disk sdb is replaced"
    crc32 ...

Java has no place for the reason, and keeps a mode set by hand only if ``persistBookieStatusEnabled`` is on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Final

import msgspec

from bkctl.storage.checked_text import decode_checked_text, encode_checked_text
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.file_copies import write_copies
from bkctl.storage.filenames import OPERATOR_MODE
from bkctl.storage.ports import FileSystem

_FORMAT: Final = "bkctl mode 1"
_MODES: Final = {"read-only": True, "writable": False}


class OperatorMode(msgspec.Struct, frozen=True, kw_only=True):
    """The mode that an operator set. ``since_ms``: when the bookie was first asked for it."""

    is_read_only: bool
    since_ms: int
    written_ms: int
    reason: str = ""


def encode_operator_mode(mode: OperatorMode) -> bytes:
    """Content of the file. The reason is a JSON string in ASCII."""
    lines = (
        f"mode {'read-only' if mode.is_read_only else 'writable'}",
        f"since {mode.since_ms}",
        f"written {mode.written_ms}",
        f"reason {json.dumps(mode.reason)}",
    )
    return encode_checked_text(_FORMAT, lines)


def decode_operator_mode(data: bytes) -> OperatorMode | None:
    """The mode, or None if the bytes are not such a file."""
    try:
        word, since, written, reason = (line.partition(" ")[2] for line in decode_checked_text(_FORMAT, data) or ())
        mode = OperatorMode(
            is_read_only=_MODES[word], since_ms=int(since), written_ms=int(written), reason=json.loads(reason)
        )
        return mode if encode_operator_mode(mode) == data else None
    except (KeyError, TypeError, ValueError):
        return None


def read_operator_mode(fs: FileSystem, directories: Sequence[str]) -> OperatorMode | None:
    """The newest mode in these ``current`` directories; None if there is none.

    CorruptFileError if there are files and none of them is whole; OSError.
    """
    modes: list[OperatorMode] = []
    damaged = None
    for directory in directories:
        path = os.path.join(directory, OPERATOR_MODE)
        try:
            mode = decode_operator_mode(fs.read_file(path))
        except FileNotFoundError:
            continue
        if mode is None:
            damaged = path
        else:
            modes.append(mode)
    if damaged is not None and not modes:
        raise CorruptFileError(damaged, 0, "not the mode of a bookie", "delete it: the bookie then starts writable")
    return max(modes, key=lambda mode: mode.written_ms, default=None)


def write_operator_mode(fs: FileSystem, directories: Sequence[str], mode: OperatorMode) -> list[OSError]:
    """Write the mode to each of these ``current`` directories; returns the errors.

    One copy is enough. A directory that could not be written keeps an older copy, which the newer ones overrule.
    """
    return write_copies(fs, directories, OPERATOR_MODE, encode_operator_mode(mode))
