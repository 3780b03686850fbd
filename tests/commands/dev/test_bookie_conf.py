"""A bookie of ``bkctl dev cluster`` that does not start prints commands that work as they are: they name its file."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

import pytest

from tests.processes import BkctlResult, DevCluster, is_alive, run_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster


def run_alone(printed: str, *more: str) -> BkctlResult:
    """Run what was printed, where nothing else says which cluster is meant."""
    program, *words = shlex.split(printed)
    assert program == "bkctl"
    return run_bkctl(*words, *more, "-o", "json")


def test_the_commands_that_a_bookie_prints_need_no_other_options(tmp_path: Path) -> None:
    cluster = DevCluster(str(tmp_path / "a cluster"))
    try:
        cluster.up(1)
        [bookie] = cluster.bookies
        os.kill(bookie.pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(bookie.pid))
        assert cluster.run("cookie", "delete", bookie.id, "--confirm", bookie.id).exit_code == 0
        refused = run_bkctl("dev", "cluster", "start", bookie.id, "--dir", cluster.directory)
        assert refused.exit_code == 1, refused
        printed = re.search("run (bkctl .* cookie verify) with", refused.stderr)
        assert printed, refused.stderr
        verified = run_alone(printed[1])
        assert (verified.exit_code, verified.json()["cause"]) == (10, "missing stored cookie")
        formatted = run_alone(verified.json()["command"], "--confirm", bookie.id)
        assert formatted.exit_code == 0, formatted
        cluster.start_bookie(bookie.id)
    finally:
        cluster.stop()
