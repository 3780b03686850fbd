"""Commands for a running bookie against a Java bookie, over the HTTP port in its registration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop.java import JavaBookie, write_server_conf
from tests.processes import LOOPBACK, BkctlResult, free_port, run_bkctl
from tests.until import wait_until


class JavaAdminBookie(NamedTuple):
    """A Java bookie with its HTTP server."""

    bookie_id: str
    metadata_uri: str
    http_port: int

    def run(self, *words: str) -> BkctlResult:
        """``bkctl bookie ... ID``."""
        return run_bkctl("bookie", *words, self.bookie_id, BKCTL_METADATA_URI=self.metadata_uri)


@pytest.fixture
def java_bookie(metadata_uri: str, tmp_path: Path) -> Iterator[JavaAdminBookie]:
    """It serves."""
    made = run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri)
    assert made.exit_code == 0, made.stderr
    port, http_port = free_port(), free_port()
    write_server_conf(
        str(tmp_path / "bookie.conf"),
        metadata_uri,
        str(tmp_path),
        port,
        httpServerEnabled="true",
        httpServerClass="org.apache.bookkeeper.http.vertx.VertxHttpServer",
        httpServerHost=LOOPBACK,
        httpServerPort=str(http_port),
        diskUsageThreshold="0.99",
        diskUsageWarnThreshold="0.98",
    )
    java = JavaBookie(str(tmp_path / "bookie.conf"), str(tmp_path / "bookie.log"))
    bookie = JavaAdminBookie(f"{LOOPBACK}:{port}", metadata_uri, http_port)
    try:

        def is_ready() -> bool:
            assert java.is_running, (tmp_path / "bookie.log").read_text()
            return bookie.run("ready").exit_code == 0

        wait_until(is_ready)
        yield bookie
    finally:
        java.stop()


def test_state_mode_and_garbage_collection_of_a_java_bookie(java_bookie: JavaAdminBookie) -> None:
    state = java_bookie.run("state").json()
    assert (state["bookie_id"], state["state"], state["mode"]) == (java_bookie.bookie_id, "running", "writable")
    assert (state["reasons"], state["version"], state["uptime_s"]) == (None, None, None)
    assert state["answered_by"] == f"admin port {LOOPBACK}:{java_bookie.http_port}"

    made = java_bookie.run("set-mode", "read-only", "--yes")
    assert (made.exit_code, made.json()["changed"], made.json()["mode"]) == (0, True, "read-only")
    assert java_bookie.run("state").json()["mode"] == "read-only"
    assert java_bookie.run("ready").exit_code == 0
    assert java_bookie.run("set-mode", "read-only", "--yes").json()["changed"] is False
    assert java_bookie.run("set-mode", "writable").json()["mode"] == "writable"

    status = java_bookie.run("gc", "status").json()
    assert (status["major_suspended"], status["minor_suspended"], len(status["directories"])) == (False, False, 1)
    assert java_bookie.run("gc", "suspend", "--major").json()["major_suspended"] is True
    assert java_bookie.run("gc", "resume").json()["major_suspended"] is False
    assert java_bookie.run("gc", "run").exit_code == 0

    stopped = java_bookie.run("stop", "--yes")
    assert (stopped.exit_code, stopped.stdout) == (3, "")
    assert "is a Java bookie: stop it with the supervisor that started it" in stopped.stderr
    assert java_bookie.run("log-level", "debug").exit_code == 3
    without_provider = java_bookie.run("metrics")
    assert (without_provider.exit_code, len(without_provider.stderr.splitlines())) == (1, 1)
