"""``bkctl autorecovery maintenance`` as a process, against a real ZooKeeper, with an auditor of each kind."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.metadata.cluster.operation_lock import OperationHolder, lock_modes
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from tests.commands.autorecovery.test_autorecovery import A, B, Shell
from tests.commands.bookie.admin_bookie import wait_said
from tests.processes import run_bkctl, start_bkctl
from tests.until import until

AUDITOR = "10.0.0.7:3181"


async def register(shell: Shell, *bookie_ids: str) -> None:
    for bookie_id in bookie_ids:
        await shell.store.create(shell.paths.writable_bookie(bookie_id), is_ephemeral=True)
        await shell.store.create(shell.paths.cookie(bookie_id))


async def with_java_auditor(shell: Shell, delay_s: int) -> ReplicationSwitches:
    await shell.elect(AUDITOR)
    switches = ReplicationSwitches(shell.store, shell.paths.root)
    await switches.set_recovery_delay(delay_s)
    return switches


async def with_our_auditor(shell: Shell) -> None:
    await shell.elect(AUDITOR)
    note = DaemonNote(bookie_id=AUDITOR, host="h", pid=7, role="both", started_ms=1, written_ms=2, is_auditor=True)
    await RecoveryNotes(shell.store, shell.paths.root).daemons.put("1", note)


@contextlib.asynccontextmanager
async def candidate(shell: Shell, bookie_id: str) -> AsyncIterator[None]:
    """Java's daemon of this bookie waits to be elected."""
    waiting = asyncio.ensure_future(
        AuditorElection(shell.store, shell.paths.root, bookie_id, lambda _: None).campaign()
    )

    async def has_voted() -> bool:
        return len(await shell.store.children(shell.paths.auditor_election)) == 2

    await until(has_voted)
    yield
    waiting.cancel()
    await asyncio.wait((waiting,))
    votes = await shell.store.children(shell.paths.auditor_election)
    await shell.store.delete(f"{shell.paths.auditor_election}/{max(votes)}")


async def delay_text(shell: Shell) -> tuple[bytes, int]:
    node = await shell.store.get(shell.paths.lost_bookie_recovery_delay)
    return node.data, node.stat.version


async def bookies_in_maintenance(shell: Shell) -> list[str]:
    return await RecoveryNotes(shell.store, shell.paths.root).maintenance.keys()


async def test_with_javas_auditor_the_delay_is_raised_and_restored(shell: Shell) -> None:
    await register(shell, A)
    await with_java_auditor(shell, 0)
    plan = await shell.succeed("maintenance", "start", A, "--for", "30m", "--dry-run")
    assert [item["action"] for item in plan["items"]] == ["create", "set"]
    assert await bookies_in_maintenance(shell) == []
    exact = await shell.succeed("maintenance", "start", A, "--for", "150m", "--dry-run")
    assert exact["summary"][0].endswith("will not be marked for 9,000 s"), "the recovery delay below has seconds too"

    started = await shell.run("maintenance", "start", A, "--for", "30m")
    body = started.json()
    assert (body["auditor"], body["delay_before_s"], body["delay_set_s"]) == ("java", 0, 1800), started
    assert f"bkctl autorecovery maintenance end {A}" in started.stderr
    assert await delay_text(shell) == (b"1800", 1)
    [item] = (await shell.succeed("maintenance", "list"))["items"]
    assert (item["bookie_id"], item["state"], item["overdue"], item["delay_before_s"]) == (A, "writable", False, 0)
    again = await shell.run("maintenance", "start", A, "--for", "1h")
    assert (again.exit_code, f"bookie {A} is in maintenance already" in again.stderr) == (5, True)

    await shell.store.delete(shell.paths.writable_bookie(A))
    refused = await shell.run("maintenance", "end", A)
    assert (refused.exit_code, "is not registered: start it first" in refused.stderr) == (3, True)
    assert await delay_text(shell) == (b"1800", 1)
    await shell.store.create(shell.paths.read_only_bookie(A), is_ephemeral=True)
    ended = await shell.succeed("maintenance", "end", A)
    assert ended["bookies"] == [{"bookie_id": A, "delay": "restored"}]
    assert (await delay_text(shell), await bookies_in_maintenance(shell)) == ((b"0", 2), [])
    assert (await shell.succeed("maintenance", "end"))["ended"] == 0
    unknown = await shell.run("maintenance", "end", A)
    assert (unknown.exit_code, "is not in maintenance" in unknown.stderr) == (4, True)


