"""Entry logs that the collector leaves alone because they are damaged: a small file beside them says which, and why.

Reads go on in such a log as ever; it is neither compacted nor deleted, and costs its space, until an operator has dealt
with it. The file is text with a checksum, ``bkctl.quarantine``, one line for a log: ``<id>.log <reason>``. Deleting it
while the bookie is stopped ends the quarantine: the logs are then looked at again, and listed again if need be.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from storage.checked_text import decode_checked_text, encode_checked_text
from storage.errors import CorruptFileError
from storage.filenames import QUARANTINE, entry_log_file_name, parse_entry_log_file_name
from storage.ids import EntryLogId
from storage.ports import FileSystem

_FORMAT: Final = "bkctl quarantine 1"
_REASON_LENGTH_MAX: Final = 300


def read_quarantine(fs: FileSystem, directory: str) -> dict[EntryLogId, str]:
    """Damaged logs of a folder and what is wrong with each; those whose file is gone are left out.

    CorruptFileError for a file that nobody wrote so; OSError.
    """
    listed = read_quarantine_list(fs, directory)
    return {
        log_id: reason
        for log_id, reason in listed.items()
        if fs.exists(os.path.join(directory, entry_log_file_name(log_id)))
    }


def read_quarantine_list(fs: FileSystem, directory: str) -> dict[EntryLogId, str]:
    """All that the file lists, there or gone. Raises as ``read_quarantine``."""
    path = os.path.join(directory, QUARANTINE)
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return {}
    lines = decode_checked_text(_FORMAT, data)
    if lines is None:
        raise CorruptFileError(path, 0, "not a list of quarantined logs", "delete it: the logs are then checked again")
    found: dict[EntryLogId, str] = {}
    for line in lines:
        name, _, reason = line.partition(" ")
        log_id = parse_entry_log_file_name(name)
        if log_id is not None:
            found[log_id] = reason
    return found


def write_quarantine(fs: FileSystem, directory: str, reasons: Mapping[EntryLogId, str]) -> None:
    """Replace the list; without logs there is no file. OSError."""
    path = os.path.join(directory, QUARANTINE)
    if reasons:
        lines = [f"{entry_log_file_name(log_id)} {_one_line(reasons[log_id])}" for log_id in sorted(reasons)]
        fs.write_file_atomically(path, encode_checked_text(_FORMAT, lines))
    elif fs.exists(path):
        fs.remove(path)
        fs.sync_directory(directory)


def _one_line(reason: str) -> str:
    plain = reason.encode("ascii", "backslashreplace").decode()
    return " ".join(plain.split())[:_REASON_LENGTH_MAX]
