"""bkctl storage index rebuild: plan first, then the index anew; refused while the bookie runs."""

from __future__ import annotations

import csv
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bkctl.commands.safety.plan import load_plan
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.engine.ledger_storage import lock_directories
from bkctl.storage.errors import IndexMissingError
from bkctl.storage.filenames import LEDGERS_DATABASE, LOCATIONS_DATABASE
from bkctl.storage.rebuild.rebuild import CHILD_MODULE
from tests.commands.storage.conftest import Directories
from tests.processes import children_running
from tests.storage.engines import entry
from tests.storage.rebuilds import lose
from tests.until import wait_until


def test_a_lost_index_is_built_again(directories: Directories) -> None:
    directories.fill()
    lose(directories.config, LOCATIONS_DATABASE)
    result = directories.succeed("index", "rebuild", "--yes", "-o", "json").json()
    assert (result["kind"], result["is_complete"], result["needs_integrity_check"]) == (
        "StorageIndexRebuild",
        True,
        True,
    )
    assert (result["entries"], result["locations"], result["ledgers"]) == (12, 12, 4)
    with directories.opened() as storage:
        assert storage.engine_of(2).stored.read(2, 1) == entry(2, 1)
    again = directories.succeed("index", "rebuild", "--yes", "-o", "json")
    assert "no index is damaged" in again.stderr
    nothing = {"entries": 0, "locations": 0, "ledgers": 0, "limbo": 0, "directories": []}
    assert again.json() == result | nothing | {"needs_integrity_check": False}


def test_a_rehearsal_with_nothing_to_do_is_an_empty_plan(directories: Directories) -> None:
    directories.fill()
    saved = str(directories.root / "plan.json")
    plan = directories.succeed("index", "rebuild", "--plan-out", saved, "-o", "json").json()
    assert (plan["kind"], plan["changes"], plan["items"]) == ("Plan", 0, [])
    assert "nothing to do" in plan["summary"][0]
    assert load_plan(saved).items == ()
    table = directories.succeed("index", "rebuild", "-n", "-o", "table")
    assert (table.stdout.count("nothing to do"), table.stderr) == (1, "")


def test_a_saved_plan_counts_where_nothing_is_to_do(directories: Directories) -> None:
    directories.fill()
    directories.stamp()
    saved = directories.root / "plan.json"
    missing = directories.run("index", "rebuild", "--apply", str(saved), "--yes")
    assert (missing.exit_code, "cannot read the plan" in missing.stderr) == (4, True)
    directories.succeed("index", "rebuild", "--locations", "--plan-out", str(saved))
    misfit = directories.run("index", "rebuild", "--apply", str(saved), "--yes")
    assert (misfit.exit_code, "no longer fits" in misfit.stderr) == (5, True)
    adopting = directories.run("adopt", "--apply", str(saved), "--yes")
    assert (adopting.exit_code, "it says storage index rebuild, now it is storage adopt" in adopting.stderr) == (
        5,
        True,
    )
    directories.succeed("index", "rebuild", "--plan-out", str(saved))
    directories.succeed("index", "rebuild", "--apply", str(saved))


def test_both_can_be_asked_for_by_name(directories: Directories) -> None:
    directories.fill()
    result = directories.succeed("index", "rebuild", "--yes", "--ledger-rows", "--locations", "-o", "json").json()
    assert result["directories"][0]["rebuilt"] == "ledgers, locations"
    with directories.opened() as storage:
        row = storage.engine_of(3).rows.find(3)
        assert row is not None
        assert row.is_fenced
        other = storage.engine_of(2).rows.find(2)
        assert other is not None
        assert not other.is_fenced


def test_a_rehearsal_changes_nothing(directories: Directories) -> None:
    directories.fill()
    lose(directories.config, LEDGERS_DATABASE)
    plan = directories.succeed("index", "rebuild", "--dry-run", "-o", "json").json()
    assert [(item["action"], Path(item["path"]).name) for item in plan["items"]] == [("rebuild", LEDGERS_DATABASE)]
    assert "is missing, but" in plan["items"][0]["reason"]
    assert any("every ledger will be fenced" in sentence for sentence in plan["summary"])
    assert not (Path(directories.config.ledger_directories[0]) / "current" / LEDGERS_DATABASE).exists()


def test_no_answer_means_no(directories: Directories) -> None:
    directories.fill()
    lose(directories.config, LOCATIONS_DATABASE)
    result = directories.run("index", "rebuild")
    assert result.exit_code == 3
    assert "nothing was changed" in result.stderr


def test_refused_while_the_bookie_runs_or_another_rebuild(directories: Directories) -> None:
    directories.fill()
    locks = lock_directories(OsFileSystem(), directories.config)
    result = directories.run("index", "rebuild", "--yes")
    for lock in locks:
        lock.release()
    assert result.exit_code == 5
    assert "stop the bookie first" in result.stderr


def damage_log(directories: Directories) -> Path:
    log = Path(directories.config.ledger_directories[0]) / "current" / "0.log"
    data = bytearray(log.read_bytes())
    data[1024 + 60 : 1024 + 160] = bytes(100)
    log.write_bytes(data)
    return log