async def test_a_bookie_that_was_removed_is_not_to_be_started(shell: Shell) -> None:
    await register(shell, A)
    await with_our_auditor(shell)
    await shell.succeed("maintenance", "start", A, "--for", "1s")
    await shell.store.delete(shell.paths.writable_bookie(A))
    states = []
    for path in (None, shell.paths.cookie(A)):
        if path is not None:
            await shell.store.delete(path)
        [item] = (await shell.succeed("maintenance", "list"))["items"]
        states.append(item["state"])
    assert states == ["down", "removed"]
    await asyncio.sleep(1)
    assert f"start {A}" not in (await shell.run("status")).stderr
    assert (await shell.succeed("maintenance", "end", A, "--accept-risk"))["ended"] == 1


async def test_a_delay_that_is_long_enough_stays(shell: Shell) -> None:
    await register(shell, A)
    await with_java_auditor(shell, 7200)
    assert (await shell.succeed("maintenance", "start", A, "--for", "30m"))["delay_set_s"] is None
    assert await delay_text(shell) == (b"7200", 0), "writing it again would trigger an audit"
    await shell.succeed("maintenance", "end")
    assert await delay_text(shell) == (b"7200", 0)


async def test_with_javas_auditor_one_bookie_at_a_time(shell: Shell) -> None:
    await register(shell, A, B)
    switches = await with_java_auditor(shell, 0)
    both = await shell.run("maintenance", "start", A, B, "--for", "30m", "--accept-risk")
    assert (both.exit_code, "one bookie at a time" in both.stderr) == (3, True)
    silent = await shell.run("maintenance", "start", A, "--for", "30m")
    assert (silent.exit_code, f"bookie {B} is registered but does not answer" in silent.stderr) == (3, True)
    planned = await shell.run("maintenance", "start", A, "--for", "30m", "--dry-run")
    assert planned.exit_code == 3, "a plan ends as the command would"
    assert planned.stderr.splitlines()[-1] == silent.stderr.splitlines()[-1]
    assert "--accept-risk continues all the same" in silent.stderr
    await shell.succeed("maintenance", "start", A, "--for", "30m", "--accept-risk")
    second = await shell.run("maintenance", "start", B, "--for", "30m")
    assert (second.exit_code, f"bookie {A} is in maintenance already" in second.stderr) == (3, True)
    await shell.succeed("maintenance", "start", B, "--for", "30m", "--accept-risk")
    await switches.set_recovery_delay(60)
    ended = await shell.run("maintenance", "end", A)
    assert ended.json()["bookies"][0]["delay"] == "left, because it was changed meanwhile"
    assert "the recovery delay stays 60 s" in ended.stderr
    assert await bookies_in_maintenance(shell) == [B]


async def test_without_the_delay_node_an_auditor_of_java_is_deaf(shell: Shell) -> None:
    await register(shell, A)
    await shell.elect(AUDITOR)
    result = await shell.run("maintenance", "start", A, "--for", "30m")
    assert (result.exit_code, "is missing or unreadable" in result.stderr) == (3, True)


async def test_with_our_auditor_no_delay_is_touched(shell: Shell) -> None:
    await register(shell, A, B)
    await with_our_auditor(shell)
    body = await shell.succeed("maintenance", "start", A, B, "--for", "30m")
    assert (body["auditor"], body["delay_set_s"]) == ("bkctl", None)
    assert sorted(await bookies_in_maintenance(shell)) == [A, B]
    assert await shell.store.exists(shell.paths.lost_bookie_recovery_delay) is None
    assert (await shell.succeed("maintenance", "end"))["ended"] == 2
    assert await bookies_in_maintenance(shell) == []


async def test_an_auditor_of_java_that_may_take_over_is_reported(shell: Shell) -> None:
    await register(shell, A)
    await with_our_auditor(shell)
    async with candidate(shell, B):
        started = await shell.run("maintenance", "start", A, "--for", "30m", "--dry-run")
    assert (started.exit_code, f"if Java's auditor of {B} is elected meanwhile" in started.stderr) == (0, True), started
    alone = await shell.run("maintenance", "start", A, "--for", "30m")
    assert (alone.exit_code, "is elected meanwhile" in alone.stderr) == (0, False), alone


async def test_a_bookie_whose_stop_ends_the_auditor_of_java(shell: Shell) -> None:
    await register(shell, A, B)
    await shell.elect(A)
    await ReplicationSwitches(shell.store, shell.paths.root).set_recovery_delay(0)
    async with candidate(shell, B):
        refused = await shell.run("maintenance", "start", A, "--for", "30m")
        assert (refused.exit_code, "nothing was changed" in refused.stderr) == (3, True), refused
        assert f"bookie {A} is the auditor: when it stops, Java's auditor of {B} takes over" in refused.stderr
        assert await bookies_in_maintenance(shell) == []
        other = await shell.run("maintenance", "start", B, "--for", "30m", "--accept-risk")
        assert (other.exit_code, "is the auditor" in other.stderr) == (0, False), other


