from __future__ import annotations

import os
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.errors import DirectoryLockedError, IndexDamagedError
from bkctl.storage.index.kept_files import KeptFiles
from bkctl.storage.index.seal import SealedIndex, create_sealed_index, open_sealed_index


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "database")


@pytest.fixture
def kept(path: str) -> KeptFiles:
    return KeptFiles(OsFileSystem(), path)


def written(path: str) -> None:
    os.makedirs(path, exist_ok=True)
    for name in ("CURRENT", "000003.log", "LOCK", "LOG"):
        Path(path, name).write_text(f"old {name}")


def contents(path: str) -> dict[str, str]:
    return {name: Path(path, name).read_text() for name in sorted(os.listdir(path))}


def sealed(path: str) -> SealedIndex:
    return create_sealed_index(OsFileSystem(), open_plyvel, path)


def reopened(path: str) -> SealedIndex:
    return open_sealed_index(OsFileSystem(), open_plyvel, path)


def test_what_an_unfinished_opening_did_is_undone(path: str, kept: KeptFiles) -> None:
    written(path)
    kept.keep()
    Path(path, "CURRENT").unlink()
    Path(path, "CURRENT").write_text("new")
    Path(path, "000003.log").unlink()
    Path(path, "000005.ldb").write_text("a table of the opening")
    kept.restore()
    assert contents(path) == {"000003.log": "old 000003.log", "CURRENT": "old CURRENT"}


def test_a_restoration_that_was_cut_off_is_done_again(path: str, kept: KeptFiles) -> None:
    written(path)
    kept.keep()
    kept.restore()
    Path(path, "CURRENT").unlink()
    kept.restore()
    assert contents(path)["CURRENT"] == "old CURRENT"


def test_a_set_that_is_not_whole_is_not_restored(path: str, kept: KeptFiles) -> None:
    written(path)
    kept.keep()
    os.rename(path + ".kept", path + ".kept.tmp")
    Path(path, "CURRENT").write_text("new")
    kept.restore()
    assert contents(path)["CURRENT"] == "new"
    kept.keep()
    kept.drop()
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_nothing_is_kept_behind_an_opening_that_ended(path: str) -> None:
    sealed(path).close()
    reopened(path).close()
    assert sorted(os.listdir(os.path.dirname(path))) == ["database", "database.seal"]


def test_an_opening_whose_new_names_were_lost_is_repeated(path: str, kept: KeptFiles) -> None:
    index = sealed(path)
    index.write([(b"key", b"value")])
    index.record()
    index.close()
    kept.keep()
    open_plyvel(path, create=False, strict=True).close()
    # A file system in no order: the old manifest and log are gone, and so is the name CURRENT of the new ones.
    os.remove(os.path.join(path, "CURRENT"))
    index = reopened(path)
    assert index.get(b"key") == b"value"
    index.close()


def test_a_database_that_is_refused_stays_as_it_was(path: str) -> None:
    sealed(path).close()
    manifest = next(name for name in os.listdir(path) if name.startswith("MANIFEST"))
    Path(path, manifest).write_bytes(b"\0" * 100)
    before = {name: Path(path, name).read_bytes() for name in os.listdir(path) if not name.startswith("LO")}
    for _ in range(2):
        with pytest.raises(IndexDamagedError):
            reopened(path)
    KeptFiles(OsFileSystem(), path).restore()
    assert {name: Path(path, name).read_bytes() for name in os.listdir(path)} == before


def test_a_database_that_is_open_elsewhere_is_not_set_back_later(path: str) -> None:
    owner = sealed(path)
    with pytest.raises(DirectoryLockedError):
        reopened(path)
    owner.write([(b"key", b"value")])
    owner.record()
    owner.close()
    index = reopened(path)
    assert index.get(b"key") == b"value"
    index.close()


def test_a_creation_that_was_cut_off_begins_again(path: str) -> None:
    """LevelDB points CURRENT at a manifest that is not synced yet; nothing was ever sealed in such a database."""
    sealed(path).close()
    manifest = next(name for name in os.listdir(path) if name.startswith("MANIFEST"))
    Path(path, manifest).write_bytes(b"")
    index = sealed(path)
    index.write([(b"key", b"value")])
    index.close()
