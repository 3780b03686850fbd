"""The archive of classes that Java keeps for Spark is used, by two at once, and a damaged one is replaced."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.metadata.zookeeper.embedded import java_version
from tests.processes import run_bkctl
from tests.snapshot_files import SampleCluster, cluster_nodes, write_snapshot
from tests.until import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.battery, pytest.mark.timeout(1800)]
"""Spark starts eight times, and takes a minute for that on a busy machine."""

FIRST_BYTES = (0xF00BABA8).to_bytes(4, "little")
OF_THE_RUN = {"seconds": 0, "judged_at": ""}


@pytest.fixture
def java_home() -> str:
    """One of a Java that keeps archives."""
    found = [each for each in sorted(Path("/usr/lib/jvm").glob("*/bin/java")) if java_version(str(each)) >= 19]
    if not found:
        pytest.skip("needs Java 19 or newer")
    return str(found[0].parents[1])


def test_an_archive_is_written_and_used(java_home: str, tmp_path: Path) -> None:
    sample, source, cache = SampleCluster(ledgers=20), tmp_path / "snapshot.1", tmp_path / "cache"
    with source.open("wb") as output:
        write_snapshot(output, cluster_nodes(sample), sample.sessions)

    def audit_quietly() -> Any:
        audit = ("audit", "-o", "json", "--from", str(source), "--spark", "--cores", "1")
        done = run_bkctl(*audit, JAVA_HOME=java_home, XDG_CACHE_HOME=str(cache))
        assert (done.exit_code, done.stderr) == (10, "starting Spark on this machine\n")
        return done.json() | OF_THE_RUN

    def is_whole() -> bool:
        return bool(archives()) and archives()[0].read_bytes()[:4] == FIRST_BYTES

    def archives() -> list[Path]:
        return list((cache / "bkctl").iterdir())

    expected = audit_quietly()
    assert expected["ledgers"] == 20
    wait_until(is_whole, "Java writes an archive")
    (archive,) = archives()
    written = archive.stat()

    found: list[Any] = []
    both = [threading.Thread(target=lambda: found.append(audit_quietly())) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert found == [expected, expected]
    assert (archive.stat().st_ino, archive.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)

    content = archive.read_bytes()
    middle = len(content) // 2
    overwritten = content[:middle] + b"\xff" * 1_000_000 + content[middle + 1_000_000 :]
    for damaged in (overwritten, content[:middle]):

        def is_replaced(damaged: bytes = damaged) -> bool:
            return is_whole() and archives()[0].read_bytes() != damaged

        _replace(archive, damaged)
        for _ in range(2):  # the first one deletes it, and the next one writes, if Java did not at the end of the first
            assert audit_quietly() == expected
        wait_until(is_replaced, "Java writes another archive")

    _replace(archive, b"")  # as a JVM leaves it that is killed while it writes
    assert audit_quietly() == expected
    wait_until(is_whole, "Java replaces the unfinished archive")


def _replace(path: Path, content: bytes) -> None:
    """By another file: a JVM that still uses this one would crash."""
    damaged = path.with_name("damaged")
    damaged.write_bytes(content)
    damaged.replace(path)
