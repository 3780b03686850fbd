"""What the check of a stopped bookie finds: nothing in sound directories, and each harm by its file."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import plyvel
import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.index.java_index import HEADER_BYTES as IDX_HEADER_BYTES
from bkctl.storage.journal.format import encode_ledger_key_record
from bkctl.storage.journal.log_mark import survey_marks
from bkctl.storage.offline.storage_check import StorageCheck, StorageFinding
from bkctl.storage.severity import Severity
from tests.storage.engines import KEY, checkpoint, config_below, entry
from tests.storage.java_directories import boot, java_directories


def check(config: StorageConfig) -> list[StorageFinding]:
    whole = StorageCheck(OsFileSystem(), open_plyvel, config, lambda _path: None)
    found = list(whole.findings())
    assert whole.counts.journal_count > 0
    return found


@pytest.fixture
def config(tmp_path: Path) -> StorageConfig:
    """Two directories of each kind; several logs, rolled ones and one that never was; entries behind the mark."""
    config = config_below(tmp_path, journals=2, ledgers=2)
    for generation in range(2):
        storage = boot(config)
        for ledger_id in (1, 2):
            storage.engine_of(ledger_id).rows.set_master_key(ledger_id, KEY)
            storage.journal_of(ledger_id).write_group([encode_ledger_key_record(ledger_id, KEY)])
            for entry_id in range(10 * generation, 10 * generation + 10):
                body = entry(ledger_id, entry_id, b"x" * 2000)
                storage.engine_of(ledger_id).add(ledger_id, entry_id, body)
                storage.journal_of(ledger_id).write_group([body])
        if generation == 0:
            checkpoint(storage)
        storage.close()
    return config


def newest(directory: Path, suffix: str) -> Path:
    return max(directory.glob(f"*{suffix}"), key=lambda path: int(path.stem, 16))


def newest_with_entries(directory: Path) -> Path:
    logs = [path for path in directory.glob("*.log") if path.stat().st_size > HEADER_BYTES]
    return max(logs, key=lambda path: int(path.stem, 16))


def zeroed(path: Path, start: int, size: int) -> None:
    data = bytearray(path.read_bytes())
    data[start : start + size] = bytes(size)
    path.write_bytes(data)


def directory_in_place_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


class Harm(NamedTuple):
    """Something done to a directory, and what must be said of it."""

    act: Callable[[Path], object]
    check: str
    said: str
    severity: Severity = Severity.CRITICAL


HARMS = {
    "entry zeroed": Harm(
        lambda root: zeroed(root / "ledgers-0/current/0.log", 1024, 2036), "entry logs", "are missing"
    ),
    "log cut": Harm(
        lambda root: (root / "ledgers-0/current/0.log").write_bytes(
            (root / "ledgers-0/current/0.log").read_bytes()[:3000]
        ),
        "entry logs",
        "ledgers map",
    ),
    "journal flipped": Harm(
        lambda root: newest(root / "journal-0/current", ".txn").write_bytes(
            newest(root / "journal-0/current", ".txn").read_bytes()[:512]
            + b"\xff\xff\0\0"
            + newest(root / "journal-0/current", ".txn").read_bytes()[516:]
        ),
        "journals",
        "length",
    ),
    "journal lost": Harm(lambda root: newest(root / "journal-1/current", ".txn").unlink(), "journals", "is missing"),
    "mark record damaged": Harm(
        lambda root: (root / "ledgers-1/current/bkctl.mark.0").write_bytes(b"junk"),
        "marks",
        "checksum",
        severity=Severity.INFORMATION,
    ),
    "catalog damaged": Harm(
        lambda root: (root / "journal-0/current/bkctl.journals").write_bytes(b"junk"), "journals", "catalog"
    ),
    "index lost": Harm(lambda root: shutil.rmtree(root / "ledgers-1/current/ldb-locations"), "index", "ldb-locations"),
    "seal damaged": Harm(
        lambda root: (root / "ledgers-0/current/ldb-ledgers.seal").write_bytes(b"junk"), "index", "seal"
    ),
    "log lost": Harm(
        lambda root: (root / "ledgers-0/current/0.log").unlink(), "entry logs", "7 entries of 1 ledger (2) were in it"
    ),
    "unfinished log cut": Harm(
        lambda root: os.truncate(newest_with_entries(root / "ledgers-1/current"), HEADER_BYTES),
        "entry logs",
        "3 entries of 1 ledger (1) lie beyond its end",
    ),
    "mixed logs damaged": Harm(
        lambda root: (root / "ledgers-0/current/bkctl.mixed-logs").write_bytes(b"junk"), "entry logs", "mixed logs"
    ),
    "log that leads nowhere": Harm(
        lambda root: (root / "ledgers-0/current/77.log").symlink_to("nowhere"), "entry logs", "No such file"
    ),
    "quarantine that cannot be read": Harm(
        lambda root: (root / "ledgers-0/current/bkctl.quarantine").mkdir(), "entry logs", "Is a directory"
    ),
    "mixed logs that cannot be read": Harm(
        lambda root: (root / "ledgers-0/current/bkctl.mixed-logs").mkdir(), "entry logs", "Is a directory"
    ),
    "catalog that cannot be read": Harm(
        lambda root: directory_in_place_of(root / "journal-0/current/bkctl.journals"), "journals", "Is a directory"
    ),
    "mark that cannot be read": Harm(
        lambda root: directory_in_place_of(root / "ledgers-1/current/bkctl.mark.0"), "marks", "Is a directory"
    ),
    "seal that cannot be read": Harm(
        lambda root: directory_in_place_of(root / "ledgers-0/current/ldb-ledgers.seal"), "index", "Is a directory"
    ),
    "fences damaged": Harm(
        lambda root: (root / "ledgers-0/current/bkctl.collected").write_bytes(b"junk"),
        "fences",
        "not a list of collected ledgers",
    ),
    "fences that cannot be read": Harm(
        lambda root: (root / "ledgers-0/current/bkctl.collected").mkdir(), "fences", "Is a directory"
    ),
    "quarantine damaged": Harm(
        lambda root: (root / "ledgers-0/current/bkctl.quarantine").write_bytes(b"junk"),
        "entry logs",
        "quarantined",
    ),
}


def test_sound_directories(config: StorageConfig) -> None:
    assert check(config) == []


@pytest.mark.parametrize("name", HARMS)
def test_harm_is_found(config: StorageConfig, tmp_path: Path, name: str) -> None:
    harm = HARMS[name]
    harm.act(tmp_path)
    everything = check(config)
    found = [each for each in everything if each.check == harm.check and harm.said in each.reason]
    assert found, everything
    assert len(everything) <= len(found) + 1, "whatever cannot be read, the rest is checked, and is sound"
    assert {each.severity for each in found} == {harm.severity}
    assert all((each.fix is not None) == (harm.severity is Severity.CRITICAL) for each in found)


def test_an_id_of_misread_bytes_is_no_ledger_that_lacks_something(config: StorageConfig, tmp_path: Path) -> None:
    log = tmp_path / "ledgers-0/current/0.log"
    data = bytearray(log.read_bytes())
    data[1028:1036] = b"collapse"  # the ledger id of the first entry
    log.write_bytes(data)
    (found,) = check(config)
    misread_id = int.from_bytes(b"collapse", "big")
    assert found.reason == (
        f"2036 bytes that its ledgers map lists are missing (damaged bytes read as entries of {misread_id}); ledgers 2"
    )


def test_damage_before_the_mark_is_a_note(config: StorageConfig, tmp_path: Path) -> None:
    """No start reads it again."""
    storage = boot(config)
    storage.close()
    oldest = min((tmp_path / "journal-0/current").glob("*.txn"), key=lambda path: int(path.stem, 16))
    oldest.write_bytes(oldest.read_bytes()[:512] + b"\xff\xff\0\0" + oldest.read_bytes()[516:])
    found = check(config)
    assert [(each.path, each.severity, each.offset) for each in found] == [(str(oldest), Severity.INFORMATION, 512)]
    boot(config).close()


@pytest.mark.parametrize("is_cataloged", [True, False])
@pytest.mark.parametrize("harm", [b"\xff\xff\0\0", bytes(512)])
def test_damage_after_the_mark_is_found_despite_damage_before_it(
    tmp_path: Path, is_cataloged: bool, harm: bytes
) -> None:
    """The start reads the file from the mark on, and so does the check."""
    config = config_below(tmp_path)
    storage = boot(config)
    storage.engine_of(1).rows.set_master_key(1, KEY)
    journal = storage.journal_of(1)
    journal.write_group([encode_ledger_key_record(1, KEY)])
    ends = []
    for entry_id in range(9):
        storage.engine_of(1).add(1, entry_id, entry(1, entry_id, b"x" * 1000))
        ends.append(journal.write_group([entry(1, entry_id, b"x" * 1000)]).offset)
        if entry_id == 4:
            checkpoint(storage)
    storage.close()
    path = newest(tmp_path / "journal-0/current", ".txn")
    if not is_cataloged:  # judged as Java's
        (path.parent / "bkctl.journals").unlink()
    [marks] = survey_marks(OsFileSystem(), config)
    assert marks.replay_start == (int(path.stem, 16), ends[4])
    for offset, harmed in ((ends[1], harm), (ends[6], b"\xff\xff\0\0")):
        path.write_bytes(path.read_bytes()[:offset] + harmed + path.read_bytes()[offset + len(harmed) :])
    assert [(each.path, each.severity, each.offset) for each in check(config)] == [
        (str(path), Severity.INFORMATION, ends[1]),
        (str(path), Severity.CRITICAL, ends[6]),
    ]
    with pytest.raises(CorruptFileError, match=f"offset {ends[6]}"):
        boot(config)


def test_a_lost_log_of_which_deleted_ledgers_alone_are_left_is_no_problem(
    config: StorageConfig, tmp_path: Path
) -> None:
    """A checkpoint that was cut off may leave rows of them; nobody asks for these any more."""
    (tmp_path / "ledgers-0/current/0.log").unlink()
    database = plyvel.DB(str(tmp_path / "ledgers-0/current/ldb-ledgers"))
    database.delete(struct.pack(">q", 2))
    database.close()
    assert [each for each in check(config) if each.check == "entry logs"] == []


def test_what_a_damaged_index_names_is_not_asked(config: StorageConfig, tmp_path: Path) -> None:
    (tmp_path / "ledgers-0/current/0.log").unlink()
    (tmp_path / "ledgers-0/current/ldb-locations.seal").write_bytes(b"junk")
    assert {each.check for each in check(config)} == {"index"}


@pytest.mark.parametrize("image", ["interleaved-4.18.0/replayed", "sorted-4.18.0/crash", "db-4.18.0/clean"])
def test_the_index_of_java_is_a_note(tmp_path: Path, image: str) -> None:
    """It is what a healthy Java bookie has."""
    directories = java_directories(image, tmp_path)
    [found] = check(directories.config)
    assert (found.check, found.path, found.severity) == ("index", str(directories.indexes[0]), Severity.INFORMATION)
    assert "bkctl storage adopt" in found.reason


def test_broken_index_files_of_java(tmp_path: Path) -> None:
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path)
    first, second = sorted(directories.indexes[0].rglob("*.idx"))[:2]
    os.truncate(first, 100)
    with second.open("r+b") as stream:
        stream.seek(IDX_HEADER_BYTES)
        stream.write(struct.pack(">q", 77 << 32 | 1028))
    problems = [each for each in check(directories.config) if each.severity is Severity.CRITICAL]
    assert [(each.path, each.ledger_id, each.entry_id) for each in problems] == [
        (str(first), int(first.stem, 16), None),
        (str(second), int(second.stem, 16), 0),
    ]
    assert "100 bytes" in problems[0].reason
    assert "4d.log is missing" in problems[1].reason


def test_index_directories_that_are_not_paired(config: StorageConfig, tmp_path: Path) -> None:
    """Java's InterleavedLedgerStorage accepts them; everything else is checked."""
    (tmp_path / "index" / "current").mkdir(parents=True)
    unpaired = msgspec.structs.replace(config, index_directories=(str(tmp_path / "index"),))
    [found] = check(unpaired)
    assert (found.check, found.severity) == ("index", Severity.CRITICAL)
    assert "not as many as ledger directories" in found.reason
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path / "java")
    (tmp_path / "l2").mkdir()
    ledgers = (*directories.config.ledger_directories, str(tmp_path / "l2"))
    (tmp_path / "l2" / "current").mkdir()
    java = msgspec.structs.replace(
        directories.config, ledger_directories=ledgers, index_directories=directories.config.ledger_directories
    )
    assert [each.severity for each in check(java)] == [Severity.INFORMATION]


def test_a_record_of_another_journal_is_a_finding(config: StorageConfig, tmp_path: Path) -> None:
    journals = tmp_path / "journal-0/current"
    (journals / "bkctl.journals").unlink()  # judged as Java's: no checksum notices the other ledger first
    path = newest(journals, ".txn")
    record = entry(2, 11, b"x" * 2000)
    path.write_bytes(path.read_bytes().replace(record[:16], entry(3, 11, b"")[:16]))
    (found,) = [finding for finding in check(config) if finding.check == "journals"]
    assert (found.path, found.severity) == (str(path), Severity.CRITICAL)
    assert "a record of ledger 3, which belongs to another journal" in found.reason


def test_directories_of_journals_in_the_wrong_order(config: StorageConfig) -> None:
    swapped = msgspec.structs.replace(config, journal_directories=config.journal_directories[::-1])
    reasons = [finding.reason for finding in check(swapped) if finding.check == "journals"]
    assert any("which belongs to another journal" in reason for reason in reasons)
