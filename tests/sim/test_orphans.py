"""Brokers that create, trim, offload and delete, and fail between any two steps, while orphans are searched.

No ledger that is named at the end of a search, or ever after, may be called an orphan; every ledger that a broker left
long before must be. The brokers keep to the orders in metadata section 16. More seeds find more.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import pytest

from bkctl.commands.audit.orphans import clock_warnings
from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.pulsar.references import PulsarStore
from bkctl.runtime.replication.judge.orphans import KeptReason, OrphanTerms
from bkctl.runtime.replication.survey.orphan_search import OrphanFinder, OrphanSearch, SearchView
from tests.runtime.metadata.pulsar.pulsar_bytes import cursor, schema, topic
from tests.sim.ledger_cluster import LedgerCluster, ledger_cluster
from tests.sim.loop import run_simulated

SEEDS = 2
SEEDS_OF_BATTERY = 60
AGE_S = 3600
SETTLE_S = 120.0
TOPICS = 6
ROUNDS = 4
FAILURE_RATE = 0.15
BOOKIES = ("b1", "b2", "b3")


class BrokerFailedError(Exception):
    """The operation ends here."""


class Truth:
    """What the nodes of all topics name now; the ids that operations in progress will still name."""

    def __init__(self) -> None:
        self.named: dict[str, set[int]] = {}
        self.pending: set[int] = set()
        self.since: set[int] = set()
        """Ids that some node named at any time since this was cleared."""
        self.damaged: set[str] = set()
        self.existing: set[str] = set()
        """Topics with a node."""
        self.existed: set[str] = set()
        """Topics with a node at any time since this was cleared."""
        self.owners: dict[int, tuple[str, str]] = {}
        """Component and topic of each ledger."""

    def all_named(self) -> set[int]:
        return set().union(*self.named.values())

    def note(self, path: str, ids: Iterable[int]) -> None:
        self.named[path] = set(ids)
        self.since |= self.named[path]


class Broker:
    """Serves one topic and its schema; after a failure it goes on with what the nodes say."""

    def __init__(self, cluster: LedgerCluster, truth: Truth, name: str, dice: random.Random) -> None:
        self.cluster, self.truth, self.name, self.dice = cluster, truth, name, dice
        self.path = f"/managed-ledgers/t/n/persistent/{name}"
        self.schema_path = f"/schemas/t/n/{name}"
        self.data: list[int] = []
        self.offloaded: list[int] = []
        self.cursor_ledger = -1
        self.compacted: int | None = None
        self.buckets: list[int] = []
        self.versions: list[int] = []

    async def serve(self) -> None:
        await self._pause(AGE_S * 0.1, is_safe=True)
        while self.name not in self.truth.damaged:
            self.mine: set[int] = set()
            work = self._operations() if self.name in self.truth.existing else [self.create]
            with contextlib.suppress(BrokerFailedError):
                await self.dice.choice(work)()
            self.truth.pending -= self.mine
            await self._pause(AGE_S * 0.2, is_safe=True)

    def _operations(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        with_data = [self.roll, self.roll, self.trim, self.offload]
        with_cursor = [self.switch_cursor, self.compact, self.add_bucket, self.drop_bucket]
        return [*with_data, *with_cursor, self.add_version, self.delete_schema, self.delete, self.damage]

    async def _pause(self, seconds_max: float, *, is_safe: bool = False) -> None:
        await asyncio.sleep(self.dice.random() * seconds_max)
        if not is_safe and self.dice.random() < FAILURE_RATE:
            raise BrokerFailedError

    async def create_ledger(self, component: str, key: str, value: str, **more: str) -> int:
        labels = {"application": "pulsar", "component": component, key: value, **more}
        custom = tuple((name, text.encode()) for name, text in labels.items())
        now_ms = self.cluster.ports.clock.now_ms()
        metadata = new_ledger(BOOKIES, 2, 2, DigestType.CRC32C, b"", custom_metadata=custom, ctime_ms=now_ms)
        ledger_id = await self.cluster.create(to_closed(metadata, 0, 10))
        self.truth.owners[ledger_id] = (component, self.name)
        self.truth.pending.add(ledger_id)
        self.mine.add(ledger_id)
        return ledger_id

    async def _new_data(self, **more: str) -> int:
        path = f"t/n/persistent/{self.name}"
        return await self.create_ledger("managed-ledger", "pulsar/managed-ledger", path, **more)

    async def _drop(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            await self._pause(60)
            await self.cluster.ports.ledgers.delete(ledger_id)

    async def _put(self, path: str, data: bytes, named: Iterable[int]) -> None:
        if await self.cluster.store.exists(path) is None:
            await self.cluster.store.create(path, data, make_parents=True)
        else:
            await self.cluster.store.set(path, data, -1)
        self.truth.note(path, named)

    async def _put_topic(self) -> None:
        await self._put(self.path, topic(self.data, offloaded=self.offloaded), self.data)

    async def _put_cursor(self) -> None:
        buckets = {f"{each}_{each}": str(each) for each in self.buckets}
        named = [*self.buckets, *([self.cursor_ledger] if self.cursor_ledger >= 0 else [])]
        named += [] if self.compacted is None else [self.compacted]
        data = cursor(self.cursor_ledger, compacted=self.compacted, buckets=buckets)
        await self._put(f"{self.path}/__compaction", data, named)

    async def create(self) -> None:
        await self._put(self.path, b"", ())
        self.truth.existing.add(self.name)
        self.truth.existed.add(self.name)
        await self._pause(10)
        await self.roll()
        await self._put_cursor()

    async def roll(self) -> None:
        created = await self._new_data()
        await self._pause(AGE_S * 0.5)
        self.data.append(created)
        await self._put_topic()

    async def trim(self) -> None:
        gone, self.data = self.data[:1], self.data[1:]
        await self._put_topic()
        await self._drop(*gone)

    async def offload(self) -> None:
        moved, self.data = self.data[:1], self.data[1:]
        self.offloaded += moved
        await self._put_topic()
        await self._drop(*moved)

    async def switch_cursor(self) -> None:
        old = self.cursor_ledger
        created = await self._new_data(**{"pulsar/cursor": "__compaction"})
        await self._pause(30)
        self.cursor_ledger = created
        await self._put_cursor()
        await self._drop(*([old] if old >= 0 else []))

    async def compact(self) -> None:
        name = f"persistent://t/n/{self.name}"
        created = await self.create_ledger("compacted-ledger", "pulsar/compactedTopic", name)
        await self._pause(AGE_S * 0.8)
        old, self.compacted = self.compacted, created
        await self._put_cursor()
        await self._drop(*([] if old is None else [old]))

    async def add_bucket(self) -> None:
        name = f"persistent://t/n/{self.name}"
        created = await self.create_ledger("delayed-index-bucket", "pulsar/delayedIndexTopic", name)
        await self._pause(60)
        self.buckets.append(created)
        await self._put_cursor()

    async def drop_bucket(self) -> None:
        gone, self.buckets = self.buckets[:1], self.buckets[1:]
        await self._put_cursor()
        await self._drop(*gone)

    async def add_version(self) -> None:
        created = await self.create_ledger("schema", "pulsar/schemaId", f"t/n/{self.name}")
        await self._pause(60)
        self.versions.append(created)
        await self._put(self.schema_path, schema(self.versions), self.versions)

    async def delete_schema(self) -> None:
        for each in self.versions:
            if self.dice.random() > FAILURE_RATE:
                await self.cluster.ports.ledgers.delete(each)
        await self._pause(30)
        self.versions.clear()
        if self.truth.named.pop(self.schema_path, None) is not None:
            await self.cluster.store.delete(self.schema_path)

    async def delete(self) -> None:
        """Ledgers whose deletion fails are left when the nodes go."""
        kept = {each for each in (*self.data, *self.buckets) if self.dice.random() < FAILURE_RATE}
        gone, cursor_ledger = {*self.data, *self.buckets} - kept, self.cursor_ledger
        self.buckets, self.cursor_ledger, self.compacted = [], -1, None
        path = f"{self.path}/__compaction"
        if self.truth.named.pop(path, None) is not None:
            await self.cluster.store.delete(path)
        await self._drop(*([cursor_ledger] if cursor_ledger >= 0 else []), *gone)
        await self._pause(30)
        self.data, self.offloaded = [], []
        del self.truth.named[self.path]
        await self.cluster.store.delete(self.path)
        self.truth.existing.discard(self.name)

    async def damage(self) -> None:
        """Rarely, a node can no longer be decoded."""
        if self.dice.random() < 0.02:
            self.truth.damaged.add(self.name)
            await self.cluster.store.set(self.path, b"\xff\xff\xff", -1)


async def search(cluster: LedgerCluster, *, ahead_s: int = 0) -> OrphanSearch:
    """``ahead_s``: of the clock of this machine."""
    place = PulsarStore(cluster.store, "", "the cluster")
    now_ms = cluster.ports.clock.now_ms()
    return await OrphanFinder(
        cluster.ports,
        cluster.store,
        [place],
        OrphanTerms(now_ms=now_ms + ahead_s * 1000, age_ms=AGE_S * 1000),
        settle_s=SETTLE_S,
        only=None,
        view=SearchView(lambda _: None, lambda _: None),
    ).find()


async def round_of(cluster: LedgerCluster, truth: Truth) -> int:
    """One search, compared with the truth; the number of orphans."""
    old_ms = cluster.ports.clock.now_ms() - AGE_S * 1000
    ledgers = {each: await cluster.metadata(each) async for each in cluster.ports.ledgers.list_ids()}
    old = {each for each, metadata in ledgers.items() if metadata.ctime_ms is not None and metadata.ctime_ms < old_ms}
    left = old - truth.all_named() - truth.pending
    truth.existed = set(truth.existing)
    result = await search(cluster)
    orphans = {each.ledger.ledger_id for each in result.orphans}
    truth.since = truth.all_named()

    def is_in_doubt(ledger_id: int) -> bool:
        component, name = truth.owners[ledger_id]
        is_unclear = name in truth.damaged and component != "schema"
        return is_unclear or (component == "compacted-ledger" and name in truth.existed)

    existing = {each async for each in cluster.ports.ledgers.list_ids()}
    zookeeper_old_ms = result.zookeeper_ms - AGE_S * 1000
    old = {each for each in old if (ledgers[each].ctime_ms or 0) < zookeeper_old_ms}
    missed = {each for each in left & old & existing - orphans if not is_in_doubt(each)}
    assert not missed, f"left long before, but not found: {[(each, truth.owners[each]) for each in missed]}"
    of_damaged = [each for each in orphans if is_in_doubt(each) and truth.owners[each][1] in truth.damaged]
    assert not of_damaged, "orphans of a topic that cannot be decoded"
    await asyncio.sleep(AGE_S)
    assert not orphans & truth.since, "orphans that are named"
    return len(orphans)


async def scenario(seed: int) -> int:
    dice = random.Random(seed)
    async with ledger_cluster(*BOOKIES) as cluster:
        truth = Truth()
        await cluster.store.create("/managed-ledgers/t/n/persistent", make_parents=True)
        brokers = [Broker(cluster, truth, f"topic{each}", dice) for each in range(TOPICS)]
        serving = [asyncio.ensure_future(broker.serve()) for broker in brokers]
        found_count = 0
        for _ in range(ROUNDS):
            await asyncio.sleep(AGE_S * (1 + dice.random()))
            found_count += await round_of(cluster, truth)
        for each in serving:
            if each.done():
                each.result()
            each.cancel()
        await asyncio.wait(serving)
        return found_count


async def clocks_that_differ() -> None:
    """The clock of this machine is ahead by ten times the age; it is behind by ten times the age."""
    async with ledger_cluster(*BOOKIES) as cluster:
        truth = Truth()
        await cluster.store.create("/managed-ledgers/t/n/persistent", make_parents=True)
        broker = Broker(cluster, truth, "gone", random.Random(1))
        broker.mine = set()
        left = await broker.create_ledger("managed-ledger", "pulsar/managed-ledger", "t/n/persistent/gone")
        await asyncio.sleep(AGE_S / 2)
        await cluster.store.set("/managed-ledgers/t/n", b"", -1)

        ahead = await search(cluster, ahead_s=10 * AGE_S)
        assert (ahead.orphans, ahead.young_in_zookeeper, dict(ahead.kept)) == ([], 1, {KeptReason.YOUNG: 1})
        assert [each.ledger_id for each in ahead.strays] == [left], "a young ledger may be of another cluster"
        now_ms = cluster.ports.clock.now_ms()
        (warning,) = clock_warnings(ahead, now_ms + 10 * AGE_S * 1000, now_ms + 10 * AGE_S * 1000)
        assert warning.startswith("too young by ZooKeeper's time: 1 ledger; ")
        assert "10 h before the time of this machine, whose clock may be ahead" in warning

        await asyncio.sleep(AGE_S)
        await cluster.store.set("/managed-ledgers/t/n", b"", -1)
        found = await search(cluster, ahead_s=10 * AGE_S)
        assert ([each.ledger.ledger_id for each in found.orphans], found.young_in_zookeeper) == ([left], 0)
        now_ms = cluster.ports.clock.now_ms()
        assert clock_warnings(found, now_ms, now_ms) == []

        behind = await search(cluster, ahead_s=-10 * AGE_S)
        assert (behind.orphans, behind.young_in_zookeeper) == ([], 0)
        late_ms = behind.zookeeper_ms - 10 * AGE_S * 1000
        (warning,) = clock_warnings(behind, late_ms, late_ms)
        assert warning.startswith("the clock of this machine is slow: ZooKeeper has a node of ")
        assert ", 10 h later; " in warning


def test_the_slower_clock_decides_how_old_a_ledger_is() -> None:
    run_simulated(clocks_that_differ())


# -- another Pulsar cluster on the same bookies -----------------------------------------------------------------------


class Writer:
    """A broker that names its ledgers in nodes that the search does not see, or not yet."""

    def __init__(self, cluster: LedgerCluster) -> None:
        self.cluster = cluster
        self.path = "/managed-ledgers/t/n/persistent/topic"
        self.is_ready = asyncio.Event()
        self._began_ns = 0

    def let_search(self) -> None:
        """The search begins now."""
        self._began_ns = self.cluster.ports.clock.monotonic_ns()
        self.is_ready.set()

    async def at(self, seconds: float) -> None:
        """Wait until so many seconds after the beginning of the search."""
        await self.cluster.ports.clock.sleep(seconds - (self.cluster.ports.clock.monotonic_ns() - self._began_ns) / 1e9)

    async def create(self) -> int:
        labels = {
            "application": "pulsar",
            "component": "managed-ledger",
            "pulsar/managed-ledger": "t/n/persistent/topic",
        }
        custom = tuple((name, text.encode()) for name, text in labels.items())
        now_ms = self.cluster.ports.clock.now_ms()
        return await self.cluster.create(
            new_ledger(BOOKIES, 2, 2, DigestType.CRC32C, b"", custom_metadata=custom, ctime_ms=now_ms)
        )

    async def name(self, *ledger_ids: int) -> None:
        await self.cluster.store.set(self.path, topic(list(ledger_ids)), -1)


FIRST_HALF, SECOND_HALF = (SETTLE_S * 0.25, SETTLE_S * 0.75)
"""Of the wait between the two readings of the references; the search looks for new ledgers after each half."""


async def proof_of(work: Callable[[Writer], Coroutine[Any, Any, None]]) -> list[int]:
    """The ledgers that a search shows as proof of another cluster, while a writer works."""
    async with ledger_cluster(*BOOKIES) as cluster:
        writer = Writer(cluster)
        await cluster.store.create(writer.path, topic([]), make_parents=True)
        working = asyncio.ensure_future(work(writer))
        try:
            await writer.is_ready.wait()
            return [each.ledger_id for each in (await search(cluster)).foreign_writes]
        finally:
            working.cancel()
            await asyncio.wait((working,))


@pytest.mark.parametrize(
    ("times_s", "is_proof"),
    [
        pytest.param((FIRST_HALF, SECOND_HALF), True, id="in both intervals"),
        pytest.param((FIRST_HALF,), False, id="one"),
        pytest.param((SECOND_HALF,), False, id="a late one"),
        pytest.param((FIRST_HALF, FIRST_HALF + 1, FIRST_HALF + 2), False, id="several at once"),
    ],
)
def test_ledgers_that_no_node_names_and_that_keep_appearing_are_proof(
    times_s: Sequence[float], *, is_proof: bool
) -> None:
    """A broker that crashes leaves a few at once, which nothing names. A cluster that is not given goes on."""
    made: list[int] = []

    async def work(writer: Writer) -> None:
        writer.let_search()
        for seconds in times_s:
            await writer.at(seconds)
            made.append(await writer.create())

    found = run_simulated(proof_of(work))
    assert len(made) == len(times_s)
    assert found == (made if is_proof else [])


@pytest.mark.parametrize("end", ["named", "deleted"])
def test_new_ledgers_that_are_named_or_deleted_before_the_end_are_no_proof(end: str) -> None:
    """A broker of the given cluster rolls over: it names each ledger a moment after it has created it."""

    async def work(writer: Writer) -> None:
        writer.let_search()
        await writer.at(FIRST_HALF)
        first = await writer.create()
        await writer.at(SECOND_HALF)
        second = await writer.create()
        await writer.at(SECOND_HALF + 1)
        if end == "named":
            await writer.name(first, second)
        else:
            await writer.cluster.ports.ledgers.delete(first)

    assert run_simulated(proof_of(work)) == []


@pytest.mark.parametrize("change", ["none", "entries", "metadata"])
def test_an_open_ledger_that_no_node_names_is_proof_only_if_it_changes(change: str) -> None:
    """An idle one may be what a crashed broker left."""
    made: list[int] = []

    async def work(writer: Writer) -> None:
        ledger_id = await writer.create()
        made.append(ledger_id)
        await writer.cluster.fill(ledger_id, range(5))
        writer.let_search()
        await writer.at(FIRST_HALF)
        if change == "entries":
            await writer.cluster.fill(ledger_id, range(5, 9))
        elif change == "metadata":
            stored = await writer.cluster.ports.ledgers.read(ledger_id)
            await writer.cluster.ports.ledgers.write(ledger_id, to_closed(stored.value, 4, 50), stored.version)

    found = run_simulated(proof_of(work))
    assert found == ([] if change == "none" else made)


@pytest.mark.parametrize(
    "seed",
    [
        *range(SEEDS),
        *(pytest.param(each, marks=pytest.mark.battery) for each in range(SEEDS, SEEDS_OF_BATTERY)),
    ],
)
def test_orphans_while_brokers_work_and_fail(seed: int) -> None:
    assert run_simulated(scenario(seed)) > 0
