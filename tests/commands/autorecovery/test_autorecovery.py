"""``bkctl autorecovery`` as a process, against a real ZooKeeper: what it prints, changes, and answers with."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import AuditRequest, PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.store import ANY_VERSION
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.processes import BkctlResult, run_bkctl, run_bkctl_on_terminal
from tests.until import until

A, B = "10.0.0.1:3181", "10.0.0.2:3181"
INSTANCE_ID = "0b7e1a2c-1111-4222-8333-944455556666"


class Shell(NamedTuple):
    store: ZooKeeperStore
    paths: Paths
    uri: str
    state: str

    async def run(self, *arguments: str) -> BkctlResult:
        return await asyncio.to_thread(
            run_bkctl, "autorecovery", *arguments, BKCTL_METADATA_URI=self.uri, BKCTL_STATE_DIR=self.state
        )

    async def succeed(self, *arguments: str) -> Any:
        result = await self.run(*arguments)
        assert result.exit_code == 0, result
        return result.json()

    async def mark(self, ledger_id: int, *missing: str, age_s: int = 0) -> None:
        clock = LoopClock()
        await UnderReplicationMarks(self.store, self.paths.root, clock).mark(ledger_id, missing)
        if age_s:
            ctime_ms = clock.now_ms() - age_s * 1000
            text = "".join(f'replica: "{bookie_id}"\n' for bookie_id in missing) + f"ctime: {ctime_ms}\n"
            await self.store.set(self.paths.mark(ledger_id), text.encode(), ANY_VERSION)

    async def elect(self, bookie_id: str) -> AuditorElection:
        election = AuditorElection(self.store, self.paths.root, bookie_id, lambda _: None)
        await election.campaign()
        return election

    def trail(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for path in Path(self.state).rglob("*audit*")
            if path.is_file()
            for line in path.read_text().splitlines()
        ]


@pytest.fixture
async def shell(metadata_uri: str, tmp_path: Path) -> AsyncIterator[Shell]:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        for path in (f"{uri.root}/available/readonly", f"{uri.root}/cookies"):
            await store.create(path, make_parents=True)
        await store.create(f"{uri.root}/INSTANCEID", INSTANCE_ID.encode())
        yield Shell(store, Paths(uri.root), metadata_uri, str(tmp_path / "state"))


async def test_looking_at_a_cluster_where_nothing_ever_was_creates_nothing(shell: Shell) -> None:
    status = await shell.succeed("status")
    assert status == {
        "apiVersion": "bkctl/v1",
        "kind": "AutorecoveryStatus",
        "enabled": True,
        "disabled_since": None,
        "disabled_by": None,
        "disabled_reason": None,
        "disabled_until": None,
        "overdue": False,
        "auditor": None,
        "auditor_kind": None,
        "auditor_since": None,
        "lost_bookie_recovery_delay_s": None,
        "last_checks": {"all_ledgers": None, "placement": None, "replicas": None},
        "pending": 0,
        "pending_truncated": False,
        "oldest_pending_at": None,
        "running": 0,
        "idle_s": None,
        "failed": 0,
        "ledgers_with_losses": 0,
        **{key: [] for key in ("tasks", "daemons", "holders", "bookies_gone", "maintenance", "losses")},
        "truncated": False,
    }
    assert (await shell.run("status", "-o", "name")).stdout == "-\n", "the name is that of the auditor"
    assert (await shell.succeed("pending"))["items"] == []
    assert (await shell.succeed("running"))["items"] == []
    for arguments in (("auditor",), ("delay", "get")):
        result = await shell.run(*arguments)
        assert (result.exit_code, result.stdout) == (4, ""), result
    assert await shell.store.children(shell.paths.root) == ["INSTANCEID", "available", "cookies"]


async def test_no_cluster_is_not_found(shell: Shell) -> None:
    nowhere = shell._replace(uri=shell.uri + "-nowhere")
    for arguments in (("status",), ("pending",), ("enable",), ("delay", "set", "5"), ("disable", "--yes")):
        result = await nowhere.run(*arguments)
        assert result.exit_code == 4, result
        assert len(result.stderr.splitlines()) == 1
    assert await shell.store.exists(shell.paths.root + "-nowhere") is None


async def test_disable_and_enable(shell: Shell) -> None:
    switch = shell.paths.replication_disabled
    refused = await shell.run("disable")
    assert refused.exit_code == 3
    assert "--yes" in refused.stderr
    plan = await shell.succeed("disable", "--dry-run")
    assert (plan["kind"], plan["tier"], plan["items"][0]["path"]) == ("Plan", 2, switch)
    assert await shell.store.exists(switch) is None

    result = await shell.run("disable", "--yes")
    assert result.exit_code == 0
    assert result.json() == {"apiVersion": "bkctl/v1", "kind": "AutorecoverySwitch", "enabled": False, "changed": True}
    assert "to undo: bkctl autorecovery enable" in result.stderr
    assert (await shell.store.get(switch)).data == b"", "as Java writes it, unless there is something to tell"
    assert not (await shell.succeed("disable", "--yes"))["changed"]
    plan = await shell.succeed("disable", "--dry-run")
    assert (plan["kind"], plan["items"], plan["summary"]) == ("Plan", [], ["autorecovery is already disabled"])
    status = await shell.succeed("status")
    assert (status["enabled"], status["disabled_by"]) == (False, None)
    assert status["disabled_since"].endswith("Z")

    result = await shell.run("enable")
    assert result.json()["changed"]
    assert "to undo: bkctl autorecovery disable" in result.stderr
    again = await shell.run("enable")
    assert (again.exit_code, again.json()["changed"]) == (0, False)
    assert "already enabled" in again.stderr
    plan = await shell.succeed("enable", "--dry-run")
    assert (plan["kind"], plan["items"], plan["summary"]) == ("Plan", [], ["autorecovery is already enabled"])
    assert await shell.store.exists(switch) is None
    commands = [line["command"] for line in shell.trail()]
    assert {"autorecovery disable", "autorecovery enable"} <= set(commands)


async def test_a_note_is_shown_and_warns_when_it_is_overdue(shell: Shell) -> None:
    await shell.succeed("disable", "--yes", "--for", "1ms", "--reason", "disks of rack 2")
    result = await shell.run("status")
    status = result.json()
    assert status["disabled_reason"] == "disks of rack 2"
    assert status["disabled_by"]
    assert status["overdue"]
    assert "was to be disabled only until" in result.stderr
    for junk in (b"junk", b"[]", b'{"until": 5}', b'{"until": "soon"}', b"\xff", b'{"by": "\xff"}'):
        await shell.store.set(shell.paths.replication_disabled, junk, ANY_VERSION)
        status = await shell.succeed("status")
        assert (status["enabled"], status["overdue"]) == (False, False)


async def test_read_only_settings_keep_everything_as_it_is(shell: Shell) -> None:
    for arguments in (("disable", "--yes"), ("enable",), ("trigger",), ("delay", "set", "5"), ("reset-checks",)):
        result = await asyncio.to_thread(
            run_bkctl, "autorecovery", *arguments, BKCTL_METADATA_URI=shell.uri, BKCTL_READ_ONLY="1"
        )
        assert result.exit_code == 3, result
    assert await shell.store.children(shell.paths.root) == ["INSTANCEID", "available", "cookies"]


async def test_pending(shell: Shell) -> None:
    await shell.mark(1, A, age_s=7300)
    await shell.mark(2, B)
    await shell.mark(3)
    await shell.mark(2**62, A, B)
    await shell.mark(5, A)
    await shell.store.set(shell.paths.mark(5), b"junk", ANY_VERSION)
    await shell.mark(6, A)
    await shell.store.set(shell.paths.mark(6), f'replica: "{B}"\nctime: {2**63 - 1}\n'.encode(), ANY_VERSION)
    await shell.store.create(f"{shell.paths.under_replicated_ledgers}/nonsense")
    assert await ReplicationLocks(shell.store, shell.paths.root, "host-7").acquire(2)
    result = await shell.run("pending")
    items = result.json()["items"]
    assert [item["ledger_id"] for item in items] == ["1", "2", "3", "5", "6", str(2**62)]
    assert [item["missing_bookies"] for item in items] == [[A], [B], [], None, [B], [A, B]]
    assert [item["worker"] for item in items] == [None, "host-7", None, None, None, None]
    assert "urL0000000005" in items[3]["problem"]
    assert items[4]["marked_at"] is None
    assert 7300 <= items[0]["age_s"] < 7400
    assert result.stderr.count("nonsense") == 1
    assert (await shell.run("pending", "--missing", A, "-o", "name")).stdout.split() == ["1", "5", str(2**62)]
    assert (await shell.run("pending", "--not-missing", A, "-o", "name")).stdout.split() == ["2", "3", "5", "6"]
    assert (await shell.run("pending", "--stuck-for", "2h", "-o", "name")).stdout.split() == ["1"]
    assert (await shell.succeed("pending", "--count"))["count"] == 6
    limited = await shell.succeed("pending", "--limit", "2")
    assert (len(limited["items"]), limited["truncated"]) == (2, True)
    assert (await shell.run("pending", "--fail-if-any", "--missing", A)).exit_code == 10
    assert (await shell.run("pending", "--fail-if-any", "--count")).exit_code == 10
    assert (await shell.run("pending", "--fail-if-any", "--stuck-for", "9h")).exit_code == 0
    assert (await shell.succeed("status"))["pending"] == 6
    assert (await shell.succeed("status"))["running"] == 1


async def test_pending_on_a_terminal(shell: Shell) -> None:
    await shell.mark(1, A, age_s=7300)
    code, output = await asyncio.to_thread(
        run_bkctl_on_terminal, "autorecovery", "pending", BKCTL_METADATA_URI=shell.uri
    )
    assert code == 0
    heading, row = [line.split() for line in output.strip().splitlines() if "LEDGER" in line or A in line]
    assert heading == ["LEDGER", "MISSING", "AGE", "COPIES", "BYTES", "REASON", "WORKER", "OWNER", "PROBLEM"]
    assert [*row[:4], row[6]] == ["1", A, "2", "h", "deleted"]


async def test_running(shell: Shell) -> None:
    locks = ReplicationLocks(shell.store, shell.paths.root, "host-7")
    await shell.mark(9, A)
    for ledger_id in (9, 4):
        assert await locks.acquire(ledger_id)
    await shell.store.create(shell.paths.replication_lock(5), b"junk")
    items = (await shell.succeed("running"))["items"]
    assert [(item["ledger_id"], item["worker"], item["marked"]) for item in items] == [
        ("4", "host-7", False),
        ("5", None, False),
        ("9", "host-7", True),
    ]
    assert items[0]["session"] == f"0x{shell.store.session_id:x}"
    assert items[1]["session"] == "0x0", "nobody's: it outlives every session"
    assert items[1]["problem"]


async def test_auditor(shell: Shell) -> None:
    await shell.elect(A)
    waiting = asyncio.ensure_future(AuditorElection(shell.store, shell.paths.root, B, lambda _: None).campaign())

    async def has_voted() -> bool:
        return len(await shell.store.children(shell.paths.auditor_election)) == 2

    await until(has_voted)
    auditor = await shell.succeed("auditor")
    assert auditor["bookie_id"] == A
    assert [candidate["bookie_id"] for candidate in auditor["candidates"]] == [B]
    assert (await shell.run("auditor", "-o", "name")).stdout == f"{A}\n"
    assert (await shell.succeed("status"))["auditor"] == A
    await shell.store.set(f"{shell.paths.auditor_election}/{auditor['vote']}", b"junk", ANY_VERSION)
    assert (await shell.run("auditor")).exit_code == 12
    assert (await shell.run("status")).exit_code == 0
    waiting.cancel()


async def test_the_auditor_of_pulsars_driver(shell: Shell) -> None:
    leader = shell.paths.pulsar_auditor
    await shell.store.create(leader, f'"{A}"'.encode(), is_ephemeral=True, make_parents=True)
    auditor = await shell.succeed("auditor")
    assert (auditor["bookie_id"], auditor["vote"], auditor["candidates"]) == (A, "leader", [])
    status = await shell.run("status")
    assert (status.json()["auditor"], status.stderr) == (A, "")
    await ReplicationSwitches(shell.store, shell.paths.root).set_recovery_delay(7)
    triggered = await shell.run("trigger")
    assert (triggered.exit_code, triggered.json()["auditor"]) == (0, A)
    assert "ignores the trigger before Pulsar 2.11.3" in triggered.stderr
    info = await asyncio.to_thread(run_bkctl, "cluster", "info", BKCTL_METADATA_URI=shell.uri)
    assert (info.json()["auditor_elected"], info.json()["auditor_id"]) == (True, A)

    await shell.elect(B)
    for arguments, name in ((("auditor",), "bookie_id"), (("status",), "auditor")):
        result = await shell.run(*arguments)
        assert result.json()[name] == B
        assert f"Pulsar's metadata driver elected {A} (underreplication/leader)" in result.stderr
    triggered = await shell.run("trigger")
    assert (triggered.json()["auditor"], "misses" in triggered.stderr) == (B, False)


async def test_a_pulsar_auditor_that_cannot_be_read_is_still_elected(shell: Shell) -> None:
    await shell.store.create(shell.paths.pulsar_auditor, b"junk", is_ephemeral=True, make_parents=True)
    result = await shell.run("auditor")
    assert (result.exit_code, "underreplication/leader" in result.stderr) == (12, True)
    status = await shell.run("status")
    assert (status.json()["auditor"], "underreplication/leader" in status.stderr) == (None, True)


async def test_delay(shell: Shell) -> None:
    path = shell.paths.lost_bookie_recovery_delay
    assert (await shell.succeed("delay", "set", "60", "--dry-run"))["items"][0]["action"] == "create"
    assert await shell.store.exists(path) is None
    result = await shell.run("delay", "set", "60")
    assert result.json() == {
        "apiVersion": "bkctl/v1",
        "kind": "RecoveryDelay",
        "seconds": 60,
        "previous_seconds": None,
    }
    assert (await shell.store.get(path)).data == b"60"
    result = await shell.run("delay", "set", "10m")
    assert "to undo: bkctl autorecovery delay set 60" in result.stderr
    assert "starts an audit now" not in result.stderr
    assert (await shell.store.get(path)).data == b"600"
    result = await shell.run("delay", "set", "600")
    assert "starts an audit now" in result.stderr
    assert "starts an audit now" in (await shell.run("delay", "set", "0")).stderr
    assert (await shell.succeed("delay", "get"))["seconds"] == 0
    assert (await shell.run("delay", "get", "-o", "name")).stdout == "0\n"
    for text in ("-1", "1.5", "2147483648", "soon", "", "500ms"):
        assert (await shell.run("delay", "set", "--", text)).exit_code == 2, text
    await shell.store.set(path, b"junk", ANY_VERSION)
    assert (await shell.run("delay", "get")).exit_code == 12
    assert (await shell.succeed("status"))["lost_bookie_recovery_delay_s"] is None
    assert (await shell.succeed("delay", "set", "5"))["previous_seconds"] is None


async def test_trigger(shell: Shell) -> None:
    path = shell.paths.lost_bookie_recovery_delay
    switches = ReplicationSwitches(shell.store, shell.paths.root)
    result = await shell.run("trigger")
    assert (result.exit_code, "no auditor" in result.stderr) == (3, True)
    await shell.elect(A)
    result = await shell.run("trigger")
    assert (result.exit_code, "is missing" in result.stderr) == (3, True)
    await switches.set_recovery_delay(7)
    await switches.disable()
    result = await shell.run("trigger")
    assert (result.exit_code, "is disabled" in result.stderr) == (3, True)
    await switches.enable()
    assert (await shell.succeed("trigger", "--dry-run"))["kind"] == "Plan"
    assert (await shell.store.get(path)).stat.version == 0
    assert await shell.succeed("trigger") == {
        "apiVersion": "bkctl/v1",
        "kind": "AuditTrigger",
        "triggered": True,
        "auditor": A,
        "delay_s": 7,
    }
    node = await shell.store.get(path)
    assert (node.data, node.stat.version) == (b"7", 1)


async def test_trigger_without_a_stored_delay(shell: Shell) -> None:
    """Java's auditors always store one; bkctl's has a node of its own, which it watches."""
    root = shell.paths.root
    await shell.elect(A)
    note = DaemonNote(
        bookie_id=A, host="host", pid=1, role="both", started_ms=1, written_ms=1, is_auditor=True, admin=None
    )
    await RecoveryNotes(shell.store, root).daemons.put("1", note)
    asked: asyncio.Queue[None] = asyncio.Queue()
    request = AuditRequest(shell.store, root)
    assert (await shell.succeed("trigger"))["auditor"] == A
    watch = request.watch(lambda: asked.put_nowait(None))
    await asyncio.sleep(0)
    await shell.store.get(request.path)  # the read of the watch came first
    for _ in range(2):
        assert (await shell.succeed("trigger"))["delay_s"] is None
        await asyncio.wait_for(asked.get(), 60)
    watch.cancel()
    assert await shell.store.exists(shell.paths.lost_bookie_recovery_delay) is None


async def test_reset_checks_and_their_undo(shell: Shell) -> None:
    switches = ReplicationSwitches(shell.store, shell.paths.root)
    before_ms = 1_700_000_000_123
    await switches.set_check_time_ms(PeriodicCheck.PLACEMENT, before_ms)
    result = await shell.run("reset-checks")
    items = result.json()["items"]
    assert [item["check"] for item in items] == ["all-ledgers", "placement", "replicas"]
    assert [item["previous"] for item in items] == [None, "2023-11-14T22:13:20.123Z", None]
    times = [await switches.check_time_ms(check) for check in PeriodicCheck]
    assert times == [times[0]] * 3
    assert times[0] is not None
    assert abs(LoopClock().now_ms() - 21 * 86_400_000 - times[0]) < 600_000
    undo = next(line for line in result.stderr.splitlines() if "to undo: " in line).partition("bkctl autorecovery ")[2]
    await shell.succeed(*undo.split())
    assert await switches.check_time_ms(PeriodicCheck.PLACEMENT) == before_ms
    assert await switches.check_time_ms(PeriodicCheck.REPLICAS) == times[0]
    for wrong in (("nonsense",), ("--last-run", "yesterday"), ("--last-run", "2026-01-31T12:00:00")):
        assert (await shell.run("reset-checks", *wrong)).exit_code == 2, wrong


async def test_help_pages_say_what_is_there(shell: Shell) -> None:
    page = (await shell.run("--help")).stdout
    for name in (
        "start",
        "status",
        "enable",
        "disable",
        "pending",
        "running",
        "auditor",
        "trigger",
        "delay",
        "reset-checks",
        "repair-marks",
    ):
        assert f"\n  {name} " in page, name
