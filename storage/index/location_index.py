"""Where each entry of a ledger directory lies: (ledger, entry) -> (entry log, offset).

Rows are byte for byte those of storage section 5.1: key i64 ledger id, i64 entry id; value i64 location, which is the
log id in the upper and the offset of the body in the lower 32 bits. Ids are not negative, so byte order is id order.
"""

from __future__ import annotations

import bisect
import itertools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from storage.errors import IndexDamagedError, IndexFailedError, StorageError
from storage.ids import EntryId, EntryLocation, LedgerId, PackedLocation, unpack_location
from storage.index.seal import SealedIndex

KEY_BYTES: Final = 16
LOCATION_BYTES: Final = 8

_KEY = struct.Struct(">qq")
_LOCATION = struct.Struct(">q")
_ENTRY_ID_LAST = 2**63 - 1
KEY_END: Final = b"\x80"
"""Behind every key of an entry; what follows is no ledger's (storage section 5.2)."""
_NO_OFFSET = bytes(4)
"""Inside a log's header: a location with it names nothing."""


class LocationIndex:
    """The locations database of one ledger directory. Writes and deletes belong to one lane."""

    def __init__(self, rows: SealedIndex) -> None:
        self._rows = rows
        self.is_lost = False
        """Whether the database was closed for another one that could not be opened."""

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryLocation | None:
        """Location of an entry, or None when it is certainly not stored."""
        value = self._rows.store.get(_KEY.pack(ledger_id, entry_id))
        return None if value is None else self._decoded(ledger_id, entry_id, value)

    def find_last(self, ledger_id: LedgerId) -> tuple[EntryId, EntryLocation] | None:
        """Highest entry id of a ledger with its location, or None when it certainly has no row."""
        row = self._rows.floor(_KEY.pack(ledger_id, _ENTRY_ID_LAST), _KEY.pack(ledger_id, 0))
        if row is None:
            return None
        entry_id: EntryId = _KEY.unpack(row[0])[1]
        return entry_id, self._decoded(ledger_id, entry_id, row[1])

    def find_run(self, ledger_id: LedgerId, entry_id: EntryId, count_max: int) -> list[EntryLocation]:
        """Locations of an entry and of those with the next ids, up to the first that has no row; one range scan.

        Empty when the entry itself is certainly not stored.
        """
        locations: list[EntryLocation] = []
        stop = _KEY.pack(ledger_id, min(entry_id + count_max, _ENTRY_ID_LAST))
        try:
            for key, value in self._rows.scan(_KEY.pack(ledger_id, entry_id), stop):
                next_id = entry_id + len(locations)
                if _KEY.unpack(key)[1] != next_id:
                    break
                locations.append(self._decoded(ledger_id, next_id, value))
        except IndexDamagedError:
            if not locations:  # else the damage is behind what was asked for
                raise
        return locations

    def list_entries(self, ledger_id: LedgerId, first_entry_id: EntryId = 0) -> Iterator[EntryId]:
        """Entry ids of a ledger from one on, ascending, of one point in time."""
        for key, _ in self._scan(ledger_id, first_entry_id):
            yield _KEY.unpack(key)[1]

    def page(
        self, start: bytes, row_count_max: int, ledger_ids: Sequence[LedgerId] | None = None
    ) -> list[tuple[bytes, bytes]]:
        """At most so many rows from the key ``start`` on, as stored; none: there are no more.

        Of the ledgers given, ascending; None: of all. IndexDamagedError for what is no row: it may stand where the row
        of an entry was.
        """
        rows = list(itertools.islice(self._page(start, ledger_ids), row_count_max))
        for key, value in rows:
            if len(key) != KEY_BYTES or len(value) != LOCATION_BYTES or value[4:] == _NO_OFFSET:
                raise IndexDamagedError(f"{self._rows.path}: {key.hex()} has the location {value.hex()}")
        return rows

    def _page(self, start: bytes, ledger_ids: Sequence[LedgerId] | None) -> Iterator[tuple[bytes, bytes]]:
        if ledger_ids is None:
            return self._rows.scan(start, KEY_END)
        first = bisect.bisect_left(ledger_ids, int.from_bytes(start[:8], "big"))
        stretches = (
            self._rows.scan(max(start, _KEY.pack(ledger_id, 0)), _KEY.pack(ledger_id, _ENTRY_ID_LAST))
            for ledger_id in itertools.islice(ledger_ids, first, None)
        )
        return itertools.chain.from_iterable(stretches)

    def write(self, keys: bytes, locations: bytes) -> None:
        """Put rows in one durable batch: ``keys`` is n keys and ``locations`` n values, each joined, in key order."""
        self._rows.write(_split_rows(keys, locations))

    def delete_ledgers(
        self,
        first_entry_ids: Mapping[LedgerId, EntryId],
        row_count_max: int | None,
        pause: Callable[[], None],
        batch_row_count_max: int,
    ) -> dict[LedgerId, EntryId]:
        """Delete rows of ledgers, of each from an entry on, in bounded durable batches with a ``pause`` behind each.

        At most so many rows, in the order given; None: all of them. Returns what is left, to be given to the next call:
        a scan that began anew would pass over all that is deleted already. Repeatable when cut off.
        """
        rows = itertools.chain.from_iterable(itertools.starmap(self._scan, first_entry_ids.items()))
        bounded = itertools.islice(rows, row_count_max)
        while keys := [key for key, _ in itertools.islice(bounded, batch_row_count_max)]:
            self._rows.write((), keys)
            pause()
        next_row = next(rows, None)
        if next_row is None:
            return {}
        ledger_id, entry_id = _KEY.unpack(next_row[0])
        untouched = itertools.dropwhile(lambda each: each[0] != ledger_id, first_entry_ids.items())
        return dict(untouched) | {ledger_id: entry_id}

    @property
    def opening_bytes(self) -> int:
        """Room that the next write takes before it writes (``SealedIndex.opening_bytes``)."""
        return self._rows.opening_bytes

    def seal(self) -> None:
        """Record that all batches written so far must be there at every later open."""
        self._rows.record()

    def exchange(self, open_rows: Callable[[], SealedIndex]) -> None:
        """Close the database and go on with another one. Nobody may be inside a call of this object.

        IndexFailedError when the other one cannot be opened; then there is none any more, and only a restart helps.
        """
        self.is_lost = True
        self._rows.close()
        try:
            self._rows = open_rows()
            self.is_lost = False
        except (StorageError, OSError) as error:
            raise IndexFailedError(f"{self._rows.path}: cannot open the new index ({error})") from error

    def close(self) -> None:
        """Close the database; safe to repeat."""
        self._rows.close()

    def _scan(self, ledger_id: LedgerId, first_entry_id: EntryId = 0) -> Iterator[tuple[bytes, bytes]]:
        # The row of entry 2^63-1, which no bookie accepts, would be the last before the next ledger.
        return self._rows.scan(_KEY.pack(ledger_id, first_entry_id), _KEY.pack(ledger_id, _ENTRY_ID_LAST))

    def _decoded(self, ledger_id: LedgerId, entry_id: EntryId, value: bytes) -> EntryLocation:
        location = unpack_location(int.from_bytes(value, "big"))
        # A row that names nothing must not read as "not stored" either.
        if len(value) != LOCATION_BYTES or location.offset == 0:
            raise IndexDamagedError(
                f"{self._rows.path}: ledger {ledger_id} entry {entry_id} has the location {value.hex()}"
            )
        return location


def decode_row(key: bytes, value: bytes) -> tuple[LedgerId, EntryId, EntryLocation]:
    """A row as ``page`` gives it."""
    ledger_id, entry_id = _KEY.unpack(key)
    (location,) = _LOCATION.unpack(value)
    return ledger_id, entry_id, unpack_location(location)


def encode_keys(ledger_ids: Sequence[LedgerId], entry_ids: Sequence[EntryId]) -> bytes:
    """Joined keys of rows, of which each has a ledger id and an entry id."""
    ids = [*ledger_ids, *entry_ids]
    ids[::2], ids[1::2] = ledger_ids, entry_ids
    return struct.pack(f">{len(ids)}q", *ids)


def encode_locations(locations: Sequence[PackedLocation]) -> bytes:
    """Joined values of rows."""
    return struct.pack(f">{len(locations)}q", *locations)


def _split_rows(keys: bytes, locations: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Row by row, without a step of the interpreter for any of them."""
    return zip(
        itertools.chain.from_iterable(struct.iter_unpack(f"{KEY_BYTES}s", keys)),
        itertools.chain.from_iterable(struct.iter_unpack(f"{LOCATION_BYTES}s", locations)),
        strict=True,
    )
