"""The journal of one directory: groups of records, each written once and synced once.

A lane calls it, one call at a time. Everything that ``write_group`` returns for is durable, so a file is complete and
synced before the next one is begun, and nothing is ever acknowledged across a roll. Source: storage sections 3.1 to
3.7 and 3.10; hazard H5 is what the order here excludes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from storage.config import JournalConfig
from storage.errors import JournalError, JournalFailedError
from storage.filenames import journal_file_name
from storage.ids import JournalId, LogMark
from storage.journal_format import HEADER_BYTES, encode_file_header, encode_group
from storage.journal_reader import list_journals
from storage.ports import Buffer, File, FileSystem


class JournalWriter:
    """Writes one journal. After a failed write or sync it only raises: replay decides what the disk holds."""

    def __init__(
        self, fs: FileSystem, directory: str, config: JournalConfig, journal_id: JournalId, file: File, end: int
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._file = file
        self._durable = LogMark(journal_id, HEADER_BYTES)
        self._preallocated_end = end
        self._failure: OSError | None = None

    @classmethod
    def open(cls, fs: FileSystem, directory: str, config: JournalConfig, now_ms: int) -> JournalWriter:
        """Begin a new file in ``directory``, the folder that holds the ``.txn`` files (``current``).

        Call it after replay, and after the marks of replay were written: the new file makes all others older ones, and
        in those a hole is corruption. The id follows the largest one there, or the clock in an empty folder.
        JournalFailedError if the file cannot be created.
        """
        try:
            journal_ids = list_journals(fs, directory)
            journal_id = (journal_ids[-1] if journal_ids else now_ms) + 1
            file, end = _begin_file(fs, directory, config, journal_id)
        except OSError as error:
            raise JournalFailedError(f"{directory}: cannot begin a journal: {error}") from error
        return cls(fs, directory, config, journal_id, file, end)

    @property
    def durable_position(self) -> LogMark:
        """Position up to which everything written is durable: the checkpoint token (storage section 5.8)."""
        return self._durable

    def write_group(self, records: Sequence[Buffer]) -> LogMark:
        """Make ``records`` durable, in order, with one write and one sync; returns the position behind them.

        A record is a payload without its length word: the body of an entry, or what ``journal_format`` encodes. No
        records: nothing is done. ValueError for a record that replay would refuse; nothing is written then.
        JournalFailedError when a write or sync failed now or earlier: no record of the group may be acknowledged.
        The caller bounds the group: 1 MiB is copied in about 0.2 ms, during which no other thread runs.
        """
        self._require_usable()
        if not records:
            return self._durable
        try:
            if self._durable.offset > self._config.size_bytes_max:
                self._roll()
            journal_id, start = self._durable
            group = encode_group(records, start, self._config.alignment_bytes)
            end = start + len(group)
            while end > self._preallocated_end:
                self._preallocated_end = _preallocate(self._file, self._preallocated_end, self._config)
            self._file.pwrite(group, start)
            self._file.sync_data()
        except OSError as error:
            # Rule: a failed sync is final. The kernel may have dropped the pages it could not write, so that a second
            # sync would succeed without them.
            self._failure = error
            raise JournalFailedError(f"{self._file.path}: journal failed: {error}") from error
        self._durable = LogMark(journal_id, end)
        return self._durable

    def remove_older_than(self, mark: LogMark) -> int:
        """Delete files that lie wholly before a mark that was persisted, but for the newest ``backup_count_max``.

        Returns how many were deleted. Touches no file that ``write_group`` uses, so it may run beside it. The removals
        need not be durable: a file that comes back is older than the mark, and the next call deletes it.
        JournalError when a file cannot be deleted.
        """
        older = [journal_id for journal_id in list_journals(self._fs, self._directory) if journal_id < mark.journal_id]
        surplus = older[: max(0, len(older) - self._config.backup_count_max)]
        for journal_id in surplus:
            path = os.path.join(self._directory, journal_file_name(journal_id))
            try:
                self._fs.remove(path)
            except OSError as error:
                raise JournalError(f"{path}: cannot be deleted: {error}") from error
        return len(surplus)

    def close(self) -> None:
        """Close the file; safe to repeat. Everything in it is durable already."""
        self._file.close()

    def _roll(self) -> None:
        # All groups of the old file were synced by the calls that wrote them.
        self._file.close()
        journal_id = self._durable.journal_id + 1
        self._file, self._preallocated_end = _begin_file(self._fs, self._directory, self._config, journal_id)
        self._durable = LogMark(journal_id, HEADER_BYTES)

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise JournalFailedError(f"{self._file.path}: journal failed before: {self._failure}") from self._failure


def _begin_file(fs: FileSystem, directory: str, config: JournalConfig, journal_id: JournalId) -> tuple[File, int]:
    """Create a journal file: header, fsync, then its name made durable, then the first step of zeros."""
    file = fs.create(os.path.join(directory, journal_file_name(journal_id)))
    file.pwrite(encode_file_header(), 0)
    file.sync()
    fs.sync_directory(directory)
    return file, _preallocate(file, 0, config)


def _preallocate(file: File, end: int, config: JournalConfig) -> int:
    """Extend a file by one step; returns its new length. Sparse: only the step's last block is written."""
    step_bytes = config.preallocation_bytes - config.preallocation_bytes % config.alignment_bytes
    end += step_bytes
    file.pwrite(bytes(config.alignment_bytes), end - config.alignment_bytes)
    return end
