"""``bkctl bookie index rebuild --online``: consent, progress, interrupt, cancel, results."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.bookie.admin_bookie import TOKEN, AdminBookie, halt_builder, running_bookie
from tests.processes import HALTED_SESSION_MS, TerminalSession, is_alive, run_bkctl

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
REBUILD = ("index", "rebuild", "--online")
ENTRIES = 60


def write(bookie: AdminBookie) -> None:
    words = ("ledger", "write-test", "--ledgers", "2", "--entries", str(ENTRIES // 2), "-E", "1", "-W", "1", "-A", "1")
    written = run_bkctl(*words, BKCTL_METADATA_URI=bookie.metadata_uri)
    assert written.exit_code == 0, written.stderr


def verify(bookie: AdminBookie) -> None:
    verified = run_bkctl("ledger", "verify", "--all", BKCTL_METADATA_URI=bookie.metadata_uri)
    assert verified.exit_code == 0, verified.stdout + verified.stderr


def reasons(bookie: AdminBookie) -> list[str]:
    return [str(reason) for reason in bookie.run("state", "-o", "json").json()["reasons"]]


def begin_and_halt(bookie: AdminBookie) -> tuple[int, int]:
    """Start a rebuild that does not go on; its job and its child process."""
    begun = bookie.run(*REBUILD, "--yes", "--detach", "-o", "name")
    assert begun.exit_code == 0, begun.stderr
    return int(begun.stdout), halt_builder(bookie.process.pid)


@pytest.fixture
def bookie(metadata_uri: str, tmp_path: Path) -> Iterator[AdminBookie]:
    with running_bookie(metadata_uri, tmp_path, f"zkTimeout={HALTED_SESSION_MS}") as running:
        write(running)
        yield running


def test_a_plan_a_refusal_and_a_rebuild(bookie: AdminBookie, tmp_path: Path) -> None:
    offline = bookie.run("index", "rebuild", "--yes")
    assert (offline.exit_code, "bkctl storage index rebuild" in offline.stderr) == (2, True)
    both = bookie.run(*REBUILD, "--detach", "--cancel")
    assert (both.exit_code, "use either --detach or --cancel" in both.stderr) == (2, True)
    plan = bookie.run(*REBUILD, "--dry-run", "-o", "json").json()
    assert (plan["kind"], plan["subject"]) == ("Plan", bookie.bookie_id)
    assert (plan["ledgers"], plan["entries"]) == (2, ENTRIES)
    assert [item["action"] for item in plan["items"]] == ["rebuild"]
    assert plan["items"][0]["path"] == f"{bookie.directory}/current/ldb-locations"
    assert "refuses all writes" in " ".join(plan["summary"])
    unconfirmed = bookie.run(*REBUILD)
    assert (unconfirmed.exit_code, "use --yes" in unconfirmed.stderr) == (3, True)
    none = bookie.run("index", "rebuild", "--cancel")
    assert (none.exit_code, "no index rebuild is running" in none.stderr) == (4, True)

    done = bookie.run(*REBUILD, "--yes", "-o", "json")
    assert done.exit_code == 0, done.stderr
    result = done.json()
    assert (result["kind"], result["bookie_id"]) == ("BookieIndexRebuild", bookie.bookie_id)
    assert (result["state"], result["is_complete"], result["job"]) == ("done", True, 1)
    assert (result["entries"], result["locations"], result["limbo"]) == (ENTRIES, ENTRIES, 2)
    assert (result["damages"], len(result["directories"])) == ([], 1)
    assert "Rebuild one bookie at a time" in done.stderr
    assert reasons(bookie) == []
    verify(bookie)
    write(bookie)

    wrong = tmp_path / "wrong"
    wrong.write_text("another\n")
    assert bookie.run_over_tcp(*REBUILD, "--yes", token_file=wrong).exit_code == 11
    right = tmp_path / "right"
    right.write_text(f"{TOKEN}\n")
    remote = bookie.run_over_tcp(*REBUILD, "--yes", "-o", "json", token_file=right)
    assert (remote.exit_code, remote.json()["locations"]) == (0, 2 * ENTRIES), remote.stderr


def test_interrupt_follow_and_cancel(bookie: AdminBookie) -> None:
    job, child = begin_and_halt(bookie)
    assert any("rebuilt" in reason for reason in reasons(bookie))
    refused = run_bkctl(
        *("ledger", "write-test", "--entries", "1", "-E", "1", "-W", "1", "-A", "1"),
        BKCTL_METADATA_URI=bookie.metadata_uri,
    )
    assert refused.exit_code == 7, "no bookie is writable"
    again = bookie.run(*REBUILD, "--detach", "-o", "name")
    assert (again.exit_code, again.stdout) == (0, f"{job}\n")
    with TerminalSession("bookie", *REBUILD, "--ledger-dir", str(bookie.directory)) as session:
        session.wait_for("rebuilding the index")
        session.type("\x03")
        session.wait_for("the rebuild continues in the bookie")
        session.wait_for("--cancel")
        assert session.exit_code() == 130
    with TerminalSession("--timeout", "3", "bookie", *REBUILD, "--ledger-dir", str(bookie.directory)) as session:
        session.wait_for("rebuilding the index")
        os.kill(bookie.process.pid, signal.SIGSTOP)
        try:
            session.wait_for("the rebuild continues")
            session.wait_for("--cancel")
            assert session.exit_code() == 7
        finally:
            os.kill(bookie.process.pid, signal.SIGCONT)
    assert is_alive(child)
    cancelled = bookie.run("index", "rebuild", "--cancel", "-o", "json")
    assert cancelled.exit_code == 0, cancelled.stderr
    assert (cancelled.json()["state"], cancelled.json()["entries"]) == ("cancelled", None)
    assert "the rebuild was cancelled; the old index is in use" in cancelled.stderr
    assert not is_alive(child)
    assert reasons(bookie) == []
    write(bookie)
    verify(bookie)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_bookie_that_ends_meanwhile(metadata_uri: str, tmp_path: Path, number: int) -> None:
    with running_bookie(metadata_uri, tmp_path) as bookie:
        write(bookie)
        _, child = begin_and_halt(bookie)
        with TerminalSession("bookie", *REBUILD, "--ledger-dir", str(bookie.directory)) as session:
            session.wait_for("rebuilding the index")
            os.kill(bookie.process.pid, number)
            assert session.exit_code() in ({7} if number == signal.SIGKILL else {1, 7})
        assert bookie.process.wait(DEADLINE_S) == (0 if number == signal.SIGTERM else -signal.SIGKILL)
        if number == signal.SIGKILL:
            os.kill(child, signal.SIGCONT)  # it ends by itself


def test_a_damaged_log(bookie: AdminBookie) -> None:
    bookie.run(*REBUILD, "--yes")  # flushes
    log = bookie.directory / "current" / "0.log"
    with log.open("r+b") as file:
        file.write(b"\xff" * 4)
    result = bookie.run(*REBUILD, "--yes", "-o", "json")
    assert result.exit_code == 9, result.stderr
    assert result.json()["is_complete"] is False
    assert [damage["path"] for damage in result.json()["damages"]] == [str(log)]
    assert "entries may be missing" in result.stderr


def test_a_bookie_that_must_not_become_read_only(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path, "readOnlyModeEnabled=false") as bookie:
        refused = bookie.run(*REBUILD, "--yes")
        assert (refused.exit_code, refused.stdout) == (3, "")
        assert "nothing was changed: read-only mode is disabled (readOnlyModeEnabled=false)" in refused.stderr
        write(bookie)
