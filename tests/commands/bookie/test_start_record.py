"""The log of a start: one record with everything an operator looks for, one with what a Java bookie does otherwise."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.processes import free_port, run_bkctl, start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0


def start_and_stop(directory: Path, *arguments: str) -> str:
    """The log of a bookie that was stopped once it served."""
    log = directory / "stderr"
    with log.open("wb") as stderr:
        process = start_bkctl("bookie", "start", *arguments, stderr=stderr)
    try:
        wait_until(lambda: "listening on port" in log.read_text(), process=process, tell=log.read_text)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
    return log.read_text()


def bodies_with(log: list[dict[str, Any]], part: str) -> list[dict[str, Any]]:
    return [each for each in log if part in each["Body"]]


def test_a_start_is_described_once(metadata_uri: str, tmp_path: Path) -> None:
    port, http_port = free_port(), free_port()
    conf = tmp_path / "bk_server.conf"
    conf.write_text(
        f"metadataServiceUri={metadata_uri}?password=hidden\nbookiePort={port}\nadvertisedAddress=127.0.0.1\n"
        f"allowLoopback=true\njournalDirectories={tmp_path}/j\nledgerDirectories={tmp_path}/l1,{tmp_path}/l2\n"
        f"httpServerEnabled=true\nhttpServerPort={http_port}\nopenFileLimit=1\nnumReadWorkerThreads=8\n"
        "pageLimit=1\npageSize=1\nreadBufferSizeBytes=1\nlocalScrubInterval=1\nextraServerComponents=a.B\n"
        "tlsTrustStore=/ca.pem\n"
    )
    assert run_bkctl("cluster", "init", "--conf", str(conf)).exit_code == 0
    text = start_and_stop(tmp_path, "--conf", str(conf), "--read-only", "--log-format", "json")
    assert "hidden" not in text
    log = [json.loads(line) for line in text.splitlines()]
    [start] = bodies_with(log, "listening on port")
    found = start["Attributes"]
    version = run_bkctl("--version").stdout.strip()
    assert (found["bookie_id"], found["port"], found["version"]) == (f"127.0.0.1:{port}", port, version)
    assert (found["mode"], found["read_only_reasons"]) == ("read-only", ["by its settings (forceReadOnlyBookie)"])
    assert found["metadata"] == metadata_uri
    assert found["admin"] == f"127.0.0.1:{http_port}"
    directories = [(each["kind"], each["path"]) for each in found["directories"]]
    assert directories == [("journal", f"{tmp_path}/j"), ("ledger", f"{tmp_path}/l1"), ("ledger", f"{tmp_path}/l2")]
    assert all(each["free_bytes"] > 0 for each in found["directories"])
    for value in (found["bookie_id"], version, *found["read_only_reasons"], found["metadata"], found["admin"]):
        assert value in start["Body"]

    compared = bodies_with(log, "compared with a Java bookie: ")
    assert [each["SeverityText"] for each in compared] == ["WARN"] * 3
    for each, part in zip(
        compared, ("extraServerComponents", "httpServerHost is 127.0.0.1", "adminTokenFile"), strict=True
    ):
        assert part in each["Body"]
    [unprotected] = bodies_with(log, "connections are in clear text")
    assert unprotected["SeverityText"] == "WARN"
    assert "tlsTrustStore has no effect without tlsProviderFactoryClass=" in unprotected["Body"]
    [ignored] = bodies_with(log, "no effect (")
    assert log.index(start) < log.index(compared[0]) < log.index(ignored)
    assert ignored["SeverityText"] == "INFO"
    assert ignored["Body"] == (
        "bk_server.conf: openFileLimit, pageLimit, pageSize, readBufferSizeBytes, numReadWorkerThreads and 1 more have "
        "no effect (bkctl bookie start --dry-run shows why)"
    )
    assert [each.partition(" no effect (")[0] for each in ignored["Attributes"]["ignored_keys"]] == [
        "openFileLimit, pageLimit, pageSize, readBufferSizeBytes have",
        "numReadWorkerThreads has",
        "localScrubInterval has",
    ]
    planned = run_bkctl("bookie", "start", "--conf", str(conf), "--dry-run").stderr
    assert "warning: compared with a Java bookie: extraServerComponents: " in planned
    assert f"\nlocalScrubInterval has no effect (bkctl -c {conf} storage check compares what is stored)\n" in planned


def test_a_bookie_with_nothing_to_compare_says_nothing_about_java(metadata_uri: str, tmp_path: Path) -> None:
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    directories = ("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"))
    index = ("--index-dir", str(tmp_path / "i"), "--set", "allowLoopback=true", "--advertised-address", "127.0.0.1")
    text = start_and_stop(tmp_path, "-u", metadata_uri, "--port", "0", *directories, *index)
    [start] = [line for line in text.splitlines() if "listening on port" in line]
    assert "writable; ZooKeeper " in start
    assert "admin interface on its socket only" in start
    assert f"; journal {tmp_path}/j (" in start
    assert f"; index {tmp_path}/i (" in start
    assert "Java" not in text
