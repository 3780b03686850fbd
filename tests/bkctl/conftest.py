"""Runs bkctl inside the test process, with an environment of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bkctl.main import main
from tests.processes import BkctlResult

RunMain = Callable[..., BkctlResult]


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> RunMain:
    """``run_main("bookie", "list", BKCTL_OUTPUT="csv")`` in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, **environment: str) -> BkctlResult:
        with monkeypatch.context() as patch:
            patch.setattr("os.environ", {"PATH": "", "HOME": str(tmp_path), "BKCTL_OUTPUT": "json", **environment})
            code = main(arguments)
        captured = capsys.readouterr()
        return BkctlResult(code, captured.out, captured.err)

    return run
