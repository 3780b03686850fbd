"""The page of secured clusters is written from a run in which rows failed, ended early or were skipped, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.test_repository import ROOT

TESTS = """
import pytest

@pytest.fixture(autouse=True)
def recorded_row(record_property, server, mode):
    record_property("server", server)
    record_property("mode", mode)

@pytest.mark.parametrize(("server", "mode"), [
    ("4.18", "plain"), ("4.18", "TLS"), ("4.18", "SASL GSSAPI"), ("bkctl", "plain"), ("bkctl", "TLS"),
])
def test_row(server, mode, record_property):
    if mode == "SASL GSSAPI":
        pytest.skip("no KDC")
    assert (server, mode) != ("4.18", "plain"), "the cluster does not start"
    record_property("list", "passed")
    is_bad = (server, mode) == ("bkctl", "TLS")
    record_property("drain", "failed" if is_bad else "passed")
    assert not is_bad
"""


def test_failed_cells_are_on_the_page(tmp_path: Path) -> None:
    package = tmp_path / "tests" / "interop"
    package.mkdir(parents=True)
    for directory in (tmp_path / "tests", package):
        (directory / "__init__.py").touch()
    (package / "test_security_matrix.py").write_text(TESTS)
    report, page = tmp_path / "report.xml", tmp_path / "page.md"
    run = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    ended = subprocess.run([*run, f"--junitxml={report}", "tests"], cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode == 1, ended.stdout
    write = [sys.executable, "-m", "scripts.security_matrix_page", str(page), str(report)]
    subprocess.run(write, cwd=ROOT, check=True)
    lines = page.read_text().splitlines()
    (named,) = (line for line in lines if line.startswith("**Not passed: 4.18, plain: all; 4.18, mTLS: all; "))
    assert "4.18, SASL GSSAPI: all" in named
    assert "bkctl, TLS: drain" in named
    assert "bkctl, plain" not in named
    others = " | ".join(["not run"] * 5)
    for cells in ("list | not run | passed", "drain | not run | passed", "list | passed | passed"):
        assert f"| {cells} | {others} |" in lines
    assert f"| drain | passed | failed | {others} |" in lines
