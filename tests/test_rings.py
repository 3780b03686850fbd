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


def test_a_worker_reports_a_failure_with_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / "test_names.py"
    path.write_text(TESTS)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "1", "-p", "tests.rings", "-p", "no:cacheprovider", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert "1 failed, 1 passed" in result.stdout, result.stdout
    assert r"\udcff" in result.stdout
    assert r"\udcfe" in result.stdout
