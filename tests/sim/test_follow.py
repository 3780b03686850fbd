"""Followers of a ledger whose bookies have no long polls, in virtual time: pauses, outages, ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from bkctl.runtime.client.api import open_ledger
from bkctl.runtime.client.tail import OUTAGE_S
from bkctl.runtime.config import ClientConfig, ZooKeeperConfig
from bkctl.runtime.errors import LedgerNotFoundError, LedgerReadError
from bkctl.runtime.ledger.changes import replace_bookies
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.store import Node, NodeStat
from bkctl.runtime.protocol.status import Status
from tests.runtime.replication.samples import ledger
from tests.sim.ledger_cluster import LedgerCluster
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import MakeWatcher, ModelZooKeeper

BOOKIES = ("b1", "b2", "b3")
OPEN = ledger({0: list(BOOKIES)}, 3, 2, state=LedgerState.OPEN)
STRIPED = ledger({0: list(BOOKIES)}, 2, 2, state=LedgerState.OPEN)


class CountedZooKeeper(ModelZooKeeper):
    """Counts the reads that arrive."""

    read_count = 0

    def get(self, path: str, watcher: MakeWatcher | None) -> Node:
        self.read_count += 1
        return super().get(path, watcher)

    def exists(self, path: str, watcher: MakeWatcher | None) -> NodeStat | None:
        self.read_count += 1
        return super().exists(path, watcher)


class Followed:
    """One ledger and its follower; ``found`` are the ids of the entries that came."""

    def __init__(self, cluster: LedgerCluster, clock: VirtualClock, server: CountedZooKeeper, ledger_id: int) -> None:
        self.cluster = cluster
        self.clock = clock
        self.server = server
        self.ledger_id = ledger_id
        self.found: list[int] = []
        self.follower: asyncio.Task[None]

    async def start(self) -> None:
        reader = await open_ledger(self.cluster.ports, self.ledger_id, OPEN.password or b"", recover=False)

        async def follow() -> None:
            async with contextlib.aclosing(reader.follow()) as entries:
                async for entry in entries:
                    assert entry.entry_id <= reader.last_add_confirmed
                    self.found.append(entry.entry_id)

        self.follower = asyncio.create_task(follow())
        await self.clock.sleep(10)

    async def change(self, **fields: object) -> None:
        stored = await self.cluster.ports.ledgers.read(self.ledger_id)
        changed = msgspec.structs.replace(stored.value, **fields)
        await self.cluster.ports.ledgers.write(self.ledger_id, changed, stored.version)

    def fail(self, *bookie_ids: str) -> None:
        for bookie_id in bookie_ids:
            self.cluster.failing[bookie_id] = Status.UNAVAILABLE


@contextlib.asynccontextmanager
async def followed(metadata: LedgerMetadata) -> AsyncIterator[Followed]:
    clock = VirtualClock()
    server = CountedZooKeeper(clock)
    store = await ModelMetadataStore.connect(server, ModelLink(), clock, ZooKeeperConfig())
    try:
        cluster = LedgerCluster(clock, store)
        await cluster.open(ClientConfig())
        await cluster.register(*BOOKIES, "b4")
        ledger_id = await cluster.create(metadata)
        await cluster.fill(ledger_id, range(3))
        yield Followed(cluster, clock, server, ledger_id)
    finally:
        await store.close()


def simulate(scenario: Callable[[Followed], Awaitable[None]], metadata: LedgerMetadata = OPEN) -> None:
    async def run() -> None:
        async with followed(metadata) as each:
            await each.start()
            assert each.found == [0, 1], "the third one is not confirmed"
            await scenario(each)

    run_simulated(run())


@pytest.mark.parametrize("metadata", [OPEN, STRIPED], ids=["copies everywhere", "striped"])
def test_bookies_without_long_polls_are_asked_with_pauses_and_zookeeper_is_not(metadata: LedgerMetadata) -> None:
    async def scenario(it: Followed) -> None:
        asked, reads = len(it.cluster.requests), it.server.read_count
        await it.clock.sleep(600)
        assert 600 < len(it.cluster.requests) - asked < 2 * len(BOOKIES) * 600
        assert it.server.read_count == reads
        await it.cluster.fill(it.ledger_id, range(3, 40))
        reads = it.server.read_count
        await it.clock.sleep(10)
        assert it.found == list(range(39))
        assert it.server.read_count == reads
        await it.change(state=LedgerState.CLOSED, last_entry_id=39, length=400)
        await it.follower
        assert it.found == list(range(40))

    simulate(scenario, metadata)


def test_an_outage_of_all_bookies_is_survived_up_to_its_limit() -> None:
    async def scenario(it: Followed) -> None:
        it.fail(*BOOKIES)
        await it.clock.sleep(OUTAGE_S - 5)
        it.cluster.failing.clear()
        await it.cluster.fill(it.ledger_id, range(3, 5))
        await it.clock.sleep(10)
        assert it.found == list(range(4))
        it.fail(*BOOKIES)
        began_ns = it.clock.monotonic_ns()
        with pytest.raises(LedgerReadError, match="no bookie of its last ensemble answers"):
            await it.follower
        assert OUTAGE_S <= (it.clock.monotonic_ns() - began_ns) / 1e9 < OUTAGE_S + 5

    simulate(scenario)


def test_one_bookie_that_answers_is_enough() -> None:
    async def scenario(it: Followed) -> None:
        it.fail("b1", "b3")
        await it.clock.sleep(10 * OUTAGE_S)
        await it.cluster.fill(it.ledger_id, range(3, 5), without=("b1", "b3"))
        await it.clock.sleep(10)
        assert it.found == list(range(4))

    simulate(scenario)


def test_the_ensemble_is_followed() -> None:
    async def scenario(it: Followed) -> None:
        it.fail(*BOOKIES)
        stored = await it.cluster.metadata(it.ledger_id)
        changed = replace_bookies(stored, 2, {0: "b4"})
        await it.change(segments=changed.segments)
        await it.cluster.fill(it.ledger_id, range(2, 5), without=BOOKIES)
        await it.clock.sleep(10)
        assert it.found == list(range(4))

    simulate(scenario)


def test_a_deleted_ledger_is_an_error() -> None:
    async def scenario(it: Followed) -> None:
        await it.cluster.ports.ledgers.delete(it.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await it.follower

    simulate(scenario)


def test_a_cancelled_follower_asks_no_more_and_leaves_no_task() -> None:
    async def scenario(it: Followed) -> None:
        it.follower.cancel()
        await asyncio.wait([it.follower])
        await it.clock.sleep(1)
        asked, reads = len(it.cluster.requests), it.server.read_count
        tasks = asyncio.all_tasks()
        await it.change(custom_metadata=(("a", b"b"),))
        reads_of_change = it.server.read_count - reads
        await it.clock.sleep(100)
        assert len(it.cluster.requests) == asked
        assert it.server.read_count == reads + reads_of_change, "its watch is gone"
        assert asyncio.all_tasks() == tasks

    simulate(scenario)
