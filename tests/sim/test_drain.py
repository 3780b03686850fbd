"""Drains and decommissions of live bookies in virtual time: writers, deaths, changes of mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from bkctl.runtime.errors import ConflictError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.metadata.bookies.cookies import Cookie, CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.replication.config import OpenLedgers, Policy, ReplicationConfig
from bkctl.runtime.replication.run.decommission import Decommission, DecommissionReport
from bkctl.runtime.replication.run.drain import DrainHooks, OpenLedger
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from tests.runtime.replication.fleet import carry_out
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

CLOSED = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
OPEN = ledger({0: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN)
PATIENT_S = 600.0


async def started(
    cluster: RepairCluster, mode: BookieMode = BookieMode.READ_ONLY, policy: OpenLedgers = OpenLedgers.WAIT
) -> Decommission:
    """A cluster in which b1 is to leave, and the others can take its ledgers."""
    await cluster.start("b1", mode=mode)
    await cluster.start("b2", "b3", "b4")
    recovery = cluster.recovery_by(Policy(config=cluster.recovery.policy.config, open_ledgers=policy))
    return Decommission(recovery, CookieStore(cluster.metadata_store, ROOT), cluster.ports)


async def drain(
    decommission: Decommission,
    wait_s: float = PATIENT_S,
    told: list[tuple[OpenLedger, ...]] | None = None,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    is_drain_only: bool = True,
) -> DecommissionReport:
    hooks = DrainHooks(on_progress=on_progress, on_open=lambda each: None if told is None else told.append(tuple(each)))
    plan = await decommission.plan(["b1"])
    return await decommission.report(plan, await decommission.move(plan, wait_s, hooks), is_drain_only=is_drain_only)


async def move_writer(cluster: RepairCluster, ledger_id: int, entries: int) -> None:
    """The writer adds an entry: it finds b1 read-only, and starts a segment without it."""
    found = await cluster.ports.ledgers.read(ledger_id)
    segment = Segment(entries, ("b3", "b2"))
    metadata = msgspec.structs.replace(found.value, segments=(*found.value.segments, segment))
    await cluster.ports.ledgers.write(ledger_id, metadata, found.version)


async def require_all_copies(cluster: RepairCluster, ledger_ids: list[int]) -> None:
    """Every member that the metadata names has all its entries, and serves."""
    for ledger_id in ledger_ids:
        metadata: LedgerMetadata = (await cluster.ports.ledgers.read(ledger_id)).value
        for entry_id in range(metadata.last_entry_id + 1):
            ensemble = metadata.segment_of(entry_id).ensemble
            for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size):
                assert entry_id in cluster.copies[ensemble[index]][ledger_id], (ledger_id, entry_id, ensemble)


def test_t45_a_drain_keeps_all_copies_and_waits_for_three_writers() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        closed = [await cluster.store(CLOSED) for _ in range(20)]
        writing = [await cluster.store(OPEN, entries=5) for _ in range(3)]
        told: list[tuple[OpenLedger, ...]] = []

        async def write() -> None:
            for ledger_id in writing:
                await cluster.clock.sleep(30)
                await move_writer(cluster, ledger_id, entries=5)

        async def watch() -> int:
            looks = 0
            while any(["b1" in (await cluster.ensembles(each))[0] for each in closed]):
                await require_all_copies(cluster, closed)
                await cluster.clock.sleep(0.0001)
                looks += 1
            return looks

        writers, watcher = asyncio.create_task(write()), asyncio.create_task(watch())
        report = await drain(decommission, told=told)
        await writers
        assert await watcher > 3

        assert (report.is_complete, report.remaining, report.open_ledgers) == (True, (), ())
        assert {len(each) for each in told} == {1, 2, 3}
        for ledger_id in (*closed, *writing):
            assert all("b1" not in ensemble for ensemble in (await cluster.ensembles(ledger_id)).values())
        for ledger_id in writing:
            assert (await cluster.ports.ledgers.read(ledger_id)).value.state is LedgerState.OPEN
            assert cluster.holds((await cluster.ensembles(ledger_id))[0][0], ledger_id) == list(range(5))

        plan = await decommission.plan(["b1"])
        await cluster.stop("b1")
        removed = await carry_out(decommission, msgspec.structs.replace(plan, live=frozenset()))
        assert removed.cookies_deleted == ("b1",)

    simulate(scenario, ReplicationConfig(ledgers_in_parallel=1))


@pytest.mark.parametrize("is_drain_only", [False, True])
def test_t46_a_ledger_without_a_good_copy_is_reported_and_keeps_the_cookie(is_drain_only: bool) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        lost = await cluster.store(CLOSED, holes=["b1", "b2"])
        good = [await cluster.store(CLOSED) for _ in range(3)]
        report = await drain(decommission, is_drain_only=is_drain_only)
        assert report.remaining == (lost,)
        assert report.refusal is not None
        assert ("cookie" in report.refusal) is not is_drain_only  # a drain never deletes one
        assert report.has_progress
        for ledger_id in good:
            assert "b1" not in (await cluster.ensembles(ledger_id))[0]

    simulate(scenario)


@pytest.mark.parametrize("policy", OpenLedgers)
def test_an_idle_writer_holds_a_drain_up_only_until_the_limit(policy: OpenLedgers) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster, policy=policy)
        owner = (("application", b"pulsar"), ("pulsar/managed-ledger", b"t/ns/persistent/orders"))
        idle = await cluster.store(msgspec.structs.replace(OPEN, custom_metadata=owner), entries=5)
        await cluster.store(CLOSED)
        began_ns = cluster.clock.monotonic_ns()
        moments: list[RecoveryProgress] = []
        report = await drain(decommission, 60.0, on_progress=moments.append)
        seconds = (cluster.clock.monotonic_ns() - began_ns) / 1e9
        if policy is OpenLedgers.FENCE:
            assert report.is_complete
            assert (await cluster.ports.ledgers.read(idle)).value.last_entry_id == 4
            return
        assert (seconds >= 60) is (policy is OpenLedgers.WAIT)
        waits = [each for each in moments if each.waiting_for_writers]
        assert bool(waits) is (policy is OpenLedgers.WAIT)
        for each in waits:
            assert (each.ledgers_done, each.ledgers_total, each.ledgers_failed, each.entries_copied) == (1, 2, 0, 10)
            assert 0 < each.writers_wait_s <= 60
        (still_open,) = report.open_ledgers
        assert (still_open.ledger_id, still_open.owner) == (idle, "topic persistent://t/ns/orders")
        assert report.refusal is not None
        assert "; it waits for its writer" in report.refusal
        assert (await cluster.ports.ledgers.read(idle)).value.state is LedgerState.OPEN

    simulate(scenario)


def test_a_drain_that_waits_says_why_ledgers_failed() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        live = sorted((await cluster.ports.registrations.snapshot()).live)
        await cluster.store(ledger({0: tuple(live)}, 2, 2, last_entry_id=4, length=5))
        await cluster.store(OPEN, entries=5)
        moments: list[RecoveryProgress] = []
        await drain(decommission, 10.0, on_progress=moments.append)
        waits = [each.failed for each in moments if each.waiting_for_writers]
        assert set(waits) == {", 1 failed (no bookie to copy to)"}

    simulate(scenario)


def test_a_bookie_that_is_writable_again_ends_the_drain() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        await cluster.store(OPEN, entries=5)

        async def restart() -> None:
            await cluster.clock.sleep(20)
            await cluster.set_mode("b1", BookieMode.WRITABLE)

        restarting = asyncio.create_task(restart())
        with pytest.raises(ConflictError, match="bookie b1 is writable again"):
            await drain(decommission)
        await restarting

    simulate(scenario)


def test_a_bookie_that_dies_during_the_drain_is_no_longer_asked() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        ids = [await cluster.store(CLOSED) for _ in range(5)]
        plan = await decommission.plan(["b1"])
        await cluster.stop("b1")
        report = await decommission.report(
            plan, await decommission.move(plan, PATIENT_S, DrainHooks()), is_drain_only=True
        )
        assert (report.is_complete, report.read_only, report.down) == (True, (), ("b1",))
        assert cluster.asked("b1") == []
        for ledger_id in ids:
            assert "b1" not in (await cluster.ensembles(ledger_id))[0]

    simulate(scenario)


def test_a_bookie_whose_session_ended_in_an_outage_is_still_asked_after_it() -> None:
    """The drain's own session outlives the outage, and none of its operations fails."""

    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        ledger_id = await cluster.store(OPEN, holes=["b2"], entries=5)
        running = asyncio.create_task(drain(decommission))
        await cluster.clock.sleep(20)
        assert not running.done(), "it waits for the writer"
        await move_writer(cluster, ledger_id, entries=5)
        await cluster.withdraw("b1")
        cluster.link.cut()
        await cluster.clock.sleep(6)
        cluster.link.restore()
        await cluster.clock.sleep(3)
        await cluster.set_mode("b1", BookieMode.READ_ONLY)
        report = await running
        assert report.is_complete, report
        assert cluster.holds((await cluster.ensembles(ledger_id))[0][0], ledger_id) == list(range(5))

    simulate(scenario)


