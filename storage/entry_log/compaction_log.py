"""The files of a transactional compaction, step by step. Source: storage section 4.9.

The live entries of a log S are copied to a log D of their own. Names are in hexadecimal (H7):

    1  D.log.compacting            written; nothing refers to it yet
    2                              its map and header are written, all of it is synced
    3  D.log.S.compacted           the same file; D.log.compacting is deleted: now it is finished and not undone
    4  D.log                       the same file; the index may reference it now
    5                              the index references it, durably
    6  S.log, D.log.S.compacted    deleted

Every step can be repeated after a crash between any two, and every name is durable before the next step relies on it.
For the lane that writes checkpoints.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import msgspec

from bkctl.storage.entry_log.format import (
    HEADER_BYTES,
    HEADER_MAP_FIELDS_OFFSET,
    encode_header,
    encode_ledgers_map,
    encode_map_fields,
)
from bkctl.storage.filenames import (
    compacted_file_name,
    compacting_file_name,
    entry_log_file_name,
    parse_compacted_file_name,
    parse_compacting_file_name,
)
from bkctl.storage.framing import LENGTH_BYTES, framed_bytes
from bkctl.storage.ids import EntryLogId, LedgerId
from bkctl.storage.ports import File, FileSystem


class CompactedLog(msgspec.Struct, frozen=True):
    """A finished log D that is to replace a log S in a directory."""

    directory: str
    log_id: EntryLogId
    source_log_id: EntryLogId

    @property
    def path(self) -> str:
        """``D.log.S.compacted``."""
        return os.path.join(self.directory, compacted_file_name(self.log_id, self.source_log_id))

    def publish(self, fs: FileSystem) -> None:
        """Step 4. Safe to repeat. OSError."""
        path = os.path.join(self.directory, entry_log_file_name(self.log_id))
        if not fs.exists(path):
            fs.link(self.path, path)
        fs.sync_directory(self.directory)

    def forget(self, fs: FileSystem) -> None:
        """First half of step 6, when the index references the log durably. Safe to repeat. OSError."""
        if fs.exists(self.path):
            fs.remove(self.path)
            fs.sync_directory(self.directory)


class CompactedLogWriter:
    """Steps 1 to 3; the first entry creates the file. After an OSError, call ``abandon``."""

    def __init__(self, fs: FileSystem, directory: str, log_id: EntryLogId, source_log_id: EntryLogId) -> None:
        self._fs = fs
        self._directory = directory
        self._log_id = log_id
        self._source_log_id = source_log_id
        self._path = os.path.join(directory, compacting_file_name(log_id))
        self._file: File | None = None
        self._position = HEADER_BYTES
        self._ledger_bytes: Counter[LedgerId] = Counter()

    def append(self, bodies: Sequence[tuple[LedgerId, bytes]]) -> None:
        """Write bodies, each with its ledger."""
        if self._file is None:
            self._file = self._fs.create(self._path)
            self._file.pwrite(encode_header(), 0)
        data = framed_bytes([body for _, body in bodies])
        self._file.pwrite(data, self._position)
        self._position += len(data)
        for ledger_id, body in bodies:
            self._ledger_bytes[ledger_id] += LENGTH_BYTES + len(body)

    def finish(self) -> CompactedLog:
        """Steps 2 and 3: afterwards the log is finished, whatever happens."""
        assert self._file is not None, "there is something to finish"
        self._file.pwrite(encode_ledgers_map(self._ledger_bytes), self._position)
        self._file.pwrite(encode_map_fields(self._position, len(self._ledger_bytes)), HEADER_MAP_FIELDS_OFFSET)
        self._file.sync()
        self._file.close()
        compacted = CompactedLog(self._directory, self._log_id, self._source_log_id)
        self._fs.link(self._path, compacted.path)
        self._fs.sync_directory(self._directory)
        self._fs.remove(self._path)
        return compacted

    def abandon(self) -> None:
        """Discard the log before it is finished; safe to repeat."""
        if self._file is not None:
            self._file.close()
            if self._fs.exists(self._path):
                self._fs.remove(self._path)


def list_compacted_logs(fs: FileSystem, directory: str) -> list[CompactedLog]:
    """Logs that an earlier compaction finished, but whose sources it did not replace yet. OSError."""
    names = map(parse_compacted_file_name, fs.list_directory(directory))
    return [CompactedLog(directory, *ids) for ids in names if ids is not None]


def remove_unfinished_logs(fs: FileSystem, directory: str) -> int:
    """Delete the unfinished logs of an earlier compaction, which nothing references. Returns how many. OSError."""
    names = [name for name in fs.list_directory(directory) if parse_compacting_file_name(name) is not None]
    for name in names:
        fs.remove(os.path.join(directory, name))
    return len(names)
