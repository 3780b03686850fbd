"""Directories handed back to Java: all of it is in files that Java reads; cut off at every change of the disk."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.log_lists import write_quarantine
from bkctl.storage.entry_log.reader import EntryLogScan, list_entry_logs
from bkctl.storage.errors import AdoptionRefusedError, StorageError
from bkctl.storage.filenames import JAVA_BLOCK, current_directory
from bkctl.storage.index.journaled_rows import read_journaled_ledgers
from bkctl.storage.journal.format import encode_explicit_lac_record, encode_fence_record, encode_ledger_key_record
from bkctl.storage.offline.hand_back import hand_back, needs_hand_back
from tests.storage.engines import (
    KEY,
    NOW_MS,
    PhotographedDisk,
    checkpoint,
    config_below,
    entry,
    explicit_lac,
    opening_watched,
)
from tests.storage.java_directories import UnsyncedDisk, boot, copy_in_memory

FS = OsFileSystem()
ENTRIES = {1: range(5), 2: range(3), 3: range(4), 6: range(2)}
FENCED = {3, 8, 9}
"""Ledger 8 has a fence and no entry; of ledger 9 there is only the fence of a copy that was collected."""


def fill(config: StorageConfig) -> None:
    """Entries of four ledgers, some flushed and some in the journal alone; keys, fences, a LAC."""
    storage = boot(config)
    for ledger_id, entry_ids in ENTRIES.items():
        engine, journal = storage.engine_of(ledger_id), storage.journal_of(ledger_id)
        engine.rows.set_master_key(ledger_id, KEY)
        journal.write_group([encode_ledger_key_record(ledger_id, KEY)])
        for entry_id in entry_ids:
            engine.add(ledger_id, entry_id, entry(ledger_id, entry_id))
            journal.write_group([entry(ledger_id, entry_id)])
        if ledger_id == 2:
            checkpoint(storage)
    storage.engine_of(9).collected.append(9)
    for ledger_id in FENCED - {9}:
        storage.engine_of(ledger_id).rows.set_fenced(ledger_id)
        storage.journal_of(ledger_id).write_group([encode_fence_record(ledger_id)])
    storage.engine_of(2).set_explicit_lac(2, explicit_lac(2, 1))
    storage.journal_of(2).write_group([encode_explicit_lac_record(2, explicit_lac(2, 1))])
    storage.close()


def require_handed_back(config: StorageConfig) -> None:
    """What Java's rebuild and its first replay need is there, and nothing of ours."""
    everywhere = {*config.journal_directories, *config.ledger_directories}
    assert not any(os.path.exists(os.path.join(current_directory(each), JAVA_BLOCK)) for each in everywhere)
    left = {
        name for each in everywhere for name in os.listdir(current_directory(each)) if name.startswith(("ldb", "bk"))
    }
    assert left <= {"bkctl.lock", "bkctl.handed-back"}
    scanned: set[tuple[int, int]] = set()
    for position, directory in enumerate(map(current_directory, config.ledger_directories)):
        assert {"ledgers", "locations", "lastMark.0", "lastMark.1"} <= set(os.listdir(directory))
        assert Path(directory, "ledgers").is_file()  # no Java bookie opens it
        assert Path(directory, "locations").is_file()
        for log_id in list_entry_logs(FS, directory):
            found = {(each.ledger_id, each.entry_id) for each in EntryLogScan(FS, directory, log_id)}
            assert {ledger_id % len(config.ledger_directories) for ledger_id, _ in found} <= {position}
            scanned |= found
    assert scanned == {(ledger_id, entry_id) for ledger_id, entry_ids in ENTRIES.items() for entry_id in entry_ids}
    journaled = read_journaled_ledgers(FS, config)
    assert journaled.unreadable == []
    assert set(journaled.ledgers) == {*ENTRIES, *FENCED}
    for ledger_id, row in journaled.ledgers.items():
        assert row.master_key == (KEY if ledger_id in ENTRIES else b"")
        assert row.is_fenced == (ledger_id in FENCED)
        assert row.explicit_lac == (explicit_lac(2, 1) if ledger_id == 2 else None)


def test_everything_is_where_java_looks(tmp_path: Path) -> None:
    config = config_below(tmp_path, journals=2, ledgers=2)
    fill(config)
    report = hand_back(FS, open_plyvel, config, NOW_MS)
    assert report.ledger_count == 6
    assert report.replayed_entry_count > 0
    require_handed_back(config)
    assert not needs_hand_back(FS, config)
    assert hand_back(FS, open_plyvel, config, NOW_MS).ledger_count == 0
    with pytest.raises(StorageError):
        boot(config)


