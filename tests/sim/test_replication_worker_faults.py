"""Replication workers while bookies, sessions and ZooKeeper fail at random: seeds replay exactly."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.write_set import write_set
from bkctl.runtime.replication.judge.fragments import segment_entries
from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import (
    marked_ids,
    marks_of,
    process_on,
    serving,
    until_unmarked,
    worker_of_its_own,
    worker_on,
)
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

BOOKIES = [f"b{number}" for number in range(8)]


def some_ledger(source: random.Random) -> tuple[LedgerMetadata, int]:
    """A ledger with three copies of each entry, and the entries of its open last segment."""
    size = source.randint(3, 5)
    starts = [0, *sorted(source.sample(range(1, 30), source.randint(0, 2)))]
    segments: dict[int, Sequence[str]] = {start: source.sample(BOOKIES, size) for start in starts}
    if source.random() < 0.3:
        return ledger(segments, 3, 3, state=LedgerState.OPEN), source.randint(1, 5)  # one copy is enough to close it
    last_entry_id = starts[-1] - 1 + source.randint(0, 20)
    return ledger(segments, 3, 2, last_entry_id=last_entry_id, length=100 * (last_entry_id + 1)), 0


async def disturb(
    cluster: RepairCluster, source: random.Random, processes: list[tuple[ModelMetadataStore, ModelLink]]
) -> None:
    """Two bookies are lost, one forgets everything; sessions end, links break."""
    lost = source.sample(BOOKIES, 3)
    for bookie_id in lost[:2]:
        await cluster.clock.sleep(source.uniform(0, 3))
        await cluster.stop(bookie_id)
        await mark_all(cluster, bookie_id)
        store, link = source.choice(processes)
        if source.random() < 0.5:
            cluster.server.end_session(store.session_id)
        else:
            link.cut()
            await cluster.clock.sleep(source.uniform(0, 40))
            link.restore()
    await cluster.clock.sleep(5)
    for bookie_id in lost[:2]:  # as an auditor does: a repair that was under way may have copied to it
        await mark_all(cluster, bookie_id)
    await until_unmarked(cluster, 1.0)
    await cluster.clock.sleep(source.uniform(0, 60))
    cluster.copies[lost[2]].clear()
    await mark_all(cluster, lost[2])


async def mark_all(cluster: RepairCluster, bookie_id: str) -> None:
    async for ledger_id in cluster.ports.ledgers.list_ids():
        if bookie_id in (await cluster.ports.ledgers.read(ledger_id)).value.bookies():
            await marks_of(cluster).mark(ledger_id, [bookie_id])


async def bad_copies(cluster: RepairCluster, ids: list[int]) -> list[tuple[int, int, str]]:
    """Ledger, entry and bookie of every copy of a complete segment that is not there."""
    found = []
    for ledger_id in ids:
        metadata = (await cluster.ports.ledgers.read(ledger_id)).value
        for position, segment in enumerate(metadata.segments if metadata.is_closed else metadata.segments[:-1]):
            span = segment_entries(metadata, position)
            for entry_id in range(span.first_entry_id, span.last_entry_id + 1):
                for index in write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size):
                    copies = cluster.copies.get(segment.ensemble[index], {}).get(ledger_id, {})
                    if entry_id not in copies:
                        found.append((ledger_id, entry_id, segment.ensemble[index]))
    return found


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.battery) for seed in range(3, 40))])
def test_all_copies_are_there_in_the_end(seed: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        source = random.Random(seed)
        await cluster.start(*BOOKIES)
        ids = []
        for _ in range(25):
            metadata, entries = some_ledger(source)
            ids.append(await cluster.store(metadata, entries=entries))
        processes = [await process_on(cluster) for _ in range(3)]
        config = AutorecoveryConfig(copy_bytes_per_s=20_000)
        workers = [await worker_of_its_own(cluster, store, config) for store, _ in processes]
        async with serving(*workers):
            await disturb(cluster, source, processes)
            await until_unmarked(cluster, 1.0)
            await cluster.clock.sleep(1)
        assert await bad_copies(cluster, ids) == []
        registered = (await cluster.ports.registrations.snapshot()).live
        for ledger_id in ids:
            metadata = (await cluster.ports.ledgers.read(ledger_id)).value
            assert metadata.bookies() <= registered
            assert all(len(set(segment.ensemble)) == metadata.ensemble_size for segment in metadata.segments)
        assert await cluster.metadata_store.children(f"{ROOT}/underreplication/locks") == []
        await asyncio.gather(*(store.close() for store, _ in processes))

    simulate(scenario, seed=seed)


def test_a_worker_that_is_cancelled_during_an_outage_ends_within_five_seconds() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        long = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=999, length=10_000)
        for _ in range(10):
            await marks_of(cluster).mark(await cluster.store(long), ["b1"])
        store, link = await process_on(cluster)
        worker = await worker_of_its_own(cluster, store, AutorecoveryConfig(copy_bytes_per_s=1000))
        async with serving(worker):
            await cluster.clock.sleep(5)
            assert len(worker.status().held) == 10
            link.cut()
            await cluster.clock.sleep(1)
            stopped_ns = cluster.clock.monotonic_ns()
        assert cluster.clock.monotonic_ns() - stopped_ns < 5e9
        await store.close()
        with pytest.raises(MetadataUnavailableError):
            await store.exists("/")
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster, 1.0)
        assert await marked_ids(cluster) == []

    simulate(scenario)
