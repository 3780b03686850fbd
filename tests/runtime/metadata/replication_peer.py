"""A cluster root with an under-replication tree, seen through a counting store; a clock that stands still."""

from __future__ import annotations

import asyncio
import random

from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames, UnderReplicationTree
from bkctl.runtime.metadata.replication.lock import ReplicationLocks, read_lock
from bkctl.runtime.metadata.replication.marks import ListedMark, UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.replication.work import PickedLedger, ReplicationWork
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.net.loop import LoopClock
from tests.counting_store import CountingStore

NOW_MS = 1_700_000_000_123


class StandingClock(LoopClock):
    """Shows the time it was set to."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.time_ms = NOW_MS

    def now_ms(self) -> int:
        return self.time_ms


class ReplicationPeer:
    """One process of a cluster. ``open`` makes the tree and asks every part once, so that later costs are plain."""

    def __init__(self, store: MetadataStore, root: str, *, seed: int = 1, is_ctime_stored: bool = True) -> None:
        self.store = CountingStore(store)
        self.root = root
        self.paths = Paths(root)
        self.clock = StandingClock(seed)
        self.foreign_told: list[str] = []
        self.foreign = ForeignNames(self.foreign_told.append)
        self.marks = UnderReplicationMarks(self.store, root, self.clock, is_ctime_stored=is_ctime_stored)
        self.locks = ReplicationLocks(self.store, root, "myhost.example.com", unwatched_s=3600)
        self.changed = asyncio.Event()
        self.work = ReplicationWork(self.store, root, self.marks, self.locks, self.changed.set)

    @classmethod
    async def open(
        cls, store: MetadataStore, root: str, *, seed: int = 1, is_ctime_stored: bool = True
    ) -> ReplicationPeer:
        if await store.exists(root) is None:
            await store.create(root, make_parents=True)
        await UnderReplicationTree(store, root).require()
        peer = cls(store, root, seed=seed, is_ctime_stored=is_ctime_stored)
        await peer.marks._tree.require()
        await peer.locks._tree.require()
        return peer

    async def pick_any(self) -> PickedLedger | None:
        """Lock the first marked ledger that no process has locked."""
        return await pick_any(self.work)

    async def listed(self, *, missing: str | None = None, not_missing: str | None = None) -> list[ListedMark]:
        found = list_marks(self.store, self.root, self.foreign, missing=missing, not_missing=not_missing)
        return [each async for each in found]

    async def ids(self, *, missing: str | None = None, not_missing: str | None = None) -> list[int]:
        return [found.ledger_id for found in await self.listed(missing=missing, not_missing=not_missing)]

    async def text(self, ledger_id: int) -> str:
        return (await self.store.get(self.paths.mark(ledger_id))).data.decode()


async def pick_any(work: ReplicationWork, source: random.Random | None = None) -> PickedLedger | None:
    """What the loop of a worker does, without pauses; the first free ledger, or any."""
    if await work.is_switched_off():
        return None
    ids = [ledger_id async for ledger_id in work.ids()]
    if source is not None:
        source.shuffle(ids)
    for ledger_id in ids:
        if await work.read(ledger_id) is not None:
            picked = await work.pick(ledger_id)
            if isinstance(picked, PickedLedger):
                return picked
    return None


async def holder_of(locks: ReplicationLocks, ledger_id: int) -> str | None:
    lock = await read_lock(locks.store, locks._paths.root, ledger_id)
    if lock is not None and lock.problem is not None:
        raise lock.problem
    return None if lock is None else lock.holder
