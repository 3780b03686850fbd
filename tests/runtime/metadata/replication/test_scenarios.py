"""Markers, workers and auditors over the model of ZooKeeper, with faults: seeds replay exactly."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import ConflictError, MetadataUnavailableError
from bkctl.runtime.metadata.replication.directories import ForeignNames, UnderReplicationTree
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks, list_marks, read_mark
from bkctl.runtime.metadata.replication.work import PickedLedger, ReplicationWork
from tests.runtime.metadata.replication_peer import pick_any
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

ROOT = "/ledgers"
LOCKS = f"{ROOT}/underreplication/locks"
LEDGERS = (0, 1, 2, 0x10000, 2**40, 2**62)
_CONFIG = ZooKeeperConfig(session_timeout_ms=4000, operation_timeout_s=3.0)


class Process:
    """A store over a link that faults happen to."""

    def __init__(self, store: ModelMetadataStore, link: ModelLink) -> None:
        self.store = store
        self.link = link


class Cluster:
    """A model server; everything random comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.clock = VirtualClock(seed)
        self.server = ModelZooKeeper(self.clock)
        self.random = random.Random(seed)
        self.processes: list[Process] = []

    async def connect(self) -> ModelMetadataStore:
        link = ModelLink()
        store = await ModelMetadataStore.connect(self.server, link, self.clock, _CONFIG)
        self.processes.append(Process(store, link))
        return store

    async def disturb(self, seconds: float) -> None:
        """Sessions end, links break, answers are lost; all is well at the end."""
        end_ns = self.clock.monotonic_ns() + int(seconds * 1e9)
        while self.clock.monotonic_ns() < end_ns:
            process = self.random.choice(self.processes[1:])
            fault = self.random.choice(("expire", "cut", "lose answers", "freeze"))
            if fault == "expire":
                self.server.end_session(process.store.session_id)
            elif fault == "cut":
                process.link.cut()
            elif fault == "freeze":
                process.link.freeze()
            else:
                process.link.lose_answers()
            await self.clock.sleep(self.random.uniform(0.0, 6.0))
            process.link.cut()
            process.link.restore()
            await self.clock.sleep(self.random.uniform(0.0, 2.0))

    async def close(self) -> None:
        for process in self.processes:
            await process.store.close()


class Repairs:
    """What was asked for and what was seen by whoever repaired: one bookie id per request, never used twice."""

    def __init__(self) -> None:
        self.asked: dict[int, set[str]] = collections.defaultdict(set)
        self.repaired: dict[int, set[str]] = collections.defaultdict(set)
        self.lost = 0


async def mark_now_and_then(cluster: Cluster, repairs: Repairs, store: ModelMetadataStore, name: str) -> None:
    marks = UnderReplicationMarks(store, ROOT, cluster.clock)
    for number in range(60):
        ledger_id = cluster.random.choice(LEDGERS)
        bookie_id = f"{name}-{number}:3181"
        try:
            await marks.mark(ledger_id, [bookie_id])
        except MetadataUnavailableError:
            repairs.lost += 1
        else:
            repairs.asked[ledger_id].add(bookie_id)
        await cluster.clock.sleep(cluster.random.uniform(0.0, 1.0))


async def repair(
    cluster: Cluster, repairs: Repairs, store: ModelMetadataStore, work: ReplicationWork, changed: asyncio.Event
) -> None:
    """For ever: what is seen while the lock is held is repaired. What is locked is looked at again after 10 seconds."""
    while True:
        picked: PickedLedger | None = None
        try:
            changed.clear()
            picked = await pick_any(work)
            if picked is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(10.0 if await store.children(LOCKS) else None):
                        await changed.wait()
                continue
            found = await read_mark(store, ROOT, picked.ledger_id)
            await cluster.clock.sleep(cluster.random.uniform(0.0, 0.5))
            if cluster.random.random() < 0.2:
                await picked.release()
                continue
            if found is not None and found.mark is not None:
                repairs.repaired[picked.ledger_id].update(found.mark.missing_bookies)
            await work.finish(picked)
        except (MetadataUnavailableError, ConflictError):
            if picked is not None:
                await picked.release()
            await cluster.clock.sleep(0.1)
            changed.set()


