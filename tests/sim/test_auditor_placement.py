"""The auditor's check of placement in virtual time. Source: replication section 14."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Collection
from typing import cast

import msgspec
import pytest

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.metadata_check import PlacementCheck
from bkctl.runtime.autorecovery.publisher import Publisher
from bkctl.runtime.client.placement import PlacementSources, placement_on
from bkctl.runtime.config import PlacementConfig
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.replication.recovery_notes import LedgerCount
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore, Node
from bkctl.runtime.net.rack_files import OsRackFiles
from bkctl.runtime.placement.isolation import CUSTOM_METADATA_KEY
from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import serving, worker_on
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate
from tests.sim.test_auditor import auditing, marks
from tests.sim.test_auditor_checks import BOOKIES, last_check_ms

POLICY = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
GOLD = (
    (
        CUSTOM_METADATA_KEY,
        json.dumps({"policyClass": POLICY, "properties": {"isolationBookieGroups": "gold"}}).encode(),
    ),
)
RACKS = {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2"}
MARKING = AutorecoveryConfig(is_misplaced_marked=True, placement_check_interval_s=3600)


async def with_racks(
    cluster: RepairCluster,
    racks: dict[str, str],
    gold: Collection[str] = (),
    config: PlacementConfig | None = None,
) -> None:
    """Bookies in these racks, and in the isolation group gold, as Pulsar stores them."""
    await cluster.start(*racks)
    node: dict[str, dict[str, dict[str, str]]] = {"gold": {}, "default": {}}
    for bookie_id, rack in racks.items():
        node["gold" if bookie_id in gold else "default"][bookie_id] = {"rack": rack}
    await cluster.metadata_store.create("/bookies", json.dumps(node).encode())
    ports = cluster.ports
    sources = PlacementSources(
        cluster.metadata_store, ports.registrations, ports.bookies, cluster.clock, OsRackFiles(), ROOT
    )
    cluster.ports = dataclasses.replace(ports, placement=placement_on(config or PlacementConfig(), sources))


async def duo(cluster: RepairCluster, *ensemble: str, state: LedgerState = LedgerState.CLOSED) -> int:
    last_entry_id = 9 if state is LedgerState.CLOSED else -1
    return await cluster.store(ledger({0: list(ensemble)}, 2, 2, state=state, last_entry_id=last_entry_id, length=100))


@pytest.mark.parametrize("is_marked", [True, False])
def test_ledgers_in_one_rack_are_found_and_marked_only_if_that_is_switched_on(is_marked: bool) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        misplaced = await duo(cluster, "b1", "b2")
        await duo(cluster, "b1", "b4")
        await duo(cluster, "b1", "b2", state=LedgerState.OPEN)
        await cluster.store(ledger({0: ["b1", "b4"], 10: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100))
        async with auditing(cluster, msgspec.structs.replace(MARKING, is_misplaced_marked=is_marked)) as auditor:
            await cluster.clock.sleep(10)
            assert await marks(cluster) == ({misplaced: ()} if is_marked else {})
            found = auditor.placement.result
            assert found is not None
            assert (found.ledgers, found.marked) == (3, int(is_marked))
            assert found.broken == found.improvable == LedgerCount(1, (misplaced,))
            assert await last_check_ms(cluster, PeriodicCheck.PLACEMENT) == found.ended_ms

    simulate(scenario)


def test_a_ledger_that_no_worker_can_improve_is_not_marked() -> None:
    """The only bookie of the other rack takes no copies; or a copy is lost, which comes first."""

    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        await cluster.set_mode("b4", BookieMode.READ_ONLY)
        await duo(cluster, "b1", "b2")
        async with auditing(cluster, MARKING) as auditor:
            await cluster.clock.sleep(10)
            await cluster.set_mode("b4", BookieMode.WRITABLE)
            await cluster.stop("b2")
            await cluster.clock.sleep(10)
            first = auditor.placement.result
            assert first is not None
            assert (first.broken.ledgers, first.improvable.ledgers) == (1, 0)
            await cluster.clock.sleep(3600)
            second = auditor.placement.result
            assert second is not None
            assert second.ended_ms > first.ended_ms
            assert (second.broken.ledgers, second.improvable.ledgers) == (1, 0)
            assert () not in (await marks(cluster)).values()

    simulate(scenario)


def test_in_a_cluster_of_one_rack_no_ledger_breaks_a_rule() -> None:
    """Java marks every ledger then, and no worker can ever clear the marks."""

    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        await duo(cluster, "b1", "b2")
        await cluster.stop("b4")
        async with auditing(cluster, MARKING) as auditor:
            await cluster.clock.sleep(10)
            found = auditor.placement.result
            assert found is not None
            assert (found.ledgers, found.broken.ledgers) == (1, 0)

    simulate(scenario)


def test_while_autorecovery_is_disabled_placement_is_not_checked() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        misplaced = await duo(cluster, "b1", "b2")
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        await switches.disable()
        async with auditing(cluster, MARKING) as auditor:
            await cluster.clock.sleep(1000)
            assert auditor.placement.result is None
            assert await last_check_ms(cluster, PeriodicCheck.PLACEMENT) is None
            await switches.enable()
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {misplaced: ()}

    simulate(scenario)


def test_a_ledger_outside_of_its_isolation_group_is_found() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, dict.fromkeys(BOOKIES, "/r1"), gold=("b1", "b2"))
        metadata = ledger({0: ["b1", "b3"]}, 2, 2, last_entry_id=9, length=100)
        outside = await cluster.store(msgspec.structs.replace(metadata, custom_metadata=GOLD))
        await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100))
        async with auditing(cluster, MARKING):
            await cluster.clock.sleep(10)
            assert await marks(cluster) == {outside: ()}

    simulate(scenario)


def test_what_the_check_of_placement_marks_a_worker_moves() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        misplaced = await duo(cluster, "b1", "b2")
        async with auditing(cluster, MARKING) as auditor, serving(worker_on(cluster)):
            await cluster.clock.sleep(60)
            first = auditor.placement.result
            assert first is not None
            assert (first.broken.ledgers, first.marked) == (1, 1)
            (ensemble,) = (await cluster.ensembles(misplaced)).values()
            assert "b4" in ensemble
            assert len({"b1", "b2"}.intersection(ensemble)) == 1
            assert cluster.holds("b4", misplaced) == list(range(10))
            assert await marks(cluster) == {}
            await cluster.clock.sleep(3600)
            second = auditor.placement.result
            assert second is not None
            assert (second.ledgers, second.broken.ledgers) == (1, 0)

    simulate(scenario)


class _DisablingStore:
    """A session that disables autorecovery when it has read the metadata of a ledger."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self._path = path

    async def get(self, path: str) -> Node:
        node = await self._store.get(path)
        if path == self._path:
            self._path = ""
            await ReplicationSwitches(self._store, ROOT).disable()
        return node

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_a_check_of_placement_that_could_not_mark_all_is_repeated() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        misplaced = await duo(cluster, "b1", "b2")
        store = _DisablingStore(cluster.metadata_store, cluster.ports.ledgers.path(misplaced))
        ledgers = await open_ledger_store(cast("MetadataStore", store), ROOT, LedgerTree.HIERARCHICAL)
        config = msgspec.structs.replace(MARKING, check_period_s=0.0, replicas_check_interval_s=0.0)
        ports = cluster.ports
        publisher = Publisher(ports, cluster.metadata_store, config)
        ports = dataclasses.replace(ports, ledgers=ledgers)
        check = PlacementCheck(ports, cluster.metadata_store, config, publisher)
        checking = asyncio.ensure_future(check.lane.serve())
        await cluster.clock.sleep(60)
        assert await marks(cluster) == {}
        assert check.result is None
        assert await last_check_ms(cluster, PeriodicCheck.PLACEMENT) is None
        await ReplicationSwitches(cluster.metadata_store, ROOT).enable()
        check.lane.wake()
        await cluster.clock.sleep(60)
        assert await marks(cluster) == {misplaced: ()}
        checking.cancel()
        await asyncio.wait((checking,))

    simulate(scenario)
