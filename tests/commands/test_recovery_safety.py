"""``recover`` and ``decommission`` keep the rules of every command that changes a cluster."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.commands.bookie.leaving_report import leaving_outcome, leaving_verdict, left_on
from bkctl.commands.errors import Outcome
from bkctl.commands.safety.state_directory import user_name
from bkctl.commands.work_end import Verdict
from bkctl.runtime.metadata.bookies.cookies import Cookie, encode_cookie
from bkctl.runtime.metadata.cluster.operation_lock import (
    OperationHolder,
    acquire_operation_lock,
    bookie_lock_path,
    lock_bookies,
)
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure
from bkctl.runtime.replication.run.decommission import DecommissionReport
from bkctl.runtime.replication.run.drain import OpenLedger
from bkctl.runtime.replication.run.recovery import RecoveryTally
from tests.commands.cluster.conftest import Operator
from tests.processes import COMMAND_TIMEOUT_S, BkctlResult, Cluster, TerminalSession, run_bkctl
from tests.until import wait_until

BOOKIE = "b1:3181"
RECOVERIES = (("recover", "failed-bookie"), ("recover",), ("decommission",))


@pytest.fixture
def operator(tmp_path: Path, metadata_uri: str) -> Iterator[Operator]:
    """A cluster without bookies: a ledger whose only copy was on a bookie that has a cookie."""
    operator = Operator(tmp_path, metadata_uri)
    operator.succeed("cluster", "init")
    operator.add_ledgers(1)
    cookie = Cookie(bookie_id=BOOKIE, journal_directories=("/j",), ledger_directories=("/l",))
    path = f"{operator.root}/cookies/{BOOKIE}"
    operator.on_store(lambda store: store.create(path, encode_cookie(cookie), make_parents=True))
    yield operator
    operator.end()


def trail(state: Path) -> list[dict[str, Any]]:
    """Lines of the audit trail, but for those about making the cluster."""
    path = state / "audit.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in lines if line["command"] != "cluster init"]


def holder(operation: str) -> OperationHolder:
    return OperationHolder(operation, "root", "host-1", 17, "2026-01-01T00:00:00+00:00")


class DegradedCluster:
    """A cluster of three bookies, one of them killed, and an operator with a configuration file."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.state = directory / "state"
        self.victim = cluster.bookies[0].id
        self.root = parse_metadata_uri(cluster.metadata_uri).root
        config = directory / "config.toml"
        self.environment = {"BKCTL_CONFIG": str(config), "BKCTL_STATE_DIR": str(self.state)}
        config.write_text(
            f'[contexts.looking]\nmetadata_uri = "{cluster.metadata_uri}"\nread_only = true\n'
            f'[contexts.other]\nmetadata_uri = "{cluster.metadata_uri}"\ninstance_id = "another"\n'
            f'[contexts.own]\nmetadata_uri = "{cluster.metadata_uri}"\ninstance_id = "{self.instance_id()}"\n'
        )

    def run(self, *arguments: str, context: str = "own", **variables: str) -> BkctlResult:
        environment = {"BKCTL_CONTEXT": context, **self.environment, **variables}
        return run_bkctl(*arguments, timeout_s=COMMAND_TIMEOUT_S, **environment)

    def instance_id(self) -> str:
        return self.cluster.run("cluster", "instance-id", "-o", "name").stdout.strip()

    def stop_victim(self) -> None:
        self.cluster.stop_bookie(self.victim)
        wait_until(
            lambda: self.victim not in self.cluster.run("bookie", "list", "-o", "name", "--state", "writable").stdout
        )

    def is_unchanged(self) -> Callable[[], bool]:
        """Answers later whether all metadata of ledgers and cookies is as it is now."""

        def look() -> tuple[str, str]:
            ledgers = self.cluster.run("ledger", "show", "0", "1", "-o", "json")
            cookies = self.cluster.run("cookie", "show", self.victim, "--raw")
            assert (ledgers.exit_code, cookies.exit_code) == (0, 0)
            return ledgers.stdout, cookies.stdout

        before = look()
        return lambda: look() == before