async def run_workers(seed: int, *, has_faults: bool) -> None:
    cluster, repairs = Cluster(seed), Repairs()
    calm = await cluster.connect()
    await calm.create(ROOT)
    await UnderReplicationTree(calm, ROOT).require()
    tasks = []
    for _ in range(3):
        store = await cluster.connect()
        marks = UnderReplicationMarks(store, ROOT, cluster.clock)
        locks = ReplicationLocks(store, ROOT, "host")
        changed = asyncio.Event()
        work = ReplicationWork(store, ROOT, marks, locks, changed.set)
        tasks.append(asyncio.ensure_future(repair(cluster, repairs, store, work, changed)))
    markers = [mark_now_and_then(cluster, repairs, await cluster.connect(), f"marker{number}") for number in range(2)]
    await asyncio.gather(*markers, *([cluster.disturb(60.0)] if has_faults else []))
    async with asyncio.timeout(600):  # virtual seconds: a worker that missed its cue would sleep for ever
        while [found async for found in list_marks(calm, ROOT, ForeignNames())]:
            await cluster.clock.sleep(1.0)
    await cluster.clock.sleep(5.0)
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for ledger_id, asked in repairs.asked.items():
        assert asked <= repairs.repaired[ledger_id], "a mark was cleared by somebody who had not seen it"
    assert sum(map(len, repairs.asked.values())) + repairs.lost == 120
    await cluster.close()
    assert await locks_left(cluster) == []


async def locks_left(cluster: Cluster) -> list[str]:
    looker = await cluster.connect()
    try:
        return await looker.children(f"{ROOT}/underreplication/locks")
    finally:
        await looker.close()


@pytest.mark.parametrize("seed", range(3))
def test_no_mark_is_lost_and_no_worker_oversleeps(seed: int) -> None:
    run_simulated(run_workers(seed, has_faults=False))


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.battery) for seed in range(4, 30))])
def test_the_same_with_faults(seed: int) -> None:
    run_simulated(run_workers(seed, has_faults=True))


async def run_elections(seed: int) -> None:
    cluster = Cluster(seed)
    calm = await cluster.connect()
    await calm.create(ROOT)
    elections: list[AuditorElection] = []
    owner: dict[AuditorElection, ModelMetadataStore] = {}

    async def stand(store: ModelMetadataStore, name: str) -> None:
        deposed = asyncio.Event()
        election = AuditorElection(store, ROOT, name, lambda _: deposed.set())
        elections.append(election)
        owner[election] = store
        while True:
            deposed.clear()
            try:
                await election.campaign()
            except MetadataUnavailableError:
                await cluster.clock.sleep(0.1)
                continue
            await deposed.wait()
            assert not election.is_elected

    tasks = [asyncio.ensure_future(stand(await cluster.connect(), f"bookie{number}:3181")) for number in range(4)]

    async def delete_votes_by_hand() -> None:
        for _ in range(5):
            await cluster.clock.sleep(cluster.random.uniform(1.0, 12.0))
            votes = await calm.children(f"{ROOT}/underreplication/auditorelection")
            if votes:
                await calm.delete(f"{ROOT}/underreplication/auditorelection/{cluster.random.choice(votes)}")

    await asyncio.gather(cluster.disturb(60.0), delete_votes_by_hand())
    await cluster.clock.sleep(30.0)
    assert [election.is_elected for election in elections].count(True) == 1
    votes = await calm.children(f"{ROOT}/underreplication/auditorelection")
    assert len(votes) <= len(elections), "no vote is left behind that nobody knows of"
    winner = next(election for election in elections if election.is_elected)
    node = await calm.get(f"{ROOT}/underreplication/auditorelection/{votes[0]}")
    assert node.stat.ephemeral_owner == owner[winner].session_id
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await cluster.close()


@pytest.mark.parametrize("seed", range(20))
def test_one_auditor_when_the_dust_settles(seed: int) -> None:
    run_simulated(run_elections(seed))
