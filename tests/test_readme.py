"""What the README tells people to type, typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bkctl.app import build_app
from bkctl.commands.config import GlobalFlags
from bkctl.settings import read_sources, resolve_settings
from tests.bkctl.test_main import leaves
from tests.processes import COMMAND_TIMEOUT_S, Cluster, bkctl_environment
from tests.test_repository import ROOT, read

pytestmark = pytest.mark.cluster

DIRECTORY = "/tmp/bk"
"""What the README says; the test uses another."""
SETUP_LINES = 2


def block(language: str) -> str:
    """The first code block of a language that mentions the cluster."""
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", read("README.md"), re.DOTALL)
    return next(text for text in blocks if "BKCTL_METADATA_URI" in text)


def test_python_example_runs(cluster: Cluster) -> None:
    finished = subprocess.run(
        [sys.executable, "-P", "-c", block("python")],
        capture_output=True,
        text=True,
        env=bkctl_environment(BKCTL_METADATA_URI=cluster.metadata_uri),
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "0 b'hello'\n"


def test_first_commands_run_one_after_another(tmp_path: Path) -> None:
    lines = block("").splitlines(keepends=True)
    assert [line.split("#")[0].strip() for line in lines[:SETUP_LINES]] == ["make setup", ". .venv/bin/activate"]
    script = "".join(lines[SETUP_LINES:]).replace(DIRECTORY, str(tmp_path))
    down = f"bkctl dev cluster down --dir {DIRECTORY}"
    assert down in read("README.md")
    begun = run_in_shell(script)
    ended = run_in_shell(down.replace(DIRECTORY, str(tmp_path)))
    assert begun.returncode == 0, begun.stderr
    assert ended.returncode == 0, ended.stderr
    assert "zookeeper stopped" in ended.stderr


def test_named_commands_exist() -> None:
    names = {name for name, _ in leaves(build_app())} | {"bkctl recover"}
    table = read("README.md").split("## From the Java shell")[1].split("\n## ")[0]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| `")]
    named = [f"bkctl {each}".split(" --")[0] for row in rows for each in re.findall(r"`([^`]+)`", row)]
    assert named
    groups = {name.rpartition(" ")[0] for name in names}
    assert [each for each in named if each not in names | groups] == []


def test_sample_of_the_configuration_file_is_accepted(tmp_path: Path) -> None:
    sample = re.findall(r"```toml\n(.*?)```", read("README.md"), re.DOTALL)[0]
    path = tmp_path / "config.toml"
    path.write_text(sample)
    sources = read_sources(GlobalFlags(config=str(path)), {})
    resolved = resolve_settings(sources)
    assert resolved.metadata_uri == "zk+hierarchical://zk1:2181;zk2:2181/ledgers"


def run_in_shell(commands: str) -> subprocess.CompletedProcess[str]:
    """Run what one would type with the environment activated, which is to have its programs come first."""
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=bkctl_environment(PATH=path),
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
