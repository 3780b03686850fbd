"""The file that keeps the fences of collected ledgers: its bytes, its crashes, and the rows that follow it."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.engine.collected_ledgers import (
    HEADER,
    RECORD_BYTES,
    CollectedLedgers,
    decode_collected,
    encode_collected,
)
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import CorruptFileError, MisplacedLedgerError, StorageError
from bkctl.storage.filenames import COLLECTED
from bkctl.storage.ids import LEDGER_ID_MAX
from tests.storage.engines import KEY, checkpoint, config_below, entry, open_engine, open_storage
from tests.storage.traced_disk import TracedDisk

LEDGER_IDS = st.integers(0, LEDGER_ID_MAX)


def test_the_bytes_are_those_of_the_docs() -> None:
    assert encode_collected([5, 2**62]) == (
        bytes.fromhex("0000000000000005 fffffffffffffffa 4000000000000000 bfffffffffffffff")
    )
    assert HEADER == b"bkctl.collected1"


@given(st.lists(LEDGER_IDS))
def test_what_is_written_is_read(ledger_ids: list[int]) -> None:
    assert list(decode_collected("file", HEADER + encode_collected(ledger_ids))) == ledger_ids


@given(st.lists(LEDGER_IDS, min_size=1, max_size=5), st.data())
def test_a_torn_append_leaves_the_records_before_it(ledger_ids: list[int], data: st.DataObject) -> None:
    whole = HEADER + encode_collected(ledger_ids[:-1])
    last = bytearray(encode_collected(ledger_ids[-1:]))
    written = data.draw(st.integers(0, RECORD_BYTES - 1))
    torn = bytes(last[:written])
    assert list(decode_collected("file", whole + torn)) == ledger_ids[:-1]
    zeroed = torn + bytes(RECORD_BYTES - written)
    if zeroed != bytes(last):
        assert list(decode_collected("file", whole + zeroed)) == ledger_ids[:-1]


@given(st.lists(LEDGER_IDS, min_size=2, max_size=5), st.data())
def test_a_flipped_bit_before_the_last_record_is_damage(ledger_ids: list[int], data: st.DataObject) -> None:
    content = bytearray(HEADER + encode_collected(ledger_ids))
    bit = data.draw(st.integers(0, (len(content) - RECORD_BYTES) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptFileError, match="bkctl decommission"):
        decode_collected("file", bytes(content))


def test_a_bad_record_before_a_torn_one_is_damage() -> None:
    """It was synced before the append that tore, so it was valid once."""
    content = HEADER + encode_collected([5]) + bytes(RECORD_BYTES)
    assert list(decode_collected("file", content)) == [5]
    with pytest.raises(CorruptFileError, match="offset 32"):
        decode_collected("file", content + b"\1")


def test_a_negative_id_is_damage() -> None:
    with pytest.raises(CorruptFileError, match="offset 16"):
        decode_collected("file", HEADER + encode_collected([-5, 6]))


@pytest.mark.parametrize("content", [b"", b"bkctl.collected2", b"\0" * 32])
def test_another_file_is_refused(content: bytes) -> None:
    with pytest.raises(CorruptFileError):
        decode_collected("file", content)


def test_appends_and_a_rewrite_survive_a_restart(tmp_path: Path) -> None:
    collected = CollectedLedgers.open(TracedDisk(), str(tmp_path))
    ledger_ids = random.Random(1).sample(range(10**6), 50)
    for ledger_id in ledger_ids:
        collected.append(ledger_id)
        assert ledger_id not in collected, "the loop decides when it counts"
        collected.note(ledger_id)
    assert sorted(collected.ids()) == sorted(ledger_ids)
    reopened = CollectedLedgers.open(TracedDisk(), str(tmp_path))
    assert sorted(reopened.ids()) == sorted(ledger_ids)
    assert all(ledger_id in reopened for ledger_id in ledger_ids)
    assert not any(ledger_id + 10**6 in reopened for ledger_id in ledger_ids)
    reopened.replace(reopened.rewrite(frozenset(ledger_ids[:30])))
    reopened.append(7 * 10**6)
    reopened.note(7 * 10**6)
    expected = sorted([*ledger_ids[30:], 7 * 10**6])
    assert sorted(reopened.ids()) == expected
    assert sorted(CollectedLedgers.open(TracedDisk(), str(tmp_path)).ids()) == expected
    assert (tmp_path / COLLECTED).stat().st_size == len(HEADER) + len(expected) * RECORD_BYTES


def test_the_file_goes_with_its_last_record(tmp_path: Path) -> None:
    collected = CollectedLedgers.open(TracedDisk(), str(tmp_path))
    collected.append(5)
    collected.note(5)
    collected.replace(collected.rewrite(frozenset([5])))
    assert not (tmp_path / COLLECTED).exists()
    assert 5 not in collected
    collected.append(6)
    assert list(CollectedLedgers.open(TracedDisk(), str(tmp_path)).ids()) == [6]


def test_an_append_takes_the_place_of_a_torn_one(tmp_path: Path) -> None:
    first = CollectedLedgers.open(TracedDisk(), str(tmp_path))
    first.append(5)
    for torn in (b"\1\2\3", b"\1" * RECORD_BYTES):
        with (tmp_path / COLLECTED).open("ab") as file:
            file.write(torn)
        again = CollectedLedgers.open(TracedDisk(), str(tmp_path))
        again.append(6)
        assert sorted(CollectedLedgers.open(TracedDisk(), str(tmp_path)).ids())[:2] == [5, 6]


def test_an_append_is_durable_when_it_returns(tmp_path: Path) -> None:
    disk = TracedDisk()
    collected = CollectedLedgers.open(disk, str(tmp_path))
    collected.append(5)
    assert disk.take_calls()[0] == ("replace", COLLECTED), "the first one makes the file"
    collected.append(6)
    assert disk.take_calls() == [("write", COLLECTED), ("sync", COLLECTED)]


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_after_a_failed_append_the_file_is_replaced(tmp_path: Path, operation: str) -> None:
    """A failed sync says nothing about the bytes, so no later sync of the same file can vouch for them."""
    disk = TracedDisk()
    collected = CollectedLedgers.open(disk, str(tmp_path))
    collected.append(5)
    collected.note(5)
    disk.fail_on = operation
    with pytest.raises(StorageError, match="kept the copy of ledger 6"):
        collected.append(6)
    disk.fail_on = None
    with pytest.raises(StorageError, match="earlier write"):
        collected.append(6)
    assert collected.is_rewrite_due
    collected.replace(collected.rewrite(frozenset()))
    collected.append(6)
    assert sorted(CollectedLedgers.open(TracedDisk(), str(tmp_path)).ids()) == [5, 6]


@pytest.mark.parametrize("operation", ["replace", "sync directory"])
@pytest.mark.parametrize("gone", [[5], [5, 6]])
def test_after_a_failed_replacement_nothing_is_appended(tmp_path: Path, operation: str, gone: list[int]) -> None:
    """The file may be the old one or the new one, so no offset in it is known."""
    disk = TracedDisk()
    collected = CollectedLedgers.open(disk, str(tmp_path))
    for ledger_id in (5, 6):
        collected.append(ledger_id)
        collected.note(ledger_id)
    disk.fail_on = "remove" if operation == "replace" and len(gone) == 2 else operation
    with pytest.raises(OSError, match="Input/output"):
        collected.rewrite(frozenset(gone))
    disk.fail_on = None
    with pytest.raises(StorageError, match="earlier write"):
        collected.append(7)
    collected.replace(collected.rewrite(frozenset(gone)))
    collected.append(7)
    expected = sorted({5, 6, 7}.difference(gone))
    assert sorted(CollectedLedgers.open(TracedDisk(), str(tmp_path)).ids()) == expected


# -- rows follow it ----------------------------------------------------------------------------------------------


def collect(storage: LedgerStorage, ledger_id: int) -> None:
    """Drop a copy as the collector does: the record first."""
    engine = storage.engine_of(ledger_id)
    engine.collected.append(ledger_id)
    engine.collected.note(ledger_id)
    engine.delete_ledger(ledger_id)


def is_fenced(storage: LedgerStorage, ledger_id: int) -> bool:
    row = storage.engine_of(ledger_id).rows.find(ledger_id)
    assert row is not None
    return row.is_fenced


@pytest.mark.parametrize("way", ["key", "row"])
def test_a_row_that_is_made_again_is_fenced(tmp_path: Path, way: str) -> None:
    config = config_below(tmp_path, ledgers=2)
    storage = open_storage(config)
    storage.replay()
    for ledger_id in (4, 5, 6):
        storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
    collect(storage, 5)
    collect(storage, 6)
    checkpoint(storage)
    storage.close()
    storage = open_storage(config)
    storage.replay()
    for ledger_id in (5, 6, 7):
        assert storage.engine_of(ledger_id).rows.find(ledger_id) is None
        if way == "key":
            storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
        else:
            storage.engine_of(ledger_id).rows.create_row(ledger_id, is_fenced=False, is_limbo=True)
    assert [is_fenced(storage, ledger_id) for ledger_id in (4, 5, 6, 7)] == [False, True, True, False]
    storage.close()


def test_a_crash_before_the_copy_is_dropped_durably_brings_it_back_fenced(tmp_path: Path) -> None:
    """The row comes from the index, the key and the entries from the journal, the fence from the record alone."""
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    engine = storage.engines[0]
    engine.rows.set_master_key(5, KEY)
    engine.add(5, 0, entry(5, 0))
    checkpoint(storage)
    engine.collected.append(5)  # and no more: the row stays as it is on disk
    storage.close()
    storage = open_storage(config)
    storage.replay()
    assert is_fenced(storage, 5)
    storage.engines[0].set_explicit_lac(5, bytes(16))
    assert is_fenced(storage, 5)
    checkpoint(storage)
    storage.close()
    (tmp_path / "ledgers-0" / "current" / COLLECTED).unlink()
    storage = open_storage(config)
    storage.replay()
    assert is_fenced(storage, 5), "a row that was written since says so itself"
    storage.close()


def test_a_damaged_record_stops_the_start(tmp_path: Path) -> None:
    engine = open_engine(tmp_path)
    engine.collected.append(5)
    engine.collected.append(6)
    engine.close()
    content = bytearray((tmp_path / COLLECTED).read_bytes())
    content[len(HEADER) + 7] ^= 1
    (tmp_path / COLLECTED).write_bytes(content)
    with pytest.raises(CorruptFileError, match="damaged record of a collected ledger at offset 16"):
        open_engine(tmp_path)
    engine.close()


def test_a_fence_in_a_directory_that_is_no_longer_asked_for_it_stops_the_start(tmp_path: Path) -> None:
    """Directories were added after all copies had been collected: no row tells that the list has changed."""
    config = config_below(tmp_path)
    storage = open_storage(config)
    storage.replay()
    storage.engine_of(5).collected.append(5)
    storage.close()
    directories = (*config.ledger_directories, str(tmp_path / "another"))
    with pytest.raises(MisplacedLedgerError, match="ledger 5"):
        open_storage(msgspec.structs.replace(config, ledger_directories=directories, index_directories=())).close()
