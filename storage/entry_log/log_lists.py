"""Two small files next to the entry logs of a directory, text with a checksum.

``bkctl.quarantine`` lists the logs that the collector does not touch because they are damaged, one line for each:
``<id>.log <reason>``. Such a log is still read, but neither compacted nor deleted, and uses its space until an operator
has dealt with it. Deleting the file while the bookie is stopped ends the quarantine: the logs are then checked again,
and listed again if they are still damaged.

``bkctl.mixed-logs`` records which logs may hold entries of ledgers that belong in another directory: those of
Interleaved storage. Adoption leaves such logs where they are and copies the entries that are read elsewhere. All other
code treats an entry in the wrong directory as a sign that the list of directories has changed. So adoption records that
logs up to this id existed before it. The record also stays with a Java bookie, which ignores it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from bkctl.storage.checked_text import decode_checked_text, encode_checked_text
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.filenames import MIXED_LOGS, QUARANTINE, entry_log_file_name, parse_entry_log_file_name
from bkctl.storage.ids import EntryLogId
from bkctl.storage.ports import FileSystem

_FORMAT: Final = "bkctl quarantine 1"
_REASON_LENGTH_MAX: Final = 300


def read_quarantine(fs: FileSystem, directory: str) -> dict[EntryLogId, str]:
    """Damaged logs of a directory, each with the reason; logs whose file is gone are left out.

    CorruptFileError for a file that bkctl did not write; OSError.
    """
    listed = read_quarantine_list(fs, directory)
    return {
        log_id: reason
        for log_id, reason in listed.items()
        if fs.exists(os.path.join(directory, entry_log_file_name(log_id)))
    }


def read_quarantine_list(fs: FileSystem, directory: str) -> dict[EntryLogId, str]:
    """All logs that the file lists, existing or not. Raises the errors of ``read_quarantine``."""
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
    """Replace the list, or delete it if there are no logs. OSError."""
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


_MIXED_FORMAT = "bkctl mixed logs 1"


def write_mixed_logs(fs: FileSystem, directory: str, last_log_id: EntryLogId) -> None:
    """Record, in a ledger directory (``current``), that logs up to ``last_log_id`` may be mixed; OSError."""
    data = encode_checked_text(_MIXED_FORMAT, [f"{last_log_id:x}.log"])
    fs.write_file_atomically(os.path.join(directory, MIXED_LOGS), data)


def read_mixed_logs(fs: FileSystem, directory: str) -> EntryLogId:
    """Id of the last log that may be mixed; -1 if there are none. CorruptFileError, OSError."""
    path = os.path.join(directory, MIXED_LOGS)
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return -1
    lines = decode_checked_text(_MIXED_FORMAT, data)
    log_id = parse_entry_log_file_name(lines[0]) if lines is not None and len(lines) == 1 else None
    if log_id is None:
        raise CorruptFileError(path, 0, "not a record of mixed logs")
    return log_id
