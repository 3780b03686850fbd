"""The demo as a user runs it: it tells its whole story, and leaves no process behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import COMMAND_TIMEOUT_S, processes_below
from tests.test_repository import ROOT
from tests.until import wait_until

pytestmark = pytest.mark.cluster

DEMO_TIMEOUT_S = 600.0
"""The promise is two minutes on a quiet machine; this only keeps a hung demo from hanging the test run."""


def start_demo(directory: Path) -> subprocess.Popen[str]:
    """Start the demo with its output in a pipe."""
    return subprocess.Popen(
        [sys.executable, "-P", os.path.join(ROOT, "scripts", "demo.py"), "--directory", str(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.battery
def test_demo_runs_to_its_end(tmp_path: Path) -> None:
    demo = start_demo(tmp_path)
    try:
        output, _ = demo.communicate(timeout=DEMO_TIMEOUT_S)
    finally:
        demo.kill()
    assert demo.returncode == 0, output
    assert processes_below(tmp_path) == []
    assert list((tmp_path / "report").rglob("*.parquet"))
    assert not (tmp_path / "cluster").exists()


def test_a_second_demo_is_refused_and_an_interrupted_one_ends_its_cluster(tmp_path: Path) -> None:
    demo = start_demo(tmp_path)
    try:
        wait_until(lambda: list(tmp_path.glob("cluster/bookie-*/process.json")), process=demo)
        remains = sorted(tmp_path.rglob("*.json"))
        second = start_demo(tmp_path)
        refusal, _ = second.communicate(timeout=COMMAND_TIMEOUT_S)
        assert second.returncode == 1
        assert refusal.startswith(f"error: a demo is running in {tmp_path}: ")
        assert refusal.count("\n") == 1
        assert set(remains) <= set(tmp_path.rglob("*.json"))
        demo.send_signal(signal.SIGINT)
        output, _ = demo.communicate(timeout=COMMAND_TIMEOUT_S)
    finally:
        demo.kill()
    assert demo.returncode == 1, output
    assert processes_below(tmp_path) == []


@pytest.mark.battery
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("$ bkctl ledger write-test --ledgers 17", signal.SIGINT),
        ("$ wait", signal.SIGTERM),
        ("$ bkctl ledger show", signal.SIGINT),
    ],
)
def test_interrupted_at_any_moment_it_leaves_no_process(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    demo = start_demo(tmp_path)
    try:
        assert demo.stdout is not None
        begin = ""
        while not begin.splitlines()[-1:] or not begin.splitlines()[-1].startswith(moment):
            line = demo.stdout.readline()
            assert line, begin
            begin += line
        demo.send_signal(number)
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=COMMAND_TIMEOUT_S)
    finally:
        demo.kill()
    assert demo.returncode == 1, begin + output
    assert "interrupted\n$ bkctl dev cluster down" in output
    assert "Traceback" not in output
    assert processes_below(tmp_path) == []


@pytest.mark.battery
def test_a_reader_that_goes_away_ends_the_demo_and_all_its_processes(tmp_path: Path) -> None:
    demo = start_demo(tmp_path)
    try:
        assert demo.stdout is not None
        while not demo.stdout.readline().startswith("$ bkctl bookie list"):
            assert demo.poll() is None
        demo.stdout.close()
        assert demo.wait(COMMAND_TIMEOUT_S) != 0
    finally:
        demo.kill()
    assert processes_below(tmp_path) == []
