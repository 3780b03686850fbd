"""Marked ledgers without entries still have to lose the bookie that is gone."""

from __future__ import annotations

from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import marks_of, serving, until_unmarked, worker_on
from tests.sim.repair_cluster import RepairCluster, simulate


def test_an_empty_ledger_marked_right_after_the_end_of_its_bookie_is_repaired() -> None:
    """The worker's list of registered bookies is older than the mark, and no entry makes it read the list again."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        first = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=-1, length=0))
        empty = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=-1, length=0))
        async with serving(worker_on(cluster)):
            await marks_of(cluster).mark(first, ["b1"])
            await until_unmarked(cluster, every_s=0.01)  # the worker has read the list
            await cluster.stop("b1")
            await marks_of(cluster).mark(empty, ["b1"])
            await until_unmarked(cluster, every_s=0.01)
            assert "b1" not in (await cluster.ports.ledgers.read(empty)).value.bookies()

    simulate(scenario)
