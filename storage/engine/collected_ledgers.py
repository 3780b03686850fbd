"""Fences of existing ledgers whose local copy was collected.

The collector drops the copy of a closed ledger whose metadata no longer references this bookie, and the fence goes with
its row. A writer that does not know that the ledger is closed could then append here again. So the bookie first records
the ledger id in ``bkctl.collected`` next to the entry logs, outside the index. It refuses ordinary adds to such a
ledger and fences every new row of it. The id is removed when the ledger is gone from the metadata.

Layout: the 16 bytes ``bkctl.collected1``, then one record of 16 bytes per ledger, in any order: i64 ledger id, and the
same 8 bytes inverted. An append is one record and one sync, so only the last record can be torn. A short or invalid
last record was never synced and its copy was not dropped; the next append overwrites it. An invalid record anywhere
else is damage.
"""

from __future__ import annotations

import bisect
import os
import sys
from array import array
from collections.abc import Collection, Iterable
from typing import Final

from bkctl.storage.errors import CorruptFileError, StorageError
from bkctl.storage.filenames import COLLECTED
from bkctl.storage.ids import LedgerId
from bkctl.storage.ports import FileSystem

HEADER: Final = b"bkctl.collected1"
RECORD_BYTES: Final = 16

COLLECTED_ADVICE: Final = (
    "fences of this bookie are lost: remove it with `bkctl decommission`, then start it with empty directories"
)


def encode_collected(ledger_ids: Iterable[LedgerId]) -> bytes:
    """Encode the records of ledgers, without the header."""
    numbers = array("q", (number for ledger_id in ledger_ids for number in (ledger_id, ~ledger_id)))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def decode_collected(path: str, data: bytes) -> array[int]:
    """Ids in a file, in file order, without a torn record at the end. CorruptFileError for damage."""
    if not data.startswith(HEADER):
        raise CorruptFileError(path, 0, "not a list of collected ledgers", COLLECTED_ADVICE)
    numbers = array("q")
    numbers.frombytes(data[len(HEADER) : len(data) - (len(data) - len(HEADER)) % RECORD_BYTES])
    if sys.byteorder == "little":
        numbers.byteswap()
    ids, checks = numbers[0::2], numbers[1::2]
    invalid = [index for index, pair in enumerate(zip(ids, checks, strict=True)) if pair[0] != ~pair[1] or pair[0] < 0]
    is_end_whole = (len(data) - len(HEADER)) % RECORD_BYTES == 0
    if invalid == [len(ids) - 1] and is_end_whole:
        ids.pop()
    elif invalid:
        offset = len(HEADER) + invalid[0] * RECORD_BYTES
        raise CorruptFileError(path, offset, "a damaged record of a collected ledger", COLLECTED_ADVICE)
    return ids


class CollectedLedgers:
    """The collected ledgers of one ledger directory. The loop reads and changes them; the file belongs to one lane.

    Memory is bounded: 8 bytes for each ledger in the file at open, more only for those added since.
    """

    def __init__(self, fs: FileSystem, directory: str) -> None:
        self._fs = fs
        self.path = os.path.join(directory, COLLECTED)
        self._ids = array("q")
        """Ascending; never changed in place."""
        self._added: set[LedgerId] = set()
        self._end_bytes = 0
        """Offset in the file after its last valid record; 0 while there is none."""
        self.is_rewrite_due = False
        """Whether a write failed: the file's content is unknown until the file is replaced."""

    @classmethod
    def open(cls, fs: FileSystem, directory: str) -> CollectedLedgers:
        """Read the file of a ledger directory (``current``); without one, no ids. CorruptFileError, OSError."""
        collected = cls(fs, directory)
        try:
            data = fs.read_file(collected.path)
        except FileNotFoundError:
            return collected
        ids = decode_collected(collected.path, data)
        collected._end_bytes = len(HEADER) + len(ids) * RECORD_BYTES
        collected._ids = array("q", sorted(ids))
        return collected

    # Loop side

    def __contains__(self, ledger_id: object) -> bool:
        if not isinstance(ledger_id, int) or ledger_id in self._added:
            return ledger_id in self._added
        position = bisect.bisect_left(self._ids, ledger_id)
        return position < len(self._ids) and self._ids[position] == ledger_id

    def ids(self) -> Iterable[LedgerId]:
        """All ids, unordered."""
        yield from self._ids
        yield from self._added

    def note(self, ledger_id: LedgerId) -> None:
        """Add a ledger whose record ``append`` has made durable."""
        self._added.add(ledger_id)

    def replace(self, ids: array[int]) -> None:
        """Use the ids that ``rewrite`` returned."""
        self._ids, self._added = ids, set()

    # Lane side

    def append(self, ledger_id: LedgerId) -> None:
        """Make the record of a ledger durable. StorageError if it may not be: its copy must then be kept."""
        if self.is_rewrite_due:
            raise StorageError(f"{self.path}: an earlier write failed; the file must be replaced first")
        self.is_rewrite_due = True
        record = encode_collected([ledger_id])
        try:
            if not self._end_bytes:
                self._fs.write_file_atomically(self.path, HEADER + record)
                self._end_bytes = len(HEADER)
            else:
                file = self._fs.open(self.path, writable=True)
                try:
                    file.pwrite(record, self._end_bytes)
                    file.sync_data()
                finally:
                    file.close()
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}; kept the copy of ledger {ledger_id}") from error
        self._end_bytes += RECORD_BYTES
        self.is_rewrite_due = False

    def rewrite(self, gone: Collection[LedgerId]) -> array[int]:
        """Replace the file by one without these ledgers, or remove it; returns the rest, for ``replace``. OSError."""
        kept = array("q", sorted(each for each in self.ids() if each not in gone))
        self.is_rewrite_due = True
        if kept:
            self._fs.write_file_atomically(self.path, HEADER + encode_collected(kept))
            self._end_bytes = len(HEADER) + len(kept) * RECORD_BYTES
        else:
            if self._fs.exists(self.path):
                self._fs.remove(self.path)
            self._fs.sync_directory(os.path.dirname(self.path))
            self._end_bytes = 0
        self.is_rewrite_due = False
        return kept
