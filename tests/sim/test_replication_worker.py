"""The replication worker of the autorecovery daemon, in virtual time."""

from __future__ import annotations

from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import marked_ids, marks_of, serving, until_unmarked, worker_on
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate


def test_marked_ledgers_of_a_lost_bookie_are_copied_and_their_marks_cleared() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        closed = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=100)
        ids = [await cluster.store(closed) for _ in range(20)]
        for ledger_id in ids:
            await marks_of(cluster).mark(ledger_id, ["b1"])
        worker = worker_on(cluster)
        async with serving(worker):
            await until_unmarked(cluster)
        for ledger_id in ids:
            assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}
            assert cluster.holds("b4", ledger_id) == list(range(10))
        status = worker.status()
        assert (status.ledgers_repaired, status.ledgers_failed, status.held) == (20, 0, ())
        assert status.bytes_copied > 0
        assert await cluster.metadata_store.children(f"{ROOT}/underreplication/locks") == []
        assert await marked_ids(cluster) == []

    simulate(scenario)
