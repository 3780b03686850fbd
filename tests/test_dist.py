"""`make dist`: what is in the wheel and the sdist, and what they are refused from."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.test_repository import FLOORS, ROOT, tracked_files

LAYERS = FLOORS[1:]


def source_tree(directory: Path) -> Path:
    """A copy of what git knows; links stay links."""
    for path in tracked_files():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.join(ROOT, path), directory / path, follow_symlinks=False)
    return directory


def build(directory: Path) -> subprocess.CompletedProcess[str]:
    """The command of `make dist`."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)


def modules(names: list[str]) -> set[str]:
    return {name for name in names if name.endswith((".py", ".pyi", ".proto", ".html"))}


@pytest.mark.battery
def test_wheel_and_sdist_are_complete(tmp_path: Path) -> None:
    done = build(source_tree(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.namelist()
        metadata = archive.read(next(name for name in packed if name.endswith("/METADATA"))).decode()
    floors = {
        path if path.startswith("bkctl/") else f"bkctl/{path}"
        for path in tracked_files()
        if path.split("/")[0] in FLOORS
    }
    assert modules(packed) == modules(list(floors))
    assert {name.split("/")[0].split("-")[0] for name in packed} == {"bkctl"}
    assert "Project-URL: Apache BookKeeper, https://bookkeeper.apache.org\n" in metadata
    assert "Classifier: Operating System :: POSIX :: Linux\n" in metadata
    with tarfile.open(sdist) as archive_of_source:
        sources = {name.partition("/")[2] for name in archive_of_source.getnames()}
    assert {"LICENSE", "README.md", "requirements-run.txt", "docs/guide/run-a-bookie.md"} <= sources
    assert [name for name in sources if name.startswith("tests/")] == []


@pytest.mark.parametrize("name", LAYERS)
def test_a_tree_without_links_is_refused(tmp_path: Path, name: str) -> None:
    """As git writes them where it may not make links: files with the name of their target."""
    (tmp_path / "bkctl").mkdir()
    for layer in LAYERS:
        link = Path(ROOT) / "bkctl" / layer
        assert link.is_symlink()
        if layer == name:
            (tmp_path / "bkctl" / layer).write_text(os.readlink(link))
        else:
            (tmp_path / "bkctl" / layer).mkdir()
    shutil.copy(os.path.join(ROOT, "setup.py"), tmp_path)
    command = [sys.executable, "setup.py", "--name"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"bkctl/{name} is not a directory: this source tree was made without symbolic links.")
