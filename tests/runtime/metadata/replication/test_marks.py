from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bkctl.runtime.errors import ClusterNotFoundError, MetadataFormatError, NodeExistsError, NoNodeError, RefusedError
from bkctl.runtime.metadata.replication.marks import MarkOutcome, UnderReplicationMarks, list_marks, read_mark
from bkctl.runtime.metadata.replication.work import NotPicked
from bkctl.runtime.metadata.store import CreateNode, Node, NodeStat, NodeWrite
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.counting_store import CountingStore
from tests.runtime.metadata.replication.test_format import golden_nodes
from tests.runtime.metadata.replication_peer import NOW_MS, ReplicationPeer, StandingClock

A, B, C = "10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181"


async def test_a_mark_is_created_merged_and_left_alone(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    assert await peer.marks.mark(5, [A]) is MarkOutcome.CREATED
    assert await peer.text(5) == f'replica: "{A}"\nctime: {NOW_MS}\n'
    peer.clock.time_ms += 7
    assert await peer.marks.mark(5, [A]) is MarkOutcome.UNCHANGED
    assert (await peer.listed())[0].version == 0
    assert await peer.marks.mark(5, [B, A, C, B]) is MarkOutcome.MERGED
    assert await peer.text(5) == f'replica: "{A}"\nreplica: "{B}"\nreplica: "{C}"\nctime: {NOW_MS + 7}\n'
    assert (await peer.listed())[0].version == 1
    assert await peer.marks.mark(6, []) is MarkOutcome.CREATED
    assert await peer.text(6) == f"ctime: {NOW_MS}\n".replace(str(NOW_MS), str(NOW_MS + 7))
    assert await peer.marks.mark(6, []) is MarkOutcome.UNCHANGED


async def test_the_tree_is_the_one_that_java_left(store: ZooKeeperStore, root: str) -> None:
    """The same marks, at the same times, in the same order: the same nodes and versions."""
    peer = await ReplicationPeer.open(store, root)
    without_time = UnderReplicationMarks(peer.store, root, peer.clock, is_ctime_stored=False)
    expected: dict[str, tuple[bytes, int]] = {}
    for name in ("bookie killed, marked", "second bookie killed, marks without ctime"):
        for stage_name, path, data in golden_nodes():
            if stage_name == name and "/ledgers/" in path:
                expected[path] = (data, 0 if path not in expected else 1)
    for path, (data, _) in expected.items():
        lines = [line.partition(": ")[2].strip('"') for line in data.decode().splitlines()]
        if not lines:
            continue
        ledger_id = int(path.rpartition("urL")[2])
        if ledger_id == 2**63 - 1:
            continue  # Java marks it; we refuse the id
        if data.endswith(b'"\n'):
            await without_time.mark(ledger_id, lines)
        else:
            peer.clock.time_ms = int(lines[-1])
            await peer.marks.mark(ledger_id, lines[:1])
            if len(lines) > 2:
                await without_time.mark(ledger_id, lines[1:-1])
    for path, (data, version) in expected.items():
        if "7fff" not in path:
            node = await store.get(root + path)
            assert (node.data, node.stat.version) == (data, version), path
    assert await peer.ids() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 2**32]


