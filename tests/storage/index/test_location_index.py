from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.ids import EntryLocation, pack_location
from bkctl.storage.index.location_index import LocationIndex, encode_keys, encode_locations
from bkctl.storage.index.seal import SealedIndex, create_sealed_index, open_sealed_index
from tests.storage.traced_disk import TracedDisk


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[SealedIndex]:
    sealed = create_sealed_index(TracedDisk(), open_plyvel, str(tmp_path / "db"))
    yield sealed
    sealed.close()


@pytest.fixture
def index(rows: SealedIndex) -> LocationIndex:
    return LocationIndex(rows)


def put(index: LocationIndex, ledger_id: int, *entry_ids: int) -> None:
    locations = [pack_location(EntryLocation(1, 1028 + entry_id)) for entry_id in entry_ids]
    index.write(encode_keys([ledger_id] * len(entry_ids), entry_ids), encode_locations(locations))


def test_bytes_of_a_row(rows: SealedIndex) -> None:
    """Key and value of storage section 5.1."""
    index = LocationIndex(rows)
    index.write(encode_keys([5], [258]), encode_locations([pack_location(EntryLocation(0x1F4, 0x404))]))
    [row] = rows.scan(bytes(16), b"\x80")
    assert row == (bytes.fromhex("00000000000000050000000000000102"), bytes.fromhex("000001f400000404"))


def test_find(index: LocationIndex) -> None:
    put(index, 5, 0, 1)
    assert index.find(5, 1) == EntryLocation(1, 1029)
    assert index.find(5, 2) is None
    assert index.find(4, 1) is None


def test_ids_at_their_limits(index: LocationIndex) -> None:
    locations = encode_locations([pack_location(EntryLocation(2**31 - 1, 2**30))])
    index.write(encode_keys([2**63 - 2], [2**63 - 2]), locations)
    assert index.find(2**63 - 2, 2**63 - 2) == EntryLocation(2**31 - 1, 2**30)
    assert index.find_last(2**63 - 2) == (2**63 - 2, EntryLocation(2**31 - 1, 2**30))


def test_find_last_keeps_to_its_ledger(index: LocationIndex) -> None:
    put(index, 5, 0, 7, 300)
    put(index, 7, 1)
    assert index.find_last(5) == (300, EntryLocation(1, 1328))
    assert index.find_last(6) is None
    assert index.find_last(7) == (1, EntryLocation(1, 1029))
    assert index.find_last(4) is None
    assert index.find_last(8) is None  # Only seal rows are behind.


def test_list_entries(index: LocationIndex) -> None:
    put(index, 5, 0, 2, 256, 257)
    put(index, 6, 1)
    assert list(index.list_entries(5)) == [0, 2, 256, 257]
    assert list(index.list_entries(9)) == []


def test_delete_ledgers(index: LocationIndex) -> None:
    for ledger_id in (4, 5, 6, 7):
        put(index, ledger_id, *range(7))
    assert index.delete_ledgers({5: 0, 6: 0}, None, lambda: None, 3) == {}
    assert [len(list(index.list_entries(ledger_id))) for ledger_id in (4, 5, 6, 7)] == [7, 0, 0, 7]


def test_delete_ledgers_in_parts(index: LocationIndex) -> None:
    """In the order given; a part of five rows is two batches."""
    put(index, 5, *range(0, 14, 2))
    put(index, 6, 1)
    put(index, 8, *range(4))
    pauses: list[None] = []
    left = {8: 0, 5: 0, 7: 0, 6: 0}
    for left_next, row_count, pause_count in (
        ({5: 2, 7: 0, 6: 0}, 7, 2),
        ({5: 12, 7: 0, 6: 0}, 2, 4),
        ({}, 0, 5),
    ):
        left = index.delete_ledgers(left, 5, lambda: pauses.append(None), 3)
        assert left == left_next
        assert sum(len(list(index.list_entries(ledger_id))) for ledger_id in (5, 6, 8)) == row_count
        assert len(pauses) == pause_count


@pytest.mark.parametrize(
    ("key", "value"),
    [(bytes(16), bytes(7)), (bytes(16), b""), (bytes(16), b"\0\0\0\1\0\0\0\0"), (bytes(17), b"\1" * 8)],
)
@pytest.mark.parametrize("ledger_ids", [None, [0]])
def test_what_is_no_row_stops_a_page(rows: SealedIndex, key: bytes, value: bytes, ledger_ids: list[int] | None) -> None:
    """It would name none of the logs that a sweep looks for, and nothing proves that it names none."""
    rows.write([(key, value)])
    with pytest.raises(IndexDamagedError, match=key.hex()):
        LocationIndex(rows).page(b"", 10, ledger_ids)


@pytest.mark.parametrize("value", [b"", bytes(8), b"\0\0\0\1\0\0\0\0", bytes(9)])
def test_a_row_that_names_nothing_is_damage(rows: SealedIndex, value: bytes) -> None:
    rows.write([(encode_keys([5], [1]), value)])
    index = LocationIndex(rows)
    with pytest.raises(IndexDamagedError):
        index.find(5, 1)
    with pytest.raises(IndexDamagedError):
        index.find_last(5)


def test_rows_are_counted_as_they_are_written_replaced_and_deleted(rows: SealedIndex) -> None:
    index = LocationIndex(rows)
    put(index, 5, *range(10))
    put(index, 7, 0)
    assert index.row_count == LocationIndex(rows).row_count == 11
    keys = encode_keys([5, 5], [3, 4])
    index.replace(keys, encode_locations([pack_location(EntryLocation(2, 1028))] * 2))
    assert index.row_count == 11
    index.delete_ledgers({5: 0}, None, lambda: None, 4)
    assert index.row_count == LocationIndex(rows).row_count == 1


def test_a_large_index_is_estimated_at_its_open(tmp_path: Path) -> None:
    count = 40_000
    path = str(tmp_path / "large")
    index = LocationIndex(create_sealed_index(OsFileSystem(), open_plyvel, path))
    for ledger_id in range(4):
        put(index, ledger_id, *range(count // 4))
    index.seal()
    index.close()
    opened = LocationIndex(open_sealed_index(OsFileSystem(), open_plyvel, path))
    assert opened.row_count == pytest.approx(count, rel=0.25)
    opened.close()
