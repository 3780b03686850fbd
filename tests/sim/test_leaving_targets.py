"""Bookies that leave the cluster while copies are made on them, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from bkctl.runtime.client.ports import credentials_of
from bkctl.runtime.client.recovery import LedgerRecovery
from bkctl.runtime.errors import LedgerRecoveryError, MetadataUnavailableError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.cookies import CookieStore, CookieVersion
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.cluster.operation_lock import OperationHolder, leaving_bookies, lock_bookies
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import Policy, ReplicationConfig
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.run.decommission import Decommission
from bkctl.runtime.replication.run.drain import DrainHooks
from bkctl.runtime.replication.run.recovery import BookieRecovery
from bkctl.storage.adapters.sqlite import memory_database
from tests.runtime.replication.fleet import carry_out
from tests.runtime.replication.samples import ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

TWO_STRIPES = ledger({0: ["a", "c"]}, 1, 1, last_entry_id=239, length=2400)
"""Even entries on a, odd ones on c."""


async def remove(cluster: RepairCluster, bookie_id: str) -> None:
    """What decommission does to a bookie that no ledger names."""
    await cluster.set_mode(bookie_id, BookieMode.READ_ONLY)
    await cluster.stop(bookie_id)
    cookies = CookieStore(cluster.metadata_store, ROOT)
    await cookies.delete(bookie_id, await cookies.read(bookie_id))


async def come_back_empty(cluster: RepairCluster, bookie_id: str) -> None:
    await remove(cluster, bookie_id)
    await cluster.clock.sleep(0.01)
    await cluster.start(bookie_id)


async def become_read_only(cluster: RepairCluster, bookie_id: str) -> None:
    await cluster.set_mode(bookie_id, BookieMode.READ_ONLY)


@pytest.mark.parametrize("leave", [remove, come_back_empty, become_read_only])
def test_a_target_that_leaves_during_the_next_stripe_is_never_named(
    leave: Callable[[RepairCluster, str], Awaitable[None]],
) -> None:
    """All of it happens while the source of the second stripe asks to be left alone, before anything is committed."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("a", "c", mode=BookieMode.READ_ONLY)
        await cluster.start("t", "u", "v")
        ledger_id = await cluster.store(TWO_STRIPES)
        left: list[str] = []
        leaving: list[asyncio.Task[None]] = []

        async def remove_target() -> None:
            (target,) = (each for each in "tuv" if cluster.holds(each, ledger_id))
            await leave(cluster, target)
            left.append(target)

        def hold_up(request: BookieRequest) -> Status | None:
            if request.bookie_id != "c" or request.kind != "read" or left:
                return None
            if not leaving:
                leaving.append(asyncio.create_task(remove_target()))
            return Status.TOO_MANY_REQUESTS

        cluster.rules.append(hold_up)
        report = await cluster.recover("a", "c", unreachable=())

        assert report.is_complete, report.failures
        ensemble = (await cluster.ensembles(ledger_id))[0]
        assert left[0] not in ensemble
        assert cluster.holds(ensemble[0], ledger_id) == list(range(0, 240, 2))
        assert cluster.holds(ensemble[1], ledger_id) == list(range(1, 240, 2))

    simulate(scenario)


def test_a_target_that_dies_right_after_the_write_leaves_the_ledger_undone() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100))
        original = cluster.ports.ledgers.write

        async def write(*arguments: object) -> object:
            written = await original(*arguments)  # type: ignore[arg-type]
            await cluster.stop("b3")
            return written

        cluster.ports.ledgers.write = write  # type: ignore[method-assign, assignment]
        report = await cluster.recover("b1")

        assert (await cluster.ensembles(ledger_id))[0] == ("b3", "b2")
        (failure,) = report.failures
        assert (failure.reason, failure.detail) == (FailureReason.TARGET_GONE, "bookie b3 is not registered")

    simulate(scenario)


