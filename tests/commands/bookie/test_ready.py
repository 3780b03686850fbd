"""``bookie ready``: the exit code for probes, while a bookie starts, serves, and has ended."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.commands.bookie.admin_bookie import running_bookie, start_again
from tests.commands.bookie.registered_server import register_admin_port
from tests.processes import LOOPBACK, bkctl_command, bkctl_environment, run_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster


def test_a_bookie_is_ready_once_it_serves(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path, "zkTimeout=60000") as bookie:
        for result in (bookie.run("ready"), bookie.run_over_tcp("ready")):
            assert result.exit_code == 0
            assert (result.json()["state"], result.json()["stage"]) == ("running", None)
        os.kill(bookie.process.pid, signal.SIGKILL)
        bookie.process.wait()
        assert bookie.run("ready").exit_code == 7
        assert bookie.run("ready", "--started-within", "10m").exit_code == 7
        # The next one cannot register before the session of the killed one has ended.
        with start_again(bookie) as starting:

            def waits_to_register() -> bool:
                state = starting.run("state", "-o", "json")
                return state.exit_code == 0 and state.json()["stage"] == "register"

            wait_until(waits_to_register, process=starting.process, tell=starting.log.read_text)
            waiting = starting.run("ready")
            assert (waiting.exit_code, waiting.stdout) == (7, "")
            assert "the bookie is starting: register" in waiting.stderr
            young = starting.run("ready", "--started-within", "10m")
            assert (young.exit_code, young.json()["stage"]) == (0, "register")
            assert starting.run("ready", "--started-within", "1ms").exit_code == 7


def test_a_bookie_that_answers_for_another_one_is_named(metadata_uri: str, tmp_path: Path) -> None:
    """Two machines with the same address in their registrations: one of them may be down."""
    with running_bookie(metadata_uri, tmp_path) as bookie:
        other = f"{LOOPBACK}:1"
        register_admin_port(metadata_uri, other, LOOPBACK, bookie.http_port)
        found = run_bkctl("bookie", "ready", other, BKCTL_METADATA_URI=metadata_uri)
        assert (found.exit_code, found.stdout) == (7, "")
        assert f"bookie {other}: bookie {bookie.bookie_id} answers at admin port {LOOPBACK}:" in found.stderr
        young = run_bkctl("bookie", "ready", other, "--started-within", "10m", BKCTL_METADATA_URI=metadata_uri)
        assert (young.exit_code, young.stdout) == (7, "")


def test_a_probe_imports_no_event_loop_and_no_http_library(metadata_uri: str, tmp_path: Path) -> None:
    with running_bookie(metadata_uri, tmp_path) as bookie:
        command = bkctl_command("bookie", "ready", "--ledger-dir", str(bookie.directory))
        finished = subprocess.run(
            [command[0], "-X", "importtime", *command[1:]],
            capture_output=True,
            text=True,
            check=False,
            env=bkctl_environment(),
        )
    assert finished.returncode == 0, finished.stderr
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "bkctl.commands.bookie.probe" in imported
    assert imported.isdisjoint({"asyncio", "uvloop", "aiohttp", "http.client", "ssl", "kazoo", "google.protobuf"})
