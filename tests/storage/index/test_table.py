"""Tables that we write and LevelDB reads: row by row what was put in, at any number and shape of keys."""

from __future__ import annotations

import itertools
import random
import struct
from pathlib import Path

import numpy as np
import plyvel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.index_store import PlyvelIndexStore, open_plyvel
from bkctl.storage.index import table as index_table
from bkctl.storage.index.manifest import (
    CURRENT_CONTENT,
    CURRENT_NAME,
    MANIFEST_NAME,
    TABLE_NUMBER_FIRST,
    TableFile,
    encode_manifest,
    table_name,
)
from bkctl.storage.index.table import encode_table

Rows = list[tuple[bytes, bytes]]


def row(ledger_id: int, entry_id: int) -> tuple[bytes, bytes]:
    return struct.pack(">qq", ledger_id, entry_id), struct.pack(">q", ledger_id * 1000 + entry_id * 7 + 1)


def write_database(directory: Path, rows: Rows, table_row_count: int) -> PlyvelIndexStore:
    """The rows as a database whose tables have so many rows each, opened by LevelDB."""
    directory.mkdir()
    tables = []
    for number, first in enumerate(range(0, len(rows), table_row_count), TABLE_NUMBER_FIRST):
        part = rows[first : first + table_row_count]
        keys = np.frombuffer(b"".join(key for key, _ in part), np.uint8).reshape(-1, 16)
        values = np.frombuffer(b"".join(value for _, value in part), np.uint8).reshape(-1, 8)
        table = encode_table(keys, values)
        data = b"".join(table.parts)
        assert len(data) == table.size_bytes
        (directory / table_name(number)).write_bytes(data)
        tables.append(TableFile(number, table.size_bytes, table.first_key, table.last_key))
    (directory / MANIFEST_NAME).write_bytes(encode_manifest(tables))
    (directory / CURRENT_NAME).write_bytes(CURRENT_CONTENT)
    return open_plyvel(str(directory), create=False, strict=True)


def require_rows(store: PlyvelIndexStore, rows: Rows) -> None:
    assert list(store.scan(b"", b"\xff")) == rows
    for key, value in random.Random(1).sample(rows, min(len(rows), 300)):
        assert store.get(key) == value
        assert store.floor(key[:15] + b"\xff", b"") is not None


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 175, 176, 177, 351, 352, 5000, 60_000])
@pytest.mark.parametrize("entries", [1, 1000, 2**40])
def test_leveldb_reads_our_tables(tmp_path: Path, count: int, entries: int) -> None:
    rows = [row(index // entries, index % entries) for index in range(count)]
    store = write_database(tmp_path / "database", rows, 25_000)
    require_rows(store, rows)
    store.close()


IDS = st.one_of(st.integers(0, 3), st.integers(0, 70_000), st.integers(0, 2**63 - 2))


@settings(max_examples=60)
@given(data=st.data())
def test_any_keys(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    starts = data.draw(st.lists(st.tuples(IDS, IDS, st.integers(1, 400), st.integers(1, 300)), max_size=6))
    keys = {
        (ledger, entry)
        for ledger, first, count, step in starts
        for entry in range(first, min(first + count * step, 2**63 - 1), step)
    }
    rows = [
        (struct.pack(">qq", *key), struct.pack(">q", position)) for position, key in enumerate(sorted(keys), start=1)
    ]
    store = write_database(tmp_path_factory.mktemp("tables") / "database", rows, data.draw(st.sampled_from([7, 500])))
    require_rows(store, rows)
    absent = data.draw(st.lists(st.tuples(IDS, IDS), max_size=50))
    for ledger, entry in absent:
        if (ledger, entry) not in keys:
            assert store.get(struct.pack(">qq", ledger, entry)) is None
    store.close()


def test_the_filter_lets_every_key_pass_and_few_others(tmp_path: Path) -> None:
    # LevelDB asks the filter first: a key that it kept out would read as absent.
    rows = [row(ledger, entry) for ledger in range(300) for entry in range(0, 200, 2)]
    store = write_database(tmp_path / "database", rows, 100_000)
    assert all(store.get(key) == value for key, value in rows)
    store.close()
    hashes = index_table._hashes(np.frombuffer(rows[0][0], np.uint8).reshape(1, 16))
    made = plyvel.DB(str(tmp_path / "one"), create_if_missing=True, bloom_filter_bits=10, compression=None)
    made.put(*rows[0])
    made.compact_range()
    made.close()
    (table,) = (path for path in (tmp_path / "one").iterdir() if path.suffix == ".ldb")
    assert index_table._filters_alike(hashes.reshape(1, 1))[0] in table.read_bytes()


def test_leveldb_goes_on_with_our_tables(tmp_path: Path) -> None:
    """New rows, new values and deletions, compacted together with ours, beside a database that LevelDB alone made."""
    rows = [row(ledger, entry) for ledger in range(40) for entry in range(500)]
    store = write_database(tmp_path / "ours", rows, 6000)
    other = open_plyvel(str(tmp_path / "theirs"), create=True, strict=True)
    other.write(rows)
    numbers = random.Random(5)
    for _ in range(5):
        puts = [(row(numbers.randrange(60), numbers.randrange(700))[0], numbers.randbytes(8)) for _ in range(3000)]
        deletes = [key for key, _ in numbers.sample(rows, 500)]
        for each in (store, other):
            each.write(puts, deletes)
            each._database.compact_range()
    assert list(store.scan(b"", b"\xff")) == list(other.scan(b"", b"\xff"))
    store.close()
    other.close()
    again = open_plyvel(str(tmp_path / "ours"), create=False, strict=True)
    assert sum(1 for _ in again.scan(b"", b"\xff")) > 10_000
    again.close()


def test_a_manifest_of_many_blocks(tmp_path: Path) -> None:
    rows = [row(ledger, 0) for ledger in range(3000)]
    store = write_database(tmp_path / "database", rows, 3)
    assert list(itertools.islice(store.scan(b"", b"\xff"), 3000)) == rows
    store.close()
