"""The state of each ledger in addition to its entries: key, fence, limbo, explicit LAC.

All rows are in memory; a change goes to memory immediately and to the database with the next checkpoint (storage
section 5.2). Keys are i64 ledger ids; rows with a negative one are not ledgers (storage flags, seals) and are ignored.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec
from google.protobuf.message import DecodeError

from storage.errors import IndexDamagedError, MasterKeyMismatchError
from storage.ids import EntryId, LedgerId
from storage.index.ledger_data_pb2 import LedgerData
from storage.index.seal import SealedIndex, advising_repair

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
    """The rows of one ledger directory. Only the loop reads and changes them; ``write`` belongs to one lane."""

    def __init__(
        self,
        rows: SealedIndex,
        ledgers: dict[LedgerId, LedgerRow],
        long_key_ids: set[LedgerId],
        half_deleted: frozenset[LedgerId],
        collected: Container[LedgerId] = (),
    ) -> None:
        self._rows = rows
        self._ledgers = ledgers
        self._long_key_ids = long_key_ids
        self.half_deleted = half_deleted
        """Ledgers whose deletion a crash interrupted: locations that are left must still be deleted."""
        self._collected = collected
        self._changes: dict[LedgerId, LedgerRow | None] = {}
        self.limbo_count = sum(row.is_limbo for row in ledgers.values())
        """Number of ledgers in limbo."""
        self.find = ledgers.get
        """Row of a ledger, or None. The dict's own method, because every add calls it."""

    @classmethod
    def load(cls, rows: SealedIndex, collected: Container[LedgerId] = ()) -> LedgerIndex:
        """Read every row; IndexDamagedError, with the fix, for a damaged row or one that is not a ledger's.

        ``collected``: ledgers that are always fenced, even if their rows say otherwise or are created again.
        """
        ledgers: dict[LedgerId, LedgerRow] = {}
        half_deleted: set[LedgerId] = set()
        short_key_ids: set[LedgerId] = set()
        long_key_ids: set[LedgerId] = set()
        with advising_repair():
            for key, value in rows.scan(b"", _NOT_LEDGERS):
                ledger_id: LedgerId = _KEY.unpack_from(key)[0] if len(key) >= _KEY.size else -1
                is_long = key[_KEY.size :] == _LONG_KEY_TAIL
                if ledger_id < 0 or (len(key) > _KEY.size and not is_long):
                    raise IndexDamagedError(f"{rows.path}: {key.hex()} is not the key of a ledger")
                # Java's index rebuild writes 16-byte keys and its updates 8-byte ones, so the short row is the newer.
                (long_key_ids if is_long else short_key_ids).add(ledger_id)
                if is_long and ledger_id in short_key_ids:
                    continue
                row = _decode_row(rows.path, ledger_id, value)
                if row is not None:
                    ledgers[ledger_id] = _fenced_if_collected(row, ledger_id, collected)
                else:
                    half_deleted.add(ledger_id)
        return cls(rows, ledgers, long_key_ids, frozenset(half_deleted), collected)

    def __len__(self) -> int:
        return len(self._ledgers)

    def __iter__(self) -> Iterator[LedgerId]:
        return iter(self._ledgers)

    def set_master_key(self, ledger_id: LedgerId, master_key: bytes) -> bool:
        """Store a ledger's key by the rules of storage section 5.2, creating the row if absent.

        Returns whether the row is new or changed. MasterKeyMismatchError: the ledger has another key. A placeholder for
        a ledger that has a key changes nothing and raises no error; callers that must prove ownership compare the
        stored key themselves.
        """
        row = self._ledgers.get(ledger_id)
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
        row = self._ledgers.get(ledger_id)
        if row is not None and row.is_fenced:
            return False
        self._put(ledger_id, msgspec.structs.replace(row or LedgerRow(), is_fenced=True))
        return True

    def set_explicit_lac(self, ledger_id: LedgerId, body: bytes) -> bool:
        """Store the body of an explicit-LAC request. Returns False, with nothing stored, for an unknown ledger."""
        row = self._ledgers.get(ledger_id)
        if row is None:
            return False
        self._put(ledger_id, msgspec.structs.replace(row, explicit_lac=body))
        return True

    def set_limbo(self, ledger_id: LedgerId, *, is_limbo: bool) -> bool:
        """Begin or end a ledger's limbo. Returns whether that changed anything; False for an unknown ledger."""
        row = self._ledgers.get(ledger_id)
        if row is None or row.is_limbo == is_limbo:
            return False
        self._put(ledger_id, msgspec.structs.replace(row, is_limbo=is_limbo))
        return True

    def create_row(self, ledger_id: LedgerId, *, is_fenced: bool, is_limbo: bool) -> bool:
        """Ensure that a ledger has a row, with an empty key if it is new, and add these flags to it.

        Returns whether the row is new or changed.
        """
        row = self._ledgers.get(ledger_id)
        wanted = (row or LedgerRow()).raised(is_fenced=is_fenced, is_limbo=is_limbo)
        if row == wanted:
            return False
        self._put(ledger_id, wanted)
        return True

    def delete(self, ledger_id: LedgerId) -> None:
        """Delete a ledger's row."""
        row = self._ledgers.pop(ledger_id, None)
        self.limbo_count -= row is not None and row.is_limbo
        self._changes[ledger_id] = None

    def take_changes(self) -> LedgerRowChanges:
        """The changes since the last call, for a checkpoint; the caller owns them afterwards."""
        changes, self._changes = self._changes, {}
        return changes

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
            self._long_key_ids.difference_update(outdated)

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
        before = self._ledgers.get(ledger_id)
        self.limbo_count += row.is_limbo - (before is not None and before.is_limbo)
        self._ledgers[ledger_id] = row
        self._changes[ledger_id] = row


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
