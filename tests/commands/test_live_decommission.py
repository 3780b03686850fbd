"""Drain and decommission of bookies that serve, with real processes: a writer at work, kills, and the way back."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.errors import LedgerNotFoundError
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.processes import (
    LOOPBACK,
    BkctlResult,
    Cluster,
    TerminalSession,
    free_port,
    is_alive,
    kill_and_wait,
    run_bkctl,
    start_bkctl,
)
from tests.until import until, wait_until

pytestmark = pytest.mark.cluster
SIZES = ("-E", "2", "-W", "2", "-A", "2")
POLL_S = 0.05


@pytest.fixture(scope="module")
def cluster(new_metadata_uri: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Enough bookies for all tests, which remove one each at most."""
    cluster = Cluster(str(tmp_path_factory.mktemp("cluster")), new_metadata_uri())
    try:
        cluster.up(6)
        yield cluster
    finally:
        cluster.stop()


async def run(cluster: Cluster, *arguments: str) -> BkctlResult:
    return await asyncio.to_thread(cluster.run, *arguments, "-o", "json")


def state_of(cluster: Cluster, bookie_id: str) -> str | None:
    rows = cluster.run("bookie", "list", "-o", "json").json()["items"]
    return next((str(row["state"]) for row in rows if row["id"] == bookie_id), None)


async def require_all_copies(client: LedgerClient) -> int:
    """Ask each member of each closed ledger for all its entries; returns the number of copies."""
    found = 0
    ledger_ids = [ledger_id async for ledger_id, _ in client.ports.ledgers.read_all()]
    for ledger_id in ledger_ids:
        try:
            metadata = (await client.ports.ledgers.read(ledger_id)).value
        except LedgerNotFoundError:
            continue
        if not metadata.is_closed:
            continue
        codec = credentials_of(ledger_id, metadata).codec
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.segment_of(entry_id).ensemble
            members = {
                ensemble[index] for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
            }
            assert len(members) == metadata.write_quorum_size
            for bookie_id in members:
                reply = await client.ports.bookies.read(bookie_id, ledger_id, entry_id)
                assert codec.decode(entry_id, reply.body).entry_id == entry_id
                found += 1
    return found


async def test_a_live_bookie_leaves_while_a_writer_works(cluster: Cluster, tmp_path: Path) -> None:
    written = await run(cluster, "ledger", "write-test", "--ledgers", "12", "--entries", "20", *SIZES)
    assert written.exit_code == 0, written.stderr
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        writer = await client.create(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2)
        await writer.append(b"the first entry")
        victim = writer.metadata.last_segment.ensemble[0]
        is_over = asyncio.Event()

        async def write() -> int:
            last_entry_id = 0
            while not is_over.is_set():
                last_entry_id = await writer.append(b"one more entry")
                await asyncio.sleep(POLL_S / 5)  # leaves the processor to the bookies
            await writer.close()
            return last_entry_id

        async def watch() -> int:
            looks = 0
            while not is_over.is_set():
                await require_all_copies(client)
                looks += 1
            return looks

        writing, watching = asyncio.create_task(write()), asyncio.create_task(watch())
        out = tmp_path / "out"
        check = await run(cluster, "bookie", "restart-check", victim)
        assert (check.exit_code, check.json()["can_stop"]) == (0, True), check
        drained = await run(cluster, "bookie", "drain", victim, "--yes")
        assert (drained.exit_code, "is kept" in drained.stderr) == (0, False), drained
        assert (drained.json()["is_drained"], drained.json()["is_cookie_deleted"]) == (True, False)
        assert f"run bkctl decommission {victim}" in drained.stderr
        assert state_of(cluster, victim) == "read-only"
        is_over.set()
        last_entry_id, looks = await writing, await watching
        assert last_entry_id > 0
        assert looks > 0
        entries = await (await client.open(writer.ledger_id)).read(0, last_entry_id)
        assert len(entries) == last_entry_id + 1

        failed = await run(cluster, "decommission", victim, "--yes", "--stop-command", "false")
        assert failed.exit_code == 9, failed
        assert "the stop command ended with exit status 1" in failed.json()["refusal"]
        assert f"bkctl bookie undrain {victim} makes it writable" in failed.stderr
        pid = cluster.bookie(victim).pid
        stop = f"sh -c 'echo {{}} {{host}} > {out}; kill -TERM {pid}'"
        gone = await run(cluster, "decommission", victim, "--yes", "--stop-command", stop)
        assert gone.exit_code == 0, gone
        assert gone.json()["is_cookie_deleted"]
        assert out.read_text().split() == [victim, "127.0.0.1"]
        assert not is_alive(pid) or state_of(cluster, victim) is None
        assert await require_all_copies(client) >= 12 * 20 * 2
        async for _, found in client.ports.ledgers.read_all():
            assert victim not in found.value.bookies()  # type: ignore[union-attr]


