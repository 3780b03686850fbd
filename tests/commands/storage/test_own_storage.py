"""Which directories the storage commands take for a bookie's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.storage.conftest import Directories


def file_in_place_of_directory(root: Path) -> Path:
    path = root / "odd"
    path.write_text("")
    return path


def file_in_place_of_current(root: Path) -> Path:
    path = root / "odd"
    path.mkdir()
    (path / "current").write_text("")
    return path


@pytest.mark.parametrize("make", [file_in_place_of_directory, file_in_place_of_current])
@pytest.mark.parametrize("words", [("files",), ("check",), ("hand-back", "--dry-run")])
def test_an_index_directory_that_is_a_file(directories: Directories, make: object, words: tuple[str, ...]) -> None:
    directories.fill()
    odd = make(directories.root)  # type: ignore[operator]
    result = directories.run(*words, "--index-dir", str(odd))
    assert result.exit_code == 4
    assert result.stderr.startswith(f"error: {odd}")
    assert "is not a directory" in result.stderr


def test_directories_without_a_bookie_s_files(directories: Directories) -> None:
    directories.fill()
    empty = directories.root / "empty"
    empty.mkdir()
    file = file_in_place_of_directory(directories.root)
    for option in ("--ledger-dir", "--journal-dir"):
        for path, said in (
            (empty, "it has no directory 'current'"),
            (file, "is not a directory"),
            (directories.root / "nowhere", "is missing"),
        ):
            result = directories.run("check", option, str(path))
            assert (result.exit_code, said in result.stderr) == (4, True), result.stderr
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("option", ["--port", "--bookie-id", "--advertised-address"])
def test_options_that_do_not_change_directories_are_refused(directories: Directories, option: str) -> None:
    directories.fill()
    result = directories.run("check", option, "3181")
    assert (result.exit_code, f"No such option: {option}" in result.stderr) == (2, True), result.stderr
