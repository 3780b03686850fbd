"""bkctl storage on a disk without a single free block: what only reads reads on, the rest says what it lacks."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.storage.filenames import LEDGERS_DATABASE
from tests.commands.storage.conftest import Directories
from tests.processes import BkctlResult, run_bkctl
from tests.runtime.bookie.small_disk import SmallDisk, small_disk
from tests.storage.engines import checkpoint

RUNBOOK = "bkctl help full-disk"
TORN = struct.pack("<IHB", 0, 4, 1) + bytes(4)
"""A whole record of LevelDB's log whose bytes never came to the disk."""


class FullDisk:
    """A stopped bookie's directories on a disk that somebody else has filled since."""

    def __init__(self, directories: Directories, disk: SmallDisk) -> None:
        self.directories = directories
        self._disk = disk

    def fill(self) -> None:
        self._disk.use(1.0)
        with contextlib.suppress(OSError), (self._disk.path / "more").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        assert os.statvfs(self._disk.path).f_bavail == 0

    def run(self, *words: str) -> BkctlResult:
        """The audit trail is on another disk."""
        state = self._disk.path.parent / "state"
        return run_bkctl("storage", *words, *self.directories.arguments, BKCTL_STATE_DIR=str(state))

    @property
    def ledger_rows(self) -> Path:
        return Path(self.directories.config.ledger_directories[0]) / "current" / LEDGERS_DATABASE


@pytest.fixture(params=[True, False], ids=["stopped", "killed"])
def full_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    """Stopped in order, or with all of it in the journal alone."""
    with small_disk(tmp_path / "disk") as disk:
        full = FullDisk(Directories(disk.path), disk)
        full.directories.fill(is_flushed=request.param)
        full.directories.stamp()
        yield full


@pytest.mark.parametrize(
    "words",
    [
        ("check",),
        ("check", "--deep"),
        ("index", "show", "-o", "name"),
        ("limbo", "list"),
        ("limbo", "end"),
        ("index", "rebuild"),
    ],
    ids=" ".join,
)
def test_a_sound_index_is_read_as_it_stands(full_disk: FullDisk, words: tuple[str, ...]) -> None:
    before = full_disk.run(*words)
    full_disk.fill()
    result = full_disk.run(*words)
    assert (result.exit_code, result.stdout) == (0, before.stdout), result.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("index", "rebuild", "--locations", "--yes"),
        ("journal", "replay", "--from", "0x18bcfe56801", "--yes"),
        ("hand-back", "--yes"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_written_is_no_damage(full_disk: FullDisk, words: tuple[str, ...]) -> None:
    full_disk.fill()
    result = full_disk.run(*words)
    assert (result.exit_code, RUNBOOK in result.stderr) == (1, True), result.stderr
    assert "No space left on device" in result.stderr


def test_the_end_of_a_limbo_is_not_written(full_disk: FullDisk) -> None:
    with full_disk.directories.opened() as storage:
        storage.engine_of(2).set_limbo(2)
        checkpoint(storage)
    listed = full_disk.run("limbo", "list", "-o", "json")
    assert [item["ledger_id"] for item in listed.json()["items"]] == ["2"]
    full_disk.fill()
    result = full_disk.run("limbo", "end", "--yes")
    assert (result.exit_code, RUNBOOK in result.stderr) == (1, True), result.stderr
    assert full_disk.run("limbo", "list", "-o", "json").json()["items"] == listed.json()["items"]


@pytest.mark.parametrize("words", [("check",), ("check", "--deep"), ("limbo", "list")], ids=" ".join)
def test_an_index_that_must_be_mended_first(full_disk: FullDisk, words: tuple[str, ...]) -> None:
    """A crash tore the end of LevelDB's log: no finding, as any opening with room mends it."""
    log = max(full_disk.ledger_rows.glob("*.log"))
    with log.open("ab") as file:
        file.write(TORN)
    full_disk.fill()
    result = full_disk.run(*words)
    assert result.exit_code == 1, result.stdout + result.stderr
    assert "which must be repaired" in result.stderr
    assert RUNBOOK in result.stderr
