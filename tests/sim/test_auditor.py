"""Scenarios of the auditor in virtual time. Source: replication section 14."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from runtime.autorecovery.auditor import Auditor
from runtime.autorecovery.config import AutorecoveryConfig
from runtime.metadata.replication.directories import ForeignNames
from runtime.metadata.replication.marks import list_marks
from runtime.metadata.replication.recovery_notes import RecoveryNotes
from runtime.metadata.replication.switches import ReplicationSwitches
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

DELAY_60 = AutorecoveryConfig(lost_bookie_delay_s=60)
NO_DELAY = AutorecoveryConfig(lost_bookie_delay_s=0)
BOOKIES = ("b1", "b2", "b3", "b4", "b5", "b6")


@contextlib.asynccontextmanager
async def auditing(cluster: RepairCluster, config: AutorecoveryConfig = DELAY_60) -> AsyncIterator[Auditor]:
    """An auditor in office. At the end all of its lanes must have worked."""
    notes = RecoveryNotes(cluster.metadata_store, ROOT)
    auditor = Auditor(cluster.ports, cluster.metadata_store, ROOT, config, notes)
    serving = asyncio.ensure_future(auditor.serve())
    try:
        yield auditor
        assert not serving.done()
        assert [lane.status.error for lane in auditor.lanes if lane.status.error] == []
        assert sum(lane.status.failures for lane in auditor.lanes) == 0
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


async def marks(cluster: RepairCluster) -> dict[int, tuple[str, ...]]:
    """All marks with the bookies that they name."""
    found = list_marks(cluster.metadata_store, ROOT, ForeignNames())
    async with contextlib.aclosing(found):
        return {each.ledger_id: each.mark.missing_bookies async for each in found if each.mark is not None}


async def losses(cluster: RepairCluster) -> dict[int, tuple[str, ...]]:
    notes = RecoveryNotes(cluster.metadata_store, ROOT).losses
    return {int(key): note.value.missing_bookies async for key, note in notes.all() if not isinstance(note, Exception)}


async def pair(cluster: RepairCluster, *ensemble: str) -> int:
    """A closed ledger with all entries on all bookies of its ensemble."""
    size = len(ensemble)
    return await cluster.store(ledger({0: list(ensemble)}, size, size, last_entry_id=9, length=100))


def test_a_lost_bookie_is_marked_after_its_delay() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost, other = await pair(cluster, "b1", "b2"), await pair(cluster, "b2", "b3")
        async with auditing(cluster):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(20)
            assert await marks(cluster) == {}
            await cluster.clock.sleep(50)
            assert await marks(cluster) == {lost: ("b1",)}
            assert other not in await marks(cluster)

    simulate(scenario)


def test_a_bookie_that_comes_back_in_time_is_not_marked() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await pair(cluster, "b1", "b2")
        async with auditing(cluster):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(20)
            assert await RecoveryNotes(cluster.metadata_store, ROOT).deadlines.keys() == ["b1"]
            await cluster.start("b1")
            await cluster.clock.sleep(100)
            assert await marks(cluster) == {}
            assert await RecoveryNotes(cluster.metadata_store, ROOT).deadlines.keys() == []

    simulate(scenario)


@pytest.mark.parametrize(("written", "marked_after_s"), [(60, 0.1), (0, 0.1), (5, 5.1)])
def test_a_write_of_the_delay(written: int, marked_after_s: float) -> None:
    """The same value and 0 audit now; another one counts from the write."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        await switches.set_recovery_delay(60)
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=1)):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(10)
            assert await marks(cluster) == {}
            await switches.set_recovery_delay(written)
            await cluster.clock.sleep(marked_after_s - 0.1)
            assert await marks(cluster) == {}
            await cluster.clock.sleep(0.2)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)
