"""What journals say of ledgers: keys, fences and LACs, whatever the marks say and however a file ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.config import StorageConfig
from storage.filesystem import OsFileSystem
from storage.journal_format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from storage.journaled_rows import merged_rows, read_journaled_rows
from storage.ledger_index import LedgerRow
from tests.storage.engines import KEY, checkpoint, config_below, entry, explicit_lac
from tests.storage.java_folders import EXPLICIT_LACS, FENCED, boot, java_folders

FS = OsFileSystem()


@pytest.mark.parametrize("image", ["db-4.18.0/replayed", "db-4.14.7/crash", "db-multidir-4.18.0/crash"])
def test_journals_of_java(tmp_path: Path, image: str) -> None:
    folders = java_folders(image, tmp_path)
    found = read_journaled_rows(FS, folders.config)
    assert found.unreadable == []
    assert {ledger_id for ledger_id, row in found.rows.items() if row.is_fenced} == FENCED
    assert {each: row.explicit_lac for each, row in found.rows.items() if row.explicit_lac} == EXPLICIT_LACS
    assert {each: row.master_key for each, row in found.rows.items() if row.master_key} == folders.keys()
    assert set(found.rows) >= {ledger_id for ledger_id, _ in folders.entries()}


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    """Ledger 1 with a key, then a fence behind a mark, then a LAC; ledger 2 with an entry alone."""
    config = config_below(tmp_path)
    storage = boot(config)
    journal = storage.journal_of(1)
    storage.engine_of(1).set_master_key(1, KEY)
    journal.write_group([encode_ledger_key_record(1, KEY), encode_explicit_lac_record(1, explicit_lac(1, 7))])
    checkpoint(storage)
    journal.write_group([encode_fence_record(1), entry(2, 0), encode_explicit_lac_record(1, explicit_lac(1, 5))])
    storage.close()
    return config


def test_before_and_behind_the_mark(config: StorageConfig) -> None:
    found = read_journaled_rows(FS, config)
    assert found.rows == {
        1: LedgerRow(master_key=KEY, is_fenced=True, explicit_lac=explicit_lac(1, 7)),
        2: LedgerRow(),
    }


def test_what_stands_before_damage_counts(config: StorageConfig) -> None:
    journal = next((Path(config.journal_directories[0]) / "current").glob("*.txn"))
    data = bytearray(journal.read_bytes())
    data[1024:1028] = b"\xff\xff\0\0"
    journal.write_bytes(data)
    found = read_journaled_rows(FS, config)
    assert [each.path for each in found.unreadable] == [str(journal)]
    assert found.rows == {1: LedgerRow(master_key=KEY, explicit_lac=explicit_lac(1, 7))}


def test_what_two_sources_know() -> None:
    one = LedgerRow(master_key=bytes(20), is_limbo=True, explicit_lac=explicit_lac(1, 3))
    other = LedgerRow(master_key=KEY, is_fenced=True, explicit_lac=explicit_lac(1, 9))
    both = LedgerRow(KEY, is_fenced=True, is_limbo=True, explicit_lac=explicit_lac(1, 9))
    assert merged_rows(one, other) == merged_rows(other, one) == both
    assert merged_rows(LedgerRow(b"a"), LedgerRow(b"b")).master_key == b"a"