def test_a_ledger_that_appears_after_the_drain_keeps_the_cookie() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        await cluster.store(CLOSED)
        plan = await decommission.plan(["b1"])
        moved = await decommission.move(plan, PATIENT_S, DrainHooks())
        assert (await decommission.report(plan, moved, is_drain_only=True)).is_complete
        late = await cluster.store(CLOSED)
        await cluster.stop("b1")
        kept: list[str] = []
        hooks = DrainHooks(keep_cookie=lambda bookie_id, _: kept.append(bookie_id))
        report = await decommission.finish(plan, moved, hooks)
        assert (report.remaining, kept, report.cookies_deleted) == ((late,), [], ())

    simulate(scenario)


def test_two_bookies_leave_together() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        await cluster.start("b5", mode=BookieMode.READ_ONLY)
        both = await cluster.store(ledger({0: ["b1", "b5"]}, 2, 2, last_entry_id=9, length=100))
        plan = await decommission.plan(["b5", "b1"])
        report = await decommission.report(
            plan, await decommission.move(plan, PATIENT_S, DrainHooks()), is_drain_only=True
        )
        assert (report.bookie_ids, report.is_complete) == (("b1", "b5"), True)
        assert set((await cluster.ensembles(both))[0]) <= {"b2", "b3", "b4"}

    simulate(scenario)


