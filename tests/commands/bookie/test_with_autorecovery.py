"""A bookie with an autorecovery daemon in a child process, which never stops the bookie."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.autorecovery.child import MODULE
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote
from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.commands.bookie.admin_bookie import AdminBookie, running_bookie, wait_said
from tests.processes import children_running, free_port, is_alive, kill_and_wait, run_bkctl
from tests.recovery_daemons import daemon_notes
from tests.until import wait_until

pytestmark = pytest.mark.cluster

ENABLED = "autoRecoveryDaemonEnabled=true"


@pytest.fixture
def zookeeper_client(metadata_uri: str) -> Iterator[KazooClient]:
    client = KazooClient(parse_metadata_uri(metadata_uri).servers)
    client.start()
    yield client
    client.stop()
    client.close()


class Seen:
    """What the cluster shows of the daemon of one bookie."""

    def __init__(self, bookie: AdminBookie, client: KazooClient) -> None:
        self.bookie = bookie
        self.client = client

    @property
    def pids(self) -> list[int]:
        return children_running(MODULE, self.bookie.process.pid)

    def note(self) -> DaemonNote | None:
        """Of the daemon that runs now, once it has written one."""
        notes = daemon_notes(self.client, self.bookie.metadata_uri)
        return next((notes[pid] for pid in self.pids if pid in notes), None)

    def wait_note(self) -> DaemonNote:
        wait_until(lambda: self.note() is not None, "the note of the daemon")
        note = self.note()
        assert note is not None
        return note

    @property
    def votes(self) -> list[str]:
        root = parse_metadata_uri(self.bookie.metadata_uri).root
        return list(self.client.get_children(Paths(root).auditor_election))

    def metric(self, name: str) -> float | None:
        shown = self.bookie.run("metrics", "-o", "json")
        assert shown.exit_code == 0, shown.stderr
        return next((each["value"] for each in shown.json()["items"] if each["name"] == name), None)


def test_it_audits_repairs_and_ends_with_the_bookie(
    metadata_uri: str, tmp_path: Path, zookeeper_client: KazooClient
) -> None:
    with running_bookie(metadata_uri, tmp_path, ENABLED) as bookie:
        seen = Seen(bookie, zookeeper_client)
        note = seen.wait_note()
        assert (note.role, note.admin is not None) == ("both", True)
        wait_until(lambda: seen.metric("bkctl_autorecovery_is_auditor") == 1, "the metrics of the child")
        wait_until(lambda: seen.metric("bkctl_autorecovery_is_running") == 1, "the bookie's own metric")
        assert seen.metric("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") == 0
        with urllib.request.urlopen(f"http://127.0.0.1:{bookie.http_port}/metrics") as page:
            types = re.findall(r"^# TYPE (\S+)", page.read().decode(), re.MULTILINE)
        assert len(set(types)) == len(types), "Prometheus refuses a page that has a metric twice"
        wait_said(bookie.log, "autorecovery: this process is the auditor now", bookie.process)
        os.kill(bookie.process.pid, signal.SIGTERM)
        assert bookie.process.wait(60) == 0
        assert "autorecovery: the autorecovery daemon ended cleanly" in bookie.log.read_text()
        assert not is_alive(note.pid)
        assert seen.votes == []
        assert daemon_notes(zookeeper_client, metadata_uri) == {}


def test_a_log_level_that_is_set_at_run_time_reaches_it(
    metadata_uri: str, tmp_path: Path, zookeeper_client: KazooClient
) -> None:
    last = "autorecovery: the autorecovery daemon ended cleanly"
    with running_bookie(metadata_uri, tmp_path, ENABLED) as bookie:
        seen = Seen(bookie, zookeeper_client)
        first = seen.wait_note()
        assert bookie.run("log-level", "warning").exit_code == 0
        kill_and_wait(first.pid)  # the next one starts with this level
        wait_until(lambda: seen.pids not in ([], [first.pid]), "another child")
        seen.wait_note()
        assert bookie.run("log-level", "info").exit_code == 0
        os.kill(bookie.process.pid, signal.SIGTERM)
        assert bookie.process.wait(60) == 0
        assert last in bookie.log.read_text()


def test_its_crash_leaves_the_bookie_alone(metadata_uri: str, tmp_path: Path, zookeeper_client: KazooClient) -> None:
    with running_bookie(metadata_uri, tmp_path, ENABLED, has_token=False) as bookie:
        seen = Seen(bookie, zookeeper_client)
        first = seen.wait_note()
        kill_and_wait(first.pid)
        wait_until(lambda: seen.pids not in ([], [first.pid]), "another child")
        assert seen.wait_note().pid != first.pid
        wait_until(lambda: seen.metric("bkctl_autorecovery_is_running") == 1, "the metrics of the new child")
        assert seen.metric("bkctl_autorecovery_restarts") == 1
        assert "was killed by signal 9" in bookie.log.read_text()
        tested = run_bkctl("bookie", "sanity", bookie.bookie_id, BKCTL_METADATA_URI=metadata_uri)
        assert tested.exit_code == 0, tested.stderr


def test_a_halted_daemon_does_not_hold_up_the_bookie(
    metadata_uri: str, tmp_path: Path, zookeeper_client: KazooClient
) -> None:
    with running_bookie(metadata_uri, tmp_path, ENABLED) as bookie:
        note = Seen(bookie, zookeeper_client).wait_note()
        os.kill(note.pid, signal.SIGSTOP)
        os.kill(bookie.process.pid, signal.SIGTERM)
        assert bookie.process.wait(60) == 0
        assert not is_alive(note.pid)


@pytest.mark.battery
def test_a_daemon_that_stays_halted_is_killed_and_another_one_takes_over(
    metadata_uri: str, tmp_path: Path, zookeeper_client: KazooClient
) -> None:
    with running_bookie(metadata_uri, tmp_path, ENABLED) as bookie:
        seen = Seen(bookie, zookeeper_client)
        first = seen.wait_note()
        os.kill(first.pid, signal.SIGSTOP)
        wait_said(bookie.log, "has sent nothing for 30 s (halted?)", bookie.process)
        os.kill(first.pid, signal.SIGCONT)
        wait_said(bookie.log, "the autorecovery daemon of this bookie works again", bookie.process)
        assert seen.pids == [first.pid], "the time counts from its last message"
        os.kill(first.pid, signal.SIGSTOP)
        wait_until(lambda: seen.pids not in ([], [first.pid]), "another child")
        assert not is_alive(first.pid)
        assert seen.wait_note().pid != first.pid
        log = bookie.log.read_text()
        assert f"process {first.pid}) has sent nothing for 30 s (halted?)" in log
        assert "was killed by signal 9; it is started again in " in log


def test_it_ends_when_the_bookie_is_killed(metadata_uri: str, tmp_path: Path, zookeeper_client: KazooClient) -> None:
    with running_bookie(metadata_uri, tmp_path, ENABLED) as bookie:
        seen = Seen(bookie, zookeeper_client)
        note = seen.wait_note()
        kill_and_wait(bookie.process.pid)
        wait_until(lambda: not is_alive(note.pid), "the end of the child")
        assert seen.votes == []


def test_its_settings_are_those_of_the_bookie(metadata_uri: str, tmp_path: Path, zookeeper_client: KazooClient) -> None:
    variables = {"BKCTL_AUTORECOVERY_ROLE": "worker", "BKCTL_AUTORECOVERY_REPLICATION_TARGET": "local"}
    settings = (ENABLED, "replicationRateByBytes=1234567")
    with running_bookie(metadata_uri, tmp_path, *settings, variables=variables) as bookie:
        seen = Seen(bookie, zookeeper_client)
        assert seen.wait_note().role == "worker"
        wait_until(
            lambda: (note := seen.note()) is not None and note.worker is not None, "a worker with its own bookie"
        )
        shown = run_bkctl(*(*bookie.words, "--dry-run", "-o", "json"), BKCTL_AUTORECOVERY_REPLICATION_TARGET="local")
        daemon = shown.json()["autorecovery"]
        assert daemon["copy_bytes_per_s"] == 1_234_567
        assert daemon["replication_target"] == "local"
        assert daemon["admin"]["is_http_enabled"] is False, "the port of bk_server.conf is the bookie's"


def test_the_option_and_a_wrong_setting_of_the_daemon(metadata_uri: str, tmp_path: Path) -> None:
    words = (
        *("bookie", "start", "--metadata-uri", metadata_uri, "--with-autorecovery"),
        *("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"), "--port", "0"),
    )
    shown = run_bkctl(*words, "--dry-run", "-o", "json")
    assert shown.json()["is_autorecovery_enabled"] is True, shown.stderr
    refused = run_bkctl(*words, BKCTL_AUTORECOVERY_CHECK_PERIOD_S="-1")
    assert refused.exit_code == 1
    assert "BKCTL_AUTORECOVERY_CHECK_PERIOD_S=-1: must be at least 0" in refused.stderr
    assert not (tmp_path / "j").exists()


def test_a_secret_that_the_daemon_could_not_read_is_refused_by_name(metadata_uri: str, tmp_path: Path) -> None:
    """A descriptor is open in the bookie's process alone, which may have read it to its end."""
    (tmp_path / "bkctl.toml").write_text(
        '[zookeeper]\ndigest = "fd:8"\n[bookie_client.sasl]\nusername = "bookkeeper"\npassword = "fd:9"\n'
    )
    words = (
        *("bookie", "start", "--metadata-uri", metadata_uri, "--config", str(tmp_path / "bkctl.toml")),
        *("--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l"), "--port", "0"),
    )
    refused = run_bkctl(*words, "--with-autorecovery")
    assert refused.exit_code == 1
    assert "bookie_client.sasl.password, zookeeper.digest: the process of the autorecovery daemon" in refused.stderr
    assert "use file:PATH or env:VARIABLE" in refused.stderr
    assert not (tmp_path / "j").exists()
    own = run_bkctl(*words, "--dry-run")
    assert "from the file descriptor 9: it is not open" in own.stderr, "without a daemon the bookie reads it"
    (tmp_path / "bkctl.toml").write_text('[bookie_client.sasl]\nusername = "bookkeeper"\npassword = "fd:9"\n')
    assert run_bkctl("cluster", "init", "-u", metadata_uri).exit_code == 0
    checked = run_bkctl(
        "bookie", "init", "--check", *words[2:-1], str(free_port()), "--set", ENABLED, "--set", "allowLoopback=true"
    )
    assert checked.stdout, checked.stderr
    rows = {row["name"]: row for row in checked.json()["checks"]}
    assert rows["autorecovery"]["result"] == "failed", checked.stderr
    assert "bookie_client.sasl.password: the process of the autorecovery daemon" in rows["autorecovery"]["detail"]
