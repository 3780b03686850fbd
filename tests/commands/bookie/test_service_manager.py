"""A bookie process and the service manager that started it: a real notification socket, real signals, a real hang."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import BkctlProcess, free_port, run_bkctl, start_bkctl
from tests.service_manager import DEADLINE_S, NotifySocket

pytestmark = pytest.mark.cluster

WATCHDOG_S = 1.0


@pytest.fixture
def conf(metadata_uri: str, tmp_path: Path) -> Path:
    """A bk_server.conf for a new cluster."""
    path = tmp_path / "bk_server.conf"
    path.write_text(
        f"metadataServiceUri={metadata_uri}\nbookiePort={free_port()}\nadvertisedAddress=127.0.0.1\nallowLoopback=true\n"
        f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\n"
    )
    assert run_bkctl("cluster", "init", "--conf", str(path)).exit_code == 0
    return path


@contextmanager
def bookie_under(manager: NotifySocket, conf: Path) -> Iterator[BkctlProcess]:
    """A bookie as systemd starts it; killed at the end."""
    variables = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}
    with (conf.parent / "stderr").open("ab") as stderr:
        process = start_bkctl("bookie", "start", "--conf", str(conf), stderr=stderr, variables=variables)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def registered(conf: Path) -> list[str]:
    return run_bkctl("bookie", "list", "--state", "writable", "--conf", str(conf), "-o", "name").stdout.split()


def test_ready_after_the_registration_heartbeats_reload_and_stop(conf: Path, tmp_path: Path) -> None:
    with NotifySocket(tmp_path / "notify") as manager, bookie_under(manager, conf) as process:
        start = manager.receive_until("READY")
        assert len(registered(conf)) == 1
        assert start[-1]["STATUS"] == "writable"
        assert all(each["STATUS"].startswith("starting: ") for each in start[:-1])
        assert all(int(each["EXTEND_TIMEOUT_USEC"]) > 0 for each in start[:-1])
        for _ in range(3):
            assert manager.receive() == {"WATCHDOG": "1"}

        process.send_signal(signal.SIGHUP)
        reload = manager.receive_until("RELOADING")[-1]
        assert 0 < int(reload["MONOTONIC_USEC"]) < 2**63
        manager.receive_until("READY")
        with conf.open("a") as file:
            file.write("compactionRate=fast\n")
        process.send_signal(signal.SIGHUP)
        manager.receive_until("RELOADING")
        [status] = [each["STATUS"] for each in manager.receive_until("READY") if "STATUS" in each]
        assert status == "writable; the last reload of the settings failed (see the log)"
        assert "settings were not reloaded" in (tmp_path / "stderr").read_text()
        conf.write_text(conf.read_text().replace("compactionRate=fast\n", ""))
        process.send_signal(signal.SIGHUP)
        manager.receive_until("RELOADING")
        assert {"STATUS": "writable"} in manager.receive_until("READY")

        process.send_signal(signal.SIGTERM)
        assert manager.receive_until("STOPPING")[-1]["STATUS"] == "stopping"
        assert process.wait(DEADLINE_S) == 0
        assert manager.received() == []
        assert registered(conf) == []


def test_a_start_that_fails_is_never_ready(conf: Path, tmp_path: Path) -> None:
    (tmp_path / "ledgers").write_text("not a directory")
    with NotifySocket(tmp_path / "notify") as manager, bookie_under(manager, conf) as process:
        assert process.wait(DEADLINE_S) != 0
        assert not any("READY" in each or "WATCHDOG" in each for each in manager.received())


@pytest.mark.strace
def test_a_sync_that_hangs_stops_the_heartbeat(conf: Path, tmp_path: Path) -> None:
    """strace delays every sync of the running bookie; when it lets go, the bookie is healthy again."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    if subprocess.run([strace, "-e", "trace=none", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("this process may not trace others")
    with NotifySocket(tmp_path / "notify") as manager, bookie_under(manager, conf) as process:
        manager.receive_until("WATCHDOG")
        trace = tmp_path / "trace"
        delay = ("-e", "trace=fdatasync", "-e", "inject=fdatasync:delay_enter=3600s", "-o", str(trace))
        tracer = subprocess.Popen([strace, "-f", *delay, "-p", str(process.pid)], stderr=subprocess.PIPE, text=True)
        assert tracer.stderr is not None
        try:
            assert "attached" in tracer.stderr.readline()
            writer = start_bkctl(
                *("ledger", "write-test", "--entries", "1", "-E", "1", "-W", "1", "-A", "1", "--conf", str(conf))
            )
            hang = next(each for each in iter(lambda: manager.receive_until("STATUS")[-1], {}))
            assert hang == {"STATUS": "writable; a write or sync of a journal hangs"}
            process.send_signal(signal.SIGHUP)  # the loop turns, so messages come, but no heartbeat is among them
            assert not any("WATCHDOG" in each for each in manager.receive_until("READY"))
            tracer.send_signal(signal.SIGTERM)
            tracer.wait(DEADLINE_S)
        finally:
            tracer.kill()
            tracer.wait()
            tracer.stderr.close()
        again = manager.receive_until("WATCHDOG")
        assert again[-1]["STATUS"] == "writable"
        writer.wait(DEADLINE_S)
