"""``run_bkctl`` answers like a process that an operator starts, and commands do not affect each other."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import COMMAND_TIMEOUT_S, free_port, processes_below, run_bkctl, spawn_bkctl, start_bkctl
from tests.test_repository import ROOT

NOWHERE = ("-u", "zk://127.0.0.1:1/ledgers", "--timeout", "100ms")
COMMANDS = (
    ("--version",),
    ("no-such-command",),
    ("bookie", "list", *NOWHERE),
    ("bookie", "list", *NOWHERE, "--debug", "-o", "no-such-form"),
    ("cookie", "generate", "bookie-1", "--instance-id", "", "--journal-dir", "j", "--ledger-dir", "l"),
    ("bookie", "start", "--port", "-1"),
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_the_answer_is_that_of_a_new_interpreter(arguments: tuple[str, ...]) -> None:
    assert run_bkctl(*arguments) == spawn_bkctl(*arguments)


def test_environment_and_directory_are_those_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bkctl.toml").write_text("[zookeeper]\nno_such_key = 1\n")
    monkeypatch.chdir(tmp_path)
    assert "no_such_key" in run_bkctl("bookie", "list", BKCTL_CONFIG="bkctl.toml").stderr
    assert "no_such_key" not in run_bkctl("bookie", "list").stderr


async def test_commands_run_from_threads_at_the_same_time() -> None:
    results = await asyncio.gather(*(asyncio.to_thread(run_bkctl, *arguments) for arguments in COMMANDS))
    assert results == [run_bkctl(*arguments) for arguments in COMMANDS]


def test_a_command_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        run_bkctl("bookie", "list", "-u", "zk://127.0.0.1:1/ledgers", "--timeout", "1h", timeout_s=0.5)
    assert processes_below(tmp_path) == []


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signals_reach_a_command_that_runs(tmp_path: Path, number: signal.Signals, exit_code: int) -> None:
    with (tmp_path / "log").open("w+b") as log:
        arguments = ("bookie", "list", "-u", "zk://127.0.0.1:1/ledgers", "--timeout", "1h", "--debug")
        process = start_bkctl(*arguments, stderr=log)
        while not (tmp_path / "log").read_bytes():  # its handlers are installed before it connects
            assert process.poll() is None
        process.send_signal(number)
        assert process.wait(COMMAND_TIMEOUT_S) == process.poll() == exit_code


def test_no_port_is_given_twice_not_even_to_another_process() -> None:
    """So no server meets the one of another test when it starts late, or again."""
    code = (
        "import sys; from tests.processes import free_port; print(*(free_port() for _ in range(500))); sys.stdin.read()"
    )
    command = [sys.executable, "-uc", code]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        theirs = set(map(int, other.stdout.readline().split()))
        ours = {free_port() for _ in range(500)}
    assert (len(ours), len(theirs)) == (500, 500)
    assert ours.isdisjoint(theirs)
