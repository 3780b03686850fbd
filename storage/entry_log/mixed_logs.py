"""Which entry logs of a directory may hold entries of ledgers that belong in another: those of Interleaved storage.

Adoption leaves such logs where they are and copies what is looked for elsewhere. Everybody else takes an entry in the
wrong directory for a sign that the list of directories has changed, so adoption leaves a record: logs up to this id
were there before it. The record stays for good, also with a Java bookie, which ignores it.
"""

from __future__ import annotations

import os

from storage.checked_text import decode_checked_text, encode_checked_text
from storage.errors import CorruptFileError
from storage.filenames import MIXED_LOGS, parse_entry_log_file_name
from storage.ids import EntryLogId
from storage.ports import FileSystem

_FORMAT = "bkctl mixed logs 1"


def write_mixed_logs(fs: FileSystem, directory: str, last_log_id: EntryLogId) -> None:
    """Record, in a ledger directory (``current``), that logs up to ``last_log_id`` may be mixed; OSError."""
    data = encode_checked_text(_FORMAT, [f"{last_log_id:x}.log"])
    fs.write_file_atomically(os.path.join(directory, MIXED_LOGS), data)


def read_mixed_logs(fs: FileSystem, directory: str) -> EntryLogId:
    """Id of the last log that may be mixed; -1 where all are the directory's own. CorruptFileError, OSError."""
    path = os.path.join(directory, MIXED_LOGS)
    try:
        data = fs.read_file(path)
    except FileNotFoundError:
        return -1
    lines = decode_checked_text(_FORMAT, data)
    log_id = parse_entry_log_file_name(lines[0]) if lines is not None and len(lines) == 1 else None
    if log_id is None:
        raise CorruptFileError(path, 0, "not a record of mixed logs")
    return log_id
