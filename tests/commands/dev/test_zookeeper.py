"""``bkctl dev zookeeper`` in the foreground: serves, says how to reach it, stops when told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import bkctl_command, bkctl_environment, is_alive, kill_and_wait, run_bkctl

pytestmark = pytest.mark.cluster


def start(directory: Path) -> tuple[subprocess.Popen[str], dict[str, Any]]:
    """The process, and the record that it prints once it serves."""
    command = bkctl_command("dev", "zookeeper", "--dir", str(directory), "-o", "jsonl")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=bkctl_environment()
    )
    assert process.stdout is not None
    return process, json.loads(process.stdout.readline())


def test_serves_until_interrupted_and_keeps_its_data(tmp_path: Path) -> None:
    for number, is_new in ((signal.SIGINT, True), (signal.SIGTERM, False)):
        process, record = start(tmp_path)
        try:
            assert os.path.exists(record["log"])
            created = run_bkctl("cluster", "init", "--if-not-exists", BKCTL_METADATA_URI=record["metadata_uri"])
            assert created.json()["created"] is is_new
            second = run_bkctl("dev", "zookeeper", "--dir", str(tmp_path))
            assert (second.exit_code, "another ZooKeeper server runs in" in second.stderr) == (2, True)
            port = run_bkctl("dev", "zookeeper", "--dir", str(tmp_path / "other"), "--port", str(record["port"]))
            assert (port.exit_code, f"port {record['port']} is in use" in port.stderr) == (2, True)
        finally:
            process.send_signal(number)
            _, talk = process.communicate(timeout=60)
        assert process.returncode == 0, talk
        assert f"export BKCTL_METADATA_URI='{record['metadata_uri']}'" in talk
        assert not is_alive(record["pid"])


def test_its_server_dying_is_told(tmp_path: Path) -> None:
    process, record = start(tmp_path)
    kill_and_wait(record["pid"])
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "ZooKeeper stopped unexpectedly with status -9" in talk
