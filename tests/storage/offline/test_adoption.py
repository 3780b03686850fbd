"""Folders of Java bookies with .idx files, adopted and read by a real engine; cut off at every change of the disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import StorageConfig
from bkctl.storage.entry_log.format import HEADER_BYTES
from bkctl.storage.errors import (
    AdoptionRefusedError,
    CorruptFileError,
    IndexFailedError,
    IndexMissingError,
    MisplacedLedgerError,
    StorageError,
)
from bkctl.storage.journal.format import (
    encode_explicit_lac_record,
    encode_fence_record,
    encode_file_header,
    encode_ledger_key_record,
)
from bkctl.storage.offline.adoption import AdoptionSurvey, JavaStorage, adopt, survey_adoption
from bkctl.storage.rebuild.rebuild import IndexRebuild, plan_rebuild
from tests.sim.children import InProcessChildren
from tests.storage.engines import FailingOnce, PhotographedDisk, explicit_lac, opening_watched
from tests.storage.golden import FILES
from tests.storage.groups import group_bytes
from tests.storage.java_folders import (
    EXPLICIT_LACS,
    FENCED,
    JavaFolders,
    UnsyncedDisk,
    boot,
    booted,
    copy_in_memory,
    java_folders,
    require_all,
    row_of,
)

FS = OsFileSystem()
IMAGES = [f"{name}/{image}" for name in ("interleaved-4.18.0", "sorted-4.18.0") for image in ("crash", "replayed")]


def surveyed(folders: JavaFolders) -> AdoptionSurvey:
    survey = survey_adoption(FS, folders.config)
    assert survey is not None
    return survey


def indexed_entries(folders: JavaFolders) -> dict[tuple[int, int], str]:
    """SHA-1 of the copies that the .idx files name."""
    shas: dict[tuple[int, int, int], str] = {}
    found: dict[tuple[int, int], str] = {}
    ours = {path: each for path, each in FILES.items() if path.startswith(f"{folders.image}/")}
    for path, each in ours.items():
        if each["kind"] == "entry log":
            log_id = int(Path(path).name.split(".")[0], 16)
            for entry in (found for found in each.get("entries", []) if found["ledger"] >= 0):
                shas[log_id << 32 | entry["offset"] + 4, entry["ledger"], entry["entry"]] = entry["sha1"]
    for path, each in ours.items():
        if each["kind"] == "index file":
            ledger_id = int(Path(path).name.split(".")[0], 16)
            for entry_id, location in each["locations"].items():
                found[ledger_id, int(entry_id)] = shas[location, ledger_id, int(entry_id)]
    return found


@pytest.mark.parametrize("image", IMAGES)
def test_folders_of_java(tmp_path: Path, image: str) -> None:
    folders = java_folders(image, tmp_path)
    before = folders.tree()
    survey = surveyed(folders)
    assert (survey.storage, survey.is_dirty, survey.is_begun) == (
        JavaStorage.INDEX_FILES,
        image.endswith("crash"),
        False,
    )
    assert folders.tree() == before
    indexed = indexed_entries(folders)
    report = adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    assert (report.ledger_count, report.unreadable_count, report.copied_entry_count) == (survey.ledger_count, 0, 0)
    assert report.entry_count == len(indexed)
    after = folders.tree()
    assert {
        path.replace("bkctl.java-index/", ""): data for path, data in after.items() if ".seal" not in path
    } == before
    with booted(folders.config) as storage:
        # Sorted storage keeps the first of two copies while both are in its memory, and replay ours the last.
        require_all(storage, folders.entries() if image.endswith("crash") else indexed)
        for ledger_id, key in folders.keys().items():
            row = row_of(storage, ledger_id)
            assert (row.master_key, row.is_fenced, row.is_limbo) == (key, ledger_id in FENCED, False)
            assert row.explicit_lac == EXPLICIT_LACS.get(ledger_id)
        assert storage.engines[0].read_flags() == 0
    assert survey_adoption(FS, folders.config) is None, "nothing is left to adopt"


def spread(folders: JavaFolders, *, count: int = 3) -> JavaFolders:
    """The same bookie with its logs and index files spread over more folders, as Java spreads them: anywhere."""
    first = Path(folders.config.ledger_directories[0])
    more = [first.with_name(f"ledgers-{number}") for number in range(1, count)]
    for number, folder in enumerate(more, 1):
        (folder / "current").mkdir(parents=True)
        for name in ("VERSION", "lastId", "lastMark"):
            shutil.copy(first / "current" / name, folder / "current" / name)
        for log in list((first / "current").glob("*.log")):
            if int(log.stem, 16) % count == number:
                shutil.move(log, folder / "current" / log.name)
        for idx in list((first / "current").glob("0/*/*.idx")):
            if int(idx.stem, 16) % 2 and number == 1:
                target = folder / "current" / idx.relative_to(first / "current")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(idx, target)
    config = msgspec.structs.replace(folders.config, ledger_directories=(str(first), *map(str, more)))
    return folders._replace(config=config)


@pytest.mark.parametrize("image", IMAGES)
def test_entries_in_any_of_several_folders(tmp_path: Path, image: str) -> None:
    folders = spread(java_folders(image, tmp_path))
    logs_before = {path: data for path, data in folders.tree().items() if path.endswith(".log")}
    indexed = indexed_entries(folders)
    report = adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    assert report.unreadable_count == 0
    assert 0 < report.copied_entry_count < report.entry_count == len(indexed)
    logs_after = {path: data for path, data in folders.tree().items() if path.endswith(".log")}
    assert logs_before.items() <= logs_after.items()
    with booted(folders.config) as storage:
        require_all(storage, folders.entries() if image.endswith("crash") else indexed)
        for ledger_id, key in folders.keys().items():
            row = row_of(storage, ledger_id)
            assert (row.master_key, row.is_fenced) == (key, ledger_id in FENCED)


def test_a_lost_index_is_rebuilt_from_mixed_logs(tmp_path: Path) -> None:
    """Its logs hold ledgers of other folders, which elsewhere is the sign of a list of folders that has changed."""
    folders = spread(java_folders("interleaved-4.18.0/replayed", tmp_path))
    indexed = indexed_entries(folders)
    adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    for index in folders.indexes:
        for database in ("ldb-ledgers", "ldb-locations"):
            shutil.rmtree(index / database)
    IndexRebuild(FS, open_plyvel, ChildProcesses(), folders.config, NobodyWatches()).run(
        plan_rebuild(FS, open_plyvel, folders.config, None)
    )
    with booted(folders.config) as storage:
        require_all(storage, indexed)
    for index in folders.indexes:
        (index / "bkctl.mixed-logs").unlink()
    with pytest.raises(MisplacedLedgerError):
        IndexRebuild(FS, open_plyvel, ChildProcesses(), folders.config, NobodyWatches()).run(
            plan_rebuild(FS, open_plyvel, folders.config, ("ldb-locations",))
        )


class NobodyWatches:
    def begin(self, stage: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


def test_what_cannot_be_read_is_unknown_and_never_denied(tmp_path: Path) -> None:
    folders = java_folders("interleaved-4.18.0/replayed", tmp_path)
    current = folders.indexes[0]
    (current / "1.log").unlink()
    (current / "0" / "6" / "6.idx").write_bytes(b"BKLE")
    report = adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    assert report.unreadable_count == 2
    assert any("1.log is missing" in each.reason for each in report.unreadable)
    with booted(folders.config) as storage:
        assert {each for each in (1, 2, 3, 5, 6) if row_of(storage, each).is_limbo} == {1, 6}
        row = row_of(storage, 6)
        assert (row.is_fenced, row.master_key) == (True, folders.keys()[6])
        assert storage.engines[0].read_flags() == 1


def test_two_index_files_of_one_ledger(tmp_path: Path) -> None:
    folders = spread(java_folders("interleaved-4.18.0/replayed", tmp_path))
    here, there = folders.indexes[:2]
    twin = here / "0" / "1" / "1.idx"
    data = bytearray((there / "0" / "1" / "1.idx").read_bytes())
    data[1024 + 8 * 8 : 1024 + 9 * 8] = bytes(8)
    data[35] = 1
    twin.parent.mkdir(parents=True, exist_ok=True)
    twin.write_bytes(data)
    indexed = indexed_entries(folders)
    assert adopt(FS, open_plyvel, ChildProcesses(), folders.config).entry_count == len(indexed)
    with booted(folders.config) as storage:
        require_all(storage, indexed)
        assert row_of(storage, 1).is_fenced


def test_a_fence_that_only_a_journal_tells_of(tmp_path: Path) -> None:
    """Java brings the fence of ledger 2 back by replay and moves its mark, but its .idx file never says so."""
    folders = java_folders("interleaved-4.18.0/replayed", tmp_path)
    assert FILES["interleaved-4.18.0/replayed/ledgers/0/2/2.idx.gz"]["state"] == 0
    adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    with booted(folders.config) as storage:
        assert row_of(storage, 2).is_fenced


@pytest.mark.parametrize("image", ["interleaved-4.18.0/replayed", "db-4.18.0/replayed"])
def test_an_old_journal_that_tells_of_former_ledgers_of_the_same_ids(tmp_path: Path, image: str) -> None:
    """Their keys and LACs are not those of the ledgers that are there; their fences may be."""
    folders = java_folders(image, tmp_path)
    former = [
        record
        for each in (1, 2)
        for record in (
            encode_ledger_key_record(each, b"former"),
            encode_explicit_lac_record(each, explicit_lac(each, 9999)),
            encode_fence_record(each),
        )
    ]
    header = encode_file_header()
    journal = Path(folders.config.journal_directories[0]) / "current" / "1.txn"
    journal.write_bytes(header + group_bytes(former, len(header)))
    adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    with booted(folders.config) as storage:
        for each in (1, 2):
            row = row_of(storage, each)
            assert (row.master_key, row.is_fenced) == (folders.keys()[each], True)
            assert row.explicit_lac == EXPLICIT_LACS.get(each)


def test_a_journal_that_cannot_be_read_fences_everything(tmp_path: Path) -> None:
    """It stands before the mark, so replay does not need it; a fence may have been in it."""
    folders = java_folders("interleaved-4.18.0/replayed", tmp_path)
    journal = Path(folders.config.journal_directories[0]) / "current" / "1a1fb8b1b2e.txn"
    data = bytearray(journal.read_bytes())
    data[512:516] = b"\xff\xff\x00\x00"
    journal.write_bytes(data)
    report = adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    assert [each.path for each in report.unreadable] == [str(journal)]
    with booted(folders.config) as storage:
        rows = [row_of(storage, each) for each in storage.engines[0].ledger_ids()]
        assert {(row.is_fenced, row.is_limbo) for row in rows} == {(True, False)}
        assert storage.engines[0].read_flags() == 1


def refused_two_kinds(folders: JavaFolders) -> None:
    (folders.indexes[0] / "locations").mkdir()


def refused_own_index(folders: JavaFolders) -> None:
    (folders.indexes[0] / "ldb-ledgers").mkdir()


def refused_lost_index(folders: JavaFolders) -> None:
    shutil.rmtree(folders.indexes[0] / "0")


def refused_two_bookies(folders: JavaFolders) -> None:
    shutil.copy(folders.indexes[0] / "0.log", folders.indexes[1] / "0.log")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (refused_two_kinds, "neither is complete"),
        (refused_own_index, "has already run with bkctl"),
        (refused_lost_index, "there is no index"),
        (refused_two_bookies, "not the directories of one bookie"),
    ],
)
def test_refusals_change_nothing(tmp_path: Path, harm: Callable[[JavaFolders], None], said: str) -> None:
    folders = java_folders("interleaved-4.18.0/replayed", tmp_path)
    if harm is refused_two_bookies:
        folders = spread(folders)
    harm(folders)
    before = folders.tree()
    with pytest.raises(AdoptionRefusedError, match=said):
        survey_adoption(FS, folders.config)
    assert folders.tree() == before


def test_two_keys_of_one_ledger(tmp_path: Path) -> None:
    folders = spread(java_folders("interleaved-4.18.0/replayed", tmp_path))
    data = bytearray((folders.indexes[1] / "0" / "1" / "1.idx").read_bytes())
    data[12] ^= 1
    (folders.indexes[0] / "0" / "1").mkdir(parents=True, exist_ok=True)
    (folders.indexes[0] / "0" / "1" / "1.idx").write_bytes(data)
    with pytest.raises(AdoptionRefusedError, match="different key"):
        adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    with pytest.raises(IndexMissingError):
        boot(folders.config)


def test_a_bookie_that_never_stored_anything(tmp_path: Path) -> None:
    folders = java_folders("interleaved-4.18.0/replayed", tmp_path)
    shutil.rmtree(folders.indexes[0] / "0")
    for log in folders.indexes[0].glob("*.log"):
        log.unlink()
    assert surveyed(folders).ledger_count == 0
    adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    boot(folders.config).close()


def test_a_bookie_killed_before_its_first_index_file(tmp_path: Path) -> None:
    """Entries reach the log before the index; without a mark, all of them are in the journals."""
    folders = java_folders("interleaved-4.18.0/crash", tmp_path)
    shutil.rmtree(folders.indexes[0] / "0")
    (folders.indexes[0] / "lastMark").write_bytes(bytes(16))
    assert surveyed(folders).ledger_count == 0
    adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    with booted(folders.config) as storage:
        require_all(storage, folders.entries())


def test_folders_where_nothing_ever_was(tmp_path: Path) -> None:
    folders = java_folders("interleaved-4.18.0/replayed", tmp_path)
    for path in (*folders.indexes, Path(folders.config.journal_directories[0]) / "current"):
        shutil.rmtree(path)
        path.mkdir()
    assert survey_adoption(FS, folders.config) is None


def test_every_cut_is_made_good(tmp_path: Path) -> None:
    """A kill before every change of the disk and around every batch: then adoption again, and all of it is there."""
    root = tmp_path / "live"
    folders = spread(java_folders("interleaved-4.18.0/crash", root), count=2)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    adopt(disk, opening_watched(disk.photograph), ChildProcesses(), folders.config)
    disk.photograph("the end")
    moments = [moment for moment, _ in disk.photographs]
    assert {moment.split()[1] for moment in moments} >= {
        "create",
        "write",
        "sync",
        "replace",
        "rename",
        "ldb-ledgers.adopting",
    }
    begun = 0
    for moment, photograph in _distinct(disk.photographs):
        begun += (photograph / "ledgers" / "current" / "bkctl.adoption").exists()
        _require_made_good(folders, moment, photograph, are_fences_known=True)
    assert begun > 10, "cuts on both sides of the note"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Java may start again, with the room that it had."""
    folders = spread(java_folders("interleaved-4.18.0/crash", tmp_path), count=2)
    kept = {"lastId", "bkctl.mixed-logs"}
    before = {path for path in tmp_path.rglob("*") if path.suffix != ".log" and path.name not in kept}
    for moment in ("before ldb-locations.adopting", "after ldb-ledgers.adopting"):
        failing = FailingOnce()
        failing.arm(moment)
        with pytest.raises((OSError, IndexFailedError)):
            adopt(FS, opening_watched(failing), ChildProcesses(), folders.config)
        assert {path for path in tmp_path.rglob("*") if path.suffix != ".log" and path.name not in kept} == before
    adopt(FS, open_plyvel, ChildProcesses(), folders.config)


