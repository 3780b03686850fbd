"""Signals to ``bookie start`` before its event loop runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import COMMAND_TIMEOUT_S, bkctl_command, bkctl_environment

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
            with config.open("wb"):  # returns once the process reads
                process.send_signal(number)
                assert process.wait(COMMAND_TIMEOUT_S) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert os.listdir(tmp_path) == ["config.toml"]
