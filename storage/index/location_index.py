"""The locations of a ledger directory's entries: (ledger, entry) -> (entry log, offset).

Rows are those of storage section 5.1, byte for byte: key i64 ledger id, i64 entry id; value i64 location, with the log
id in the upper and the offset of the body in the lower 32 bits. Ids are not negative, so byte order is id order.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from bkctl.storage.errors import IndexDamagedError, IndexFailedError, StorageError
from bkctl.storage.ids import EntryId, EntryLocation, LedgerId, LocationRun, PackedLocation, unpack_location
from bkctl.storage.index.seal import SealedIndex

KEY_BYTES: Final = 16
LOCATION_BYTES: Final = 8

_KEY = struct.Struct(">qq")
_LOCATION = struct.Struct(">q")
_ENTRY_ID_LAST = 2**63 - 1
KEY_END: Final = b"\x80"
"""Greater than the key of every entry; rows from here on belong to no ledger (storage section 5.2)."""
_COUNTED_MAX = 4096
_ROW_BYTES = 23
"""Average size of a row in the files, with its share of filters and indexes."""
_NO_OFFSET = bytes(4)
"""Offset 0 is inside a log's header, so a location with it is invalid."""


class LocationIndex:
    """The locations database of one ledger directory. Writes and deletes belong to one lane."""

    def __init__(self, rows: SealedIndex) -> None:
        self._rows = rows
        self.is_lost = False
        """Whether the database was closed to exchange it and the new one could not be opened."""
        self.row_count = _estimated_count(rows)
        """About how many entries it has: an estimate from the open, with what was written and deleted since."""

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryLocation | None:
        """Location of an entry, or None if the entry is certainly not stored."""
        value = self._rows.store.get(_KEY.pack(ledger_id, entry_id))
        return None if value is None else self._decoded(ledger_id, entry_id, value)

    def find_last(self, ledger_id: LedgerId) -> tuple[EntryId, EntryLocation] | None:
        """Highest entry id of a ledger with its location, or None if the ledger certainly has no row."""
        row = self._rows.floor(_KEY.pack(ledger_id, _ENTRY_ID_LAST), _KEY.pack(ledger_id, 0))
        if row is None:
            return None
        entry_id: EntryId = _KEY.unpack(row[0])[1]
        return entry_id, self._decoded(ledger_id, entry_id, row[1])

    def find_run(self, ledger_id: LedgerId, entry_id: EntryId, count_max: int) -> LocationRun | None:
        """Locations of an entry and of those with the next ids, up to the first without a valid row in the same log;
        one range scan, without bytecode per row.

        None if the entry itself is certainly not stored.
        """
        keys: list[bytes] = []
        values: list[bytes] = []
        try:
            for key, value in self._rows.scan(
                _KEY.pack(ledger_id, entry_id), _KEY.pack(ledger_id, min(entry_id + count_max, _ENTRY_ID_LAST))
            ):
                keys.append(key)
                values.append(value)
        except IndexDamagedError:
            if not keys:  # else the damage is after the requested entry
                raise
        entry_ids = range(entry_id, entry_id + len(keys))
        if b"".join(keys) != encode_keys([ledger_id] * len(keys), entry_ids):
            wanted = (_KEY.pack(ledger_id, next_id) for next_id in entry_ids)
            del values[sum(1 for _ in itertools.takewhile(bool, map(bytes.__eq__, keys, wanted))) :]
        if not values:
            return None
        log_id, _ = self._decoded(ledger_id, entry_id, values[0])
        del values[_leading(LOCATION_BYTES, map(len, values)) :]
        numbers = struct.unpack(f">{2 * len(values)}I", b"".join(values))
        offsets = numbers[1 : 2 * _leading(numbers[0], numbers[::2]) : 2]
        return LocationRun(log_id, offsets[: offsets.index(0)] if 0 in offsets else offsets)

    def list_entries(self, ledger_id: LedgerId, first_entry_id: EntryId = 0) -> Iterator[EntryId]:
        """Entry ids of a ledger from ``first_entry_id`` on, ascending; a snapshot of one moment."""
        for key, _ in self._scan(ledger_id, first_entry_id):
            yield _KEY.unpack(key)[1]

    def page(
        self, start: bytes, row_count_max: int, ledger_ids: Sequence[LedgerId] | None = None
    ) -> list[tuple[bytes, bytes]]:
        """At most ``row_count_max`` rows from the key ``start`` on, as stored; empty if there are no more.

        Of the ledgers given, ascending; None: of all. IndexDamagedError for a malformed row, which may have replaced
        the row of an entry.
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
        self.replace(keys, locations)
        self.row_count += len(keys) // KEY_BYTES

    def replace(self, keys: bytes, locations: bytes) -> None:
        """Like ``write``, for entries that have rows."""
        self._rows.write(_split_rows(keys, locations))

    def delete_ledgers(
        self,
        first_entry_ids: Mapping[LedgerId, EntryId],
        row_count_max: int | None,
        pause: Callable[[], None],
        batch_row_count_max: int,
    ) -> dict[LedgerId, EntryId]:
        """Delete rows of ledgers, each from an entry on, in bounded durable batches; calls ``pause`` after each.

        At most ``row_count_max`` rows, in the order given; None: all. Returns what is left, for the next call, which
        then need not scan past the rows already deleted. Safe to repeat when interrupted.
        """
        rows = itertools.chain.from_iterable(itertools.starmap(self._scan, first_entry_ids.items()))
        bounded = itertools.islice(rows, row_count_max)
        while keys := [key for key, _ in itertools.islice(bounded, batch_row_count_max)]:
            self._rows.write((), keys)
            self.row_count -= len(keys)
            pause()
        next_row = next(rows, None)
        if next_row is None:
            return {}
        ledger_id, entry_id = _KEY.unpack(next_row[0])
        untouched = itertools.dropwhile(lambda each: each[0] != ledger_id, first_entry_ids.items())
        return dict(untouched) | {ledger_id: entry_id}

    @property
    def opening_bytes(self) -> int:
        """Space that the next write needs before it writes (``SealedIndex.opening_bytes``)."""
        return self._rows.opening_bytes

    def seal(self) -> None:
        """Record that every later open must find all batches written so far."""
        self._rows.record()

    def exchange(self, open_rows: Callable[[], SealedIndex]) -> None:
        """Close the database and switch to another one. No other thread may be inside a call of this object.

        IndexFailedError when the new one cannot be opened; then there is none, and the bookie must be restarted.
        """
        self.is_lost = True
        self._rows.close()
        try:
            self._rows = open_rows()
            self.row_count = _estimated_count(self._rows)
            self.is_lost = False
        except (StorageError, OSError) as error:
            raise IndexFailedError(f"{self._rows.path}: cannot open the new index ({error})") from error

    def close(self) -> None:
        """Close the database; safe to repeat."""
        self._rows.close()

    def _scan(self, ledger_id: LedgerId, first_entry_id: EntryId = 0) -> Iterator[tuple[bytes, bytes]]:
        # Leaves out entry 2^63-1, which no bookie accepts.
        return self._rows.scan(_KEY.pack(ledger_id, first_entry_id), _KEY.pack(ledger_id, _ENTRY_ID_LAST))

    def _decoded(self, ledger_id: LedgerId, entry_id: EntryId, value: bytes) -> EntryLocation:
        location = unpack_location(int.from_bytes(value, "big"))
        # A row without a valid location must not read as "not stored" either.
        if len(value) != LOCATION_BYTES or location.offset == 0:
            raise IndexDamagedError(
                f"{self._rows.path}: ledger {ledger_id} entry {entry_id} has the location {value.hex()}"
            )
        return location


def _leading(number: int, numbers: Iterable[int]) -> int:
    """How often the number occurs before the first other one."""
    return len(list(itertools.takewhile(number.__eq__, numbers)))


def _estimated_count(rows: SealedIndex) -> int:
    """Exact for a small database; LevelDB itself counts no rows. Damage is reported by the reads that need the rows."""
    with contextlib.suppress(StorageError):
        first_count = sum(1 for _ in itertools.islice(rows.scan(b"", KEY_END), _COUNTED_MAX))
        if first_count < _COUNTED_MAX:
            return first_count
    with contextlib.suppress(OSError):  # LevelDB may delete a file that was listed
        return rows.table_bytes() // _ROW_BYTES
    return 0


def decode_row(key: bytes, value: bytes) -> tuple[LedgerId, EntryId, EntryLocation]:
    """Decode a row that ``page`` returned."""
    ledger_id, entry_id = _KEY.unpack(key)
    (location,) = _LOCATION.unpack(value)
    return ledger_id, entry_id, unpack_location(location)


def encode_keys(ledger_ids: Sequence[LedgerId], entry_ids: Sequence[EntryId]) -> bytes:
    """Joined keys of rows, each a ledger id and an entry id."""
    ids = [*ledger_ids, *entry_ids]
    ids[::2], ids[1::2] = ledger_ids, entry_ids
    return struct.pack(f">{len(ids)}q", *ids)


def encode_locations(locations: Sequence[PackedLocation]) -> bytes:
    """Joined values of rows."""
    return struct.pack(f">{len(locations)}q", *locations)


def _split_rows(keys: bytes, locations: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Rows as pairs, without bytecode per row."""
    return zip(
        itertools.chain.from_iterable(struct.iter_unpack(f"{KEY_BYTES}s", keys)),
        itertools.chain.from_iterable(struct.iter_unpack(f"{LOCATION_BYTES}s", locations)),
        strict=True,
    )
