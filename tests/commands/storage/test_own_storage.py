"""Which folders the storage commands take for a bookie's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.storage.conftest import Folders


def file_in_place_of_folder(root: Path) -> Path:
    path = root / "odd"
    path.write_text("")
    return path


def file_in_place_of_current(root: Path) -> Path:
    path = root / "odd"
    path.mkdir()
    (path / "current").write_text("")
    return path


@pytest.mark.parametrize("make", [file_in_place_of_folder, file_in_place_of_current])
@pytest.mark.parametrize("words", [("files",), ("check",), ("hand-back", "--dry-run")])
def test_an_index_folder_that_is_a_file(folders: Folders, make: object, words: tuple[str, ...]) -> None:
    folders.fill()
    odd = make(folders.root)  # type: ignore[operator]
    result = folders.run(*words, "--index-dir", str(odd))
    assert result.exit_code == 4
    assert result.stderr.startswith(f"error: {odd}")
    assert "is not a directory" in result.stderr


def test_folders_without_a_bookie_s_files(folders: Folders) -> None:
    folders.fill()
    empty = folders.root / "empty"
    empty.mkdir()
    file = file_in_place_of_folder(folders.root)
    for option in ("--ledger-dir", "--journal-dir"):
        for path, said in (
            (empty, "it has no directory 'current'"),
            (file, "is not a directory"),
            (folders.root / "nowhere", "is missing"),
        ):
            result = folders.run("check", option, str(path))
            assert (result.exit_code, said in result.stderr) == (4, True), result.stderr
    assert list(empty.iterdir()) == []


@pytest.mark.parametrize("option", ["--port", "--bookie-id", "--advertised-address"])
def test_options_that_do_not_change_directories_are_refused(folders: Folders, option: str) -> None:
    folders.fill()
    result = folders.run("check", option, "3181")
    assert (result.exit_code, f"No such option: {option}" in result.stderr) == (2, True), result.stderr
