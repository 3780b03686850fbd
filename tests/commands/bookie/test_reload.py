"""SIGHUP to a running bookie: its log file is opened again, rates and the log level change, other settings wait."""

from __future__ import annotations

import os
import pty
import signal
import socket
from pathlib import Path

import pytest

from tests.processes import (
    BkctlProcess,
    bkctl_command,
    bkctl_environment,
    free_port,
    kill_and_wait,
    processes_below,
    run_bkctl,
    start_bkctl,
)
from tests.until import wait_until

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0


def wait_said(path: Path, sentence: str, process: BkctlProcess) -> str:
    """The file's text once the sentence is in it."""

    def text() -> str:
        return path.read_text() if path.exists() else ""

    wait_until(lambda: sentence in text(), process=process, tell=text)
    return text()


def test_a_reload_opens_the_log_file_again_and_takes_over_rates(metadata_uri: str, tmp_path: Path) -> None:
    assert run_bkctl("cluster", "init", BKCTL_METADATA_URI=metadata_uri).exit_code == 0
    conf, log, port = tmp_path / "bk_server.conf", tmp_path / "bookie.log", free_port()

    def write(*lines: str) -> None:
        conf.write_text(
            f"metadataServiceUri={metadata_uri}\nbookiePort={port}\nadvertisedAddress=127.0.0.1\nallowLoopback=true\n"
            f"journalDirectories={tmp_path}/journal\nledgerDirectories={tmp_path}/ledgers\nlogFile={log}\n"
            + "".join(f"{line}\n" for line in lines)
        )

    write()
    with (tmp_path / "stderr").open("wb") as stderr:
        process = start_bkctl("bookie", "start", "--conf", str(conf), stderr=stderr)
    try:
        first = wait_said(log, "listening on port", process)
        log.rename(tmp_path / "bookie.log.1")
        write("compactionRate=50", "flushInterval=5000")
        process.send_signal(signal.SIGHUP)
        second = wait_said(log, "flush_interval_s", process)
        assert "INFO    bkctl.commands.server_log: log file reopened" in second
        assert "setting changed: garbage_collection.copied_entries_per_s_max = 50.0 (was 1000.0)" in second
        assert "settings changed that take effect after a restart: flush_interval_s" in second
        old = (tmp_path / "bookie.log.1").read_text()
        assert old.startswith(first)

        write("compactionRate=fast")
        process.send_signal(signal.SIGHUP)
        third = wait_said(log, "not reloaded", process)
        assert f"settings were not reloaded: {conf}: compactionRate = fast: not a whole number" in third

        admin = ("httpServerEnabled=true", "httpServerPort=0")
        write("compactionRate=70", "logLevel=warning", "openFileLimit=1", "extraServerComponents=a.B", *admin)
        process.send_signal(signal.SIGHUP)
        fourth = wait_said(log, "setting changed: log level = warning (was info)", process)
        assert "bk_server.conf: openFileLimit has no effect" in fourth
        assert "compared with a Java bookie: extraServerComponents: " in fourth
        assert "httpServerHost" not in fourth, "the port opens only after a restart"
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert "INFO" not in log.read_text().removeprefix(fourth), "the new level"
        assert (tmp_path / "bookie.log.1").read_text() == old, "nothing more since it was reopened"
        assert "listening on port" not in (tmp_path / "stderr").read_text()
    finally:
        process.kill()
        process.wait()


def test_a_bookie_stops_in_order_when_its_terminal_is_closed(tmp_path: Path) -> None:
    log, port = tmp_path / "bookie.log", str(free_port())
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        command = bkctl_command("bookie", "start", "--port", port, "--log-file", str(log))
        os.execve(command[0], command, bkctl_environment())
    try:
        wait_until(lambda: log.exists() and "listening on port" in log.read_text())
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    except BaseException:
        kill_and_wait(pid)
        raise
    assert os.waitstatus_to_exitcode(status) == 0
    assert "the terminal was closed: stopping" in log.read_text()
    assert "shut down cleanly" in log.read_text()
    assert processes_below(tmp_path) == []


def test_a_reload_before_the_bookie_serves_does_not_end_it(tmp_path: Path) -> None:
    log = tmp_path / "bookie.log"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers"
        directories = ("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"))
        address = ("--port", "0", "--advertised-address", "127.0.0.1", "--set", "allowLoopback=true")
        process = start_bkctl(
            "bookie", "start", "-u", uri, "--timeout", "300s", "--log-file", str(log), *address, *directories
        )
        try:
            silent.accept()[0].close()
            process.send_signal(signal.SIGHUP)
            wait_said(log, "settings will be reloaded when the bookie has started", process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
            process.wait()


def test_a_log_file_that_cannot_be_opened_is_refused_and_a_failure_is_its_last_line(tmp_path: Path) -> None:
    own = ("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"), "--timeout", "500ms")
    start = ("bookie", "start", "-u", "zk://127.0.0.1:1/ledgers", "--port", "0", *own)
    refused = run_bkctl(*start, "--log-file", str(tmp_path))
    assert refused.exit_code == 1
    assert f"cannot open the log file {tmp_path} (Is a directory): choose another one with --log-file" in refused.stderr
    failed = run_bkctl(*start, "--set", f"logFile={tmp_path}/log", "--set", "allowLoopback=true")
    assert failed.exit_code == 2
    assert "bookie stopped by an error: no ZooKeeper server responds at 127.0.0.1:1" in (tmp_path / "log").read_text()
    assert "error: no ZooKeeper server responds" in failed.stderr
    assert not os.path.exists(tmp_path / "j")