def test_a_bookie_that_ran_in_between(tmp_path: Path) -> None:
    root = tmp_path / "live"
    folders = java_folders("interleaved-4.18.0/crash", root)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    adopt(disk, open_plyvel, ChildProcesses(), folders.config)
    cut = next(path for _, path in disk.photographs if (path / "ledgers" / "current" / "bkctl.adoption").exists())
    moved = folders._replace(root=cut, config=_moved(folders, cut))
    (cut / "journal" / "current" / "1a1fb8b1bff.txn").write_bytes(b"")
    with pytest.raises(AdoptionRefusedError, match="a bookie has written since"):
        adopt(FS, open_plyvel, ChildProcesses(), moved.config)
    (cut / "ledgers" / "current" / "bkctl.adoption").write_bytes(b"junk")
    with pytest.raises(CorruptFileError):
        survey_adoption(FS, moved.config)


def _moved(folders: JavaFolders, root: Path) -> StorageConfig:
    def below(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(root / Path(path).relative_to(folders.root)) for path in paths)

    return msgspec.structs.replace(
        folders.config,
        journal_directories=below(folders.config.journal_directories),
        ledger_directories=below(folders.config.ledger_directories),
        index_directories=below(folders.config.index_directories),
    )


def _require_no_boot(folders: JavaFolders) -> None:
    """Half adopted folders: no bookie of ours starts on them, so none denies an entry."""
    with pytest.raises(StorageError, match=r"bkctl storage (adopt|index rebuild)"):
        boot(folders.config)