def test_marks_stand_behind_all_entries(tmp_path: Path) -> None:
    """What Java replays is what it cannot get from the logs: keys, fences, LACs."""
    config = config_below(tmp_path)
    fill(config)
    hand_back(FS, open_plyvel, config, NOW_MS)
    mark = struct.unpack(">qq", (tmp_path / "ledgers-0" / "current" / "lastMark").read_bytes())
    newest = max(int(path.stem, 16) for path in (tmp_path / "journal-0" / "current").glob("*.txn"))
    assert mark[0] == newest - 1


def test_a_second_time_another_directory_is_taken(tmp_path: Path) -> None:
    config = config_below(tmp_path)
    fill(config)
    current = tmp_path / "ledgers-0" / "current"
    (current / "bkctl.handed-back").mkdir()
    hand_back(FS, open_plyvel, config, NOW_MS)
    assert (current / "bkctl.handed-back.2" / "ldb-ledgers").is_dir()


def limbo(config: StorageConfig) -> None:
    storage = boot(config)
    storage.engine_of(3).set_limbo(3)
    checkpoint(storage)
    storage.close()


def integrity_check_due(config: StorageConfig) -> None:
    storage = boot(config)
    storage.engines[0].rows.write_flags(1)
    storage.close()


def dirty(config: StorageConfig) -> None:
    Path(current_directory(config.ledger_directories[0]), "DIRTY").touch()


def adopting(config: StorageConfig) -> None:
    Path(current_directory(config.ledger_directories[0]), "bkctl.adoption").touch()


def damaged_log(config: StorageConfig) -> None:
    write_quarantine(FS, current_directory(config.ledger_directories[1]), {0: "cut"})


def cut_log(config: StorageConfig) -> None:
    """A rolled log whose first entry is gone: Java's rebuild would say nothing."""
    storage = boot(config)
    storage.engine_of(1).rows.set_master_key(1, KEY)
    for entry_id in range(5, 50):
        storage.engine_of(1).add(1, entry_id, entry(1, entry_id, b"x" * 500))
    checkpoint(storage)
    storage.close()
    path = max(
        Path(current_directory(config.ledger_directories[1])).glob("*.log"), key=lambda each: each.stat().st_size
    )
    data = bytearray(path.read_bytes())
    data[1024:1060] = bytes(36)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (cut_log, "bytes that its ledgers map lists are missing"),
        (damaged_log, "0.log"),
        (limbo, "may miss entries"),
        (integrity_check_due, "an integrity check is due"),
        (dirty, "did not shut down cleanly"),
        (adopting, "an adoption is unfinished"),
    ],
)
def test_refusals(tmp_path: Path, harm: object, said: str) -> None:
    config = config_below(tmp_path, journals=2, ledgers=2)
    fill(config)
    harm(config)  # type: ignore[operator]
    names = {path for path in tmp_path.rglob("*") if "ldb-" not in str(path)}
    with pytest.raises(AdoptionRefusedError, match=said):
        hand_back(FS, open_plyvel, config, NOW_MS)
    assert {path for path in tmp_path.rglob("*") if "ldb-" not in str(path)} == names


def test_every_cut_is_made_good(tmp_path: Path) -> None:
    root = tmp_path / "live"
    config = config_below(root, journals=2, ledgers=2)
    fill(config)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    hand_back(disk, opening_watched(disk.photograph), config, NOW_MS)
    disk.photograph("the end")
    begun = 0
    before: dict[str, bytes] = {}
    for _, photograph in disk.photographs:
        files = {str(path.relative_to(photograph)): path for path in photograph.rglob("*") if path.is_file()}
        before, last = {name: path.read_bytes() for name, path in files.items()}, before
        if before == last:
            continue
        begun += (photograph / "ledgers-0" / "current" / "bkctl.handing-back").exists()
        with copy_in_memory(photograph) as copy:
            moved = config_below(copy, journals=2, ledgers=2)
            hand_back(UnsyncedDisk(), open_plyvel, moved, NOW_MS)
            require_handed_back(moved)
    assert begun > 10


def test_a_bookie_that_ran_in_between(tmp_path: Path) -> None:
    root = tmp_path / "live"
    config = config_below(root)
    fill(config)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    hand_back(disk, open_plyvel, config, NOW_MS)
    note = Path("ledgers-0", "current", "bkctl.handing-back")
    cut = next(path for _, path in disk.photographs if (path / note).exists())
    moved = config_below(cut)
    with pytest.raises(AdoptionRefusedError, match="run `bkctl storage hand-back` to finish it"):
        boot(moved)
    (cut / "journal-0" / "current" / "7fffffffffff.txn").touch()
    with pytest.raises(AdoptionRefusedError, match="a bookie has written since"):
        hand_back(FS, open_plyvel, moved, NOW_MS)