def test_a_bookie_without_a_cookie_is_no_target() -> None:
    """It was decommissioned, but still serves."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        cookies = CookieStore(cluster.metadata_store, ROOT)
        await cookies.delete("b3", await cookies.read("b3"))
        ids = [await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)) for _ in range(5)]

        assert (await cluster.recover("b1")).is_complete
        assert {(await cluster.ensembles(each))[0] for each in ids} == {("b4", "b2")}

    simulate(scenario)


def test_a_long_ledger_is_committed_in_parts() -> None:
    """Stripes that took long are safe before the next one begins."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        segments: dict[int, Sequence[str]] = {0: ["b1", "b2"], 10: ["b2", "b1"], 20: ["b1", "b2"]}
        ledger_id = await cluster.store(ledger(segments, 2, 2, last_entry_id=29, length=300))
        begun_ns: dict[int, int] = {}
        named: list[int] = []

        def slow(request: BookieRequest) -> Status | None:
            if request.kind != "read" or request.bookie_id != "b2":
                return None
            since_ns = begun_ns.setdefault(request.entry_id // 10, cluster.clock.monotonic_ns())
            return Status.TOO_MANY_REQUESTS if cluster.clock.monotonic_ns() - since_ns < 8 * 10**9 else None

        async def watch() -> None:
            while len(named) < 3:
                count = sum("b1" in each for each in (await cluster.ensembles(ledger_id)).values())
                if not named or named[-1] != count:
                    named.append(count)
                await cluster.clock.sleep(0.5)

        cluster.rules.append(slow)
        watcher = asyncio.create_task(watch())
        report = await cluster.recover("b1")
        await watcher

        assert report.is_complete, report.failures
        assert (report.ledgers_repaired, report.fragments, report.entries) == (1, 3, 30)
        assert named == [3, 1, 0], "the first two are committed before the third one is copied"

    simulate(scenario)


@pytest.mark.parametrize("is_before", [True, False])
def test_a_ledger_that_names_a_bookie_while_its_cookie_goes_brings_the_cookie_back(*, is_before: bool) -> None:
    """A process of another tool writes after the scan, before or after the deletion."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        await cluster.stop("b1")
        cookies = CookieStore(cluster.metadata_store, ROOT)
        decommission = Decommission(cluster.recovery, cookies, cluster.ports)
        plan = await decommission.plan(["b1"])
        before = await cookies.read_node("b1")
        late: list[int] = []

        async def name_it(*_: object) -> None:
            late.append(await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=50)))

        if is_before:
            report = await carry_out(decommission, plan, DrainHooks(clear_marks=name_it))
        else:
            original = cookies.delete

            async def delete(bookie_id: str, found: CookieVersion) -> None:
                await original(bookie_id, found)
                await name_it()

            restore, cuts = cookies.create_node, 1

            async def create_node(bookie_id: str, data: bytes) -> None:
                nonlocal cuts
                cuts -= 1
                if cuts >= 0:
                    raise MetadataUnavailableError("ZooKeeper does not answer")
                await restore(bookie_id, data)

            cookies.delete, cookies.create_node = delete, create_node  # type: ignore[method-assign]
            report = await carry_out(decommission, plan)

        assert not report.is_complete
        assert report.refusal is not None
        assert "the cookie was written again" in report.refusal
        assert (report.remaining, report.cookies_deleted) == (tuple(late), ())
        assert (await cookies.read_node("b1")).data == before.data

    simulate(scenario, ReplicationConfig(ledgers_in_parallel=1))


def test_a_bookie_that_another_command_empties_is_the_last_resort() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        store = cluster.metadata_store
        ids = [await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)) for _ in range(5)]
        parts = (cluster.ports, CookieStore(store, ROOT), cluster.locks)
        recovery = BookieRecovery(
            *parts, Policy(), find_leaving=partial(leaving_bookies, store, ROOT), open_database=memory_database
        )
        async with await lock_bookies(store, ROOT, OperationHolder("decommission", pid=1), ["b3"]):
            assert (await recovery.run(await recovery.plan(["b1"]))).is_complete
            assert {(await cluster.ensembles(each))[0] for each in ids} == {("b4", "b2")}
            await cluster.stop("b4")
            assert (await recovery.run(await recovery.plan(["b4"]))).is_complete
            assert {(await cluster.ensembles(each))[0] for each in ids} == {("b3", "b2")}

    simulate(scenario)


def test_recovery_of_a_ledger_does_not_name_a_bookie_that_left_before_the_end() -> None:
    """It got the recovered entries while it was in the cluster."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "t", "u")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN), entries=5)
        stored = await cluster.ports.ledgers.read(ledger_id)
        credentials = credentials_of(ledger_id, stored.value)
        original = cluster.ports.ledgers.write
        removed: list[str] = []

        async def write(written_id: int, metadata: LedgerMetadata, *others: Any) -> Versioned[LedgerMetadata]:
            if metadata.is_closed and not removed:
                removed.extend({"t", "u"} & metadata.bookies())
                await remove(cluster, removed[0])
            return await original(written_id, metadata, *others)

        cluster.ports.ledgers.write = write  # type: ignore[method-assign, assignment]
        with pytest.raises(LedgerRecoveryError, match="left the cluster"):
            await LedgerRecovery(cluster.ports, credentials, stored).run()
        assert (await cluster.ports.ledgers.read(ledger_id)).value.state is LedgerState.IN_RECOVERY

        stored = await cluster.ports.ledgers.read(ledger_id)
        closed = (await LedgerRecovery(cluster.ports, credentials, stored).run()).value
        assert closed.last_entry_id == 4
        assert removed[0] not in closed.bookies()

    simulate(scenario)


def test_ledgers_whose_only_target_restarts_are_tried_again_at_the_end() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("a", mode=BookieMode.READ_ONLY)
        await cluster.start("t")
        whole = await cluster.store(ledger({0: ["a"]}, 1, 1, last_entry_id=9, length=100))
        partial = await cluster.store(ledger({0: ["a"], 5: ["a"]}, 1, 1, last_entry_id=9, length=100))
        started_ns = cluster.clock.monotonic_ns()

        def restarts(request: BookieRequest) -> Status | None:
            is_away = cluster.clock.monotonic_ns() - started_ns < 6e9
            is_first_segment = request.ledger_id == partial and request.entry_id < 5
            return Status.UNAVAILABLE if request.bookie_id == "t" and is_away and not is_first_segment else None

        cluster.rules.append(restarts)
        report = await cluster.recover("a", unreachable=())
        assert report.is_complete, report.failures
        assert (report.ledgers_repaired, report.fragments, report.entries) == (2, 3, 20)
        assert cluster.holds("t", whole) == cluster.holds("t", partial) == list(range(10))

    simulate(scenario)


def test_a_target_that_does_not_return_is_tried_twice() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("a", mode=BookieMode.READ_ONLY)
        await cluster.start("t")
        await cluster.store(ledger({0: ["a"]}, 1, 1, last_entry_id=9, length=100))
        cluster.refuse("add", "t", Status.UNAVAILABLE)
        started_ns = cluster.clock.monotonic_ns()
        report = await cluster.recover("a", unreachable=())
        assert [failure.reason for failure in report.failures] == [FailureReason.TARGETS_FAILED]
        assert cluster.asked("t", "add").count(0) == 2
        assert cluster.clock.monotonic_ns() - started_ns < 60e9

    simulate(scenario)