async def test_costs_of_marking(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    with peer.store.counted() as counts:
        await peer.marks.mark(0x10000, [A])
    assert counts == {"transaction": 2, "create": 5}, "the first mark of all: three levels, of which two fail at first"
    with peer.store.counted() as counts:
        await peer.marks.mark(0x10001, [A])
    assert counts == {"transaction": 1}, "a new mark"
    with peer.store.counted() as counts:
        await peer.marks.mark(0x10001, [A])
    assert counts == {"transaction": 1, "get": 1}, "marked already: no write succeeds"
    with peer.store.counted() as counts:
        await peer.marks.mark(0x10001, [B])
    assert counts == {"transaction": 1, "get": 1, "set": 1}, "merged"
    with peer.store.counted() as counts:
        await peer.marks.mark(0x20001, [B])
    assert counts == {"transaction": 2, "create": 1}, "the first of 65536 ledgers"
    await store.delete(peer.paths.mark(0x10001))
    with peer.store.counted() as counts:
        await peer.marks.mark(0x10001, [B])
    assert counts == {"transaction": 1, "get": 1, "create": 1}, "a directory whose mark was cleared by Pulsar's driver"
    fresh = UnderReplicationMarks(peer.store, root, peer.clock)
    with peer.store.counted() as counts:
        await fresh.mark(0x10002, [A])
    assert counts == {"get": 1, "transaction": 1}, "a new process looks at the layout once"


async def test_markers_that_race_lose_nothing(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    stages = [await ReplicationPeer.open(each, root) for each in (store, other_store)]
    bookies = [f"10.0.0.{number}:3181" for number in range(20)]
    await asyncio.gather(
        *(
            stages[index % 2].marks.mark(ledger_id, [bookie])
            for index, bookie in enumerate(bookies)
            for ledger_id in (3, 4)
        )
    )
    for found in await stages[0].listed():
        assert found.mark is not None
        assert sorted(found.mark.missing_bookies) == sorted(bookies)
        assert found.version == len(bookies) - 1


async def test_marking_and_clearing_race(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    """Directories vanish under the marker's feet; a mark set last is never lost."""
    marker, clearer = [await ReplicationPeer.open(each, root) for each in (store, other_store)]
    is_over = False

    async def clear() -> None:
        while not is_over:
            for found in await clearer.listed():
                await clearer.marks.clear(found.ledger_id, found.version)

    clearing = asyncio.ensure_future(clear())
    for _ in range(60):
        await marker.marks.mark(1, [A])
    is_over = True
    await clearing
    await marker.marks.mark(1, [B])
    found = await read_mark(store, root, 1)
    assert found is not None
    assert found.mark is not None
    assert B in found.mark.missing_bookies


async def test_a_renewed_mark_survives_its_clearing(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    await peer.marks.mark(1, [A])
    seen = (await peer.listed())[0].version
    await peer.marks.mark(1, [B])
    assert not await peer.marks.clear(1, seen)
    assert await peer.ids() == [1]
    assert await peer.marks.clear(1, seen + 1)
    assert await peer.ids() == []
    assert await store.children(peer.paths.under_replicated_ledgers) == []


async def test_clearing_prunes_what_it_leaves_empty(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    for ledger_id in (1, 2, 0x10000):
        await peer.marks.mark(ledger_id, [A])
    with peer.store.counted() as counts:
        assert await peer.marks.clear(1, 0)
    assert counts == {"delete": 2, "exists": 2}, "mark and its directory; the next level holds another"
    ledgers = peer.paths.under_replicated_ledgers
    assert await store.children(f"{ledgers}/0000/0000/0000") == ["0002"]
    await store.set(f"{ledgers}/0000/0000/0001", b"", -1)
    await peer.marks.clear(0x10000, 0)
    assert await store.children(f"{ledgers}/0000/0000") == ["0000"], "pruned at the version it has"
    with peer.store.counted() as counts:
        await peer.marks.clear(2, 0)
    assert counts == {"delete": 5, "exists": 4}, "the last mark of all"
    assert await store.children(ledgers) == []
    assert await peer.marks.clear(2, 0), "gone already is cleared"


async def test_a_clearing_that_was_cut_short_is_completed(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    await peer.marks.mark(1, [A])
    await store.delete(peer.paths.mark(1))
    assert await peer.marks.clear(1, 0)
    assert await store.children(peer.paths.under_replicated_ledgers) == []


async def test_a_mark_that_cannot_be_read_is_its_own_error(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    for ledger_id in (1, 2, 3):
        await peer.marks.mark(ledger_id, [A])
    await store.set(peer.paths.mark(2), b"junk", -1)
    with pytest.raises(MetadataFormatError, match="urL0000000002"):
        await peer.marks.mark(2, [B])
    assert await peer.text(2) == "junk"
    found = await peer.listed()
    assert [each.ledger_id for each in found] == [1, 2, 3]
    assert [each.problem is None for each in found] == [True, False, True]
    assert await peer.ids(missing=B) == [2], "nobody knows whether it names the bookie"
    assert await peer.ids(not_missing=A) == [2]
    assert found[1].marked_ms == found[1].changed_ms


async def test_listing_filters_and_tells_times(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    await peer.marks.mark(2**62, [A, B])
    await peer.marks.mark(70000, [B])
    await UnderReplicationMarks(store, root, peer.clock, is_ctime_stored=False).mark(3, [A])
    await peer.marks.mark(4, [])
    assert await peer.ids() == [3, 4, 70000, 2**62]
    assert await peer.ids(missing=A) == [3, 2**62]
    assert await peer.ids(not_missing=A) == [4, 70000]
    assert await peer.ids(missing=B, not_missing=A) == [70000]
    by_id = {found.ledger_id: found for found in await peer.listed()}
    assert by_id[70000].marked_ms == NOW_MS
    stored = by_id[3].mark
    assert stored is not None
    assert stored.ctime_ms is None
    assert by_id[3].marked_ms == (await store.get(peer.paths.mark(3))).stat.mtime_ms


async def test_cost_of_listing(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    with peer.store.counted() as counts:
        assert await peer.ids() == []
    assert counts == {"children": 1}
    for ledger_id in (*range(100), 70000):
        await peer.marks.mark(ledger_id, [A])
    with peer.store.counted() as counts:
        assert len(await peer.ids()) == 101
    assert counts == {"get": 101, "children": 5}, "one per mark; one for the top, one, one, and two of 65536 ids each"


async def test_listing_stops_early_and_is_bounded(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    for ledger_id in range(200):
        await peer.marks.mark(ledger_id, [A])
    listing = list_marks(peer.store, root, peer.foreign, window=10)
    with peer.store.counted() as counts:
        async for found in listing:
            assert found.ledger_id == 0
            break
        await listing.aclose()
    assert counts["get"] <= 11


async def test_looking_creates_nothing(store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    peer = ReplicationPeer(store, root)
    assert await peer.ids() == []
    assert await read_mark(store, root, 1) is None
    assert await peer.work.pick(1) is NotPicked.NOT_MARKED
    assert [each async for each in peer.work.ids()] == []
    assert await store.children(root) == []


async def test_foreign_names_are_told_of_once_and_left_alone(store: ZooKeeperStore, root: str) -> None:
    peer = await ReplicationPeer.open(store, root)
    await peer.marks.mark(1, [A])
    ledgers = peer.paths.under_replicated_ledgers
    foreign = ["junk", "urL0000000009", "0000/ABCD", "0000/0000/0000/12345", "ffff/ffff/ffff/ffff"]
    for name in foreign:
        await store.create(f"{ledgers}/{name}", b"x", make_parents=True)
    assert await peer.ids() == [1]
    assert await peer.ids() == [1]
    assert sorted(told.split(" ")[0] for told in peer.foreign_told) == sorted(f"{ledgers}/{name}" for name in foreign)
    assert await peer.marks.clear(1, 0)
    assert await store.children(f"{ledgers}/0000/0000/0000") == ["12345"]


async def test_marks_need_a_cluster_and_an_id_that_may_exist(store: ZooKeeperStore, root: str) -> None:
    marks = UnderReplicationMarks(store, root, StandingClock())
    with pytest.raises(ClusterNotFoundError):
        await marks.mark(1, [A])
    await store.create(root, make_parents=True)
    for ledger_id in (-1, 2**63 - 1):
        with pytest.raises(RefusedError):
            await marks.mark(ledger_id, [A])
    with pytest.raises(AssertionError):
        await marks.mark(1, ["not a bookie"])
    assert await store.children(root) == []
    await marks.mark(1, [A])
    assert await store.children(f"{root}/underreplication") == ["LAYOUT", "ledgers", "locks"]


async def test_metaformat_takes_the_directories_away(store: ZooKeeperStore, root: str) -> None:
    """Who believes in them makes them again: marks and locks go on."""
    peer = await ReplicationPeer.open(store, root)
    await store.delete(peer.paths.under_replicated_ledgers)
    await store.delete(peer.paths.replication_locks)
    assert await peer.marks.mark(1, [A]) is MarkOutcome.CREATED
    await store.delete(peer.paths.replication_locks)
    assert await peer.locks.acquire(1) is not None


class _Interfering(CountingStore):
    """Lets somebody else act right before an operation, the way a race would."""

    def __init__(self, store: ZooKeeperStore) -> None:
        super().__init__(store)
        self.before: dict[str, list[object]] = {}

    async def _act(self, kind: str) -> None:
        actions = self.before.get(kind, [])
        if actions:
            action = actions.pop(0)
            assert callable(action)
            await action()

    async def get(self, path: str) -> Node:
        await self._act("get")
        return await super().get(path)

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        await self._act("set")
        return await super().set(path, data, expected_version)

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        await self._act("write_all")
        return await super().write_all(writes)


async def test_every_step_of_a_merge_may_be_overtaken(store: ZooKeeperStore, root: str) -> None:
    theirs = await ReplicationPeer.open(store, root)
    interfering = _Interfering(store)
    marks = UnderReplicationMarks(interfering, root, theirs.clock)
    await marks.mark(1, [A])

    async def clear() -> None:
        found = await read_mark(store, root, 1)
        assert found is not None
        await theirs.marks.clear(1, found.version)

    async def mark() -> None:
        await theirs.marks.mark(1, [C])

    interfering.before = {"set": [mark]}
    assert await marks.mark(1, [B]) is MarkOutcome.MERGED
    assert f'replica: "{C}"\nreplica: "{B}"\n' in await theirs.text(1), "bad version: read again"
    interfering.before = {"get": [clear]}
    assert await marks.mark(1, [B]) is MarkOutcome.CREATED, "gone before it was read"
    interfering.before = {"set": [clear]}
    assert await marks.mark(1, [C]) is MarkOutcome.CREATED, "gone before it was written"
    assert await theirs.text(1) == f'replica: "{C}"\nctime: {NOW_MS}\n'
    interfering.before = {"write_all": [clear]}
    assert await marks.mark(1, [A]) is MarkOutcome.CREATED


async def test_two_nodes_in_one_step(store: ZooKeeperStore, root: str) -> None:
    """What marking relies on: which error a transaction ends with."""
    await store.create(root, make_parents=True)
    with pytest.raises(NoNodeError):
        await store.write_all([CreateNode(f"{root}/a/b"), CreateNode(f"{root}/a/b/c")])
    await store.create(f"{root}/a")
    with pytest.raises(NodeExistsError):
        await store.write_all([CreateNode(f"{root}/a"), CreateNode(f"{root}/a/b")])
    assert await store.children(f"{root}/a") == []
