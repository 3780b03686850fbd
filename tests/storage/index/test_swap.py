"""Making room for a new database beside the old one, whatever an earlier rebuild left."""

from __future__ import annotations

from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.index.swap import begin_rebuilt, discard_rebuilt


class Haunted(OsFileSystem):
    """A child that outlived its parent is busy in the directory: it makes a file, and takes one away."""

    def __init__(self, made_count: int) -> None:
        super().__init__()
        self.made_count = made_count

    def list_directory(self, path: str) -> list[str]:
        names = super().list_directory(path)
        for name in names:
            if name.startswith("temporary"):
                (Path(path) / name).unlink()
        return names

    def remove_directory(self, path: str) -> None:
        if self.made_count:
            self.made_count -= 1
            (Path(path) / f"run-{self.made_count}").write_bytes(b"rows")
            (Path(path) / f"temporary-{self.made_count}").write_bytes(b"rows")
        super().remove_directory(path)


def test_a_child_that_outlived_its_parent_does_not_keep_the_directory(tmp_path: Path) -> None:
    path = tmp_path / "ldb-locations"
    disk = Haunted(made_count=3)
    directory = Path(begin_rebuilt(disk, str(path)))
    (directory / "run-9").write_bytes(b"rows")
    assert Path(begin_rebuilt(disk, str(path))) == directory
    assert disk.made_count == 0
    assert list(directory.iterdir()) == []
    discard_rebuilt(disk, str(path))
    assert not directory.exists()


def test_a_directory_that_cannot_be_emptied_is_an_error(tmp_path: Path) -> None:
    directory = tmp_path / "ldb-locations.rebuilt"
    (directory / "inner").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        discard_rebuilt(OsFileSystem(), str(tmp_path / "ldb-locations"))


def test_who_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "ldb-locations.rebuilt").mkdir()
    with pytest.raises(OSError, match=r"not empty|No such file"):
        discard_rebuilt(Haunted(made_count=10_000), str(tmp_path / "ldb-locations"))
