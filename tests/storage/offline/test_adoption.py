"""Directories of Java bookies with .idx files, adopted and read by a real engine; cut off at every change of the
disk."""

from __future__ import annotations

import shutil
import struct
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
from bkctl.storage.filenames import JAVA_BLOCK
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
from tests.storage.java_directories import (
    EXPLICIT_LACS,
    FENCED,
    JavaDirectories,
    UnsyncedDisk,
    boot,
    booted,
    copy_in_memory,
    java_directories,
    require_all,
    row_of,
)

FS = OsFileSystem()
IMAGES = [f"{name}/{image}" for name in ("interleaved-4.18.0", "sorted-4.18.0") for image in ("crash", "replayed")]


def surveyed(directories: JavaDirectories) -> AdoptionSurvey:
    survey = survey_adoption(FS, directories.config)
    assert survey is not None
    return survey


def indexed_entries(directories: JavaDirectories) -> dict[tuple[int, int], str]:
    """SHA-1 of the copies that the .idx files name."""
    shas: dict[tuple[int, int, int], str] = {}
    found: dict[tuple[int, int], str] = {}
    ours = {path: each for path, each in FILES.items() if path.startswith(f"{directories.image}/")}
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
def test_directories_of_java(tmp_path: Path, image: str) -> None:
    directories = java_directories(image, tmp_path)
    before = directories.tree()
    survey = surveyed(directories)
    assert (survey.storage, survey.is_dirty, survey.is_begun) == (
        JavaStorage.INDEX_FILES,
        image.endswith("crash"),
        False,
    )
    assert directories.tree() == before
    indexed = indexed_entries(directories)
    report = adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    assert (report.ledger_count, report.unreadable_count, report.copied_entry_count) == (survey.ledger_count, 0, 0)
    assert report.entry_count == len(indexed)
    after = directories.tree()
    assert after.pop(f"journal/current/{JAVA_BLOCK}") == b""
    assert {
        path.replace("bkctl.java-index/", ""): data for path, data in after.items() if ".seal" not in path
    } == before
    with booted(directories.config) as storage:
        # Sorted storage keeps the first of two copies while both are in its memory, and replay ours the last.
        require_all(storage, directories.entries() if image.endswith("crash") else indexed)
        for ledger_id, key in directories.keys().items():
            row = row_of(storage, ledger_id)
            assert (row.master_key, row.is_fenced, row.is_limbo) == (key, ledger_id in FENCED, False)
            assert row.explicit_lac == EXPLICIT_LACS.get(ledger_id)
        assert storage.engines[0].rows.read_flags() == 0
    assert survey_adoption(FS, directories.config) is None, "nothing is left to adopt"


def test_an_older_copy_of_one_directory(tmp_path: Path) -> None:
    """Java publishes a mark in all of them: what was stored since the copy is missing, and must not be denied."""
    directories = spread(java_directories("interleaved-4.18.0/replayed", tmp_path))
    older = Path(directories.config.ledger_directories[2], "current", "lastMark")
    journal_id, offset = struct.unpack(">qq", older.read_bytes())
    older.write_bytes(struct.pack(">qq", journal_id - 1, offset))
    report = adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    assert [each.path for each in report.unreadable] == [str(older)]
    assert "older copy" in report.unreadable[0].reason
    with booted(directories.config) as storage:
        assert storage.engines[0].rows.read_flags() == 1


def spread(directories: JavaDirectories, *, count: int = 3) -> JavaDirectories:
    """The same bookie with its logs and index files spread over more directories, as Java spreads them: anywhere."""
    first = Path(directories.config.ledger_directories[0])
    more = [first.with_name(f"ledgers-{number}") for number in range(1, count)]
    for number, directory in enumerate(more, 1):
        (directory / "current").mkdir(parents=True)
        for name in ("VERSION", "lastId", "lastMark"):
            shutil.copy(first / "current" / name, directory / "current" / name)
        for log in list((first / "current").glob("*.log")):
            if int(log.stem, 16) % count == number:
                shutil.move(log, directory / "current" / log.name)
        for idx in list((first / "current").glob("0/*/*.idx")):
            if int(idx.stem, 16) % 2 and number == 1:
                target = directory / "current" / idx.relative_to(first / "current")
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(idx, target)
    config = msgspec.structs.replace(directories.config, ledger_directories=(str(first), *map(str, more)))
    return directories._replace(config=config)


