"""A migration of Pulsar's metadata that begins while a command works, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.errors import RefusedError
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.pulsar_migration import FLAG_AGE_S_MAX, FLAG_PATH
from bkctl.runtime.metadata.store import ANY_VERSION
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.run.drain import DrainHooks
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import RepairCluster, simulate
from tests.sim.test_drain import OPEN, PATIENT_S, started

CLOSED = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
COPYING = b'{"phase": "COPYING"}'
REFUSAL = f"Pulsar is migrating its metadata: wait until that has ended, then repeat the command \\({FLAG_PATH}\\)"


async def begin(cluster: RepairCluster, state: bytes = COPYING) -> None:
    await cluster.metadata_store.create(FLAG_PATH, state, make_parents=True)


def test_a_recovery_stops_in_the_middle_of_a_ledger() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ids = [await cluster.store(CLOSED) for _ in range(3)]
        cluster.refuse("add", "b3", Status.TOO_MANY_REQUESTS)
        plan = await cluster.recovery.plan(["b1"])
        running = asyncio.create_task(cluster.recovery.run(plan))
        await cluster.clock.sleep(0.001)
        await begin(cluster)
        with pytest.raises(RefusedError, match=REFUSAL):
            await running
        assert cluster.asked("b3", "add"), "it had begun to copy"
        for ledger_id in ids:
            assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2")}

    simulate(scenario)


def test_a_change_relies_on_a_recent_look() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        ledgers = cluster.ports.ledgers
        ledger_id = await cluster.store(OPEN, entries=1)
        stored = await ledgers.read(ledger_id)
        await begin(cluster)
        await cluster.clock.sleep(FLAG_AGE_S_MAX)
        with pytest.raises(RefusedError, match=REFUSAL):
            await ledgers.write(ledger_id, stored.value, stored.version)
        with pytest.raises(RefusedError, match=REFUSAL):
            await ledgers.delete(ledger_id)
        with pytest.raises(RefusedError, match=REFUSAL):
            await ledgers.create(OPEN)
        assert await ledgers.read(ledger_id) == stored

        await cluster.metadata_store.set(FLAG_PATH, b'{"phase": "FAILED"}', ANY_VERSION)
        await cluster.clock.sleep(FLAG_AGE_S_MAX)
        await ledgers.write(ledger_id, stored.value, stored.version)

    simulate(scenario)


def test_a_drain_stops_while_it_waits_for_writers() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        decommission = await started(cluster)
        ledger_id = await cluster.store(OPEN, entries=5)
        plan = await decommission.plan(["b1"])
        moving = asyncio.create_task(decommission.move(plan, PATIENT_S, DrainHooks()))
        await cluster.clock.sleep(20)
        assert not moving.done()
        await begin(cluster)
        with pytest.raises(RefusedError, match=REFUSAL):
            await moving
        assert (await cluster.ports.ledgers.read(ledger_id)).value.state is LedgerState.OPEN

    simulate(scenario)
