"""Auditors under random losses, outages and changes of office, in virtual time. More seeds find more."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence

import pytest

from bkctl.runtime.autorecovery.auditor import REPEAT_S, Auditor
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.replication.judge.verdict import ReplicationState, judge_ledger, write_set_rows
from tests.runtime.replication.samples import ledger
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate
from tests.sim.test_auditor import losses, marks

SEEDS = 2
SEEDS_OF_BATTERY = 40
STEPS = 40
DELAY_S = 60
BOOKIES = tuple(f"b{number}" for number in range(1, 8))


class Office:
    """An auditor in a process of its own."""

    def __init__(self, store: ModelMetadataStore, link: ModelLink, ports: ClientPorts) -> None:
        config = AutorecoveryConfig(lost_bookie_delay_s=DELAY_S)
        self.auditor = Auditor(ports, store, config)
        self.store = store
        self.link = link
        self.serving = asyncio.ensure_future(self.auditor.serve())

    @classmethod
    async def open(cls, cluster: RepairCluster) -> Office:
        link = ModelLink()
        store = await cluster.connect(link)
        ledgers = await open_ledger_store(store, ROOT, LedgerTree.HIERARCHICAL)
        ports = dataclasses.replace(cluster.ports, ledgers=ledgers, registrations=RegistrationClient(store, ROOT))
        return cls(store, link, ports)

    async def close(self) -> None:
        assert not self.serving.done()
        self.serving.cancel()
        await asyncio.wait((self.serving,))
        await self.store.close()


class Scenario:
    """Random steps, then rest, then a comparison with what must be marked."""

    def __init__(self, cluster: RepairCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        self.kept: dict[str, dict[int, dict[int, bytes]]] = {}
        self.ledgers: dict[int, LedgerMetadata] = {}
        self.offices: list[Office] = []

    async def run(self) -> None:
        await self.cluster.start(*BOOKIES)
        await self.add_ledgers(60)
        self.offices.append(await Office.open(self.cluster))
        steps = [self.lose, self.bring_back, self.toggle, self.cut, self.succeed, self.add, self.write_delay]
        for _ in range(STEPS):
            await self.random.choice(steps)()
            await self.cluster.clock.sleep(self.random.choice((0, 0.01, 1, 20, 70)))
        await self.settle()
        await self.compare()
        for office in self.offices:
            await office.close()

    async def add_ledgers(self, count: int) -> None:
        for _ in range(count):
            live = sorted(self.cluster.copies)
            size = self.random.randint(2, min(4, len(live)))
            quorum = self.random.randint(2, size)
            segments: dict[int, Sequence[str]] = {0: self.random.sample(live, size)}
            if self.random.random() < 0.5:
                segments[5] = self.random.sample(live, size)
            metadata = ledger(segments, quorum, quorum, last_entry_id=9, length=100)
            self.ledgers[await self.cluster.store(metadata)] = metadata

    async def add(self) -> None:
        await self.add_ledgers(3)

    async def lose(self) -> None:
        live = sorted(self.cluster.copies)
        if len(live) > 3:
            bookie_id = self.random.choice(live)
            self.kept[bookie_id] = self.cluster.copies[bookie_id]
            await self.cluster.stop(bookie_id)

    async def bring_back(self) -> None:
        if self.kept:
            bookie_id = self.random.choice(sorted(self.kept))
            await self.cluster.start(bookie_id)
            self.cluster.copies[bookie_id] = self.kept.pop(bookie_id)

    async def toggle(self) -> None:
        await self.switches.disable() or await self.switches.enable()

    async def cut(self) -> None:
        """An auditor loses ZooKeeper, often for longer than its session."""
        office = self.random.choice(self.offices)
        office.link.cut()
        self.cluster.clock.call_later(self.random.uniform(0, 40), office.link.restore)

    async def succeed(self) -> None:
        """Another auditor; the old one may be slow to step down."""
        self.offices.append(await Office.open(self.cluster))
        if len(self.offices) > 2 or self.random.random() < 0.5:
            await self.offices.pop(0).close()

    async def write_delay(self) -> None:
        await self.switches.set_recovery_delay(self.random.choice((0, 10, DELAY_S, 100)))

    async def settle(self) -> None:
        while len(self.kept) > 3:
            await self.bring_back()
        await self.switches.enable()
        await self.cluster.clock.sleep(100)
        if self.random.random() < 0.5:  # the last loss of all
            await self.lose()
            while len(self.kept) > 3:
                await self.bring_back()
        await self.cluster.clock.sleep(200 if self.random.random() < 0.8 else REPEAT_S + 200)

    async def compare(self) -> None:
        live, marked, lost = frozenset(self.cluster.copies), await marks(self.cluster), await losses(self.cluster)
        for ledger_id, metadata in self.ledgers.items():
            missing = metadata.bookies() - live
            is_lost = (
                judge_ledger(write_set_rows(ledger_id, metadata), live).replication is ReplicationState.UNAVAILABLE
            )
            assert (ledger_id in lost) is is_lost, (ledger_id, missing)
            if missing and not is_lost:
                assert missing <= set(marked.get(ledger_id, ())), (ledger_id, missing, marked.get(ledger_id))
        notes = await RecoveryNotes(self.cluster.metadata_store, ROOT).deadlines.keys()
        assert sorted(notes) == sorted(set(BOOKIES) - live)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.battery] if seed >= SEEDS else []) for seed in range(SEEDS_OF_BATTERY)],
)
def test_in_the_end_the_right_ledgers_are_marked(seed: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await Scenario(cluster, seed).run()

    simulate(scenario, seed=seed)
