"""What journals say of ledgers: keys, fences and LACs, whatever the marks say and however a file ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import StorageConfig
from bkctl.storage.index.journaled_rows import (
    JournaledLedger,
    note_later,
    read_journaled_ledgers,
    row_with_journals,
)
from bkctl.storage.index.ledger_index import LedgerRow
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from tests.storage.engines import KEY, checkpoint, config_below, entry, explicit_lac
from tests.storage.java_directories import EXPLICIT_LACS, FENCED, boot, java_directories

FS = OsFileSystem()

FIRST_KEY = encode_ledger_key_record(1, b"first")
SECOND_KEY = encode_ledger_key_record(1, b"second")
PLACEHOLDER_KEY = encode_ledger_key_record(1, bytes(6))
FENCE = encode_fence_record(1)
LAC, HIGHER_LAC = explicit_lac(1, 3), explicit_lac(1, 9)
LOWER = encode_explicit_lac_record(1, LAC)
HIGHER = encode_explicit_lac_record(1, HIGHER_LAC)
TOO_SHORT = encode_explicit_lac_record(1, bytes(15))
FIRST_ENTRY = entry(1, 0)


@pytest.mark.parametrize("image", ["db-4.18.0/replayed", "db-4.14.7/crash", "db-multidir-4.18.0/crash"])
def test_journals_of_java(tmp_path: Path, image: str) -> None:
    directories = java_directories(image, tmp_path)
    found = read_journaled_ledgers(FS, directories.config)
    assert found.unreadable == []
    assert {ledger_id for ledger_id, row in found.ledgers.items() if row.is_fenced} == FENCED
    assert {each: row.explicit_lac for each, row in found.ledgers.items() if row.explicit_lac} == EXPLICIT_LACS
    assert {each: row.master_key for each, row in found.ledgers.items() if row.master_key} == directories.keys()
    assert set(found.ledgers) >= {ledger_id for ledger_id, _ in directories.entries()}


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    """Ledger 1 with a key, then a fence behind a mark, then a LAC; ledger 2 with an entry alone."""
    config = config_below(tmp_path)
    storage = boot(config)
    journal = storage.journal_of(1)
    storage.engine_of(1).rows.set_master_key(1, KEY)
    journal.write_group([encode_ledger_key_record(1, KEY), encode_explicit_lac_record(1, explicit_lac(1, 7))])
    checkpoint(storage)
    journal.write_group([encode_fence_record(1), entry(2, 0), encode_explicit_lac_record(1, explicit_lac(1, 5))])
    storage.close()
    return config


def test_before_and_behind_the_mark(config: StorageConfig) -> None:
    found = read_journaled_ledgers(FS, config)
    assert found.ledgers == {
        1: JournaledLedger(KEY, is_fenced=True, explicit_lac=explicit_lac(1, 5), has_key_record=True),
        2: JournaledLedger(),
    }


def test_what_stands_before_damage_counts(config: StorageConfig) -> None:
    journal = next((Path(config.journal_directories[0]) / "current").glob("*.txn"))
    data = bytearray(journal.read_bytes())
    data[1024:1028] = b"\xff\xff\0\0"
    journal.write_bytes(data)
    found = read_journaled_ledgers(FS, config)
    assert [each.path for each in found.unreadable] == [str(journal)]
    assert found.ledgers == {1: JournaledLedger(KEY, explicit_lac=explicit_lac(1, 7), has_key_record=True)}


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([FIRST_KEY, SECOND_KEY], JournaledLedger(b"second", has_key_record=True)),
        ([FIRST_KEY, PLACEHOLDER_KEY], JournaledLedger(b"first", has_key_record=True)),
        ([HIGHER, LOWER], JournaledLedger(explicit_lac=LAC)),
        ([FIRST_KEY, LOWER, HIGHER], JournaledLedger(b"first", explicit_lac=HIGHER_LAC, has_key_record=True)),
        ([FIRST_KEY, HIGHER, FIRST_KEY], JournaledLedger(b"first", has_key_record=True)),
        ([FIRST_KEY, HIGHER, SECOND_KEY, LOWER], JournaledLedger(b"second", explicit_lac=LAC, has_key_record=True)),
        ([HIGHER, PLACEHOLDER_KEY], JournaledLedger(has_key_record=True)),
        ([FENCE, FIRST_KEY, FIRST_ENTRY], JournaledLedger(b"first", is_fenced=True, has_key_record=True)),
        ([LOWER, TOO_SHORT], JournaledLedger(explicit_lac=LAC)),
    ],
)
def test_records_that_contradict_each_other(tmp_path: Path, records: list[bytes], said: JournaledLedger) -> None:
    for split in range(len(records)):  # however they are spread over files that are read one by one
        parts: dict[int, JournaledLedger] = {}
        note_later(parts, noted(tmp_path / f"{split}-front", records[:split]))
        note_later(parts, noted(tmp_path / f"{split}-back", records[split:]))
        assert parts == {1: said}


def noted(root: Path, records: list[bytes]) -> dict[int, JournaledLedger]:
    """What these records say alone."""
    config = config_below(root)
    storage = boot(config)
    if records:
        storage.journals[0].write_group(records)
    storage.close()
    return read_journaled_ledgers(FS, config).ledgers


@pytest.mark.parametrize(
    ("row", "journaled", "together"),
    [
        (
            LedgerRow(bytes(20), explicit_lac=HIGHER_LAC),
            JournaledLedger(KEY, is_fenced=True, explicit_lac=LAC),
            LedgerRow(KEY, is_fenced=True, explicit_lac=LAC),
        ),
        (LedgerRow(KEY, is_fenced=True), JournaledLedger(explicit_lac=LAC), LedgerRow(KEY, True, explicit_lac=LAC)),
        (LedgerRow(KEY, explicit_lac=LAC), JournaledLedger(KEY), LedgerRow(KEY, explicit_lac=LAC)),
        (
            LedgerRow(KEY, explicit_lac=LAC),
            JournaledLedger(b"other", is_fenced=True, explicit_lac=HIGHER_LAC),
            LedgerRow(KEY, is_fenced=True, explicit_lac=LAC),
        ),
    ],
)
def test_an_index_and_the_journals(row: LedgerRow, journaled: JournaledLedger, together: LedgerRow) -> None:
    assert row_with_journals(row, journaled) == together