@pytest.mark.battery  # the session of the killed command must end first
def test_a_drain_that_is_killed_is_repeated_and_can_be_undone(cluster: Cluster) -> None:
    written = cluster.run("ledger", "write-test", "--ledgers", "8", "--entries", "10", *SIZES)
    assert written.exit_code == 0, written.stderr
    victim = cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout.split()[0]
    killed = start_bkctl("bookie", "drain", victim, "--yes", "-u", cluster.metadata_uri)

    async def wait_for_read_only() -> None:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            registrations: RegistrationClient = client.ports.registrations

            async def is_read_only() -> bool:
                return victim in (await registrations.snapshot()).read_only

            await until(is_read_only)

    asyncio.run(wait_for_read_only())
    killed.kill()
    killed.wait()
    again = cluster.run("bookie", "drain", victim, "--yes", "-o", "json")
    assert again.exit_code == 0, again
    assert again.json()["remaining_ledgers"] == []
    verified = cluster.run("ledger", "verify", "--all", "-o", "json").json()
    assert verified["ledgers"] == verified["ledgers_clean"]

    for words in (("nosuch.example.com:1",), (victim, "nosuch.example.com:1", "--dry-run")):
        misspelt = cluster.run("bookie", "undrain", *words)
        assert (misspelt.exit_code, "writable" in misspelt.stderr) == (4, False), misspelt
    back = cluster.run("bookie", "undrain", victim, "-o", "json")
    assert (back.exit_code, back.json()["changed"]) == (0, [victim]), back
    assert state_of(cluster, victim) == "writable"
    assert cluster.run("bookie", "undrain", victim, "-o", "json").json()["changed"] == []


def test_idle_topics_that_hold_up_a_drain_are_named_with_pulsars_remedy(cluster: Cluster) -> None:
    ensemble: tuple[str, ...] = ()
    ledger_id = ""
    labels = {"application": b"pulsar", "pulsar/managed-ledger": b"public/default/persistent/idle%2Ftopic"}

    async def leave_open() -> None:
        nonlocal ensemble, ledger_id
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            writer = await client.create(
                ensemble_size=2, write_quorum_size=2, ack_quorum_size=2, custom_metadata=labels
            )
            await writer.append(b"an entry")
            ensemble, ledger_id = writer.metadata.last_segment.ensemble, str(writer.ledger_id)

    asyncio.run(leave_open())
    try:
        waited = cluster.run("bookie", "drain", ensemble[0], "--yes", "--wait", "1s", "-o", "json")
    finally:
        cluster.run("bookie", "undrain", ensemble[0])
        assert cluster.run("ledger", "close", ledger_id, "--yes", "--grace", "0s").exit_code == 0
    assert waited.exit_code == 9, waited
    assert waited.json()["open_topics"] == ["persistent://public/default/idle/topic"]
    unload = "1 topic open: persistent://public/default/idle/topic: run pulsar-admin topics unload TOPIC"
    assert unload in waited.stderr
    assert waited.stderr.index("topics unload") < waited.stderr.index("--open-ledgers fence")


