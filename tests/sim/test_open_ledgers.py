"""Open ledgers of a failed bookie: wait for their writers, leave them alone, or fence them. Virtual time."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from bkctl.runtime.ledger.changes import replace_bookies
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.store import NodeWrite
from bkctl.runtime.replication.config import OpenLedgers, ReplicationConfig
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from bkctl.runtime.replication.run.recovery import FencedLedger
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import RepairCluster, simulate
from tests.test_repository import our_modules, read

WAIT_S = ReplicationConfig().open_ledger_wait_s
TOPIC = (("application", b"pulsar"), ("pulsar/managed-ledger", b"t/n/persistent/a"))
OPEN = msgspec.structs.replace(
    ledger({0: ["b1", "b2"], 5: ["b1", "b3"]}, 2, 2, state=LedgerState.OPEN), custom_metadata=TOPIC
)


async def started(cluster: RepairCluster) -> int:
    """Bookie b1 is down; an open ledger has three entries in its last segment."""
    await cluster.start("b2", "b3", "b4", "b5")
    return await cluster.store(OPEN, entries=3)


async def change(cluster: RepairCluster, ledger_id: int, first_entry_id: int, index: int, bookie_id: str) -> None:
    """The writer replaces a bookie."""
    stored = await cluster.ports.ledgers.read(ledger_id)
    await cluster.ports.ledgers.write(
        ledger_id, replace_bookies(stored.value, first_entry_id, {index: bookie_id}), stored.version
    )


async def state_of(cluster: RepairCluster, ledger_id: int) -> LedgerState:
    return (await cluster.ports.ledgers.read(ledger_id)).value.state


def test_t9_a_silent_writer_is_fenced_after_the_wait_and_other_ledgers_do_not_wait() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await started(cluster)
        closed = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=50))
        moments: list[RecoveryProgress] = []
        plan = await cluster.recovery.plan(["b1"])
        running = asyncio.create_task(cluster.recovery.run(plan, moments.append))
        await cluster.clock.sleep(WAIT_S - 1)
        assert "b1" not in (await cluster.ensembles(closed))[0]
        assert await state_of(cluster, ledger_id) is LedgerState.OPEN
        assert moments[-1].waiting_for_writers == 1

        report = await running

        assert report.is_complete
        assert report.fenced == (FencedLedger(ledger_id, "topic persistent://t/n/a"),)
        metadata = (await cluster.ports.ledgers.read(ledger_id)).value
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 7)
        assert "b1" not in metadata.bookies()
        assert cluster.clock.monotonic_ns() - plan.scanned_at_ns >= WAIT_S * 1e9

    simulate(scenario)


def test_t8_a_writer_that_moves_off_is_not_fenced() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await started(cluster)
        running = asyncio.create_task(cluster.recover("b1", open_ledgers=OpenLedgers.WAIT))
        await cluster.clock.sleep(WAIT_S / 2)
        await change(cluster, ledger_id, 8, 0, "b4")

        report = await running

        assert (report.is_complete, report.fenced) == (True, ())
        assert await state_of(cluster, ledger_id) is LedgerState.OPEN
        ensembles = await cluster.ensembles(ledger_id)
        assert ensembles[8] == ("b4", "b3")
        assert all("b1" not in ensemble for ensemble in ensembles.values()), "the other segments are complete"

    simulate(scenario)


def test_a_run_without_a_choice_waits_for_writers() -> None:
    """As the commands do: a fence stops the writer, so only a caller that asks for it gets one at once."""

    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await started(cluster)
        running = asyncio.create_task(cluster.recovery.run(await cluster.recovery.plan(["b1"])))
        await cluster.clock.sleep(WAIT_S / 2)
        await change(cluster, ledger_id, 8, 0, "b4")

        assert (await running).fenced == ()
        assert await state_of(cluster, ledger_id) is LedgerState.OPEN

    simulate(scenario)


def test_no_part_fences_open_ledgers_by_default() -> None:
    defaults = {
        path: re.findall(r"open_ledgers: OpenLedgers = OpenLedgers\.(\w+)", read(path)) for path in our_modules()
    }
    found = {path: names for path, names in defaults.items() if names}
    assert found == {"runtime/replication/config.py": ["WAIT"]}


def test_a_writer_that_is_active_but_keeps_the_bookie_is_reported() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await started(cluster)
        running = asyncio.create_task(cluster.recover("b1", open_ledgers=OpenLedgers.WAIT))
        await cluster.clock.sleep(WAIT_S / 2)
        await change(cluster, ledger_id, 8, 1, "b4")

        (failure,) = (await running).failures

        assert (failure.reason, failure.owner) == (FailureReason.OPEN, "topic persistent://t/n/a")
        assert failure.detail == "its writer is active and its last segment still references b1"
        assert await state_of(cluster, ledger_id) is LedgerState.OPEN

    simulate(scenario)


def test_a_writer_that_moves_off_just_before_the_fence_is_not_fenced() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledger_id = await started(cluster)
        store = cluster.ports.ledgers
        original, is_late = store.write, False

        async def write(ledger_id: int, metadata: LedgerMetadata, expected_version: int, *others: NodeWrite) -> Any:
            nonlocal is_late
            if metadata.state is LedgerState.IN_RECOVERY and not is_late:
                is_late = True
                stored = await store.read(ledger_id)
                await original(ledger_id, replace_bookies(stored.value, 8, {0: "b5"}), stored.version)
            return await original(ledger_id, metadata, expected_version, *others)

        store.write = write  # type: ignore[method-assign]
        report = await cluster.recover("b1", open_ledgers=OpenLedgers.WAIT)

        assert is_late
        assert (report.is_complete, report.fenced) == (True, ())
        assert await state_of(cluster, ledger_id) is LedgerState.OPEN
        assert (await cluster.ensembles(ledger_id))[8] == ("b5", "b3")

    simulate(scenario)


@pytest.mark.parametrize("policy", [OpenLedgers.SKIP, OpenLedgers.WAIT])
def test_t12_a_ledger_in_recovery_has_no_writer_and_is_closed(policy: OpenLedgers) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4", "b5")
        in_recovery = await cluster.store(msgspec.structs.replace(OPEN, state=LedgerState.IN_RECOVERY), entries=3)
        started_ns = cluster.clock.monotonic_ns()
        report = await cluster.recover("b1", open_ledgers=policy)
        assert report.is_complete
        assert await state_of(cluster, in_recovery) is LedgerState.CLOSED
        assert cluster.clock.monotonic_ns() - started_ns < WAIT_S * 1e9, "it is not waited for"

        ledger_id = await cluster.store(OPEN, entries=3)
        report = await cluster.recover("b1", open_ledgers=policy)
        assert report.is_complete is (policy is OpenLedgers.WAIT)
        assert await state_of(cluster, ledger_id) is (
            LedgerState.OPEN if policy is OpenLedgers.SKIP else LedgerState.CLOSED
        )

    simulate(scenario)


def test_a_ledger_without_a_target_is_not_fenced_in_vain() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=LedgerState.OPEN), entries=3)

        report = await cluster.recover("b1", open_ledgers=OpenLedgers.WAIT)

        assert [failure.reason for failure in report.failures] == [FailureReason.OPEN]
        assert "no bookie could take its copies" in report.failures[0].detail
        assert await state_of(cluster, ledger_id) is LedgerState.OPEN

    simulate(scenario)
