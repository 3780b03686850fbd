"""The check of a directory's indexes that writes nothing says what opening them says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.errors import StorageError
from bkctl.storage.index.opening import open_indexes, require_indexes
from bkctl.storage.index.swap import begin_rebuilt, commit_rebuilt

DISK = OsFileSystem()


def opened(directory: Path) -> type[StorageError] | None:
    """The error of opening the indexes."""
    try:
        for index in open_indexes(DISK, open_plyvel, str(directory), str(directory)):
            index.close()
    except StorageError as error:
        return type(error)
    return None


def required(directory: Path) -> type[StorageError] | None:
    """The error of the check; nothing may change."""
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    try:
        require_indexes(DISK, open_plyvel, str(directory), str(directory))
    except StorageError as error:
        return type(error)
    finally:
        assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
    return None


def lose_database(directory: Path) -> None:
    shutil.rmtree(directory / "ldb-locations")


def lose_all_with_history(directory: Path) -> None:
    for name in ("ldb-locations", "ldb-ledgers"):
        shutil.rmtree(directory / name)
        (directory / f"{name}.seal").unlink()
    (directory / "lastMark").write_bytes(bytes(16))


def lose_seal(directory: Path) -> None:
    (directory / "ldb-ledgers.seal").unlink()


def damage_seal(directory: Path) -> None:
    (directory / "ldb-ledgers.seal").write_bytes(b"junk")


def begin_swap(directory: Path) -> None:
    path = str(directory / "ldb-locations")
    open_plyvel(begin_rebuilt(DISK, path), create=True, strict=True).close()
    commit_rebuilt(DISK, open_plyvel, path)
    shutil.rmtree(path)


@pytest.mark.parametrize("change", [lose_database, lose_all_with_history, lose_seal, damage_seal])
def test_lost_and_damaged_indexes_are_refused_alike(tmp_path: Path, change: Callable[[Path], None]) -> None:
    assert opened(tmp_path) is None
    assert required(tmp_path) is None
    change(tmp_path)
    found = required(tmp_path)
    assert found is not None
    assert found is opened(tmp_path)


def test_new_directories_and_a_swap_that_has_begun_are_accepted(tmp_path: Path) -> None:
    assert required(tmp_path) is None
    assert opened(tmp_path) is None
    begin_swap(tmp_path)
    assert required(tmp_path) is None
    assert opened(tmp_path) is None
    assert required(tmp_path) is None