@pytest.mark.parametrize("image", IMAGES)
def test_entries_in_any_of_several_directories(tmp_path: Path, image: str) -> None:
    directories = spread(java_directories(image, tmp_path))
    logs_before = {path: data for path, data in directories.tree().items() if path.endswith(".log")}
    indexed = indexed_entries(directories)
    report = adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    assert report.unreadable_count == 0
    assert 0 < report.copied_entry_count < report.entry_count == len(indexed)
    logs_after = {path: data for path, data in directories.tree().items() if path.endswith(".log")}
    assert logs_before.items() <= logs_after.items()
    with booted(directories.config) as storage:
        require_all(storage, directories.entries() if image.endswith("crash") else indexed)
        for ledger_id, key in directories.keys().items():
            row = row_of(storage, ledger_id)
            assert (row.master_key, row.is_fenced) == (key, ledger_id in FENCED)


def test_a_lost_index_is_rebuilt_from_mixed_logs(tmp_path: Path) -> None:
    """Its logs hold ledgers of other directories, which elsewhere is the sign of a list of directories that has
    changed."""
    directories = spread(java_directories("interleaved-4.18.0/replayed", tmp_path))
    indexed = indexed_entries(directories)
    adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    for index in directories.indexes:
        for database in ("ldb-ledgers", "ldb-locations"):
            shutil.rmtree(index / database)
    IndexRebuild(FS, open_plyvel, ChildProcesses(), directories.config, NobodyWatches()).run(
        plan_rebuild(FS, open_plyvel, directories.config, None)
    )
    with booted(directories.config) as storage:
        require_all(storage, indexed)
    for index in directories.indexes:
        (index / "bkctl.mixed-logs").unlink()
    with pytest.raises(MisplacedLedgerError):
        IndexRebuild(FS, open_plyvel, ChildProcesses(), directories.config, NobodyWatches()).run(
            plan_rebuild(FS, open_plyvel, directories.config, ("ldb-locations",))
        )


class NobodyWatches:
    def begin(self, stage: str, total: int) -> None:
        pass

    def advance(self, amount: int) -> None:
        pass


def test_what_cannot_be_read_is_unknown_and_never_denied(tmp_path: Path) -> None:
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path)
    current = directories.indexes[0]
    (current / "1.log").unlink()
    (current / "0" / "6" / "6.idx").write_bytes(b"BKLE")
    report = adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    assert report.unreadable_count == 2
    assert any("1.log is missing" in each.reason for each in report.unreadable)
    with booted(directories.config) as storage:
        assert {each for each in (1, 2, 3, 5, 6) if row_of(storage, each).is_limbo} == {1, 6}
        row = row_of(storage, 6)
        assert (row.is_fenced, row.master_key) == (True, directories.keys()[6])
        assert storage.engines[0].rows.read_flags() == 1


def test_two_index_files_of_one_ledger(tmp_path: Path) -> None:
    directories = spread(java_directories("interleaved-4.18.0/replayed", tmp_path))
    here, there = directories.indexes[:2]
    twin = here / "0" / "1" / "1.idx"
    data = bytearray((there / "0" / "1" / "1.idx").read_bytes())
    data[1024 + 8 * 8 : 1024 + 9 * 8] = bytes(8)
    data[35] = 1
    twin.parent.mkdir(parents=True, exist_ok=True)
    twin.write_bytes(data)
    indexed = indexed_entries(directories)
    assert adopt(FS, open_plyvel, ChildProcesses(), directories.config).entry_count == len(indexed)
    with booted(directories.config) as storage:
        require_all(storage, indexed)
        assert row_of(storage, 1).is_fenced


