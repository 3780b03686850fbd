"""The state of each ledger in addition to its entries: key, fence, limbo, explicit LAC.

A change goes to memory immediately and to the database with the next checkpoint (storage section 5.2). All ids are in
memory, in a few bytes each. Of the rows, those are in memory that are not yet in the database, and those used last: the
others are read again when they are needed. Rows that are larger than a client can make them are never kept.

Keys are i64 ledger ids; rows with a negative one are not ledgers (storage flags, seals) and are ignored.
"""

from __future__ import annotations

import itertools
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from bkctl.storage.errors import IndexDamagedError, MasterKeyMismatchError
from bkctl.storage.ids import EntryId, LedgerId
from bkctl.storage.index.id_set import IdSet
from bkctl.storage.index.ledger_data_pb2 import LedgerData
from bkctl.storage.index.seal import SealedIndex, advising_repair

_KEY = struct.Struct(">q")
_LONG_KEY_TAIL = bytes(8)
_FLAGS = struct.Struct(">q")
_FLAGS_KEY = _KEY.pack(-0xEEFD)

EXPLICIT_LAC_BYTES_MIN = 16
"""Minimum of an explicit-LAC request's body: i64 ledger id, i64 LAC; the digest after them is for clients."""
_EXPLICIT_LAC = struct.Struct(">8xq")

NEEDS_INTEGRITY_CHECK = 1
"""Storage flag: entries may be missing on this bookie and not all are repaired yet (storage section 5.2)."""
LEDGERS_NOTED = 2
"""Storage flag: the rows of the ledgers concerned are marked (limbo). An offline rebuild or an adoption cannot know all
of them and leaves it unset; the next boot then marks them. bkctl only: Java never reads this database."""

_NOT_LEDGERS = b"\x80"
"""Keys from here on have negative ids."""
_BATCH_ROW_COUNT_MAX = 4096

ROW_OVERHEAD_BYTES: Final = 448
"""Memory of a row in addition to its key and explicit LAC, with what else is in memory for its ledger (measured)."""
KEPT_BYTES_MAX: Final = 100
"""Key and explicit LAC of a row that is kept: 64 and 36 bytes, the largest that a request can bring."""


class LedgerRow(msgspec.Struct, frozen=True):
    """One ledger on this bookie."""

    master_key: bytes = b""
    """Empty or all zero: a placeholder that the next real key replaces (storage section 6.1)."""
    is_fenced: bool = False
    is_limbo: bool = False
    """Entries may have been lost here: answer "unknown", never "no such entry"."""
    explicit_lac: bytes | None = None
    """Body of the last explicit-LAC request, unchanged: i64 ledger id, i64 LAC, digest."""

    def raised(self, *, is_fenced: bool, is_limbo: bool) -> LedgerRow:
        """The row with these flags added."""
        return msgspec.structs.replace(self, is_fenced=self.is_fenced or is_fenced, is_limbo=self.is_limbo or is_limbo)


LedgerRowChanges: TypeAlias = Mapping[LedgerId, LedgerRow | None]
"""Last state of each changed row; None: delete it."""


