"""The journal of one directory: groups of records, each written once and synced once.

A lane calls it, one call at a time. Everything that ``write_group`` returns for is durable, so a file is complete and
synced before the next one is begun, and nothing is ever acknowledged across a roll. Source: storage sections 3.1 to
3.7 and 3.10; hazard H5 is what the order here excludes.

What ``journal_damage`` concludes at boot rests on three promises kept here: the group before is synced when the next
one is written; the length that a group needs is synced before the group is written; a file is in the catalog before
anything in it is acknowledged.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from storage.config import JournalConfig
from storage.errors import JournalError, JournalFailedError
from storage.filenames import journal_file_name
from storage.framing import LENGTH_BYTES
from storage.ids import JournalId, LogMark
from storage.journal_catalog import CatalogedJournal, JournalCatalog, read_catalog, write_catalog
from storage.journal_format import GROUP_BYTES_MAX, HEADER_BYTES, encode_file_header, encode_group
from storage.journal_reader import list_journals
from storage.ports import Buffer, File, FileSystem


class JournalWriter:
    """Writes one journal. After a failed write or sync it only raises: replay decides what the disk holds."""

    def __init__(
        self, fs: FileSystem, directory: str, config: JournalConfig, journal_id: JournalId, file: File
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._file = file
        self._durable = LogMark(journal_id, HEADER_BYTES)
        self._preallocated_end = _step_bytes(config)
        self._failure: Exception | None = None

    @classmethod
    def open(cls, fs: FileSystem, directory: str, config: JournalConfig, now_ms: int) -> JournalWriter:
        """Begin a new file in ``directory``, the folder that holds the ``.txn`` files (``current``).

        Call it after replay, and after the marks of replay were written: the new file makes all others older ones, and
        in those a hole is corruption. The id follows the largest one there, or the clock in an empty folder.
        JournalFailedError if the file cannot be created, JournalError if the catalog is damaged.
        """
        try:
            journal_ids = list_journals(fs, directory)
            journal_id = (journal_ids[-1] if journal_ids else now_ms) + 1
            file = _begin_file(fs, directory, config, journal_id, None)
        except OSError as error:
            raise JournalFailedError(f"{directory}: cannot begin a journal: {error}") from error
        return cls(fs, directory, config, journal_id, file)

    @property
    def durable_position(self) -> LogMark:
        """Position up to which everything written is durable: the checkpoint token (storage section 5.8)."""
        return self._durable

    def write_group(self, records: Sequence[Buffer]) -> LogMark:
        """Make ``records`` durable, in order, with one write and one sync; returns the position behind them.

        More than ``GROUP_BYTES_MAX`` become several groups, one after the other, each with its write and sync.
        A record is a payload without its length word: the body of an entry, or what ``journal_format`` encodes. No
        records: nothing is done. ValueError for a record that replay would refuse; nothing is written then.
        JournalFailedError when a write or sync failed now or earlier: no record of the group may be acknowledged.
        The caller bounds the group: 1 MiB is copied in about 0.2 ms, during which no other thread runs.
        """
        self._require_usable()
        if not records:
            return self._durable
        if len(records) > 1 and sum(map(len, records)) + LENGTH_BYTES * len(records) > GROUP_BYTES_MAX:
            return self._write_groups(records)
        try:
            if self._durable.offset > self._config.size_bytes_max:
                self._roll()
            journal_id, start = self._durable
            group = encode_group(records, start, self._config.alignment_bytes)
            end = start + len(group)
            self._extend(end)
            self._file.pwrite(group, start)
            self._file.sync_data()
        except (OSError, JournalError) as error:
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

    def _write_groups(self, records: Sequence[Buffer]) -> LogMark:
        """Write what is too much for one group as two."""
        encode_group(records, HEADER_BYTES, self._config.alignment_bytes)  # ValueError before anything is written
        middle = len(records) // 2
        self.write_group(records[:middle])
        return self.write_group(records[middle:])

    def _extend(self, end: int) -> None:
        """Grow the file by steps until it holds ``end``, durably: a file shorter than its groups was cut."""
        if end <= self._preallocated_end:
            return
        while end > self._preallocated_end:
            self._preallocated_end += _step_bytes(self._config)
            _write_last_block(self._file, self._preallocated_end, self._config)
        self._file.sync_data()

    def _roll(self) -> None:
        # All groups of the old file were synced by the calls that wrote them.
        self._file.close()
        journal_id = self._durable.journal_id + 1
        self._file = _begin_file(self._fs, self._directory, self._config, journal_id, self._durable)
        self._preallocated_end = _step_bytes(self._config)
        self._durable = LogMark(journal_id, HEADER_BYTES)

    def _require_usable(self) -> None:
        if self._failure is not None:
            raise JournalFailedError(f"{self._file.path}: journal failed before: {self._failure}") from self._failure


def _begin_file(
    fs: FileSystem, directory: str, config: JournalConfig, journal_id: JournalId, finished: LogMark | None
) -> File:
    """Create a journal file: header and first step of zeros, fsync, then its name made durable, then the catalog.

    ``finished``: the end of the file before it, if this process wrote that one.
    """
    catalog = read_catalog(fs, directory) or JournalCatalog(())
    present = list_journals(fs, directory)
    step_bytes = _step_bytes(config)
    file = fs.create(os.path.join(directory, journal_file_name(journal_id)))
    file.pwrite(encode_file_header(), 0)
    _write_last_block(file, step_bytes, config)
    file.sync()
    fs.sync_directory(directory)
    write_catalog(fs, directory, catalog.with_next(CatalogedJournal(journal_id, step_bytes), present, finished))
    return file


def _step_bytes(config: JournalConfig) -> int:
    return config.preallocation_bytes - config.preallocation_bytes % config.alignment_bytes


def _write_last_block(file: File, end: int, config: JournalConfig) -> None:
    """Make a file ``end`` bytes long. Sparse: only the last block is written."""
    # The header's block is not overwritten where the step is no longer than that.
    start = max(end - config.alignment_bytes, HEADER_BYTES)
    file.pwrite(bytes(end - start), start)