@pytest.mark.parametrize("policy", OpenLedgers)
def test_writers_have_time_to_leave_a_dead_bookie_unless_fencing_is_asked_for(policy: OpenLedgers) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster, policy=policy)
        idle, active = [await cluster.store(OPEN, entries=5) for _ in range(2)]
        await cluster.stop("b1")
        plan = await decommission.plan(["b1"])
        assert not plan.live

        async def write() -> None:
            await cluster.clock.sleep(5)
            if policy is not OpenLedgers.FENCE:
                await move_writer(cluster, active, entries=5)

        writer = asyncio.create_task(write())
        began_ns = cluster.clock.monotonic_ns()
        report = await decommission.report(plan, await decommission.move(plan, 60.0, DrainHooks()), is_drain_only=True)
        seconds = (cluster.clock.monotonic_ns() - began_ns) / 1e9
        await writer
        states = [(await cluster.ports.ledgers.read(each)).value.state for each in (idle, active)]
        assert (seconds >= 30) is (policy is OpenLedgers.WAIT)
        assert report.is_complete is (policy is not OpenLedgers.SKIP)
        assert (
            states
            == {
                OpenLedgers.WAIT: [LedgerState.CLOSED, LedgerState.OPEN],
                OpenLedgers.SKIP: [LedgerState.OPEN, LedgerState.OPEN],
                OpenLedgers.FENCE: [LedgerState.CLOSED, LedgerState.CLOSED],
            }[policy]
        )

    simulate(scenario)


def test_a_cookie_that_was_made_meanwhile_is_no_success() -> None:
    """The plan had none to delete: the bookie belongs to the cluster again."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=3, length=40))
        cookies = CookieStore(cluster.metadata_store, ROOT)
        await cluster.stop("b1")
        await cookies.delete("b1", await cookies.read("b1"))
        operation = Decommission(cluster.recovery, cookies, cluster.ports)
        plan = await operation.plan(["b1"])
        moved = await operation.move(plan, 0.0, DrainHooks())
        await cookies.create(Cookie(bookie_id="b1", journal_directories=("/j",), ledger_directories=("/l",)))
        report = await operation.finish(plan, moved, DrainHooks())
        assert report.refusal == "bookie b1 got a cookie in the meantime: repeat the command"

    simulate(scenario)