def test_read_only_and_plans_change_nothing_on_a_real_cluster(cluster: Cluster, tmp_path: Path) -> None:
    written = cluster.run("ledger", "write-test", "--ledgers", "2", "--entries", "6", "-E", "3", "-W", "3")
    assert written.exit_code == 0
    cluster.up(4)
    degraded = DegradedCluster(cluster, tmp_path)
    degraded.stop_victim()
    is_unchanged = degraded.is_unchanged()
    saved = str(tmp_path / "plan.json")
    for command in RECOVERIES:
        arguments = (*command, degraded.victim, "--yes")
        for refused in (
            degraded.run(*arguments, BKCTL_READ_ONLY="1"),
            degraded.run(*arguments, context="looking"),
            degraded.run(*arguments, context="other"),
        ):
            assert refused.exit_code == 3, refused
        assert "is pinned to instance id another" in degraded.run(*arguments, context="other").stderr
        for context in ("own", "looking"):
            shown = degraded.run(*arguments, "--dry-run", context=context)
            assert (shown.exit_code, shown.json()["kind"]) == (0, "Plan"), shown
            planned = degraded.run(*arguments, "--plan-out", saved, context=context, BKCTL_READ_ONLY="1")
            assert (planned.exit_code, planned.json()) == (0, shown.json()), planned
        assert [row["ledger_id"] for row in shown.json()["items"][:2]] == ["1", "0"]
        assert is_unchanged(), command
    assert trail(degraded.state) == []

    cookie = degraded.run("cookie", "show", degraded.victim, "--raw").stdout
    done = degraded.run("decommission", degraded.victim, "--apply", saved, "--yes")
    assert (done.exit_code, done.json()["is_cookie_deleted"], done.json()["ledgers_repaired"]) == (0, True, 2), done
    begin, end = trail(degraded.state)
    assert (begin["event"], begin["command"], begin["instance_id"]) == ("begin", "decommission", degraded.instance_id())
    assert (end["event"], end["result"], end["details"]["ledgers_repaired"]) == ("end", "done", 2)
    [kept] = [json.loads(line) for line in Path(end["details"]["trash"]).read_text().splitlines()]
    assert (kept["action"], kept["path"]) == ("delete", f"{degraded.root}/cookies/{degraded.victim}")
    assert base64.b64decode(kept["data"]).decode() == cookie
    late = degraded.run("decommission", degraded.victim, "--apply", saved, "--yes")
    assert late.exit_code == 4, late


@pytest.mark.parametrize("command", RECOVERIES[1:])
def test_a_bookie_that_comes_back_while_the_question_is_open_is_left_alone(
    cluster: Cluster, tmp_path: Path, command: tuple[str, ...]
) -> None:
    assert cluster.run("ledger", "write-test", "--ledgers", "2", "--entries", "6", "-E", "3", "-W", "3").exit_code == 0
    degraded = DegradedCluster(cluster, tmp_path)
    degraded.stop_victim()
    is_unchanged = degraded.is_unchanged()
    with TerminalSession(*command, degraded.victim, BKCTL_CONTEXT="own", **degraded.environment) as session:
        session.wait_for(f" {degraded.victim}: continue? [y/N] ")
        cluster.start_bookie(degraded.victim)
        session.type("y\n")
        assert session.exit_code() == 3, session.screen
    assert f"bookie {degraded.victim} is up and serving; stop it first" in session.screen
    assert is_unchanged()
    assert [line.get("result", "")[:6] for line in trail(degraded.state)] == ["", "failed"]


def test_a_ledger_that_cannot_be_moved_keeps_the_cookie_and_is_a_failure(operator: Operator) -> None:
    result = operator.run("decommission", BOOKIE, "--yes")
    assert (result.exit_code, result.json()["remaining_ledgers"]) == (1, ["0"]), result
    assert "its cookie was not deleted" in result.stderr
    assert operator.children("/cookies") == [BOOKIE]
    assert [line.get("result") for line in trail(operator.state)] == [None, "failed"]
    recovered = operator.run("recover", BOOKIE, "--yes")
    assert (recovered.exit_code, recovered.json()["ledgers_failed"]) == (1, 1), "as the decommission: nothing was moved"


