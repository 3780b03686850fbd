"""Commands that change or watch a running bookie: over its socket, and over TCP with a token."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from bkctl.commands.bookie.metrics import parse_samples
from bkctl.runtime.metadata.cluster.operation_lock import OperationHolder, lock_modes
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.commands.bookie.admin_bookie import TOKEN, AdminBookie, running_bookie, start_again, wait_said
from tests.processes import TerminalSession, is_alive, run_bkctl, start_bkctl

pytestmark = pytest.mark.cluster


@pytest.fixture
def bookie(metadata_uri: str, tmp_path: Path) -> Iterator[AdminBookie]:
    with running_bookie(metadata_uri, tmp_path) as running:
        yield running


def listed_state(bookie: AdminBookie) -> str:
    items = run_bkctl("bookie", "list", "-o", "json", BKCTL_METADATA_URI=bookie.metadata_uri).json()["items"]
    return next(str(item["state"]) for item in items if item["id"] == bookie.bookie_id)


def test_the_mode_is_kept_over_a_restart_with_reason_and_time(bookie: AdminBookie) -> None:
    planned = bookie.run("set-mode", "read-only", "-n", "-o", "json").json()
    assert (planned["kind"], planned["tier"], planned["items"][0]["mode"]) == ("Plan", 2, "read-only")
    assert bookie.run("set-mode", "read-only").exit_code == 3  # it asks, and there is no terminal
    assert bookie.run("state").json()["mode"] == "writable"
    made = bookie.run("set-mode", "read-only", "--reason", "disk sdb", "--yes")
    assert made.exit_code == 0, made.stderr
    assert (made.json()["changed"], made.json()["mode"], made.json()["registered"]) == (True, "read-only", True)
    assert f"to undo: bkctl bookie set-mode writable {bookie.bookie_id}" in made.stderr
    assert listed_state(bookie) == "read-only"
    shown = bookie.run("state").json()
    assert shown["reasons"] == ["set by an operator"]
    assert re.fullmatch(r"disk sdb \(.+@.+\)", shown["set_reason"])
    again = bookie.run("set-mode", "read-only")
    assert (again.exit_code, again.json()["changed"]) == (0, False)
    os.kill(bookie.process.pid, signal.SIGTERM)
    bookie.process.wait()
    with start_again(bookie) as restarted:
        wait_said(restarted.log, "listening on port", restarted.process)
        assert restarted.run("state").json()["set_since"] == shown["set_since"]
        assert restarted.run("state").json()["set_reason"] == shown["set_reason"]
        ended = restarted.run("set-mode", "writable")
        assert (ended.exit_code, ended.json()["mode"], ended.json()["set_reason"]) == (0, "writable", None)
        assert listed_state(restarted) == "writable"


def test_a_bookie_is_made_read_only_after_the_others_that_leave(bookie: AdminBookie, tmp_path: Path) -> None:
    uri, said = parse_metadata_uri(bookie.metadata_uri), tmp_path / "said"
    words = ("bookie", "set-mode", "read-only", "--yes", "--ledger-dir", str(bookie.directory))

    async def run(stderr: IO[str]) -> int:
        drain = OperationHolder("bookie drain", pid=os.getpid())
        async with await ZooKeeperStore.connect(uri.servers) as store:
            async with await lock_modes(store, uri.root, drain):
                process = start_bkctl(*words, stderr=stderr)
                await asyncio.to_thread(wait_said, said, "waiting up to 30 s: another operation", process)
                assert bookie.run("state").json()["mode"] == "writable"
            return await asyncio.to_thread(process.wait)

    with said.open("w") as stderr:
        assert asyncio.run(run(stderr)) == 0
    assert "'bookie drain'" in said.read_text()
    assert bookie.run("state").json()["mode"] == "read-only"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "an operator has already made it read-only"),
        (("--reason", "a new rack"), "something has changed since the plan was made"),
    ],
    ids=["without a reason", "with an own reason"],
)
def test_a_mode_that_another_operator_has_set_after_the_plan_is_kept(
    bookie: AdminBookie, given: tuple[str, ...], said: str
) -> None:
    with TerminalSession("bookie", "set-mode", "read-only", *given, "--ledger-dir", str(bookie.directory)) as session:
        session.wait_for("continue?")
        assert bookie.run("set-mode", "read-only", "--reason", "disk sdb", "--yes").exit_code == 0
        session.type("y\n")
        assert session.exit_code() == 5, session.screen
    assert said in session.screen
    assert str(bookie.run("state").json()["set_reason"]).startswith("disk sdb (")


def test_an_operator_cannot_make_a_forced_read_only_bookie_writable(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path, "forceReadOnlyBookie=true") as bookie:
        result = bookie.run("set-mode", "writable")
        assert result.exit_code == 0
        assert "is still read-only: by its settings (forceReadOnlyBookie)" in result.stderr


def test_changes_over_tcp_need_the_token(bookie: AdminBookie, tmp_path: Path) -> None:
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    wrong.write_text("guess\n")
    right.write_text(f"{TOKEN}\n")
    for token_file in ("", wrong):
        refused = bookie.run_over_tcp("set-mode", "read-only", "-y", token_file=token_file)
        assert (refused.exit_code, refused.stdout) == (11, "")
        reason = "it does not accept this token: " if token_file else ""
        said = f": {reason}give the token of this bookie with --token-file or BKCTL_ADMIN_TOKEN_FILE"
        assert f"bookie {bookie.bookie_id}{said}" in refused.stderr
    drained = bookie.run_over_tcp("drain", "-y", "--accept-risk", token_file=wrong)
    assert (drained.exit_code, "it does not accept this token" in drained.stderr) == (11, True), drained
    assert "yourself" not in drained.stderr
    assert bookie.run("state").json()["mode"] == "writable"
    made = bookie.run_over_tcp("set-mode", "read-only", "-y", token_file=right)
    assert (made.exit_code, made.json()["mode"]) == (0, "read-only")
    assert bookie.run_over_tcp("gc", "suspend", "--token-file", str(right)).exit_code == 0
    for command in ("bookie drain", "decommission"):
        result = run_bkctl(*command.split(), "b1:3181", "--token-file", str(tmp_path / "none"))
        assert (result.exit_code, "cannot read the token file" in result.stderr) == (2, True), command
    missing = bookie.run_over_tcp("gc", "run", token_file=tmp_path / "none")
    assert missing.exit_code == 2
    assert "cannot read the token file" in missing.stderr


def test_garbage_collection(bookie: AdminBookie) -> None:
    status = bookie.run("gc", "status").json()
    (directory,) = status["directories"]
    assert (directory["directory"], directory["running"]) == (str(bookie.directory), None)
    assert (status["major_suspended"], status["minor_suspended"]) == (False, False)
    suspended = bookie.run("gc", "suspend", "--major")
    assert f"to undo: bkctl bookie gc resume {bookie.bookie_id}" in suspended.stderr
    assert (suspended.json()["major_suspended"], suspended.json()["minor_suspended"]) == (True, False)
    assert bookie.run("gc", "status").json()["major_suspended"] is True
    resumed = bookie.run("gc", "resume").json()
    assert (resumed["major_suspended"], resumed["minor_suspended"]) == (False, False)
    assert bookie.run("gc", "run", "-n").json()["items"][0]["kinds"] == ["major", "minor"]
    ran = bookie.run("gc", "run", "--minor")
    assert (ran.exit_code, ran.json()["kinds"]) == (0, ["minor"])


def test_metrics_once_and_as_rates(bookie: AdminBookie) -> None:
    grep = ("--grep", r'ADD_ENTRY_REQUEST_count\{success="true"')
    (before,) = bookie.run("metrics", *grep).json()["items"]
    wrote = run_bkctl(
        *("ledger", "write-test", "--entries", "20", "-E", "1", "-W", "1", "-A", "1"),
        BKCTL_METADATA_URI=bookie.metadata_uri,
    )
    assert wrote.exit_code == 0, wrote.stderr
    while (after := bookie.run("metrics", *grep).json()["items"][0]) == before:
        pass  # the text of an earlier scrape
    assert (after["type"], after["value"] - before["value"]) == ("summary", 20)
    words = ("bookie", "metrics", "--ledger-dir", str(bookie.directory), "--grep", "uptime|cpu_seconds", "-w")
    with TerminalSession(*words, "--interval", "50ms", "-o", "jsonl") as session:
        session.wait_for('"per_second":')
        session.type("\x03")
        assert session.exit_code() == 130
    assert run_bkctl(*words, "-o", "json").exit_code == 2
    assert bookie.run("metrics", "--interval", "1s").exit_code == 2
    assert bookie.run("metrics", "--grep", "(").exit_code == 2


def test_samples_of_a_text() -> None:
    text = (
        '# HELP a x\n# TYPE a counter\na 3\n# TYPE b summary\nb{q="0.5"} NaN\nb_count{s="} x"} 2.0\n\n'
        "c 1e3 1700000000000\n"
    )
    found = [(each.name, each.labels, each.type, each.is_counted) for each in parse_samples(text)]
    assert found == [
        ("a", "", "counter", True),
        ("b", 'q="0.5"', "summary", False),
        ("b_count", 's="} x"', "summary", True),
        ("c", "", "untyped", False),
    ]


def test_the_log_level(bookie: AdminBookie) -> None:
    assert bookie.run("log-level", "debug").json()["previous"] == "info"
    assert bookie.run("log-level", "info").json()["previous"] == "debug"
    assert bookie.run("log-level", "loud").exit_code == 2


def test_a_stop_waits_for_the_end_of_the_process(bookie: AdminBookie) -> None:
    assert bookie.run("stop").exit_code == 3
    stopped = bookie.run("stop", "--yes")
    assert (stopped.exit_code, stopped.json()["ended"]) == (0, True)
    assert "waiting until" in stopped.stderr
    assert not is_alive(bookie.process.pid), "the command returned before the end"
    assert bookie.process.wait(60) == 0
    assert "shut down cleanly" in bookie.log.read_text()
    assert not (bookie.directory / "bkctl.admin.sock").exists()


def test_a_stop_over_tcp(bookie: AdminBookie, tmp_path: Path) -> None:
    (tmp_path / "right").write_text(TOKEN)
    socket_path = bookie.directory / "bkctl.admin.sock"
    assert socket_path.exists()
    socket_path.unlink()
    stopped = run_bkctl(
        *("bookie", "stop", bookie.bookie_id, "-y", "--token-file", str(tmp_path / "right")),
        BKCTL_METADATA_URI=bookie.metadata_uri,
        BKCTL_ADMIN_TOKEN_HOSTS="127.0.0.1",
    )
    assert stopped.exit_code == 0, stopped.stderr
    assert bookie.process.wait(60) == 0


class SilentBookie:
    """A socket in a ledger directory whose owner answers the first request and then never again."""

    def __init__(self, directory: Path) -> None:
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(directory / "bkctl.admin.sock"))
        self._server.listen()

    def close_after_request(self) -> None:
        """Accept one connection, read its request, and end it without an answer, as a killed process does."""
        connection, _ = self._server.accept()
        connection.recv(65536)
        self.close()
        connection.close()

    def close(self) -> None:
        """No longer listen."""
        self._server.close()


def test_a_bookie_that_is_killed_during_a_command(tmp_path: Path) -> None:
    silent = SilentBookie(tmp_path)
    thread = threading.Thread(target=silent.close_after_request)
    thread.start()
    result = run_bkctl("bookie", "gc", "status", "--ledger-dir", str(tmp_path))
    thread.join()
    assert (result.exit_code, result.stdout) == (7, "")
    assert "no process listens on admin socket" in result.stderr  # it asked again
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [("set-mode", "read-only", "-y"), ("stop", "-y"), ("gc", "run"), ("metrics",), ("log-level", "info"), ("ready",)],
    ids=" ".join,
)
def test_a_command_to_a_hanging_bookie_ends_in_its_timeout(tmp_path: Path, words: tuple[str, ...]) -> None:
    silent = SilentBookie(tmp_path)
    result = run_bkctl("bookie", *words, "--ledger-dir", str(tmp_path), "--timeout", "200ms")
    silent.close()
    assert (result.exit_code, result.stdout) == (7, "")
    assert "no answer from admin socket" in result.stderr
    assert "within 0.2 s (--timeout)" in result.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("set-mode", "readonly"), "readonly"),
        (("set-mode",), "MODE"),
        (("set-mode", "writable", "--reason", "x" * 401), "--reason has 401 characters"),
        (("gc", "run", "--major", "--minor"), "use --major or --minor"),
        (("stop", "--wait", "soon"), "'soon' is not a duration"),
        (("ready", "--started-within", "0"), "'0' is not a duration"),
        (("log-level",), "LEVEL"),
    ],
)
def test_wrong_arguments(words: tuple[str, ...], sentence: str) -> None:
    result = run_bkctl("bookie", *words)
    assert result.exit_code == 2
    assert sentence in result.stderr