DATABASE_IMAGES = sorted(
    {
        "/".join(path.split("/")[:2])
        for path in FILES
        if path.startswith(("db-", "direct-")) and path.endswith("lastMark")
    }
    | {f"db-multidir-4.18.0/{image}" for image in ("crash", "replayed")}
)


@pytest.mark.parametrize("image", DATABASE_IMAGES)
def test_folders_of_java_with_rocksdb(tmp_path: Path, image: str) -> None:
    folders = java_folders(image, tmp_path)
    assert surveyed(folders).storage is JavaStorage.DATABASES
    before = {path: data for path, data in folders.tree().items() if path.endswith((".log", ".txn", "VERSION"))}
    report = adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    assert report.unreadable_count == 0
    assert before.items() <= folders.tree().items()
    for index in folders.indexes:
        assert not (index / "ledgers").exists()
        assert (index / "bkctl.java-index" / "locations" / "CURRENT").exists()
    with booted(folders.config) as storage:
        require_all(storage, folders.entries())
        for ledger_id, key in folders.keys().items():
            row = row_of(storage, ledger_id)
            assert (row.master_key, row.is_fenced, row.is_limbo) == (key, True, False), "what is not known is fenced"
            assert row.explicit_lac == (
                None if image.endswith("clean") and ledger_id > 6 else EXPLICIT_LACS.get(ledger_id)
            )
        assert storage.engines[0].read_flags() == 1, "limbo and other flags of the RocksDB are not known"
    assert survey_adoption(FS, folders.config) is None


