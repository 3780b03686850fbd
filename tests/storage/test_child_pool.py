"""Child processes that answer tasks: what a child does whose parent is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec

from storage.probe_child import ProbeRows
from tests.processes import bkctl_environment


def test_a_child_whose_parent_was_killed_ends_quietly(tmp_path: Path) -> None:
    """What it prints lands in the log of a bookie that is already dead, as if this had been the cause."""
    task = ProbeRows(directory=str(tmp_path), rows=bytes(24), entry_bytes_max=1024)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "storage.probe_child"],
        env=bkctl_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.close()
        _, said = child.communicate(msgspec.json.encode(task) + b"\n")
    assert said == b""
    assert child.returncode == 0
