"""``bkctl autorecovery start`` as a process: office, end, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, RecoveryNotes
from bkctl.runtime.metadata.store import children_of
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.processes import BkctlProcess, TerminalSession, run_bkctl, start_bkctl
from tests.until import until

pytestmark = pytest.mark.cluster

WAIT_S = 60.0


class Daemon:
    """A daemon with its log, and the notes of its cluster."""

    def __init__(self, directory: Path, metadata_uri: str, *arguments: str, **variables: str) -> None:
        self._log_path = directory / "daemon.log"
        variables = {"BKCTL_METADATA_URI": metadata_uri, "XDG_RUNTIME_DIR": str(directory), **variables}
        with self._log_path.open("ab") as log:
            self.process = start_bkctl("autorecovery", "start", *arguments, stderr=log, variables=variables)
        self.uri = parse_metadata_uri(metadata_uri)

    @property
    def log(self) -> str:
        return self._log_path.read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(WAIT_S)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    running: list[BkctlProcess] = []

    def start_one(metadata_uri: str, *arguments: str, **variables: str) -> Daemon:
        daemon = Daemon(tmp_path, metadata_uri, *arguments, **variables)
        running.append(daemon.process)
        return daemon

    yield start_one
    for process in running:
        process.kill()
        process.wait(WAIT_S)


@pytest.fixture
def cluster_uri(metadata_uri: str) -> str:
    made = run_bkctl("cluster", "init", "--metadata-uri", metadata_uri)
    assert made.exit_code == 0, made.stderr
    return metadata_uri


async def notes_of(store: ZooKeeperStore, root: str) -> list[DaemonNote]:
    return [note.value async for _, note in RecoveryNotes(store, root).daemons.all() if not isinstance(note, Exception)]


async def votes(store: ZooKeeperStore, root: str) -> list[str]:
    return await children_of(store, Paths(root).auditor_election)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_is_elected_and_gives_the_office_back(
    cluster_uri: str, start: Callable[..., Daemon], number: signal.Signals
) -> None:
    daemon = start(cluster_uri)
    root = daemon.uri.root
    async with await ZooKeeperStore.connect(daemon.uri.servers) as store:

        async def is_auditor() -> bool:
            return any(note.is_auditor for note in await notes_of(store, root))

        await until(is_auditor, process=daemon.process, tell=lambda: daemon.log)
        (note,) = await notes_of(store, root)
        assert (note.pid, note.role) == (daemon.process.pid, "both")
        shown = run_bkctl("autorecovery", "auditor", "-o", "json", "--metadata-uri", cluster_uri)
        assert shown.json()["bookie_id"] == note.bookie_id
        assert daemon.end(number) == 0, daemon.log
        assert await votes(store, root) == []
        assert await notes_of(store, root) == []


async def test_it_gives_the_office_back_when_its_terminal_is_closed(cluster_uri: str) -> None:
    uri = parse_metadata_uri(cluster_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:

        async def is_auditor() -> bool:
            return any(note.is_auditor for note in await notes_of(store, uri.root))

        with TerminalSession("autorecovery", "start", BKCTL_METADATA_URI=cluster_uri) as session:
            await until(is_auditor, process=session.process)
            session.hang_up()
            assert session.process.wait(WAIT_S) == 0
        assert await votes(store, uri.root) == []


async def test_sighup_opens_a_rotated_log_again(cluster_uri: str, start: Callable[..., Daemon], tmp_path: Path) -> None:
    log = tmp_path / "rotated.log"
    daemon = start(cluster_uri, "--log-file", str(log))
    await until(log.exists, process=daemon.process, tell=lambda: daemon.log)
    async with await ZooKeeperStore.connect(daemon.uri.servers) as store:

        async def has_voted() -> bool:
            return bool(await votes(store, daemon.uri.root))

        await until(has_voted, process=daemon.process, tell=lambda: daemon.log)
        log.rename(tmp_path / "rotated.log.1")
        daemon.process.send_signal(signal.SIGHUP)
        await until(lambda: log.exists() and "log file reopened" in log.read_text(), process=daemon.process)
        assert len(await votes(store, daemon.uri.root)) == 1
        assert daemon.end() == 0


async def test_it_waits_for_the_cluster(metadata_uri: str, start: Callable[..., Daemon]) -> None:
    daemon = start(metadata_uri, "--role", "auditor")
    async with await ZooKeeperStore.connect(daemon.uri.servers) as store:

        async def has_voted() -> bool:
            return bool(await votes(store, daemon.uri.root))

        await until(lambda: "still trying" in daemon.log, process=daemon.process, tell=lambda: daemon.log)
        assert run_bkctl("cluster", "init", "--metadata-uri", metadata_uri).exit_code == 0
        await until(has_voted, process=daemon.process, tell=lambda: daemon.log)


def test_what_it_refuses(metadata_uri: str, tmp_path: Path) -> None:
    uri = ("--metadata-uri", metadata_uri)
    for refused, reason in (
        (run_bkctl("autorecovery", "start"), "no cluster specified"),
        (run_bkctl("autorecovery", "start", *uri, BKCTL_AUTORECOVERY_REPLICATION_TARGET="local"), "needs the bookie"),
        (run_bkctl("autorecovery", "start", *uri, "--bookie-id", "10.0.0.1:3181"), "--bookie-id has no effect"),
        (run_bkctl("autorecovery", "start", *uri, BKCTL_AUTORECOVERY_CHECK_PERIOD_S="-1"), "must be at least 0"),
    ):
        assert refused.exit_code == 1
        assert reason in refused.stderr
    assert run_bkctl("autorecovery", "start", "--role", "both-of-them").exit_code == 1


def test_a_dry_run_shows_the_settings_without_secrets(metadata_uri: str, tmp_path: Path) -> None:
    toml = tmp_path / "bkctl.toml"
    toml.write_text('[zookeeper.sasl]\nusername = "ann"\npassword = "tulip"\n')
    words = ("autorecovery", "start", "-n", "--role", "worker", "--config", str(toml), "--metadata-uri", metadata_uri)
    shown = run_bkctl(*words, "-o", "json")
    assert shown.exit_code == 0, shown.stderr
    assert shown.json()["autorecovery"]["role"] == "worker"
    assert shown.json()["zookeeper"]["sasl"]["username"] == "ann"
    assert "tulip" not in shown.stdout + shown.stderr


def _curl(socket_path: str, method: str, path: str, body: str = "") -> tuple[int, str]:
    """Status and body of one request on a unix socket."""
    connection = UnixConnection(socket_path)
    with contextlib.closing(connection):
        connection.request(method, path, body or None)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=WAIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(WAIT_S)
        self.sock.connect(self._path)


def test_a_socket_replaces_no_other_file(cluster_uri: str, tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("mine")
    ended = run_bkctl("autorecovery", "start", "--admin-socket", str(file), BKCTL_METADATA_URI=cluster_uri)
    assert (ended.exit_code, "a file that is not a socket has this name" in ended.stderr) == (1, True), ended
    assert file.read_text() == "mine"


async def test_its_admin_interface(cluster_uri: str, start: Callable[..., Daemon], tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    daemon = start(cluster_uri, "--admin-socket", path)
    root = daemon.uri.root
    async with await ZooKeeperStore.connect(daemon.uri.servers) as store:

        async def is_auditor() -> bool:
            return any(note.is_auditor and note.admin for note in await notes_of(store, root))

        await until(is_auditor, process=daemon.process, tell=lambda: daemon.log)
        [note] = await notes_of(store, root)
        assert note.admin == f"unix:{path}"

        async def ask(method: str, path_: str, body: str = "") -> tuple[int, str]:
            return await asyncio.to_thread(_curl, path, method, path_, body)

        java = "/api/v1/autorecovery"
        assert await ask("GET", "/heartbeat") == (200, "OK\n")
        assert await ask("GET", f"{java}/who_is_auditor") == (200, f"Auditor: {note.bookie_id}")
        assert json.loads((await ask("GET", f"{java}/status"))[1]) == {"enabled": True}
        assert (await ask("GET", f"{java}/lost_bookie_recovery_delay"))[0] == 404
        assert (await ask("PUT", f"{java}/trigger_audit"))[0] == 200
        assert (await ask("PUT", f"{java}/status?enabled=maybe"))[0] == 400
        assert json.loads((await ask("PUT", f"{java}/status?enabled=false"))[1]) == {"enabled": False}
        assert (await ask("PUT", f"{java}/trigger_audit"))[0] == 404
        assert (await ask("PUT", f"{java}/status?enabled=true"))[0] == 200
        assert await ask("PUT", f"{java}/lost_bookie_recovery_delay", '{"delay_seconds": 5}') == (
            200,
            "Success set lostBookieRecoveryDelay to 5",
        )
        assert (await ask("PUT", f"{java}/lost_bookie_recovery_delay", '{"delay_seconds": "7"}'))[0] == 400
        assert await ask("GET", f"{java}/lost_bookie_recovery_delay") == (200, "lostBookieRecoveryDelay value: 5")
        marks = UnderReplicationMarks(store, root, LoopClock())
        await asyncio.to_thread(run_bkctl, "autorecovery", "disable", "--yes", BKCTL_METADATA_URI=cluster_uri)
        await marks.mark(17, ["b1:3181"])
        listed = f"{java}/list_under_replicated_ledger"
        assert json.loads((await ask("GET", f"{listed}?missingreplica=b1:3181"))[1]) == [17]
        assert json.loads((await ask("GET", f"{listed}?printmissingreplica=true"))[1]) == {"17": ["b1:3181"]}
        assert (await ask("GET", f"{listed}?excludingmissingreplica=b1:3181"))[0] == 404
        state = json.loads((await ask("GET", "/api/v1/bkctl/autorecovery"))[1])
        assert (state["is_auditor"], state["pid"]) == (True, daemon.process.pid)
        assert {lane["name"] for lane in state["lanes"]} >= {"liveness", "audit"}
        assert json.loads((await ask("GET", "/api/v1/bkctl/autorecovery/ready"))[1])["ready"]
        metrics = (await ask("GET", "/metrics"))[1]
        assert "\nbkctl_autorecovery_is_auditor 1.0\n" in metrics
        assert "\nbkctl_auditor_ledgers_marked " in metrics
        assert '\nbkctl_auditor_lane_failures{lane="audit"} 0.0\n' in metrics
        assert "\nreplication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED " in metrics
    assert daemon.end() == 0
    assert not os.path.lexists(path)


async def test_a_port_in_use(cluster_uri: str, start: Callable[..., Daemon]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        daemon = start(
            cluster_uri, BKCTL_AUTORECOVERY_ADMIN_IS_HTTP_ENABLED="true", BKCTL_AUTORECOVERY_ADMIN_HTTP_PORT=str(port)
        )
        assert await asyncio.to_thread(daemon.process.wait, WAIT_S) != 0
    assert f"admin port 127.0.0.1:{port} is in use by" in daemon.log
    assert "httpServerPort" in daemon.log