def test_a_damaged_log_is_told_and_the_exit_code_is_partial(directories: Directories) -> None:
    directories.fill()
    log = damage_log(directories)
    lose(directories.config, LOCATIONS_DATABASE)
    result = directories.run("index", "rebuild", "--yes", "-o", "json")
    assert result.exit_code == 9
    answer = result.json()
    assert answer["damages"][0]["path"] == str(log)
    assert answer["limbo"] == 4
    assert "reports 'unknown'" in result.stderr


def test_csv_has_a_line_for_each_change_and_each_directory(tmp_path: Path) -> None:
    directories = Directories(tmp_path, ledgers=2)
    directories.fill()
    lose(directories.config, LOCATIONS_DATABASE)
    log = damage_log(directories)
    plan = list(csv.DictReader(directories.succeed("index", "rebuild", "-n", "-o", "csv").stdout.splitlines()))
    assert [(row["action"], Path(row["path"]).name) for row in plan] == [("rebuild", LOCATIONS_DATABASE)]
    result = directories.run("index", "rebuild", "--yes", "-o", "csv")
    assert result.exit_code == 9
    (row,) = csv.DictReader(result.stdout.splitlines())
    assert (row["ledger_directory"], row["rebuilt"], row["limbo"]) == (str(tmp_path / "l0"), "locations", "2")
    assert f"warning: {log}: " in result.stderr


def test_a_directory_that_is_not_there(directories: Directories) -> None:
    directories.fill()
    shutil.rmtree(directories.config.ledger_directories[0])
    assert directories.run("index", "rebuild", "--yes").exit_code == 4


def test_an_interrupt_leaves_what_was_there(directories: Directories) -> None:
    directories.fill()
    lose(directories.config, LOCATIONS_DATABASE)
    current = Path(directories.config.ledger_directories[0]) / "current"
    _add_long_log(current)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bkctl", "storage", "index", "rebuild", "--yes", *directories.arguments],
        env={**os.environ, "BKCTL_STATE_DIR": str(directories.root / "state")},
        stderr=subprocess.PIPE,
    )
    rebuilt = current / f"{LOCATIONS_DATABASE}.rebuilt"
    wait_until(rebuilt.exists, process=process)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 143
    assert not rebuilt.exists()
    (current / "77.log").unlink()
    directories.succeed("index", "rebuild", "--yes")


def test_ctrl_c_while_a_child_starts_is_an_interrupt_and_no_failure(directories: Directories) -> None:
    directories.fill()
    lose(directories.config, LOCATIONS_DATABASE)
    current = Path(directories.config.ledger_directories[0]) / "current"
    _add_long_log(current)
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "bkctl", "storage", "index", "rebuild", "--yes", *directories.arguments],
        env={**os.environ, "BKCTL_STATE_DIR": str(directories.root / "state")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    rebuilt = current / f"{LOCATIONS_DATABASE}.rebuilt"
    wait_until(lambda: children_running(CHILD_MODULE, process.pid), process=process)
    # A terminal sends it to all processes in front; the child is still at its imports.
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert "Traceback" not in said
    assert (process.returncode, said.splitlines()[-1]) == (130, "error: interrupted")
    assert not rebuilt.exists()
    (current / "77.log").unlink()
    directories.succeed("index", "rebuild", "--yes")


def test_a_file_that_takes_no_more_is_told_with_its_directory(directories: Directories) -> None:
    directories.fill()
    lose(directories.config, LOCATIONS_DATABASE)
    current = Path(directories.config.ledger_directories[0]) / "current"
    frames = (
        b"\0\0\0\x20" + (1).to_bytes(8, "big") + entry_id.to_bytes(8, "big") + bytes(16) for entry_id in range(20_000)
    )
    (current / "77.log").write_bytes((current / "0.log").read_bytes()[:1024] + b"".join(frames))
    result = subprocess.run(
        [sys.executable, "-P", "-m", "bkctl", "storage", "index", "rebuild", "--yes", *directories.arguments],
        env={**os.environ, "BKCTL_STATE_DIR": str(directories.root / "state")},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        # As a full disk: what the children sort takes more.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18)),
    )
    rebuilt = current / f"{LOCATIONS_DATABASE}.rebuilt"
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, f"error: {rebuilt}/run-2-0: File too large")
    assert not rebuilt.exists()
    with pytest.raises(IndexMissingError, match=LOCATIONS_DATABASE), directories.opened():
        pass
    directories.succeed("index", "rebuild", "--yes")


def _add_long_log(current: Path) -> None:
    """A log that takes a while: the command is surely reading it, or not that far yet, when a signal comes."""
    frame = b"\0\0\0\x20" + (1).to_bytes(8, "big") + (9).to_bytes(8, "big") + bytes(16)
    with (current / "77.log").open("wb") as stream:
        stream.write((current / "0.log").read_bytes()[:1024])
        stream.write(frame * 4_000_000)
