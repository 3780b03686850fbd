"""What the README tells people to type, typed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.processes import COMMAND_TIMEOUT_S, Cluster, bkctl_environment
from tests.test_repository import read

pytestmark = pytest.mark.cluster

README_URI = "zk+hierarchical://127.0.0.1:2181/ledgers"


def test_python_example_runs(cluster: Cluster) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    assert README_URI in example
    finished = subprocess.run(
        [sys.executable, "-P", "-c", example.replace(README_URI, cluster.metadata_uri)],
        capture_output=True,
        text=True,
        env=bkctl_environment(),
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "0 b'hello'\n"


def test_first_commands_run(cluster: Cluster) -> None:
    commands = re.findall(r"^bkctl (ledger .*)$", read("README.md"), re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        result = cluster.run(*command.split())
        assert result.exit_code == 0, result.stderr
