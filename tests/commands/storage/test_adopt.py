"""bkctl storage adopt on the golden directories of Java bookies."""

from __future__ import annotations

import csv
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from bkctl.storage.errors import IndexMissingError
from bkctl.storage.filenames import idx_path
from tests.commands.storage.conftest import Directories
from tests.processes import BkctlResult, bkctl_command, bkctl_environment, run_bkctl
from tests.storage.java_directories import JavaDirectories, boot, booted, java_directories, require_all
from tests.until import wait_until


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JavaDirectories:
    """Directories named as their VERSION files name them: data/journal and data/ledgers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BKCTL_STATE_DIR", str(tmp_path / "state"))
    return java_directories("interleaved-4.18.0/crash", Path("data"))


def run(java: JavaDirectories, *words: str, verb: str = "adopt", form: str = "json") -> BkctlResult:
    config = java.config
    lists = (
        ("--journal-dir", config.journal_directories),
        ("--ledger-dir", config.ledger_directories),
        ("--index-dir", config.index_directories),
    )
    options = [word for option, paths in lists for path in paths for word in (option, path)]
    return run_bkctl("storage", verb, *words, *options, "-o", form)


def test_plan_adoption_and_a_second_run(java: JavaDirectories) -> None:
    before = java.tree()
    plan = run(java, "--dry-run").json()
    assert (plan["subject"], plan["tier"], plan["instance_id"]) == (
        "interleaved",
        2,
        "b22be2fa-8dea-4cdb-a4a2-d7a429ae7b71",
    )
    assert {item["path"] for item in plan["items"]} == {
        f"{Path.cwd()}/data/ledgers/current/{name}" for name in ("0", "ldb-ledgers", "ldb-locations")
    }
    assert run(java).exit_code == 3, "nobody is there to ask"
    assert java.tree() == before
    result = run(java, "--yes")
    assert result.exit_code == 0, result.stderr
    body = result.json()
    assert (body["ledgers"], body["unreadable"], body["storage"]) == (
        5,
        0,
        "InterleavedLedgerStorage or SortedLedgerStorage",
    )
    again = run(java, "--yes")
    assert (again.exit_code, "nothing to do" in again.stderr) == (0, True)
    assert again.json() == body | dict.fromkeys(("ledgers", "entries", "entries_copied"), 0) | {"storage": None}
    plan = run(java, "--dry-run").json()
    assert (plan["kind"], plan["changes"], plan["items"]) == ("Plan", 0, [])
    assert "nothing to do" in plan["summary"][0]
    with booted(java.config) as storage:
        require_all(storage, java.entries())


def test_what_is_unreadable_is_told(java: JavaDirectories) -> None:
    (java.indexes[0] / "1.log").unlink()
    result = run(java, "--yes")
    assert result.exit_code == 9
    assert "1.log is missing" in result.json()["unreadable_items"][0]["reason"]


def test_csv_lists_what_is_unreadable(java: JavaDirectories) -> None:
    (java.indexes[0] / "1.log").unlink()
    rows = list(csv.DictReader(run(java, "--yes", form="csv").stdout.splitlines()))
    assert rows
    assert "1.log is missing" in rows[0]["reason"]


def test_directories_in_another_order_than_their_version_files_say(java: JavaDirectories) -> None:
    Path("data/more/current").mkdir(parents=True)
    config = java.config
    result = run_bkctl(
        *("storage", "adopt", "--yes", "--journal-dir", config.journal_directories[0]),
        *("--ledger-dir", config.ledger_directories[0], "--ledger-dir", "data/more"),
    )
    assert result.exit_code == 3
    assert "lists the directories" in result.stderr
    (java.indexes[0] / "VERSION").unlink()
    result = run(java, "--yes")
    assert (result.exit_code, "no readable VERSION file" in result.stderr) == (3, True)


def test_a_bookie_that_runs(java: JavaDirectories) -> None:
    """A Java bookie has its journal open, and takes no lock that we know."""
    script = "import sys; file = open(sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    journal = next(Path("data/journal/current").glob("*.txn"))
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(journal)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        result = run(java, "--yes")
        assert result.exit_code == 5
        assert f"process {process.pid} has" in result.stderr
        assert "stop the bookie first" in result.stderr
    finally:
        process.communicate()
    assert run(java, "--yes").exit_code == 0


def test_a_bookie_of_ours_that_runs(directories: Directories) -> None:
    directories.fill()
    with directories.opened():
        result = directories.run("adopt", "--yes")
    assert result.exit_code == 5
    assert "stop the bookie first" in result.stderr


def test_ctrl_c_leaves_the_directories_to_java(java: JavaDirectories) -> None:
    locations = struct.pack(">1000q", *range(1028, 2028))
    current = java.indexes[0]
    template = (current / "0" / "6" / "6.idx").read_bytes()[:1024]
    for ledger_id in range(1000, 1800):
        path = current / idx_path(ledger_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(template + locations)
    before = java.tree()
    config = java.config
    words = ("--journal-dir", config.journal_directories[0], "--ledger-dir", config.ledger_directories[0], "--yes")
    process = subprocess.Popen(
        bkctl_command("storage", "adopt", *words), stderr=subprocess.PIPE, env=bkctl_environment(), text=True
    )
    wait_until(lambda: (current / "ldb-locations.adopting" / "CURRENT").exists() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert (process.returncode, "interrupted" in told) == (130, True), told
    assert java.tree() == before
    assert not list(current.glob("ldb-*"))
    again = run(java, "--yes")
    assert (again.exit_code, again.json()["ledgers"]) == (0, 805)


def test_a_rebuild_beside_an_index_of_java_is_refused(java: JavaDirectories) -> None:
    result = run(java, "rebuild", "--yes", verb="index")
    assert (result.exit_code, "bkctl storage adopt" in result.stderr) == (3, True), result.stderr
    with pytest.raises(IndexMissingError, match="bkctl storage adopt"):
        boot(java.config)


def test_directories_of_a_bkctl_bookie(directories: Directories) -> None:
    directories.fill()
    result = directories.run("adopt", "--yes")
    assert (result.exit_code, "no readable VERSION file" in result.stderr) == (3, True)
