"""Signals to ``bookie start`` before its event loop runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.processes import COMMAND_TIMEOUT_S, bkctl_command, bkctl_environment, is_waiting
from tests.until import wait_until

SIGNALS = (signal.SIGTERM, signal.SIGINT)
IMPORTS_AND_SIGNALS = """
import os, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), {number:d})

sys.meta_path.insert(0, Finder())
import bkctl.main
time.sleep({limit_s})
"""
"""Sends itself a signal when it comes to import typer."""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_start_that_still_imports_its_modules_ends_with_0(number: signal.Signals) -> None:
    code = IMPORTS_AND_SIGNALS.format(number=number, limit_s=COMMAND_TIMEOUT_S)

    def run(*arguments: str) -> int:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, stderr=subprocess.DEVNULL, timeout=COMMAND_TIMEOUT_S, check=False).returncode

    assert run("--debug", "bookie", "start", "--port", "0") == 0
    assert run("bookie", "list") == -number


@pytest.mark.parametrize("number", SIGNALS)
def test_a_start_that_reads_its_settings_ends_with_0(number: signal.Signals, tmp_path: Path) -> None:
    """The settings come from a pipe, so that the process waits for them."""
    config = tmp_path / "config.toml"
    os.mkfifo(config)
    process = subprocess.Popen(
        bkctl_command("bookie", "start", "--config", str(config)),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        env=bkctl_environment(),
    )
    with process:
        try:
            with config.open("wb"):  # returns once the process has opened it
                # A signal that comes just before the system call would not end it, and Python would wait to handle it.
                wait_until(lambda: is_waiting(process.pid), "it reads", process=process)
                process.send_signal(number)
                assert process.wait(COMMAND_TIMEOUT_S) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert os.listdir(tmp_path) == ["config.toml"]


INTERRUPTED_AT = """
import os, signal, sys
from types import FrameType

sys.argv = ["/usr/bin/bkctl", "cluster", "info", "-u", "zk+hierarchical://127.0.0.1:1/ledgers", "--timeout", "30s"]
left = {number}

def count(frame, event, _):
    global left
    if event in ("call", "c_call"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGINT)

{start}
"""
"""Sends itself SIGINT at its n-th call of a function."""
WHILE_IMPORTING = "sys.setprofile(count)\nfrom bkctl.main import main\nsys.exit(main())"
WHILE_STARTING = """
from bkctl.main import CommandLineInvocation, main
enter = CommandLineInvocation.enter

def begin(*arguments):
    context = enter(*arguments)
    sys.setprofile(count)
    return context

CommandLineInvocation.enter = begin
sys.exit(main())
"""
"""From the moment on when the settings are known."""


@pytest.mark.parametrize(
    ("start", "numbers"),
    [
        (WHILE_IMPORTING, (5_000, 50_000, 100_000)),
        (WHILE_STARTING, range(20, 400, 25)),
        pytest.param(WHILE_STARTING, range(1, 400, 9), marks=pytest.mark.battery),
    ],
)
def test_a_command_that_is_interrupted_at_its_start_says_just_that(start: str, numbers: Iterable[int]) -> None:
    with ThreadPoolExecutor(2) as pool:
        ends = dict(zip(numbers, pool.map(lambda number: end_of(start, number), numbers), strict=True))
    assert {number: end for number, end in ends.items() if end != (130, "error: interrupted\n")} == {}


def end_of(start: str, number: int) -> tuple[int, str]:
    code = INTERRUPTED_AT.format(number=number, start=start)
    ended = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        env=bkctl_environment(),
    )
    return ended.returncode, ended.stderr