@contextlib.asynccontextmanager
async def kept_waiting(shell: Shell, *arguments: str) -> AsyncIterator[asyncio.Task[tuple[int, str]]]:
    """The command has made its plan, and waits until the end of the block for its turn."""
    said = Path(shell.state).with_name("said")
    uri = {"BKCTL_METADATA_URI": shell.uri, "BKCTL_STATE_DIR": shell.state}
    with said.open("w") as stderr:
        async with await lock_modes(shell.store, shell.paths.root, OperationHolder("bookie drain", pid=os.getpid())):
            process = start_bkctl("autorecovery", "maintenance", *arguments, stderr=stderr, variables=uri)
            await asyncio.to_thread(wait_said, said, "waiting up to 30 s: another operation", process)
            task = asyncio.create_task(asyncio.to_thread(lambda: (process.wait(), said.read_text())))
            yield task
        await task


async def test_an_auditor_that_is_elected_after_the_plan(shell: Shell) -> None:
    """Java's needs the delay, which a plan for one of bkctl leaves."""
    await register(shell, A)
    await ReplicationSwitches(shell.store, shell.paths.root).set_recovery_delay(0)
    await with_our_auditor(shell)
    async with kept_waiting(shell, "start", A, "--for", "30m") as command:
        await RecoveryNotes(shell.store, shell.paths.root).daemons.remove("1")
    exit_code, said = await command
    assert (exit_code, "nothing was changed: something has changed since the plan" in said) == (5, True), said
    assert (await bookies_in_maintenance(shell), await delay_text(shell)) == ([], (b"0", 0))


async def test_a_bookie_that_goes_down_after_the_plan_of_the_end(shell: Shell) -> None:
    await register(shell, A)
    await with_our_auditor(shell)
    await shell.succeed("maintenance", "start", A, "--for", "30m")
    async with kept_waiting(shell, "end", A) as command:
        await shell.store.delete(shell.paths.writable_bookie(A))
    exit_code, said = await command
    assert (exit_code, f"bookie {A} is not registered: start it first" in said) == (3, True), said
    assert await bookies_in_maintenance(shell) == [A]


async def test_two_operators_at_once(shell: Shell) -> None:
    await register(shell, A)
    await with_java_auditor(shell, 0)
    results = await asyncio.gather(*(shell.run("maintenance", "start", A, "--for", "30m") for _ in range(2)))
    assert sorted(result.exit_code for result in results) == [0, 5], results
    loser = next(result for result in results if result.exit_code)
    assert "nothing was changed" in loser.stderr
    assert await delay_text(shell) == (b"1800", 1)


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--for", "1h"), 2, "name the bookies, or give --rack"),
        ((A, "--rack", "/r1", "--for", "1h"), 2, "name the bookies, or give --rack"),
        ((A, "--for", "soon"), 2, "is not a duration"),
        ((A,), 2, "--for"),
        (("--rack", "/r1", "--for", "1h"), 4, "no registered bookie is known to be in rack /r1"),
        (("10.0.0.99:3181", "--for", "1h"), 4, "is unknown"),
    ],
)
async def test_wrong_use(shell: Shell, arguments: tuple[str, ...], code: int, sentence: str) -> None:
    await register(shell, A)
    result = await shell.run("maintenance", "start", *arguments)
    assert (result.exit_code, sentence in result.stderr) == (code, True), result
    assert await bookies_in_maintenance(shell) == []


async def test_a_rack(shell: Shell, tmp_path: Path) -> None:
    await register(shell, A, B)
    await with_our_auditor(shell)
    racks, config = tmp_path / "racks.txt", tmp_path / "config.toml"
    racks.write_text("10.0.0.1 /r1\n10.0.0.2 /r2\n")
    config.write_text(f'[client.placement]\npolicy = "rack-aware"\nrack_table_file = "{racks}"\n')
    result = await asyncio.to_thread(
        functools.partial(
            run_bkctl,
            *("autorecovery", "maintenance", "start", "--rack", "/r2", "--for", "30m", "--accept-risk"),
            BKCTL_METADATA_URI=shell.uri,
            BKCTL_STATE_DIR=shell.state,
            BKCTL_CONFIG=str(config),
        )
    )
    assert (result.exit_code, result.json()["bookie_ids"]) == (0, [B]), result
    [item] = (await shell.succeed("maintenance", "list"))["items"]
    assert (item["bookie_id"], item["rack"]) == (B, "/r2")
