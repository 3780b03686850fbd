"""Whole images of Java's bookies: every row of their indexes is read from their logs, and damage is never a denial."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry_log.reader import EntryLogReader, list_entry_logs
from bkctl.storage.entry_log.writer import EntryLogWriter
from bkctl.storage.errors import EntryLogError, IndexMissingError
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, current_directory
from bkctl.storage.ids import EntryLocation
from bkctl.storage.index.ledger_index import LedgerIndex
from bkctl.storage.index.seal import create_sealed_index
from tests.storage.engines import open_engine, open_storage
from tests.storage.golden import DAMAGE_CASES, ENTRIES, EXPECTED, unpack
from tests.storage.golden_bookies import IMAGES, adopt, ledger_directories

FS = OsFileSystem()


def decoded(rows: dict[str, str]) -> list[tuple[int, int, EntryLocation]]:
    found = []
    for key, value in rows.items():
        location = EntryLocation(int(value[:8], 16), int(value[8:], 16))
        found.append((int(key[:16], 16), int(key[16:], 16), location))
    return found


def adopted(image: str, root: Path) -> Path:
    """Ledger directory of an image that has one."""
    return Path(current_directory(adopt(image, root).ledger_directories[0]))


def newest_copy(ledger_id: int, entry_id: int) -> str:
    return ENTRIES[f"{ledger_id}:{entry_id}"][-1]


@pytest.mark.parametrize("image", IMAGES)
def test_every_row_of_java_names_the_entry_it_says(tmp_path: Path, image: str) -> None:
    unpack(image, tmp_path)
    for position, (directory, ledgers, locations) in enumerate(ledger_directories(image)):
        reader = EntryLogReader(FS, str(tmp_path / directory), EntryLogConfig())
        for ledger_id, entry_id, location in decoded(locations):
            body = reader.read(location, ledger_id, entry_id)
            copies = ENTRIES[f"{ledger_id}:{entry_id}"]
            assert hashlib.sha1(body).hexdigest() in (copies[-1:] if "/replayed" in image else copies)
        assert all(int(key, 16) % len(ledger_directories(image)) == position for key in ledgers if key[0] == "0")
        assert {
            e.ledger_id for log_id in list_entry_logs(FS, str(tmp_path / directory)) for e in reader.scan(log_id)
        } <= {int(key, 16) for key in ledgers}
        reader.close()


@pytest.mark.parametrize("image", [image for image in IMAGES if "/clean" not in image])
def test_a_bookie_on_directories_of_java_serves_all_that_was_acknowledged(tmp_path: Path, image: str) -> None:
    """Killed or stopped, one ledger directory or two, each an engine of its own; behind a replay and a restart."""
    config = adopt(image, tmp_path)
    expected = {key: copies[-1] for key, copies in ENTRIES.items() if image.startswith("db-4.18.0") or key[0] != "4"}
    for _ in range(2):
        storage = open_storage(config)
        storage.replay()
        served = {
            f"{ledger_id}:{entry_id}": hashlib.sha1(engine.stored.read(ledger_id, entry_id) or b"").hexdigest()
            for engine in storage.engines
            for ledger_id in engine.ledger_ids()
            for entry_id in engine.stored.list_entries(ledger_id)
        }
        assert served == expected
        rows = {
            ledger_id: engine.rows.find(ledger_id) for engine in storage.engines for ledger_id in engine.ledger_ids()
        }
        assert {ledger_id for ledger_id, row in rows.items() if row and row.is_fenced} == set(EXPECTED["fenced"])
        assert {
            str(ledger_id): row.explicit_lac.hex() for ledger_id, row in rows.items() if row and row.explicit_lac
        } == EXPECTED["explicit_lac"]
        storage.close()


@pytest.mark.parametrize(
    ("image", "next_id"),
    [
        ("db-4.18.0/crash", 6),
        ("db-4.18.0/replayed", 8),
        ("sorted-4.18.0/replayed", 4),
        ("interleaved-4.18.0/replayed", 8),
        ("direct-io-4.18.0/replayed", 2),
    ],
)
def test_the_next_log_goes_behind_javas(tmp_path: Path, image: str, next_id: int) -> None:
    """The empty log that Java kept in reserve keeps its id; direct I/O writes no ``lastId``."""
    unpack(image, tmp_path)
    writer = EntryLogWriter.open(FS, str(tmp_path / "ledgers"), EntryLogConfig())
    assert writer.claim_log_id() == next_id


def test_a_ledger_under_a_long_key_of_javas_rebuild_is_found_once(tmp_path: Path) -> None:
    """H12: rebuilt rows have 16-byte keys; the 8-byte row beside one is the newer."""
    rows = ledger_directories("db-4.18.0/replayed")[0][1]
    path = str(tmp_path / LEDGERS_DATABASE)
    index = create_sealed_index(FS, open_plyvel, path)
    rebuilt = bytes.fromhex("080110011a00")
    index.write([(bytes.fromhex(key) + bytes(8), rebuilt) for key in rows])
    index.write([(bytes.fromhex(key), bytes.fromhex(rows[key])) for key in list(rows)[:3]])
    ledgers = LedgerIndex.load(index)
    assert sorted(ledgers) == sorted(int(key, 16) for key in rows)
    for position, key in enumerate(rows):
        row = ledgers.find(int(key, 16))
        assert row is not None
        assert bool(row.master_key) == (position < 3)
        assert row.is_fenced or position < 3
    index.close()


LAST_LOG = "6.log"
LAST_SIZE_WORD = 1164
"""Of entry 1:8, the last one of ledger 1."""


def cut(size_bytes: int) -> Callable[[Path], object]:
    return lambda directory: os.truncate(directory / LAST_LOG, size_bytes)


def patch(offset: int, data: bytes) -> Callable[[Path], object]:
    def apply(directory: Path) -> None:
        content = bytearray((directory / LAST_LOG).read_bytes())
        content[offset : offset + len(data)] = data
        (directory / LAST_LOG).write_bytes(content)

    return apply


def size_word(size_bytes: int) -> Callable[[Path], object]:
    return patch(LAST_SIZE_WORD, size_bytes.to_bytes(4, "big", signed=True))


def remove(*names: str) -> Callable[[Path], object]:
    def apply(directory: Path) -> None:
        for path in [path for name in names for path in directory.glob(name)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return apply


DAMAGES: dict[str, Callable[[Path], object]] = {
    "log_missing": remove(LAST_LOG),
    "log_truncated_in_body": cut(1200),
    "log_truncated_before": cut(1100),
    "log_empty": cut(0),
    "wrong_entry_id": patch(LAST_SIZE_WORD + 12, (7).to_bytes(8, "big")),
    "wrong_ledger_id": patch(LAST_SIZE_WORD + 4, (2).to_bytes(8, "big")),
    "size_12": size_word(12),
    "size_negative": size_word(-5),
    "size_0": size_word(0),
    "size_bigger_in_file": size_word(60),
    "size_huge": size_word(2**31 - 16),
    "size_300M": size_word(300 << 20),
    "body_flipped": patch(LAST_SIZE_WORD + 50, b"!"),
    "locations_dir_lost": remove(LOCATIONS_DATABASE),
    "ledgers_dir_lost": remove(LEDGERS_DATABASE),
    "lastId_lost": remove("lastId"),
    "all_logs_lost": remove("*.log"),
    "nonhex_log": lambda directory: (directory / "foo.log").write_bytes(b"x"),
    "compacting_leftover": lambda directory: (directory / "9.log.compacting").write_bytes(b"x"),
}


def test_all_damages_are_here() -> None:
    assert set(DAMAGES) == set(DAMAGE_CASES)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_an_error_and_never_a_denial(tmp_path: Path, damage: str) -> None:
    """H9, H15, H20: what Java denies, dies of, or cannot know. It serves what it cannot tell from good; so do we."""
    directory = adopted("db-4.18.0/replayed", tmp_path)
    DAMAGES[damage](directory)
    java = DAMAGE_CASES[damage]["v3 1:8"]
    if java in {"ENOENTRY", "ENOLEDGER"}:  # H15: an index made anew would deny everything
        with pytest.raises(IndexMissingError):
            open_engine(directory, filesystem=FS)
        return
    engine = open_engine(directory, filesystem=FS)
    if java == "EOK":
        assert engine.stored.read(1, 8) is not None
        assert engine.stored.find_last(1) is not None
    else:
        with pytest.raises(EntryLogError):
            engine.stored.read(1, 8)
        with pytest.raises(EntryLogError):
            engine.stored.find_last(1)
    assert engine.stored.list_entries(1) == list(range(9)), "the index denies nothing"
    if damage != "all_logs_lost":
        assert hashlib.sha1(engine.stored.read(1, 0) or b"").hexdigest() == newest_copy(1, 0)
    engine.close()
