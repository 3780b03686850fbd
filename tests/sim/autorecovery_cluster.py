"""Replication workers on a simulated cluster."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.worker import Worker
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.replication.config import ReplicationConfig
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.repair_cluster import ROOT, RepairCluster


def worker_on(
    cluster: RepairCluster,
    config: AutorecoveryConfig | None = None,
    replication: ReplicationConfig | None = None,
    *,
    own_bookie: str | None = None,
    holder: str = "this-host",
    store: MetadataStore | None = None,
) -> Worker:
    """A worker with the session of the cluster, or with its own (see ``ports_on``)."""
    store = store or cluster.metadata_store
    config = msgspec.structs.replace(config or AutorecoveryConfig(), own_bookie=own_bookie)
    return Worker(cluster.ports, store, config, replication or ReplicationConfig(), holder=holder)


async def process_on(cluster: RepairCluster) -> tuple[ModelMetadataStore, ModelLink]:
    """Another process: its session and its link to ZooKeeper."""
    link = ModelLink()
    return await cluster.connect(link), link


async def worker_of_its_own(
    cluster: RepairCluster,
    store: MetadataStore,
    config: AutorecoveryConfig | None = None,
    *,
    holder: str = "other-host",
    replication: ReplicationConfig | None = None,
    tree: LedgerTree = LedgerTree.HIERARCHICAL,
) -> Worker:
    """A worker of another process: everything that it reads from ZooKeeper goes through this store."""
    ports = dataclasses.replace(
        cluster.ports,
        ledgers=await open_ledger_store(store, ROOT, tree),
        registrations=RegistrationClient(store, ROOT),
    )
    return Worker(ports, store, config or AutorecoveryConfig(), replication or ReplicationConfig(), holder=holder)


@contextlib.asynccontextmanager
async def serving(*workers: Worker) -> AsyncIterator[None]:
    """The workers run."""
    tasks = [asyncio.ensure_future(worker.serve()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


def marks_of(cluster: RepairCluster) -> UnderReplicationMarks:
    return UnderReplicationMarks(cluster.metadata_store, ROOT, cluster.clock)


async def marked_ids(cluster: RepairCluster) -> list[int]:
    return [found.ledger_id async for found in list_marks(cluster.metadata_store, ROOT, ForeignNames())]


async def until(cluster: RepairCluster, is_so: Callable[[], Awaitable[bool]], every_s: float = 0.1) -> None:
    """Return when it is so."""
    async with asyncio.timeout(3600):
        while not await is_so():
            await cluster.clock.sleep(every_s)


async def until_unmarked(cluster: RepairCluster, every_s: float = 0.1) -> None:
    async def is_unmarked() -> bool:
        return not await marked_ids(cluster)

    await until(cluster, is_unmarked, every_s)
