"""``bkctl dev cluster up`` that is killed itself: what it had started stays known, and is ended or used."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.processes import (
    bkctl_command,
    bkctl_environment,
    kill_and_wait,
    processes_below,
    run_bkctl,
)
from tests.until import wait_until

pytestmark = pytest.mark.cluster


def test_a_zookeeper_that_did_not_serve_yet_is_known(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    zookeeper = directory / "zookeeper"
    process = subprocess.Popen(
        bkctl_command("dev", "cluster", "up", "--bookies", "1", "--dir", str(directory)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=bkctl_environment(),
    )
    try:
        wait_until(lambda: (zookeeper / "process.json").exists() or (zookeeper / "data").exists(), "ZooKeeper starts")
        process.kill()
        process.wait()
        assert processes_below(zookeeper)
        status = run_bkctl("dev", "cluster", "status", "--dir", str(directory)).json()
        assert status["zookeeper"]["state"] == "running"
        up_again = run_bkctl("dev", "cluster", "up", "--dir", str(directory))
        assert up_again.exit_code == 0, up_again.stderr
        assert up_again.json()["zookeeper"]["pid"] == status["zookeeper"]["pid"]
        assert run_bkctl("dev", "cluster", "down", "--dir", str(directory)).exit_code == 0
        assert processes_below(directory) == []
    finally:
        process.kill()
        process.wait()
        for pid in processes_below(directory):
            kill_and_wait(pid)