def test_a_fence_that_only_a_journal_tells_of(tmp_path: Path) -> None:
    """Java brings the fence of ledger 2 back by replay and moves its mark, but its .idx file never says so."""
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path)
    assert FILES["interleaved-4.18.0/replayed/ledgers/0/2/2.idx.gz"]["state"] == 0
    adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    with booted(directories.config) as storage:
        assert row_of(storage, 2).is_fenced


@pytest.mark.parametrize("image", ["interleaved-4.18.0/replayed", "db-4.18.0/replayed"])
def test_an_old_journal_that_tells_of_former_ledgers_of_the_same_ids(tmp_path: Path, image: str) -> None:
    """Their keys and LACs are not those of the ledgers that are there; their fences may be."""
    directories = java_directories(image, tmp_path)
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
    journal = Path(directories.config.journal_directories[0]) / "current" / "1.txn"
    journal.write_bytes(header + group_bytes(former, len(header)))
    adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    with booted(directories.config) as storage:
        for each in (1, 2):
            row = row_of(storage, each)
            assert (row.master_key, row.is_fenced) == (directories.keys()[each], True)
            assert row.explicit_lac == EXPLICIT_LACS.get(each)


def test_a_journal_that_cannot_be_read_fences_everything(tmp_path: Path) -> None:
    """It stands before the mark, so replay does not need it; a fence may have been in it."""
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path)
    journal = Path(directories.config.journal_directories[0]) / "current" / "1a1fb8b1b2e.txn"
    data = bytearray(journal.read_bytes())
    data[512:516] = b"\xff\xff\x00\x00"
    journal.write_bytes(data)
    report = adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    assert [each.path for each in report.unreadable] == [str(journal)]
    with booted(directories.config) as storage:
        rows = [row_of(storage, each) for each in storage.engines[0].ledger_ids()]
        assert {(row.is_fenced, row.is_limbo) for row in rows} == {(True, False)}
        assert storage.engines[0].rows.read_flags() == 1


def refused_two_kinds(directories: JavaDirectories) -> None:
    (directories.indexes[0] / "locations").mkdir()


def refused_own_index(directories: JavaDirectories) -> None:
    (directories.indexes[0] / "ldb-ledgers").mkdir()


def refused_lost_index(directories: JavaDirectories) -> None:
    shutil.rmtree(directories.indexes[0] / "0")


def refused_two_bookies(directories: JavaDirectories) -> None:
    shutil.copy(directories.indexes[0] / "0.log", directories.indexes[1] / "0.log")


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (refused_two_kinds, "neither is complete"),
        (refused_own_index, "has already run with bkctl"),
        (refused_lost_index, "there is no index"),
        (refused_two_bookies, "not the directories of one bookie"),
    ],
)
def test_refusals_change_nothing(tmp_path: Path, harm: Callable[[JavaDirectories], None], said: str) -> None:
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path)
    if harm is refused_two_bookies:
        directories = spread(directories)
    harm(directories)
    before = directories.tree()
    with pytest.raises(AdoptionRefusedError, match=said):
        survey_adoption(FS, directories.config)
    assert directories.tree() == before


def test_two_keys_of_one_ledger(tmp_path: Path) -> None:
    directories = spread(java_directories("interleaved-4.18.0/replayed", tmp_path))
    data = bytearray((directories.indexes[1] / "0" / "1" / "1.idx").read_bytes())
    data[12] ^= 1
    (directories.indexes[0] / "0" / "1").mkdir(parents=True, exist_ok=True)
    (directories.indexes[0] / "0" / "1" / "1.idx").write_bytes(data)
    with pytest.raises(AdoptionRefusedError, match="different key"):
        adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    with pytest.raises(IndexMissingError):
        boot(directories.config)