def test_without_an_audit_trail_or_a_trash_nothing_is_deleted(operator: Operator) -> None:
    operator.on_store(lambda store: store.delete(f"{operator.root}/00/0000/L0000"))
    os.unlink(operator.state / "audit.jsonl")
    os.mkdir(operator.state / "audit.jsonl")
    refused = operator.run("decommission", BOOKIE, "--yes")
    assert (refused.exit_code, "cannot write the audit trail" in refused.stderr) == (3, True), refused
    os.rmdir(operator.state / "audit.jsonl")
    (operator.state / "trash").write_text("in the way")
    kept = operator.run("decommission", BOOKIE, "--yes")
    assert (kept.exit_code, kept.json()["is_cookie_deleted"]) == (1, False), kept
    assert "its cookie was not deleted" in kept.stderr
    assert operator.children("/cookies") == [BOOKIE]
    os.unlink(operator.state / "trash")
    assert operator.succeed("decommission", BOOKIE, "--yes").json()["is_cookie_deleted"]
    assert operator.children("/cookies") == []


@pytest.mark.parametrize("whole", ["cluster format", "cluster nuke", "cluster restore"])
def test_no_recovery_begins_while_the_whole_cluster_is_replaced(operator: Operator, whole: str) -> None:
    before = operator.tree()

    async def run(store: MetadataStore) -> None:
        for command in RECOVERIES:
            async with await acquire_operation_lock(store, operator.root, holder(whole)):
                refused = await asyncio.to_thread(operator.run, *command, BOOKIE, "--yes")
            assert (refused.exit_code, f"'{whole}' by root on host-1" in refused.stderr) == (5, True), refused

    operator.on_store(run)
    assert operator.tree() == before
    assert trail(operator.state) == []


def test_recoveries_run_next_to_each_other_and_next_to_smaller_changes(operator: Operator) -> None:
    async def run(store: MetadataStore) -> None:
        async with (
            await lock_bookies(store, operator.root, holder("recover failed-bookie"), ["b2:3181"]),
            await acquire_operation_lock(store, operator.root, holder("ledger delete")),
        ):
            result = await asyncio.to_thread(operator.run, "recover", BOOKIE, "--yes")
            assert (result.exit_code, result.json()["ledgers_failed"]) == (1, 1), result

    operator.on_store(run)


def test_one_recovery_of_a_bookie_at_a_time(operator: Operator) -> None:
    """Real processes at once: the first locks bookie b1 and waits for the replication lock of its ledger."""
    other = "b2:3181"

    async def add_cookies(store: MetadataStore) -> None:
        for bookie_id in (other, "b3:3181"):
            cookie = Cookie(bookie_id=bookie_id, journal_directories=("/j",), ledger_directories=("/l",))
            await store.create(f"{operator.root}/cookies/{bookie_id}", encode_cookie(cookie))

    operator.on_store(add_cookies)
    path = bookie_lock_path(operator.root, BOOKIE)

    async def end_of(*arguments: str) -> tuple[int, str]:
        ended = await asyncio.to_thread(operator.run, *arguments, "--yes")
        return ended.exit_code, ended.stderr

    async def run(store: MetadataStore) -> None:
        ledger_lock = await ReplicationLocks(store, operator.root, "the-test").acquire(0)
        assert ledger_lock is not None
        is_locked = asyncio.Event()
        assert await store.exists(path, is_locked.set) is None
        first = operator.begin("recover", BOOKIE, "--yes")
        await asyncio.wait_for(is_locked.wait(), COMMAND_TIMEOUT_S)
        held_by = f"'recover failed-bookie' by {user_name()} on {socket.gethostname()}, process {first.pid}, since 20"
        *refused, recovered = await asyncio.gather(
            end_of("recover", BOOKIE),
            end_of("decommission", BOOKIE),
            end_of("recover", "b3:3181", BOOKIE),
            end_of("decommission", other),
        )
        for exit_code, told in refused:
            assert exit_code == 5, told
            assert f"another operation is working on bookie {BOOKIE}: {held_by}" in told
        assert (recovered[0], first.poll(), await store.exists(path) is None) == (0, None, False), recovered
        first.kill()
        first.wait()
        await ledger_lock.release()
        exit_code, told = await end_of("recover", BOOKIE)
        assert exit_code == 1, f"its only copy is lost, and the lock went with the killed process: {told}"
        assert await store.exists(path) is None

    operator.on_store(run)


