"""The entries of one ledger directory on disk: index first, then the entry log. For the reads lane.

"No such entry" is a statement of fact (storage section 12): only the index can prove it. Any failure between the index
row and the body is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Set as AbstractSet

from bkctl.storage.engine.directory_files import DirectoryFiles
from bkctl.storage.engine.measures import UNWATCHED, ReadWatch
from bkctl.storage.errors import EntryDamagedError, EntryLogMissingError
from bkctl.storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId


class StoredEntries:
    """Reads concurrently with the writing lane. ``hidden_ledgers``: deleted ones whose rows may still be there."""

    def __init__(self, files: DirectoryFiles, hidden_ledgers: AbstractSet[LedgerId]) -> None:
        self._locations = files.locations
        self._log_reader = files.log_reader
        self._hidden_ledgers = hidden_ledgers
        self._damages: dict[EntryLogId, str] = {}

    def take_damages(self) -> dict[EntryLogId, str]:
        """Logs in which reads found something other than the index says, since the last call, each with a description.

        For the loop, which shares nothing with the reads lane but single operations on this dict.
        """
        taken: dict[EntryLogId, str] = {}
        while self._damages:
            log_id, sentence = self._damages.popitem()
            taken[log_id] = sentence
        return taken

    def read(self, ledger_id: LedgerId, entry_id: EntryId, watch: ReadWatch = UNWATCHED) -> bytes | None:
        """Body of an entry on disk, or None if it is certainly not there (a write cache may hold it).

        Raises EntryLogError, IndexDamagedError or another StorageError if neither is certain.
        """
        if ledger_id in self._hidden_ledgers:
            return None
        location = self._locations.find(ledger_id, entry_id)
        watch.end_lookup()
        if location is None:
            return None
        try:
            return self._read_at(location, ledger_id, entry_id)
        except EntryLogMissingError:
            return self._read_moved(ledger_id, entry_id)
        finally:
            watch.end_log_read()

    def read_run(
        self, ledger_id: LedgerId, entry_id: EntryId, count_max: int, bytes_max: int, watch: ReadWatch = UNWATCHED
    ) -> list[bytes]:
        """Like ``read``, with the bodies of some of the following entries; empty if the entry is certainly not there.

        For clients that read a ledger in order. Each body is the copy that its own index row references (H18).
        """
        if ledger_id in self._hidden_ledgers:
            return []
        locations = self._locations.find_run(ledger_id, entry_id, count_max)
        watch.end_lookup()
        if locations is None:
            return []
        try:
            return self._log_reader.read_run(locations, ledger_id, entry_id, bytes_max)
        except EntryLogMissingError:
            body = self._read_moved(ledger_id, entry_id)
            return [] if body is None else [body]
        except EntryDamagedError as error:
            self._damages.setdefault(locations.log_id, str(error))
            raise
        finally:
            watch.end_log_read()

    def find_last(self, ledger_id: LedgerId) -> tuple[EntryId, bytes] | None:
        """Highest entry of a ledger on disk; the last entry is the greater of this and the cached one (H8).

        Read the write caches first: a checkpoint moves entries from there to the disk. Raises like ``read``.
        """
        last = None if ledger_id in self._hidden_ledgers else self._locations.find_last(ledger_id)
        if last is None:
            return None
        entry_id, location = last
        try:
            return entry_id, self._read_at(location, ledger_id, entry_id)
        except EntryLogMissingError:
            body = self._read_moved(ledger_id, entry_id)
            return None if body is None else (entry_id, body)

    def list_entries(
        self, ledger_id: LedgerId, first_entry_id: EntryId = 0, count_max: int | None = None
    ) -> list[EntryId]:
        """Ids of a ledger's entries on disk, ascending. Read the write caches first. Raises like ``read``."""
        if ledger_id in self._hidden_ledgers:
            return []
        return list(itertools.islice(self._locations.list_entries(ledger_id, first_entry_id), count_max))

    def _read_moved(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Read again an entry whose log was removed after its location was looked up.

        A log is removed only when no row references it: the row was changed or deleted since then, or a log is lost.
        """
        location = self._locations.find(ledger_id, entry_id)
        return None if location is None else self._read_at(location, ledger_id, entry_id)

    def _read_at(self, location: EntryLocation, ledger_id: LedgerId, entry_id: EntryId) -> bytes:
        try:
            return self._log_reader.read(location, ledger_id, entry_id)
        except EntryDamagedError as error:
            self._damages.setdefault(location.log_id, str(error))
            raise
