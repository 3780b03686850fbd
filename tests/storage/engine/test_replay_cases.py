"""The 55 damaged journals of a Java bookie, and one whole, booted: each is answered as storage section 3.11 wants it.

Where Java replays and the sheet has no *Instead*, the same entries and fences are there; what Java drops without a word
is reported; what Java dies of, or takes for good against reason, stops the boot with file and offset.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.replay import ReplayReport, checkpoint_now
from bkctl.storage.engine.replay_rehearsal import rehearse_replay
from bkctl.storage.errors import CorruptFileError, JournalError, StorageError
from bkctl.storage.filenames import current_directory
from tests.storage.engines import config_below, open_storage
from tests.storage.golden import FILES, REPLAY_CASES, unpack
from tests.storage.journal.test_reader import apply_patch

IMAGE: Final = "db-4.18.0/crash"
NEWEST: Final = "1a1fb79cb59.txn"

AT_STAKE: Final = {(1, 8), (6, 3), (6, 7), (21474836485, 0), (21474836485, 1)}
"""Entries that only the newest journal has."""

REPORTED: Final = {"trunc_body", "torn_then_next", "zero_group", "zero_mid_body", "zero_mid_all", "huge_len",
                   "over_len", "len16_zero", "hdr3", "markinrec"}  # fmt: skip
"""Bytes were dropped, and the boot says so; trunc_len cuts zeros alone, which look like the end."""

REFUSED: Final = {
    "zero_mid_next": "zeros followed by data",
    "neg_len": "length -5", "neg_len_last": "length -5", "len8": "a record of 8 bytes",
    "entry16": "entry 1:[0-9]+ of 16 bytes",
    "pad_neg": "length -7 of padding", "pad_neg256": "length -256 of padding",
    "wrongkey": "another master key", "key_short": "inner length", "lac_short": "inner length",
    "neg_ledger": "ledger -9", "ver7": "version 7", "ver0": "version 0",
    "v5lac": "explicit LAC, which version 5",
    "v3fence": "fence, which version 3", "v2key": "ledger key, which version 2",
    "v4pad": "length -256",
}  # fmt: skip
MISSING: Final = {"marknext", "markgone", "nojournals"}

BETTER_THAN_JAVA: Final = {"huge_len", "nonhex"}
"""Java exits with code 0: it trusts a length (H20), and the name of a stray file."""


def boot(root: Path, case: dict[str, Any]) -> tuple[LedgerStorage, ReplayReport]:
    """A bookie whose index holds what Java's did: a row for each ledger whose key was journaled before the mark."""
    image = root / "java"
    unpack(IMAGE, image)
    config = config_below(root, engine=EngineConfig())
    storage = open_storage(config)
    for path, file in FILES.items():
        if path.startswith(f"{IMAGE}/journal/") and path.endswith(".txn.gz") and NEWEST not in path:
            for record in file["records"]:
                if record["type"] == "key":
                    storage.engine_of(record["ledger"]).rows.set_master_key(
                        record["ledger"], bytes.fromhex(record["key"])
                    )
    checkpoint_now(storage.engines[0])
    storage.close()
    apply_patch(image, case["patch"])
    shutil.copytree(image / "journal", current_directory(config.journal_directories[0]), dirs_exist_ok=True)
    if (image / "ledgers" / "lastMark").exists():
        shutil.copy(image / "ledgers" / "lastMark", current_directory(config.ledger_directories[0]))
    rehearsed, refusal = rehearse(config)
    storage = open_storage(config)
    try:
        report = storage.replay()
    except BaseException:
        storage.close()
        assert refusal is not None
        raise
    assert rehearsed == report
    return storage, report


def rehearse(config: StorageConfig) -> tuple[ReplayReport | None, StorageError | None]:
    """What ``bookie init --check`` would find out, without a change to any file."""
    directories = [Path(path) for path in config.all_directories]
    files = {path: path.read_bytes() for directory in directories for path in directory.rglob("*") if path.is_file()}
    try:
        return rehearse_replay(OsFileSystem(), open_plyvel, config, lambda: None, are_marks_forgotten=False), None
    except StorageError as error:
        return None, error
    finally:
        assert {path: path.read_bytes() for path in files} == files