def test_a_record_with_a_negative_ledger_id_is_unreadable(tmp_path: Path) -> None:
    """Any ledger may lack the entry."""
    folders = java_folders("db-4.18.0/crash", tmp_path)
    logs = [path for path in (tmp_path / "ledgers" / "current").glob("*.log") if path.stat().st_size > HEADER_BYTES]
    log = max(logs, key=lambda path: int(path.stem, 16))  # the active one, without a map
    data = bytearray(log.read_bytes())
    data[HEADER_BYTES + 4] |= 0x80
    log.write_bytes(data)
    report = adopt(FS, open_plyvel, ChildProcesses(), folders.config)
    assert [each.path for each in report.unreadable] == [str(log)]
    assert f"offset {HEADER_BYTES} has the ids -" in report.unreadable[0].reason
    with booted(folders.config) as storage:
        assert {row_of(storage, ledger_id).is_limbo for ledger_id in dict(folders.keys())} == {True}


def test_every_cut_is_made_good_with_rocksdb(tmp_path: Path) -> None:
    root = tmp_path / "live"
    folders = java_folders("db-4.14.7/crash", root)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    adopt(disk, open_plyvel, ChildProcesses(), folders.config)
    disk.photograph("the end")
    # The rebuild has its own test of every cut: here those count between which a name came, went or changed.
    for moment, photograph in _distinct(disk.photographs, by_name=True):
        _require_made_good(folders, moment, photograph, are_fences_known=False)