@pytest.mark.parametrize("verb", ["format", "nuke", "restore"])
def test_the_whole_cluster_is_not_replaced_while_a_recovery_runs(operator: Operator, verb: str) -> None:
    backup = str(operator.directory / "backup")
    operator.succeed("cluster", "backup", backup)
    command = ("cluster", verb, *([backup] if verb == "restore" else []), "--confirm", operator.instance_id())
    before = operator.tree()

    async def run(store: MetadataStore) -> None:
        async with await lock_bookies(store, operator.root, holder("decommission"), ["b2:3181"]):
            refused = await asyncio.to_thread(operator.run, *command)
        assert (refused.exit_code, "'decommission' by root on host-1" in refused.stderr) == (3, True), refused

    operator.on_store(run)
    assert operator.tree() == before
    operator.succeed(*command)


def test_a_cookie_is_kept_when_its_bookie_registers_while_the_question_is_open(operator: Operator) -> None:
    operator.on_store(lambda store: store.delete(f"{operator.root}/00/0000/L0000"))
    cookie = operator.succeed("cookie", "show", BOOKIE, "--raw").stdout

    async def run(store: MetadataStore) -> None:
        def answer() -> str:
            session.type(f"{BOOKIE}\n")
            assert session.exit_code() == 3, session.screen
            return session.screen

        with TerminalSession("cookie", "delete", BOOKIE, **operator.environment) as session:
            await asyncio.to_thread(
                session.wait_for, f"'cookie delete {BOOKIE}' cannot be undone. Type {BOOKIE} to continue"
            )
            await store.create(f"{operator.root}/available/{BOOKIE}", is_ephemeral=True)
            assert f"bookie {BOOKIE} is registered: stop it first" in await asyncio.to_thread(answer)

    operator.on_store(run)
    assert operator.succeed("cookie", "show", BOOKIE, "--raw").stdout == cookie


def test_the_outcome_of_a_decommission() -> None:
    """A refusal is never a success; it is a part of one when ledgers were moved."""
    nothing = RecoveryTally().report((BOOKIE,), 1.0)
    moved = msgspec.structs.replace(nothing, fragments=1)
    for recoveries, refusal, outcome in (
        ((moved,), None, Outcome.OK),
        ((), None, Outcome.OK),
        ((nothing, moved), "its cookie was not deleted", Outcome.PARTIAL),
        ((nothing,), "its cookie was not deleted", Outcome.FAILED),
        ((), "its cookie was not deleted", Outcome.FAILED),
    ):
        report = DecommissionReport(
            bookie_ids=(BOOKIE,), recoveries=recoveries, ledgers_scanned=2, remaining=(), refusal=refusal
        )
        assert leaving_outcome(report) is outcome
    came_back = msgspec.structs.replace(report, refusal="registered again", cookies_deleted=(BOOKIE,))
    assert leaving_outcome(came_back) is Outcome.PARTIAL


def test_what_helps_when_only_open_ledgers_are_left() -> None:
    failure = LedgerFailure(7, FailureReason.OPEN, (), "its last segment is open")
    recovery = msgspec.structs.replace(RecoveryTally().report((BOOKIE,), 1.0), failures=(failure,))
    report = DecommissionReport(
        bookie_ids=(BOOKIE,), recoveries=(recovery,), ledgers_scanned=1, remaining=(7,), refusal="1 ledger is left"
    )

    def verdict_of(report: DecommissionReport) -> Verdict:
        return leaving_verdict(report, left_on(report), "bkctl again", is_drain_only=False)

    writer_has_left = verdict_of(report)
    assert writer_has_left.sentence == "0 ledgers moved, 1 left: 1 needs another run; continue with: bkctl again"
    assert writer_has_left.notes == ("its cookie was not deleted",)
    waiting = verdict_of(msgspec.structs.replace(report, open_ledgers=(OpenLedger(7, None, None),)))
    assert waiting.sentence == "0 ledgers moved, 1 left: 1 waits for its writer; continue with: bkctl again"
    assert waiting.notes[-1].endswith("closed by bkctl ledger close 7, or --open-ledgers fence")