def is_served(storage: LedgerStorage, ledger_id: int, entry_id: int) -> bool:
    return storage.engine_of(ledger_id).stored.read(ledger_id, entry_id) is not None


def fenced(storage: LedgerStorage, ledger_id: int) -> bool | None:
    """None: the ledger is not known."""
    row = storage.engine_of(ledger_id).rows.find(ledger_id)
    return None if row is None else row.is_fenced


def test_all_cases_of_the_sheet_are_here() -> None:
    names = {case["case"] for case in REPLAY_CASES}
    assert len(names) == 56
    assert names >= {*REPORTED, *REFUSED, *MISSING, *BETTER_THAN_JAVA}
    dead = {case["case"] for case in REPLAY_CASES if not case["java"]["boots"]}
    assert dead - BETTER_THAN_JAVA == ({*REFUSED} - {"zero_mid_next"}) | MISSING


@pytest.mark.parametrize("case", REPLAY_CASES, ids=lambda case: case["case"])
def test_a_damaged_journal(tmp_path: Path, case: dict[str, Any]) -> None:
    name = case["case"]
    if name in REFUSED:
        with pytest.raises(CorruptFileError, match=REFUSED[name]) as corrupt:
            boot(tmp_path, case)
        assert str(rehearse(config_below(tmp_path))[1]) == str(corrupt.value)
        assert "bkctl decommission" in str(corrupt.value)
        assert f"at offset {corrupt.value.offset}" in str(corrupt.value)
        return
    if name in MISSING:
        with pytest.raises(JournalError, match=r"\.txn is missing, but the log mark references it") as missing:
            boot(tmp_path, case)
        assert str(rehearse(config_below(tmp_path))[1]) == str(missing.value)
        return
    storage, report = boot(tmp_path, case)
    differences = case["java"].get("differs_from_undamaged", {})
    for ledger_id, entry_id in AT_STAKE:
        status = differences.get(f"{ledger_id}:{entry_id}", ["EOK"])[0]
        if name != "huge_len":
            assert is_served(storage, ledger_id, entry_id) == (status == "EOK"), (ledger_id, entry_id)
    for ledger_id, entry_id in ((77, 0), (78, 0), (80, 0), (1, 20)):
        status = differences.get(f"{ledger_id}:{entry_id}", ["ENOENTRY"])[0]
        assert is_served(storage, ledger_id, entry_id) == (status == "EOK"), (ledger_id, entry_id)
    assert fenced(storage, 2) == case["java"].get("ledger 2 fenced", name != "huge_len")
    assert bool(report.dropped_tails) == (name in REPORTED)
    assert storage.engine_of(0).rows.find(0) is None, "zeros made a ledger"
    storage.close()


def case_of(name: str) -> dict[str, Any]:
    return next(case for case in REPLAY_CASES if case["case"] == name)


@pytest.mark.parametrize(("name", "ledger_id"), [("fence_then_key", 78), ("key_then_fence", 78), ("nokey", 78)])
def test_h3_a_fence_is_never_dropped(tmp_path: Path, name: str, ledger_id: int) -> None:
    """Java drops it where no key came before: the ledger takes adds again."""
    storage, _ = boot(tmp_path, case_of(name))
    assert fenced(storage, ledger_id) is True
    storage.close()


def test_unknown_records_are_counted(tmp_path: Path) -> None:
    storage, report = boot(tmp_path, case_of("unknown_meta"))
    assert report.unknown_count == 3
    storage.close()


@pytest.mark.parametrize("name", sorted({"zero_mid_all", "trunc_body", "huge_len"}))
def test_what_was_dropped_is_said_once(tmp_path: Path, name: str) -> None:
    """The next boot meets an older file, in which the same would be corruption: the mark is behind it."""
    storage, report = boot(tmp_path, case_of(name))
    [tail] = report.dropped_tails
    assert tail.path.endswith(NEWEST)
    assert tail.dropped_bytes > 0
    storage.close()
    again = open_storage(config_below(tmp_path, engine=EngineConfig()))
    assert again.replay().dropped_tails == []
    again.close()
