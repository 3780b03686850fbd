"""The archive of classes that ZooKeeper servers of tests start with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper, find_java
from tests.java_launcher import ARCHIVE
from tests.zookeeper_servers import secured_server


@pytest.mark.cluster
def test_servers_use_the_archive(zookeeper: EmbeddedZooKeeper, tmp_path: Path) -> None:
    with secured_server(tmp_path, {}, {}) as other:
        for pid in (zookeeper.pid, other.pid):
            assert f"/{ARCHIVE}\n" in Path(f"/proc/{pid}/maps").read_text()


def test_other_programs_start_without_it() -> None:
    done = subprocess.run([find_java(), "-Xshare:auto", "-version"], capture_output=True, text=True, check=True)
    assert "openjdk" in done.stderr.lower()
    assert done.stdout == ""
