"""``bkctl bookie start`` as a process: alone, configured by files, and where it must refuse."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.processes import bkctl_command, bkctl_environment, free_port, processes_below, run_bkctl, start_bkctl
from tests.until import wait_until

pytestmark = pytest.mark.cluster

DEADLINE_S = 60.0
EMBEDDED = "nothing is configured: using an embedded ZooKeeper and ./bkctl-data"


class RunningBookie:
    """A ``bookie start`` in a directory, with its stderr in a file."""

    def __init__(self, directory: Path, *arguments: str, **variables: str) -> None:
        self._log = directory / "stderr.txt"
        with self._log.open("wb") as log:
            self._process = start_bkctl("bookie", "start", *arguments, cwd=directory, stderr=log, variables=variables)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def talk(self) -> str:
        return self._log.read_text()

    def wait_serving(self) -> None:
        wait_until(lambda: "listening on port" in self.talk, process=self._process, tell=lambda: self.talk)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self._process.send_signal(number)
        return self._process.wait(DEADLINE_S)

    def metadata_uri(self) -> str:
        return self.talk.partition("BKCTL_METADATA_URI='")[2].partition("'")[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., RunningBookie]]:
    running: list[RunningBookie] = []

    def start_in_directory(*arguments: str, **variables: str) -> RunningBookie:
        running.append(RunningBookie(tmp_path, *arguments, **variables))
        return running[-1]

    yield start_in_directory
    for bookie in running:
        bookie.end(signal.SIGTERM)


def test_alone_it_brings_its_own_zookeeper_and_keeps_it(start: Callable[..., RunningBookie], tmp_path: Path) -> None:
    port = str(free_port())
    bookie = start("--port", port)
    bookie.wait_serving()
    assert bookie.talk.count(EMBEDDED) == 1
    uri = bookie.metadata_uri()
    written = run_bkctl(
        "ledger", "write-test", "--entries", "10", "-E", "1", "-W", "1", "-A", "1", BKCTL_METADATA_URI=uri
    )
    assert written.exit_code == 0, written.stderr
    assert "each entry has a single copy" in written.stderr
    assert bookie.end(signal.SIGTERM) == 0
    assert sorted(os.listdir(tmp_path / "bkctl-data")) == ["cluster.json", "journal", "ledgers", "zookeeper"]
    assert run_bkctl("bookie", "list", "--timeout", "1s", BKCTL_METADATA_URI=uri).exit_code == 6

    again = start("--port", port)
    again.wait_serving()
    assert again.metadata_uri() == uri
    verified = run_bkctl("ledger", "verify", "--all", BKCTL_METADATA_URI=uri)
    assert (verified.exit_code, verified.json()["copies_good"]) == (0, 10)
    assert again.end(signal.SIGINT) == 0


def test_sigterm_stops_a_start_that_waits_for_zookeeper(start: Callable[..., RunningBookie], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(DEADLINE_S)
        uri = f"zk://127.0.0.1:{silent.getsockname()[1]}/ledgers"
        directories = ("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"))
        address = ("--port", "0", "--advertised-address", "127.0.0.1", "--set", "allowLoopback=true")
        bookie = start("-u", uri, "--timeout", "300s", *address, *directories)
        silent.accept()[0].close()
        assert bookie.end(signal.SIGTERM) == 0, bookie.talk
    assert "the start of the bookie was stopped" in bookie.talk
    assert "error" not in bookie.talk
    assert not (tmp_path / "j").exists()


def test_sigterm_stops_a_start_that_brings_its_own_zookeeper(
    start: Callable[..., RunningBookie], tmp_path: Path
) -> None:
    bookie = start("--port", str(free_port()))
    configuration = tmp_path / "bkctl-data" / "zookeeper" / "zookeeper.cfg"
    wait_until(configuration.exists, tell=lambda: bookie.talk)
    assert bookie.end(signal.SIGTERM) == 0, bookie.talk
    assert processes_below(tmp_path) == []
    again = start("--port", str(free_port()))
    again.wait_serving()
    assert again.end(signal.SIGTERM) == 0


def test_directories_of_another_cluster_are_refused(start: Callable[..., RunningBookie], tmp_path: Path) -> None:
    bookie = start("--port", str(free_port()))
    bookie.wait_serving()
    assert bookie.end() == 0
    data = tmp_path / "bkctl-data"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    refused = subprocess.run(
        bkctl_command("bookie", "start", "--journal-dir", f"{data}/journal", "--ledger-dir", f"{data}/ledgers"),
        cwd=elsewhere, env=bkctl_environment(), capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert refused.returncode == 1
    assert f"error: {data}/journal belongs to bookie 127.0.0.1:" in refused.stderr
    assert "not to an embedded cluster" in refused.stderr
    assert os.listdir(elsewhere) == []


@pytest.mark.parametrize("data", [b"{}", b'{"instance_id":"\xff","zookeeper_port":1}'])
def test_a_damaged_note_of_the_embedded_cluster_is_refused(tmp_path: Path, data: bytes) -> None:
    note = tmp_path / "bkctl-data" / "cluster.json"
    note.parent.mkdir()
    note.write_bytes(data)
    refused = subprocess.run(
        bkctl_command("bookie", "start"),
        cwd=tmp_path, env=bkctl_environment(), capture_output=True, text=True, check=False, timeout=DEADLINE_S,
    )  # fmt: skip
    assert refused.returncode == 1
    assert f"{note.relative_to(tmp_path)} is damaged (" in refused.stderr
    assert "restore it, or specify the cluster with --metadata-uri" in refused.stderr
    assert os.listdir(note.parent) == [note.name]
    assert note.read_bytes() == data


def configured(zookeeper: EmbeddedZooKeeper, directory: Path, port: int, root: str) -> str:
    """A bk_server.conf as an operator has it."""
    path = directory / "bk_server.conf"
    path.write_text(
        f"metadataServiceUri=zk+hierarchical://{zookeeper.connect_string}{root}\nbookiePort={port}\n"
        "advertisedAddress=127.0.0.1\nallowLoopback=true\n"
        f"journalDirectories={directory}/j1,{directory}/j2\nledgerDirectories={directory}/l1,{directory}/l2\n"
        "ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage\n"
    )
    return str(path)


def test_an_existing_java_configuration_is_enough(
    start: Callable[..., RunningBookie], zookeeper: EmbeddedZooKeeper, metadata_uri: str, tmp_path: Path
) -> None:
    port = free_port()
    root = "/" + metadata_uri.rpartition("/")[2]
    conf = configured(zookeeper, tmp_path, port, root)
    assert run_bkctl("cluster", "init", "--conf", conf).exit_code == 0
    bookie = start("--conf", conf)
    bookie.wait_serving()
    assert EMBEDDED not in bookie.talk
    assert run_bkctl("bookie", "list", "-o", "name", BKCTL_CONF=conf).stdout == f"127.0.0.1:{port}\n"
    assert all((tmp_path / name / "current" / "VERSION").exists() for name in ("j1", "j2", "l1", "l2"))

    taken = run_bkctl(
        *("bookie", "start", "--conf", conf, "--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"))
    )
    assert taken.exit_code == 2
    assert f"port {port} is in use by process {bookie.pid} (" in taken.stderr
    assert "): stop that process, or choose another port with --port" in taken.stderr
    other_id = run_bkctl("bookie", "start", "--conf", conf, "--port", str(free_port()))
    assert other_id.exit_code == 2
    assert "error: " in other_id.stderr
    assert "Traceback" not in other_id.stderr
    assert bookie.end() == 0

    with socket.create_server(("127.0.0.1", port)):
        existing = run_bkctl("bookie", "start", "--conf", conf)
    assert existing.exit_code == 2
    assert f"port {port} is in use by process {os.getpid()} (" in existing.stderr
    assert "): stop that process and start the bookie again" in existing.stderr
    assert "--port" not in existing.stderr


def test_no_cluster_and_no_server_are_told_apart(
    zookeeper: EmbeddedZooKeeper, metadata_uri: str, tmp_path: Path
) -> None:
    root = "/" + metadata_uri.rpartition("/")[2]
    conf = configured(zookeeper, tmp_path, free_port(), root)
    absent = run_bkctl("bookie", "start", "--conf", conf)
    assert absent.exit_code == 2
    assert f"there is no BookKeeper cluster at {root}: create one with bkctl -c {conf} cluster init" in absent.stderr
    silent = run_bkctl("bookie", "start", "--conf", conf, "--timeout", "500ms", "-u", "zk://127.0.0.1:1/ledgers")
    assert silent.exit_code == 2
    assert "no ZooKeeper server responds at 127.0.0.1:1 (waited 0.5 s)" in silent.stderr
    assert "kazoo" not in silent.stderr, "the tries to connect are for --debug"
    assert not (tmp_path / "j1").exists()


def test_an_unfinished_login_at_other_bookies_is_refused_before_a_cookie_is_written(
    metadata_uri: str, tmp_path: Path
) -> None:
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    config = tmp_path / "config.toml"
    config.write_text('[bookie_client.sasl]\nusername = "x"\n')
    refused = run_bkctl(
        *("bookie", "start", "--config", str(config), "-u", metadata_uri, "--set", "allowLoopback=true"),
        *("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"), "--port", str(free_port())),
    )
    assert (refused.exit_code, "needs bookie_client.sasl.username and" in refused.stderr) == (1, True), refused
    assert run_bkctl("cookie", "list", "-o", "name", "-u", metadata_uri).stdout == ""
    assert not (tmp_path / "l").exists()


def test_a_context_pinned_to_another_cluster_is_refused_before_a_cookie_is_written(
    start: Callable[..., RunningBookie], metadata_uri: str, tmp_path: Path
) -> None:
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    instance_id = run_bkctl("cluster", "instance-id", "-o", "name", "-u", metadata_uri).stdout.strip()
    config = tmp_path / "config.toml"
    config.write_text(
        f'[contexts.other]\nmetadata_uri = "{metadata_uri}"\ninstance_id = "another"\n'
        f'[contexts.own]\nmetadata_uri = "{metadata_uri}"\ninstance_id = "{instance_id}"\n'
    )
    arguments = (
        *("--config", str(config), "--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l")),
        *("--port", str(free_port()), "--advertised-address", "127.0.0.1", "--set", "allowLoopback=true"),
    )
    for form in ((), ("-n",)):
        refused = run_bkctl("bookie", "start", *arguments, "--context", "other", *form)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"is pinned to instance id another, but this cluster's is {instance_id}" in refused.stderr
    assert run_bkctl("cookie", "list", "-o", "name", "-u", metadata_uri).stdout == ""
    assert not (tmp_path / "j").exists()
    shown = run_bkctl("bookie", "start", *arguments, "--context", "own", "-n")
    assert shown.exit_code == 0, shown.stderr
    bookie = start(*arguments, "--context", "own")
    bookie.wait_serving()
    assert bookie.end() == 0
