"""Whole images of Java's bookies: every row of their indexes is read from their logs, and damage is never a denial."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from storage.config import EngineConfig, EntryLogConfig
from storage.engine import LedgerDirectoryEngine
from storage.entry_log_reader import EntryLogReader, list_entry_logs
from storage.entry_log_writer import EntryLogWriter
from storage.errors import EntryLogError, IndexMissingError
from storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE, seal_file_name
from storage.filesystem import OsFileSystem
from storage.ids import EntryLocation
from storage.index_store import open_plyvel
from storage.ledger_index import LedgerIndex
from storage.seal import create_sealed_index
from tests.storage.engines import open_engine
from tests.storage.golden import DAMAGE_CASES, ENTRIES, EXPECTED, GOLDEN, unpack

FS = OsFileSystem()
IMAGES = sorted(str(path.parent.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*/index.json"))
INDEX_OF_LEDGERS = {"ledgers": "ledgers", "i0": "l0", "i1": "l1"}
"""Ledger folder that an index folder of the golden sets belongs to."""


def directories(image: str) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """Ledger folder, ledger rows and location rows of each ledger directory of an image."""
    rows = json.loads((GOLDEN / image / "index.json").read_text())
    return [
        (INDEX_OF_LEDGERS[name], rows[f"{name}/ledgers"], rows[f"{name}/locations"])
        for name in sorted({path.split("/")[0] for path in rows})
    ]


def decoded(rows: dict[str, str]) -> list[tuple[int, int, EntryLocation]]:
    found = []
    for key, value in rows.items():
        location = EntryLocation(int(value[:8], 16), int(value[8:], 16))
        found.append((int(key[:16], 16), int(key[16:], 16), location))
    return found


def adopted(image: str, root: Path) -> LedgerDirectoryEngine:
    """Our engine over the logs of an image with one ledger directory, its indexes filled with Java's rows."""
    unpack(image, root)
    (folder, ledgers, locations) = directories(image)[0]
    for database, rows in ((LEDGERS_DATABASE, ledgers), (LOCATIONS_DATABASE, locations)):
        path = str(root / folder / database)
        index = create_sealed_index(FS, open_plyvel, path, str(root / folder / seal_file_name(database)))
        index.write([(bytes.fromhex(key), bytes.fromhex(value)) for key, value in rows.items()])
        index.record()
        index.close()
    return open_engine(root / folder, filesystem=FS, config=EngineConfig())


def newest_copy(ledger_id: int, entry_id: int) -> str:
    return ENTRIES[f"{ledger_id}:{entry_id}"][-1]


@pytest.mark.parametrize("image", IMAGES)
def test_every_row_of_java_names_the_entry_it_says(tmp_path: Path, image: str) -> None:
    unpack(image, tmp_path)
    for position, (folder, ledgers, locations) in enumerate(directories(image)):
        reader = EntryLogReader(FS, str(tmp_path / folder), EntryLogConfig())
        for ledger_id, entry_id, location in decoded(locations):
            body = reader.read(location, ledger_id, entry_id)
            copies = ENTRIES[f"{ledger_id}:{entry_id}"]
            assert hashlib.sha1(body).hexdigest() in (copies[-1:] if "/replayed" in image else copies)
        assert all(int(key, 16) % len(directories(image)) == position for key in ledgers if key[0] == "0")
        assert {e.ledger_id for log_id in list_entry_logs(FS, str(tmp_path / folder)) for e in reader.scan(log_id)} <= {
            int(key, 16) for key in ledgers
        }
        reader.close()


@pytest.mark.parametrize("image", [image for image in IMAGES if "/replayed" in image and "multidir" not in image])
def test_an_adopted_image_serves_all_that_was_acknowledged(tmp_path: Path, image: str) -> None:
    engine = adopted(image, tmp_path)
    expected = {key: copies[-1] for key, copies in ENTRIES.items() if image.startswith("db-4.18.0") or key[0] != "4"}
    served = {
        f"{ledger_id}:{entry_id}": hashlib.sha1(engine.read(ledger_id, entry_id) or b"").hexdigest()
        for ledger_id in engine.ledger_ids()
        for entry_id in engine.list_entries(ledger_id)
    }
    assert served == expected
    assert {ledger_id for ledger_id in engine.ledger_ids() if engine.ledger(ledger_id).is_fenced} == set(  # type: ignore[union-attr]
        EXPECTED["fenced"]
    )
    engine.close()


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
    rows = directories("db-4.18.0/replayed")[0][1]
    path = str(tmp_path / LEDGERS_DATABASE)
    index = create_sealed_index(FS, open_plyvel, path, str(tmp_path / "seal"))
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


def cut(size_bytes: int) -> object:
    return lambda folder: os.truncate(folder / LAST_LOG, size_bytes)


def patch(offset: int, data: bytes) -> object:
    def apply(folder: Path) -> None:
        content = bytearray((folder / LAST_LOG).read_bytes())
        content[offset : offset + len(data)] = data
        (folder / LAST_LOG).write_bytes(content)

    return apply


def size_word(size_bytes: int) -> object:
    return patch(LAST_SIZE_WORD, size_bytes.to_bytes(4, "big", signed=True))


def remove(*names: str) -> object:
    def apply(folder: Path) -> None:
        for path in [path for name in names for path in folder.glob(name)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    return apply


DAMAGES = {
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
    "nonhex_log": lambda folder: (folder / "foo.log").write_bytes(b"x"),
    "compacting_leftover": lambda folder: (folder / "9.log.compacting").write_bytes(b"x"),
}


def test_all_damages_are_here() -> None:
    assert set(DAMAGES) == set(DAMAGE_CASES)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_an_error_and_never_a_denial(tmp_path: Path, damage: str) -> None:
    """H9, H15, H20: what Java denies, dies of, or cannot know. It serves what it cannot tell from good; so do we."""
    adopted("db-4.18.0/replayed", tmp_path).close()
    DAMAGES[damage](tmp_path / "ledgers")  # type: ignore[operator]
    java = DAMAGE_CASES[damage]["v3 1:8"]
    if java in {"ENOENTRY", "ENOLEDGER"}:  # H15: an index made anew would deny everything
        with pytest.raises(IndexMissingError):
            open_engine(tmp_path / "ledgers", filesystem=FS)
        return
    engine = open_engine(tmp_path / "ledgers", filesystem=FS)
    if java == "EOK":
        assert engine.read(1, 8) is not None
        assert engine.find_last(1) is not None
    else:
        with pytest.raises(EntryLogError):
            engine.read(1, 8)
        with pytest.raises(EntryLogError):
            engine.find_last(1)
    assert engine.list_entries(1) == list(range(9)), "the index denies nothing"
    if damage != "all_logs_lost":
        assert hashlib.sha1(engine.read(1, 0) or b"").hexdigest() == newest_copy(1, 0)
    engine.close()