class LedgerIndex:
    """The rows of one ledger directory. Only the loop uses them; ``write`` belongs to one lane, ``read`` to any."""

    def __init__(self, rows: SealedIndex, collected: Container[LedgerId] = (), bytes_max: int | None = None) -> None:
        """Without rows: see ``load``."""
        self._rows = rows
        self._collected = collected
        self._ids = IdSet()
        self.limbo_ids = IdSet()
        """Ledgers in limbo; only to be read."""
        self._long_key_ids = IdSet()
        """Only for the lane of ``write``."""
        self.half_deleted: frozenset[LedgerId] = frozenset()
        """Ledgers whose deletion a crash interrupted: locations that are left must still be deleted."""
        self._is_limited = bytes_max is not None
        self.bytes_max = sys.maxsize if bytes_max is None else bytes_max
        self._kept: OrderedDict[LedgerId, LedgerRow] = OrderedDict()
        """Rows used last, the oldest use first; also changed ones."""
        self._kept_bytes = 0
        self._changes: dict[LedgerId, LedgerRow | None] = {}
        self.changed_bytes = 0
        """Memory of the rows changed since ``take_changes``."""
        self._taken: LedgerRowChanges = {}
        """Changes that a checkpoint is writing."""
        self._taken_bytes = 0
        self.on_dropped: Callable[[LedgerId], object] = _ignore
        """Called with each ledger whose row leaves the memory."""

    @classmethod
    def load(
        cls, rows: SealedIndex, collected: Container[LedgerId] = (), *, bytes_max: int | None = None
    ) -> LedgerIndex:
        """Read every row; IndexDamagedError, with the fix, for a damaged row or one that is not a ledger's.

        ``collected``: ledgers that are always fenced, even if their rows say otherwise or are created again.
        ``bytes_max``: memory for rows; a quarter each for the changes before and during a checkpoint, the rest for the
        rows used last. None: all rows stay in memory, so ``rows`` may be closed.
        """
        index = cls(rows, collected, bytes_max)
        half_deleted: set[LedgerId] = set()
        short_key_id = -1
        with advising_repair():
            for key, value in rows.scan(b"", _NOT_LEDGERS):
                ledger_id: LedgerId = _KEY.unpack_from(key)[0] if len(key) >= _KEY.size else -1
                is_long = key[_KEY.size :] == _LONG_KEY_TAIL
                if ledger_id < 0 or (len(key) > _KEY.size and not is_long):
                    raise IndexDamagedError(f"{rows.path}: {key.hex()} is not the key of a ledger")
                if is_long:
                    index._long_key_ids.add(ledger_id)
                # Java's index rebuild writes 16-byte keys and its updates 8-byte ones, so the short row is the newer.
                if is_long and ledger_id == short_key_id:
                    continue
                short_key_id = ledger_id
                row = _decode_row(rows.path, ledger_id, value)
                if row is None:
                    half_deleted.add(ledger_id)
                    continue
                index._ids.add(ledger_id)
                if row.is_limbo:
                    index.limbo_ids.add(ledger_id)
                index._keep(ledger_id, _fenced_if_collected(row, ledger_id, collected))
        index.half_deleted = frozenset(half_deleted)
        return index

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[LedgerId]:
        return iter(self._ids)

    def __contains__(self, ledger_id: object) -> bool:
        return ledger_id in self._kept or ledger_id in self._ids

    @property
    def limbo_count(self) -> int:
        """Number of ledgers in limbo."""
        return len(self.limbo_ids)

    @property
    def memory_bytes(self) -> int:
        """Memory of the rows that are in it."""
        return self._kept_bytes + self.changed_bytes + self._taken_bytes

    @property
    def has_room(self) -> bool:
        """Whether there is memory for another changed row."""
        return self.changed_bytes + ROW_OVERHEAD_BYTES + KEPT_BYTES_MAX <= self.bytes_max // 4

    @property
    def is_filling_up(self) -> bool:
        """Whether half of the memory for changed rows is used."""
        return self.changed_bytes >= self.bytes_max // 8

    def find(self, ledger_id: LedgerId) -> LedgerRow | None:
        """Row of a ledger, or None. Reads it if it is not in memory (``needs_read``): StorageError."""
        row = self._kept.get(ledger_id)
        if row is not None:
            self._kept.move_to_end(ledger_id)
            return row
        if ledger_id not in self._ids:
            return None
        row = self.pending(ledger_id) or self.read(ledger_id)
        self._keep(ledger_id, row)
        return row

    def pending(self, ledger_id: LedgerId) -> LedgerRow | None:
        """A row that is not yet in the database. Another object means that it was changed in between."""
        return self._changes[ledger_id] if ledger_id in self._changes else self._taken.get(ledger_id)

    def needs_read(self, ledger_id: LedgerId) -> bool:
        """Whether ``find`` would read the database."""
        return ledger_id not in self._kept and ledger_id in self._ids and self.pending(ledger_id) is None

    def read(self, ledger_id: LedgerId) -> LedgerRow:
        """Read a row from the database, for a ledger with ``needs_read``; in any thread. StorageError."""
        key = _KEY.pack(ledger_id)
        value = self._rows.get(key)
        if value is None:
            value = self._rows.get(key + _LONG_KEY_TAIL)
        row = None if value is None else _decode_row(self._rows.path, ledger_id, value)
        if row is None:
            raise IndexDamagedError(f"{self._rows.path}: the row of ledger {ledger_id} is no longer there")
        return _fenced_if_collected(row, ledger_id, self._collected)

    def note_read(self, ledger_id: LedgerId, row: LedgerRow) -> None:
        """Keep a row from ``read``. The caller makes sure that no checkpoint has ended and no row was deleted since."""
        if self.needs_read(ledger_id):
            self._keep(ledger_id, row)

    def holds_key(self, ledger_id: LedgerId, master_key: bytes) -> bool:
        """Whether ``set_master_key`` would change nothing."""
        row = self.find(ledger_id)
        return row is not None and (row.master_key == master_key or is_placeholder_key(master_key))

    def is_kept(self, ledger_id: LedgerId) -> bool:
        """Whether the row is among those used last; otherwise ``on_dropped`` does not report it."""
        return ledger_id in self._kept

    def set_master_key(self, ledger_id: LedgerId, master_key: bytes) -> bool:
        """Store a ledger's key by the rules of storage section 5.2, creating the row if absent.

        Returns whether the row is new or changed. MasterKeyMismatchError: the ledger has another key. A placeholder for
        a ledger that has a key changes nothing and raises no error; callers that must prove ownership compare the
        stored key themselves.
        """
        row = self.find(ledger_id)
        if row is None:
            self._put(ledger_id, LedgerRow(master_key=master_key))
            return True
        if row.master_key == master_key or is_placeholder_key(master_key):
            return False
        if not is_placeholder_key(row.master_key):
            raise MasterKeyMismatchError(f"ledger {ledger_id} is stored under another master key")
        self._put(ledger_id, msgspec.structs.replace(row, master_key=master_key))
        return True

    def set_fenced(self, ledger_id: LedgerId) -> bool:
        """Fence a ledger permanently, with an empty key if it has no row (H3). Returns whether that is new."""
        row = self.find(ledger_id)
        if row is not None and row.is_fenced:
            return False
        self._put(ledger_id, msgspec.structs.replace(row or LedgerRow(), is_fenced=True))
        return True

    def set_explicit_lac(self, ledger_id: LedgerId, body: bytes) -> bool:
        """Store the body of an explicit-LAC request. Returns False, with nothing stored, for an unknown ledger."""
        row = self.find(ledger_id)
        if row is None:
            return False
        self._put(ledger_id, msgspec.structs.replace(row, explicit_lac=body))
        return True

    def set_limbo(self, ledger_id: LedgerId, *, is_limbo: bool) -> bool:
        """Begin or end a ledger's limbo. Returns whether that changed anything; False for an unknown ledger."""
        row = self.find(ledger_id)
        if row is None or row.is_limbo == is_limbo:
            return False
        self._put(ledger_id, msgspec.structs.replace(row, is_limbo=is_limbo))
        return True

    def create_row(self, ledger_id: LedgerId, *, is_fenced: bool, is_limbo: bool) -> bool:
        """Ensure that a ledger has a row, with an empty key if it is new, and add these flags to it.

        Returns whether the row is new or changed.
        """
        row = self.find(ledger_id)
        wanted = (row or LedgerRow()).raised(is_fenced=is_fenced, is_limbo=is_limbo)
        if row == wanted:
            return False
        self._put(ledger_id, wanted)
        return True

    def delete(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's row."""
        self._drop(ledger_id)
        self._ids.discard(ledger_id)
        self.limbo_ids.discard(ledger_id)
        self._change(ledger_id, None)

    def take_changes(self) -> LedgerRowChanges:
        """The changes since the last call, for a checkpoint, until ``note_written``; they no longer change."""
        self._taken, self._changes = self._changes, {}
        self._taken_bytes, self.changed_bytes = self.changed_bytes, 0
        return self._taken

    def note_written(self) -> None:
        """Note that the changes that were taken are in the database."""
        self._taken, self._taken_bytes = {}, 0

    def write(self, changes: LedgerRowChanges, *, batch_row_count_max: int = _BATCH_ROW_COUNT_MAX) -> None:
        """Make changed rows durable, in bounded batches."""
        rows = ((ledger_id, None if row is None else encode_row(row)) for ledger_id, row in changes.items())
        self._write(rows, batch_row_count_max)

    def begin_deletes(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Replace rows by a marker that their ledgers are being deleted, until ``write`` replaces it.

        A ledger that is used again must not find locations of the deleted one, not even after a crash.
        """
        self._write(((ledger_id, _HALF_DELETED) for ledger_id in ledger_ids), _BATCH_ROW_COUNT_MAX)

    def _write(self, values: Iterator[tuple[LedgerId, bytes | None]], batch_row_count_max: int) -> None:
        while batch := list(itertools.islice(values, batch_row_count_max)):
            puts = [(_KEY.pack(ledger_id), value) for ledger_id, value in batch if value is not None]
            deletes = [_KEY.pack(ledger_id) for ledger_id, value in batch if value is None]
            # A row with a long key would survive the deletion, or restore an older state of the ledger (H12).
            outdated = [ledger_id for ledger_id, _ in batch if ledger_id in self._long_key_ids]
            deletes += [_KEY.pack(ledger_id) + _LONG_KEY_TAIL for ledger_id in outdated]
            self._rows.write(puts, deletes)
            for ledger_id in outdated:
                self._long_key_ids.discard(ledger_id)

    def read_flags(self) -> int:
        """Flags of the whole bookie (storage section 5.2); 0 if none was ever written."""
        value = self._rows.get(_FLAGS_KEY)
        if value is None:
            return 0
        if len(value) != _FLAGS.size:
            raise IndexDamagedError(f"{self._rows.path}: the storage flags are {value.hex()}")
        flags: int = _FLAGS.unpack(value)[0]
        return flags

    def write_flags(self, flags: int) -> None:
        """Replace the flags durably. Like ``write`` it belongs to one lane, so there is no concurrent change."""
        self._rows.write([flags_row(flags)])
        self._rows.record()

    @property
    def opening_bytes(self) -> int:
        """Space that the next write needs before it writes (``SealedIndex.opening_bytes``)."""
        return self._rows.opening_bytes

    def seal(self) -> None:
        """Record that every later open must find all batches written so far."""
        self._rows.record()

    def close(self) -> None:
        """Close the database; safe to repeat."""
        self._rows.close()

    def _put(self, ledger_id: LedgerId, row: LedgerRow) -> None:
        assert ledger_id >= 0, f"ledger id {ledger_id}"
        row = _fenced_if_collected(row, ledger_id, self._collected)
        if ledger_id not in self._kept:
            self._ids.add(ledger_id)
        if row.is_limbo:
            self.limbo_ids.add(ledger_id)
        else:
            self.limbo_ids.discard(ledger_id)
        self._change(ledger_id, row)
        self._keep(ledger_id, row)

    def _change(self, ledger_id: LedgerId, row: LedgerRow | None) -> None:
        self.changed_bytes += _memory_bytes(row) - _memory_bytes(self._changes.get(ledger_id))
        self._changes[ledger_id] = row

    def _keep(self, ledger_id: LedgerId, row: LedgerRow) -> None:
        """Note that a row was used; rows that were not used for longest are dropped for it."""
        before = self._kept.pop(ledger_id, None)
        self._kept_bytes += _memory_bytes(row) - _memory_bytes(before)
        self._kept[ledger_id] = row
        if not self._is_limited:
            return
        if _memory_bytes(row) > ROW_OVERHEAD_BYTES + KEPT_BYTES_MAX:
            self._drop(ledger_id)
        while self._kept_bytes > self.bytes_max // 2:
            self._drop(next(iter(self._kept)))

    def _drop(self, ledger_id: LedgerId) -> None:
        row = self._kept.pop(ledger_id, None)
        self._kept_bytes -= _memory_bytes(row)
        if row is not None:
            self.on_dropped(ledger_id)


def _memory_bytes(row: LedgerRow | None) -> int:
    return 0 if row is None else ROW_OVERHEAD_BYTES + len(row.master_key) + len(row.explicit_lac or b"")


def _ignore(_ledger_id: LedgerId) -> None:
    """Nothing else is in memory for the ledger."""


def is_placeholder_key(master_key: bytes) -> bool:
    """Whether a key means "not known yet": empty or all zero (storage section 6.1)."""
    return not any(master_key)


def explicit_lac_of(body: bytes) -> EntryId:
    """The LAC in a body of at least ``EXPLICIT_LAC_BYTES_MIN`` bytes."""
    last_add_confirmed: EntryId = _EXPLICIT_LAC.unpack_from(body)[0]
    return last_add_confirmed


def flags_row(flags: int) -> tuple[bytes, bytes]:
    """Key and value of the storage flags."""
    return _FLAGS_KEY, _FLAGS.pack(flags)


def encode_row(row: LedgerRow) -> bytes:
    """Value of a row in the database."""
    return LedgerData(
        exists=True,
        fenced=row.is_fenced,
        masterKey=row.master_key,
        explicitLac=row.explicit_lac,
        limbo=row.is_limbo or None,
    ).SerializeToString(deterministic=True)


def _fenced_if_collected(row: LedgerRow, ledger_id: LedgerId, collected: Container[LedgerId]) -> LedgerRow:
    is_unfenced = not row.is_fenced and ledger_id in collected
    return row.raised(is_fenced=True, is_limbo=False) if is_unfenced else row


_HALF_DELETED = LedgerData(exists=False, fenced=False, masterKey=b"").SerializeToString(deterministic=True)


def _decode_row(path: str, ledger_id: LedgerId, value: bytes) -> LedgerRow | None:
    """Decode a row's value; None if it says that the ledger does not exist."""
    data = LedgerData()
    try:
        data.ParseFromString(value)
    except DecodeError as error:
        raise IndexDamagedError(f"{path}: cannot parse the row of ledger {ledger_id}: {value.hex()}") from error
    # Protobuf's C parser accepts a message without its required fields.
    if not data.IsInitialized():
        raise IndexDamagedError(f"{path}: the row of ledger {ledger_id} misses a field: {value.hex()}")
    if not data.exists:
        return None
    return LedgerRow(
        master_key=data.masterKey,
        is_fenced=data.fenced,
        is_limbo=data.limbo,
        explicit_lac=data.explicitLac if data.HasField("explicitLac") else None,
    )
