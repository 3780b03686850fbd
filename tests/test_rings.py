"""Hooks of pytest, seen from outside: a run of other tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.processes import COMMAND_TIMEOUT_S
from tests.test_repository import ROOT

TESTS = """
def test_fails(tmp_path):
    print("\\udcfe")
    assert str(tmp_path) == "\\udcff"

def test_passes():
    pass
"""


LEAK = """
import socket

def test_leaves_a_socket_in_a_cycle():
    holder = type("Holder", (), {})
    holder.sockets = socket.socketpair()

def test_of_the_same_module():
    pass
"""
COLLECTS = """
import gc

def test_collects():
    gc.collect()
"""


def test_a_leak_is_reported_in_its_module(tmp_path: Path) -> None:
    modules = [tmp_path / "test_first.py", tmp_path / "test_second.py"]
    for path, text in zip(modules, (LEAK, COLLECTS), strict=True):
        path.write_text(text)
    errors = ("-W", "error::ResourceWarning", "-W", "error::pytest.PytestUnraisableExceptionWarning")
    result = run_pytest(*errors, "-p", "tests.conftest", *map(str, modules))
    assert "3 passed, 1 error" in result.stdout, result.stdout
    assert "ERROR at teardown of test_of_the_same_module" in result.stdout


def test_a_worker_reports_a_failure_with_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "test_names.py"
    path.write_text(TESTS)
    result = run_pytest("-n", "1", "-p", "tests.rings", str(path))
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert r"\udcff" in result.stdout
    assert r"\udcfe" in result.stdout


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
