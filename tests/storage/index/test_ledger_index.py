from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.errors import IndexDamagedError, MasterKeyMismatchError
from bkctl.storage.index.ledger_index import LedgerIndex, LedgerRow, encode_row, is_placeholder_key
from bkctl.storage.index.seal import SealedIndex, create_sealed_index
from tests.storage.engines import KEY, explicit_lac
from tests.storage.traced_disk import TracedDisk

OTHER_KEY = b"o" * 20
ZERO_KEY = bytes(20)
FLAGS_KEY = struct.pack(">q", -0xEEFD)


def short_key(ledger_id: int) -> bytes:
    return struct.pack(">q", ledger_id)


def long_key(ledger_id: int) -> bytes:
    return struct.pack(">qq", ledger_id, 0)


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SealedIndex]:
    sealed = create_sealed_index(TracedDisk(), open_plyvel, str(tmp_path / "db"))
    yield sealed
    sealed.close()


@pytest.fixture
def index(rows: SealedIndex) -> LedgerIndex:
    return LedgerIndex.load(rows)


def stored(rows: SealedIndex) -> dict[bytes, bytes]:
    return dict(rows.scan(b"", b"\x80"))


@pytest.mark.parametrize(
    ("old", "new", "kept", "is_changed"),
    [
        (None, KEY, KEY, True),
        (None, b"", b"", True),
        (KEY, KEY, KEY, False),
        (b"", KEY, KEY, True),
        (ZERO_KEY, KEY, KEY, True),
        (KEY, b"", KEY, False),
        (KEY, ZERO_KEY, KEY, False),
        (b"", ZERO_KEY, b"", False),
        (ZERO_KEY, b"", ZERO_KEY, False),
    ],
)
def test_set_master_key(index: LedgerIndex, old: bytes | None, new: bytes, kept: bytes, is_changed: bool) -> None:
    """All rows of storage section 5.2."""
    if old is not None:
        index.set_master_key(5, old)
    assert index.set_master_key(5, new) is is_changed
    row = index.find(5)
    assert row is not None
    assert row.master_key == kept


def test_another_master_key_is_refused(index: LedgerIndex) -> None:
    index.set_master_key(5, KEY)
    with pytest.raises(MasterKeyMismatchError):
        index.set_master_key(5, OTHER_KEY)
    assert index.find(5) == LedgerRow(master_key=KEY)


def test_a_key_does_not_lift_a_fence(index: LedgerIndex) -> None:
    assert index.set_fenced(5)
    assert not index.set_fenced(5)
    assert index.set_master_key(5, KEY)
    assert index.find(5) == LedgerRow(master_key=KEY, is_fenced=True)


def test_explicit_lac_of_an_unknown_ledger_is_not_kept(index: LedgerIndex) -> None:
    assert not index.set_explicit_lac(5, explicit_lac(5, 1))
    assert index.find(5) is None
    assert index.take_changes() == {}


@pytest.mark.parametrize("key", [b"", bytes(1), ZERO_KEY])
def test_placeholder_keys(key: bytes) -> None:
    assert is_placeholder_key(key)
    assert not is_placeholder_key(key + b"\1")


@pytest.mark.parametrize(
    "row",
    [
        LedgerRow(),
        LedgerRow(master_key=KEY),
        LedgerRow(master_key=KEY, is_fenced=True, is_limbo=True, explicit_lac=explicit_lac(5, 3)),
        LedgerRow(explicit_lac=b""),
    ],
)
def test_rows_come_back(rows: SealedIndex, row: LedgerRow) -> None:
    LedgerIndex.load(rows).write({5: row})
    assert LedgerIndex.load(rows).find(5) == row


