"""Several ledger directories with one index directory, as Java's InterleavedLedgerStorage accepts them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commands.storage.conftest import Directories
from tests.processes import run_bkctl
from tests.storage.java_directories import java_directories


@pytest.fixture
def unpaired(tmp_path: Path) -> Directories:
    """A stopped Java bookie; its logs are in the first of four ledger directories."""
    java = java_directories("interleaved-4.18.0/replayed", tmp_path / "java")
    directories = Directories(tmp_path, ledgers=4, indexes=1)
    for directory in (*directories.config.ledger_directories[1:], *directories.config.index_directories):
        Path(directory, "current").mkdir(parents=True)
    shutil.move(java.config.journal_directories[0], tmp_path / "j0")
    shutil.move(java.config.ledger_directories[0], tmp_path / "l0")
    for path in (tmp_path / "l0" / "current").iterdir():
        if path.is_dir():
            shutil.move(path, tmp_path / "i0" / "current" / path.name)
    directories.stamp()
    return directories


@pytest.mark.parametrize(
    "words",
    [["files"], ["mark"], ["journal", "scan"], ["entrylog", "show", "0"], ["entrylog", "scan", "0"], ["check"]],
    ids=" ".join,
)
def test_commands_that_need_no_index(unpaired: Directories, words: list[str]) -> None:
    assert unpaired.succeed(*words, "-o", "json").json()["kind"]


def test_the_check_reads_the_index_files_of_java(unpaired: Directories, tmp_path: Path) -> None:
    [file] = list((tmp_path / "i0").rglob("1.idx"))
    file.write_bytes(b"junk")
    result = unpaired.run("check", "-o", "json")
    assert result.exit_code == 10
    [problem] = [each for each in result.json()["items"] if each["severity"] == "critical"]
    assert (problem["check"], problem["path"], problem["ledger_id"]) == ("index", str(file), "1")


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["storage", "adopt", "--dry-run"], 3),
        (["storage", "hand-back", "--dry-run"], 3),
        (["storage", "index", "rebuild", "--dry-run"], 3),
        (["storage", "limbo", "list"], 3),
        (["storage", "journal", "replay", "--from", "0", "--dry-run"], 3),
        (["bookie", "init", "--check", "--metadata-uri", "zk://127.0.0.1:1/ledgers"], 3),
        (["bookie", "start", "--dry-run", "--metadata-uri", "zk://127.0.0.1:1/ledgers"], 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_name_the_setup(unpaired: Directories, words: list[str], exit_code: int) -> None:
    result = run_bkctl(*words, *unpaired.arguments, BKCTL_STATE_DIR=str(unpaired.root / "state"))
    assert "ledger directories: 4, index directories: 1. Java's InterleavedLedgerStorage" in result.stderr
    assert result.exit_code == exit_code
