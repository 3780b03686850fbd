"""The auditor marks the first ledger long before it has read the others."""

from __future__ import annotations

import dataclasses
from contextlib import aclosing

from bkctl.runtime.autorecovery.auditor import LostBookieScan, ScanAim
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Turn
from bkctl.runtime.autorecovery.publisher import Publisher
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from tests.counting_store import CountingStore
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

LEDGERS = 300
READS_MAX = 100


def test_the_first_request_comes_after_few_reads() -> None:
    """Requests to ZooKeeper are served in their order: a long read-ahead would come before the first mark."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2")
        for _ in range(LEDGERS):
            await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=-1, length=0))
        store = CountingStore(cluster.metadata_store)
        ports = dataclasses.replace(
            cluster.ports, ledgers=await open_ledger_store(store, ROOT, LedgerTree.HIERARCHICAL)
        )
        publisher = Publisher(ports, cluster.metadata_store, AutorecoveryConfig())
        aim, live = ScanAim(due=frozenset({"b1"})), frozenset({"b2"})
        scan = LostBookieScan(ports, publisher, lambda: aim, lambda: live)
        requests = scan.requests(Turn(cluster.clock))
        async with aclosing(requests):
            assert (await anext(requests)).missing_bookies == ("b1",)
        assert store.counts["get"] < READS_MAX

    simulate(scenario)