@pytest.mark.battery
def test_an_open_ledger_and_a_failed_stop_command_end_it_with_what_is_left(cluster: Cluster) -> None:
    ensemble: tuple[str, ...] = ()
    ledger_id = -1

    async def leave_open() -> None:
        nonlocal ensemble, ledger_id
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            writer = await client.create(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
            await writer.append(b"an entry")
            ensemble, ledger_id = writer.metadata.last_segment.ensemble, writer.ledger_id

    asyncio.run(leave_open())
    victim = ensemble[0]
    waited = cluster.run("decommission", victim, "--yes", "--wait", "1s", "-o", "json")
    assert waited.exit_code == 9, waited
    assert waited.json()["open_ledgers"] == [str(ledger_id)]
    assert f"waiting for the writers of 1 open ledger: {ledger_id} (no known owner, " in waited.stderr
    assert "--open-ledgers fence" in waited.stderr
    assert "its cookie was not deleted" in waited.stderr
    planned = cluster.run("decommission", victim, "--dry-run", "-o", "json").json()
    assert (planned["arguments"]["open_ledgers"], planned["ledgers_fenced_first"]) == ("wait", 0)
    assert "will wait up to 600 s for the writers of 1 open ledger" in "\n".join(planned["summary"])
    undrained = cluster.run("bookie", "drain", victim, "--yes", "--wait", "1s", "-o", "json")
    assert (undrained.exit_code, "cookie" in undrained.stderr) == (9, False), undrained
    assert "1 left: 1 waits for its writer; continue with: bkctl bookie drain " in undrained.stderr

    failed = cluster.run(
        "decommission", victim, "--yes", "--open-ledgers", "fence", "--stop-command", "false", "-o", "json"
    )
    assert failed.exit_code == 9, failed
    assert "the stop command ended with exit status 1" in json.loads(failed.stdout)["refusal"]
    assert failed.json()["ledgers_closed"] == 1
    assert cluster.run("cookie", "show", victim).exit_code == 0
    unstopped = cluster.run("decommission", victim, "--yes", "--wait", "1s", "-o", "json")
    assert (unstopped.exit_code, "was not stopped within 1 s" in unstopped.json()["refusal"]) == (9, True), unstopped
    stop = f"stop it now, on its host: bkctl bookie stop {victim}; waiting up to 1 s"
    assert stop in unstopped.stderr
    assert "--wait sets the time" in unstopped.stderr
    os.kill(cluster.bookie(victim).pid, signal.SIGTERM)

    async def mark() -> None:
        uri = parse_metadata_uri(cluster.metadata_uri)
        async with await ZooKeeperStore.connect(uri.servers) as store:
            await UnderReplicationMarks(store, uri.root, LoopClock()).mark(ledger_id, [victim])

    asyncio.run(mark())
    other = next(each for each in ensemble if each != victim)
    refused = cluster.run("bookie", "restart-check", other, "-o", "json")
    assert (refused.exit_code, refused.json()["can_stop"]) == (10, False)
    done = cluster.run("decommission", victim, "--yes", "-o", "json")
    assert (done.exit_code, done.json()["is_cookie_deleted"]) == (0, True), done
    assert "cleared 1 mark" in done.stderr
    assert cluster.run("autorecovery", "pending", "-o", "json").json()["items"] == []
    assert cluster.run("decommission", victim, "--yes", "--stop-command", "'").exit_code == 2


def test_a_drain_checks_the_cluster_again_after_the_confirmation(cluster: Cluster) -> None:
    writable = cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout.split()
    asked, other = writable[:2]
    written = cluster.run(
        "ledger",
        "write-test",
        "--ledgers",
        "1",
        "--entries",
        "5",
        "-E",
        str(len(writable) - 1),
        "-W",
        "2",
        "-o",
        "json",
    )
    ledger_id = written.json()["items"][0]["ledger_id"]
    try:
        with TerminalSession("bookie", "drain", asked, "-u", cluster.metadata_uri) as session:
            session.wait_for("[y/N] ")
            drained = cluster.run("bookie", "drain", other, "--yes")
            session.type("y\n")
            assert session.exit_code() == 3, session.screen
            assert "nothing was changed" in session.screen
        assert drained.exit_code == 0, drained
        assert (state_of(cluster, asked), state_of(cluster, other)) == ("writable", "read-only")
    finally:
        cluster.run("bookie", "undrain", other)
        cluster.run("ledger", "delete", ledger_id, "--confirm", ledger_id)


def test_a_drain_that_cannot_write_its_job_file_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    victim = cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout.split()[0]
    (state := tmp_path / "state").mkdir()
    (state / "jobs").write_text("")
    refused = run_bkctl(
        "bookie", "drain", victim, "--yes", BKCTL_METADATA_URI=cluster.metadata_uri, BKCTL_STATE_DIR=str(state)
    )
    assert (refused.exit_code, "nothing was changed: cannot create the directory" in refused.stderr) == (3, True), (
        refused
    )
    assert state_of(cluster, victim) == "writable"


def written_to(cluster: Cluster) -> tuple[str, list[str]]:
    """A writable bookie with ledgers, and these."""
    written = cluster.run("ledger", "write-test", "--ledgers", "1", "--entries", "5", "-E", "3", "-W", "2", "-A", "2")
    assert written.exit_code == 0, written.stderr
    ledger_id = written.json()["items"][0]["ledger_id"]
    bookie_id = cluster.run("ledger", "show", ledger_id, "-o", "json").json()["ensembles"][0]["ensemble"][0]
    return bookie_id, cluster.run("ledger", "list", "--bookie", bookie_id, "-o", "name").stdout.split()


def require_waiting(cluster: Cluster, victim: str, ledger_ids: list[str], *command: str) -> None:
    waiting = cluster.run(*command)
    assert waiting.exit_code == 9, waiting
    left = waiting.json()
    assert (left["kind"], left["ledgers"], left["open_ledgers"]) == ("RetentionReport", len(ledger_ids), 0)
    assert left["bytes"] > 0
    assert state_of(cluster, victim) == "read-only"


def test_a_bookie_with_ledgers_waits_for_retention(cluster: Cluster) -> None:
    victim, ledger_ids = written_to(cluster)
    command = ("decommission", victim, "--by-retention", "--yes", "-o", "json")
    require_waiting(cluster, victim, ledger_ids, *command)
    assert cluster.run(*command, "--drain-only").exit_code == 2
    assert cluster.run(*command, "--copy-rate", "1M").exit_code == 2
    assert cluster.run("bookie", "undrain", victim).exit_code == 0
    assert state_of(cluster, victim) == "writable"


@pytest.mark.battery
def test_a_bookie_leaves_when_retention_has_emptied_it(cluster: Cluster) -> None:
    victim, ledger_ids = written_to(cluster)
    command = ("decommission", victim, "--by-retention", "--yes", "-o", "json")
    for _ in range(2):
        require_waiting(cluster, victim, ledger_ids, *command)

    os.kill(cluster.bookie(victim).pid, signal.SIGTERM)
    while is_alive(cluster.bookie(victim).pid):
        cluster.run("bookie", "list")
    down = cluster.run(*command)
    assert (down.exit_code, "is down" in down.stderr) == (3, True), down
    cluster.start_bookie(victim)
    assert state_of(cluster, victim) == "read-only"

    for ledger_id in ledger_ids:
        assert cluster.run("ledger", "delete", ledger_id, "--confirm", ledger_id).exit_code == 0
    stop = f"kill -TERM {cluster.bookie(victim).pid}"
    done = cluster.run(*command, "--stop-command", stop)
    assert (done.exit_code, done.json()["is_cookie_deleted"], done.json()["entries"]) == (0, True, 0), done
    assert cluster.run("decommission", victim, "--yes").exit_code == 4
    again = cluster.run("decommission", victim, "--yes", "--if-exists", "-o", "json")
    assert (again.exit_code, again.json()["is_complete"], again.json()["ledgers"]) == (0, True, 0), again
    assert "nothing is left to do" in again.stderr


def test_without_an_admin_interface_it_names_the_setting_and_waits(cluster: Cluster) -> None:
    victim = cluster.run("bookie", "list", "--state", "writable", "-o", "name").stdout.split()[0]
    socket = Path(cluster.bookie(victim).directory) / "ledgers" / "bkctl.admin.sock"
    away = socket.with_name("away")
    socket.rename(away)
    try:
        result = cluster.run("bookie", "drain", victim, "--yes", "--accept-risk", "--wait", "1s")
        undone = cluster.run("bookie", "undrain", victim)
    finally:
        away.rename(socket)
    assert (result.exit_code, result.stdout) == (8, ""), result
    assert f"make bookie {victim} read-only yourself, bkctl cannot: " in result.stderr
    assert "set httpServerEnabled=true and httpServerHost" in result.stderr
    assert f"waiting up to 1 s until bookie {victim} is registered as read-only" in result.stderr
    assert f"bookie {victim} is not read-only after 1 s (--wait): nothing was copied" in result.stderr
    assert "may be read-only" not in result.stderr
    assert (undone.exit_code, state_of(cluster, victim)) == (0, "writable")


def test_undrain_says_at_once_why_a_bookie_stays_read_only(cluster: Cluster, tmp_path: Path) -> None:
    port = free_port()
    bookie_id, log = f"{LOOPBACK}:{port}", tmp_path / "full.log"
    command = (
        *("bookie", "start", "--metadata-uri", cluster.metadata_uri, "--port", str(port), "--bookie-id", bookie_id),
        *("--advertised-address", LOOPBACK, "--journal-dir", str(tmp_path / "j"), "--ledger-dir", str(tmp_path / "l")),
        *(
            "--set",
            "allowLoopback=true",
            "--set",
            "diskUsageThreshold=0.000001",
            "--set",
            "diskUsageWarnThreshold=0.000001",
        ),
    )
    with log.open("wb") as output:
        process = start_bkctl(*command, stderr=output)
    try:
        wait_until(lambda: "listening on port" in log.read_text(), process=process, tell=log.read_text)
        wait_until(lambda: state_of(cluster, bookie_id) == "read-only", process=process, tell=log.read_text)
        waited = cluster.run("bookie", "undrain", bookie_id, "--wait", "1s")
        assert waited.exit_code == 8, waited
        assert f"bookie {bookie_id} is still read-only: a disk is full; waiting up to 1 s" in waited.stderr
    finally:
        kill_and_wait(process.pid)
        process.wait()