def test_a_bookie_that_never_stored_anything(tmp_path: Path) -> None:
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path)
    shutil.rmtree(directories.indexes[0] / "0")
    for log in directories.indexes[0].glob("*.log"):
        log.unlink()
    assert surveyed(directories).ledger_count == 0
    adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    boot(directories.config).close()


def test_a_bookie_killed_before_its_first_index_file(tmp_path: Path) -> None:
    """Entries reach the log before the index; without a mark, all of them are in the journals."""
    directories = java_directories("interleaved-4.18.0/crash", tmp_path)
    shutil.rmtree(directories.indexes[0] / "0")
    (directories.indexes[0] / "lastMark").write_bytes(bytes(16))
    assert surveyed(directories).ledger_count == 0
    adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    with booted(directories.config) as storage:
        require_all(storage, directories.entries())


def test_directories_where_nothing_ever_was(tmp_path: Path) -> None:
    directories = java_directories("interleaved-4.18.0/replayed", tmp_path)
    for path in (*directories.indexes, Path(directories.config.journal_directories[0]) / "current"):
        shutil.rmtree(path)
        path.mkdir()
    assert survey_adoption(FS, directories.config) is None


def test_every_cut_is_made_good(tmp_path: Path) -> None:
    """A kill before every change of the disk and around every batch: then adoption again, and all of it is there."""
    root = tmp_path / "live"
    directories = spread(java_directories("interleaved-4.18.0/crash", root), count=2)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    adopt(disk, opening_watched(disk.photograph), ChildProcesses(), directories.config)
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
        _require_made_good(directories, moment, photograph, are_fences_known=True)
    assert begun > 10, "cuts on both sides of the note"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Java may start again, with the room that it had."""
    directories = spread(java_directories("interleaved-4.18.0/crash", tmp_path), count=2)
    kept = {"lastId", "bkctl.mixed-logs"}
    before = {path for path in tmp_path.rglob("*") if path.suffix != ".log" and path.name not in kept}
    for moment in ("before ldb-locations.adopting", "after ldb-ledgers.adopting"):
        failing = FailingOnce()
        failing.arm(moment)
        with pytest.raises((OSError, IndexFailedError)):
            adopt(FS, opening_watched(failing), ChildProcesses(), directories.config)
        assert {path for path in tmp_path.rglob("*") if path.suffix != ".log" and path.name not in kept} == before
    adopt(FS, open_plyvel, ChildProcesses(), directories.config)


def test_a_bookie_that_ran_in_between(tmp_path: Path) -> None:
    root = tmp_path / "live"
    directories = java_directories("interleaved-4.18.0/crash", root)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    adopt(disk, open_plyvel, ChildProcesses(), directories.config)
    cut = next(path for _, path in disk.photographs if (path / "ledgers" / "current" / "bkctl.adoption").exists())
    moved = directories._replace(root=cut, config=_moved(directories, cut))
    (cut / "journal" / "current" / "1a1fb8b1bff.txn").write_bytes(b"")
    with pytest.raises(AdoptionRefusedError, match="a bookie has written since"):
        adopt(FS, open_plyvel, ChildProcesses(), moved.config)
    (cut / "ledgers" / "current" / "bkctl.adoption").write_bytes(b"junk")
    with pytest.raises(CorruptFileError):
        survey_adoption(FS, moved.config)


def _moved(directories: JavaDirectories, root: Path) -> StorageConfig:
    def below(paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(root / Path(path).relative_to(directories.root)) for path in paths)

    return msgspec.structs.replace(
        directories.config,
        journal_directories=below(directories.config.journal_directories),
        ledger_directories=below(directories.config.ledger_directories),
        index_directories=below(directories.config.index_directories),
    )


def _require_no_boot(directories: JavaDirectories) -> None:
    """Half adopted directories: no bookie of ours starts on them, so none denies an entry."""
    with pytest.raises(StorageError, match=r"bkctl storage (adopt|index rebuild)"):
        boot(directories.config)


DATABASE_IMAGES = sorted(
    {
        "/".join(path.split("/")[:2])
        for path in FILES
        if path.startswith(("db-", "direct-")) and path.endswith("lastMark")
    }
    | {f"db-multidir-4.18.0/{image}" for image in ("crash", "replayed")}
)


@pytest.mark.parametrize("image", DATABASE_IMAGES)
def test_directories_of_java_with_rocksdb(tmp_path: Path, image: str) -> None:
    directories = java_directories(image, tmp_path)
    assert surveyed(directories).storage is JavaStorage.DATABASES
    before = {path: data for path, data in directories.tree().items() if path.endswith((".log", ".txn", "VERSION"))}
    report = adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    assert report.unreadable_count == 0
    assert before.items() <= directories.tree().items()
    for index in directories.indexes:
        assert not (index / "ledgers").exists()
        assert (index / "bkctl.java-index" / "locations" / "CURRENT").exists()
    with booted(directories.config) as storage:
        require_all(storage, directories.entries())
        for ledger_id, key in directories.keys().items():
            row = row_of(storage, ledger_id)
            assert (row.master_key, row.is_fenced, row.is_limbo) == (key, True, False), "what is not known is fenced"
            assert row.explicit_lac == (
                None if image.endswith("clean") and ledger_id > 6 else EXPLICIT_LACS.get(ledger_id)
            )
        assert storage.engines[0].rows.read_flags() == 1, "limbo and other flags of the RocksDB are not known"
    assert survey_adoption(FS, directories.config) is None


def test_a_record_with_a_negative_ledger_id_is_unreadable(tmp_path: Path) -> None:
    """Any ledger may lack the entry."""
    directories = java_directories("db-4.18.0/crash", tmp_path)
    logs = [path for path in (tmp_path / "ledgers" / "current").glob("*.log") if path.stat().st_size > HEADER_BYTES]
    log = max(logs, key=lambda path: int(path.stem, 16))  # the active one, without a map
    data = bytearray(log.read_bytes())
    data[HEADER_BYTES + 4] |= 0x80
    log.write_bytes(data)
    report = adopt(FS, open_plyvel, ChildProcesses(), directories.config)
    assert [each.path for each in report.unreadable] == [str(log)]
    assert f"offset {HEADER_BYTES} has the ids -" in report.unreadable[0].reason
    with booted(directories.config) as storage:
        assert {row_of(storage, ledger_id).is_limbo for ledger_id in dict(directories.keys())} == {True}


def test_every_cut_is_made_good_with_rocksdb(tmp_path: Path) -> None:
    root = tmp_path / "live"
    directories = java_directories("db-4.14.7/crash", root)
    disk = PhotographedDisk(root)
    disk.photograph_into = tmp_path / "cuts"
    adopt(disk, open_plyvel, ChildProcesses(), directories.config)
    disk.photograph("the end")
    # The rebuild has its own test of every cut: here those count between which a name came, went or changed.
    for moment, photograph in _distinct(disk.photographs, by_name=True):
        _require_made_good(directories, moment, photograph, are_fences_known=False)


def _require_made_good(directories: JavaDirectories, moment: str, photograph: Path, *, are_fences_known: bool) -> None:
    """Adoption ends what was cut off there, no bookie starts before, and then all of it is served."""
    with copy_in_memory(photograph) as root:
        moved = directories._replace(root=root, config=_moved(directories, root))
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
        if by_name:  # of the files and directories in each "current"
            now = {"/".join(name.split("/")[:3]): b"" for name in files}
        else:
            now = {name: path.read_bytes() for name, path in files.items()}
        if now != last:
            kept.append((moment, photograph))
        last = now
    return kept