def test_changes_reach_the_database_only_by_write(rows: SealedIndex, index: LedgerIndex) -> None:
    index.set_master_key(5, KEY)
    index.set_master_key(6, KEY)
    assert stored(rows) == {}
    index.set_fenced(6)
    index.delete(5)
    changes = index.take_changes()
    assert index.take_changes() == {}
    index.write(changes)
    assert stored(rows) == {short_key(6): encode_row(LedgerRow(master_key=KEY, is_fenced=True))}
    assert list(index) == [6]


def test_many_changes_are_written_in_bounded_batches(rows: SealedIndex, index: LedgerIndex) -> None:
    index.write({ledger_id: LedgerRow() for ledger_id in range(10)}, batch_row_count_max=3)
    assert len(LedgerIndex.load(rows)) == 10
    assert len(list(rows.scan(b"\xffseal", b"\xffseam"))) == 1 + 4


@pytest.mark.parametrize("order", ["long first", "short first"])
def test_short_keys_are_preferred_to_long_ones(rows: SealedIndex, order: str) -> None:
    """H12: an index rebuilt by Java holds 16-byte keys, and updates add 8-byte ones beside them."""
    pairs = [
        (long_key(5), encode_row(LedgerRow(is_fenced=True))),
        (short_key(5), encode_row(LedgerRow(master_key=KEY, is_fenced=True))),
    ]
    for pair in pairs if order == "long first" else reversed(pairs):
        rows.write([pair])
    index = LedgerIndex.load(rows)
    assert index.find(5) == LedgerRow(master_key=KEY, is_fenced=True)


@pytest.mark.parametrize("has_short", [True, False])
def test_a_long_key_ends_with_the_first_change(rows: SealedIndex, has_short: bool) -> None:
    rows.write([(long_key(5), encode_row(LedgerRow())), (long_key(6), encode_row(LedgerRow()))])
    if has_short:
        rows.write([(short_key(5), encode_row(LedgerRow())), (short_key(6), encode_row(LedgerRow()))])
    index = LedgerIndex.load(rows)
    index.set_fenced(5)
    index.delete(6)
    index.write(index.take_changes())
    assert stored(rows) == {short_key(5): encode_row(LedgerRow(is_fenced=True))}


def test_negative_keys_are_not_ledgers_and_are_left_alone(rows: SealedIndex) -> None:
    rows.write([(FLAGS_KEY, struct.pack(">q", 1)), (short_key(5), encode_row(LedgerRow()))])
    index = LedgerIndex.load(rows)
    index.set_fenced(5)
    index.write(index.take_changes())
    assert list(LedgerIndex.load(rows)) == [5]
    assert rows.get(FLAGS_KEY) == struct.pack(">q", 1)


def test_a_row_that_says_it_does_not_exist(rows: SealedIndex) -> None:
    rows.write([(short_key(5), bytes.fromhex("080010001a00"))])
    assert list(LedgerIndex.load(rows)) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (short_key(5), b""),
        (short_key(5), b"\xff"),
        (short_key(5)[:7], encode_row(LedgerRow())),
        (short_key(5) + b"\0" * 7, encode_row(LedgerRow())),
        (short_key(5) + b"\0" * 7 + b"\1", encode_row(LedgerRow())),
    ],
)
def test_what_is_no_row_is_damage(rows: SealedIndex, key: bytes, value: bytes) -> None:
    rows.write([(key, value)])
    with pytest.raises(IndexDamagedError):
        LedgerIndex.load(rows)


def test_ledgers_in_limbo_are_counted(index: LedgerIndex, rows: SealedIndex) -> None:
    for ledger_id in range(4):
        index.create_row(ledger_id, is_fenced=True, is_limbo=ledger_id > 0)
    index.create_row(1, is_fenced=True, is_limbo=True)
    index.set_limbo(0, is_limbo=True)
    index.set_master_key(0, KEY)
    assert index.limbo_count == 4
    index.set_limbo(2, is_limbo=False)
    index.delete(3)
    index.delete(9)
    assert index.limbo_count == 2
    index.write(index.take_changes())
    assert LedgerIndex.load(rows).limbo_count == 2