def _require_made_good(folders: JavaFolders, moment: str, photograph: Path, *, are_fences_known: bool) -> None:
    """Adoption ends what was cut off there, no bookie starts before, and then all of it is served."""
    with copy_in_memory(photograph) as root:
        moved = folders._replace(root=root, config=_moved(folders, root))
        if survey_adoption(FS, moved.config) is not None:
            _require_no_boot(moved)
            disk = UnsyncedDisk()
            adopt(disk, open_plyvel, InProcessChildren(disk, open_plyvel), moved.config)
        assert not list(root.rglob("bkctl.adoption")), moment
        with booted(moved.config) as storage:
            require_all(storage, moved.entries())
            for ledger_id, key in moved.keys().items():
                row = row_of(storage, ledger_id)
                is_fenced = ledger_id in FENCED or not are_fences_known
                assert (row.master_key, row.is_fenced) == (key, is_fenced), moment


def _distinct(photographs: list[tuple[str, Path]], *, by_name: bool = False) -> list[tuple[str, Path]]:
    """Without those that a kill cannot tell from the one before: what came between was a sync."""
    kept: list[tuple[str, Path]] = []
    last: dict[str, bytes] = {}
    for moment, photograph in photographs:
        files = {str(path.relative_to(photograph)): path for path in photograph.rglob("*") if path.is_file()}
        if by_name:  # of the files and folders in each "current"
            now = {"/".join(name.split("/")[:3]): b"" for name in files}
        else:
            now = {name: path.read_bytes() for name, path in files.items()}
        if now != last:
            kept.append((moment, photograph))
        last = now
    return kept
