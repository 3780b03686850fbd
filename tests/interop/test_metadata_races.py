"""Both sides at the same nodes at the same time: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pytest
from kazoo.client import KazooClient

from bkctl.runtime.errors import BadVersionError
from bkctl.runtime.ledger.metadata import Segment
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import AuditorElection, read_auditor
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.replication.work import ReplicationWork
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.net.loop import LoopClock
from tests.interop.java_metadata import JavaMetadata
from tests.interop.metadata_exchange import NEW, create_ledger, ids_of, init_by_java, new_metadata, uri_of
from tests.runtime.metadata.replication_peer import holder_of, pick_any
from tests.until import until

DEADLINE_S = 60.0
RANDOM = random.Random(1)


class Hold(NamedTuple):
    """When a lock was held, on the monotonic clock that both sides share."""

    ledger_id: int
    began_ns: int
    ended_ns: int


class Peer(NamedTuple):
    """Our parts on the root that Java works on too."""

    ledgers: LedgerStore
    marks: UnderReplicationMarks
    locks: ReplicationLocks
    work: ReplicationWork


@pytest.fixture
async def peer(java: JavaMetadata, store: ZooKeeperStore, root: str) -> Peer:
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    marks = UnderReplicationMarks(store, root, LoopClock(1))
    locks = ReplicationLocks(store, root, canonical_host_name())
    work = ReplicationWork(store, root, marks, locks, lambda: None)
    return Peer(await open_ledger_store(store, root), marks, locks, work)


# --- ledgers -------------------------------------------------------------------------------------------------------


async def add_marks(ledgers: LedgerStore, ledger_id: int, label: str) -> int:
    """What Java's ``ledger_race`` does once: a label and a segment by compare-and-set; returns the conflicts."""
    for conflicts in range(10_000):
        found = await ledgers.read(ledger_id)
        last = found.value.last_segment
        segment = Segment(last.first_entry_id + 1, (f"{label}:3181", *last.ensemble[1:]))
        changed = msgspec.structs.replace(
            found.value,
            segments=(*found.value.segments, segment),
            custom_metadata=(*found.value.custom_metadata, (label, b"")),
        )
        try:
            await ledgers.write(ledger_id, changed, found.version)
        except BadVersionError:
            continue
        return conflicts
    raise AssertionError("Java never lets us write")


async def test_racing_updates_of_the_same_ledgers_lose_nothing(peer: Peer, java: JavaMetadata) -> None:
    rounds = 60
    ledger_ids = [7, 2**31]
    for ledger_id in ledger_ids:
        await create_ledger(peer.ledgers, new_metadata(), ledger_id=ledger_id)

    async def race() -> int:
        return sum([await add_marks(peer.ledgers, each, f"bkctl{i}") for i in range(rounds) for each in ledger_ids])

    theirs, our_conflicts = await asyncio.gather(
        java.call("ledger_race", ledger_ids=ledger_ids, prefix="java", count=rounds, segments=True), race()
    )
    assert theirs["conflicts"] + our_conflicts > 0, "they never met"
    labels = {f"{side}{i}" for side in ("java", "bkctl") for i in range(rounds)}
    for ledger_id in ledger_ids:
        found = await peer.ledgers.read(ledger_id)
        assert found.version == 2 * rounds
        assert {key for key, _ in found.value.custom_metadata} == labels
        assert [segment.first_entry_id for segment in found.value.segments] == list(range(2 * rounds + 1))
        added = [segment.ensemble[0] for segment in found.value.segments[1:]]
        assert sorted(added) == sorted(f"{label}:3181" for label in labels)
        seen = await java.call("ledger_read", ledger_id=ledger_id)
        assert (seen["version"], set(seen["labels"])) == (2 * rounds, labels)


@pytest.mark.parametrize("tree", LedgerTree)
async def test_racing_creates_get_ids_of_their_own(
    java: JavaMetadata, store: ZooKeeperStore, root: str, tree: LedgerTree
) -> None:
    count = 40
    java.metadata_uri = uri_of(tree, java.metadata_uri)
    await init_by_java(java, tree)
    ledgers = await open_ledger_store(store, root)

    async def create_by_java() -> list[int]:
        return [(await java.call("ledger_create", **NEW))["ledger_id"] for _ in range(count)]

    async def create() -> list[int]:
        return [(await create_ledger(ledgers, new_metadata()))[0] for _ in range(count)]

    theirs, ours = await asyncio.gather(create_by_java(), create())
    assert len({*theirs, *ours}) == 2 * count
    assert await java.list_ledgers() == await ids_of(ledgers) == sorted(theirs + ours)


@pytest.mark.parametrize("first_id", [0, 2**40])
async def test_directories_that_one_side_empties_take_ledgers_of_the_other(
    peer: Peer, java: JavaMetadata, first_id: int
) -> None:
    """Whoever deletes the last ledger of a directory takes the directory away, while the other creates in it."""
    rounds = 60
    theirs, ours = [first_id, first_id + 1], [first_id + 2, first_id + 3]

    async def churn() -> None:
        for _ in range(rounds):
            for ledger_id in ours:
                await create_ledger(peer.ledgers, new_metadata(), ledger_id=ledger_id)
                assert (await peer.ledgers.read(ledger_id)).version == 0
                await peer.ledgers.delete(ledger_id)

    await asyncio.gather(java.call("ledger_churn", ledger_ids=theirs, count=rounds, **NEW), churn())
    assert await java.list_ledgers() == await ids_of(peer.ledgers) == []
    await create_ledger(peer.ledgers, new_metadata(), ledger_id=ours[0])
    assert await java.list_ledgers() == [ours[0]]


async def test_ids_go_over_into_long_ones_for_both_at_the_same_place(
    peer: Peer, java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    # Creating this node is how an operator switches a cluster to long ids.
    await store.create(Paths(root).long_ids, is_open_acl=True)
    theirs, ours = await asyncio.gather(
        java.call("ledger_ids", count=30),
        asyncio.gather(*(create_ledger(peer.ledgers, new_metadata()) for _ in range(30))),
    )
    ids = sorted([*theirs["ids"], *(ledger_id for ledger_id, _ in ours)])
    assert ids == list(range(2**32, 2**32 + 60))


# --- marks and locks -----------------------------------------------------------------------------------------------


async def test_racing_marks_of_the_same_ledgers_keep_every_bookie(
    peer: Peer, java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    rounds = 40
    ledger_ids = [3, 2**40]

    async def mark() -> None:
        for i in range(rounds):
            for ledger_id in ledger_ids:
                await peer.marks.mark(ledger_id, [f"bkctl{i}:3181"])

    await asyncio.gather(java.call("mark_race", ledger_ids=ledger_ids, prefix="java", count=rounds), mark())
    everybody = {f"{side}{i}:3181" for side in ("java", "bkctl") for i in range(rounds)}
    found = [each async for each in list_marks(store, root, ForeignNames())]
    assert [each.ledger_id for each in found] == ledger_ids
    for each in found:
        assert each.mark is not None
        assert len(each.mark.missing_bookies) == len(everybody)
        assert set(each.mark.missing_bookies) == everybody
    seen = (await java.call("marks"))["marks"]
    assert {each["ledger_id"]: set(each["missing"]) for each in seen} == dict.fromkeys(ledger_ids, everybody)


async def work(peer: Peer, count: int, *, is_clearing: bool, ends_early: bool = False) -> list[Hold]:
    """What Java's ``work`` does."""
    holds: list[Hold] = []
    while len(holds) < count:
        picked = await pick_any(peer.work, RANDOM)
        if picked is None and ends_early:
            break
        if picked is None:
            await asyncio.sleep(0.001)
            continue
        began_ns = time.monotonic_ns()
        await asyncio.sleep(0.002)
        holds.append(Hold(picked.ledger_id, began_ns, time.monotonic_ns()))
        await (peer.work.finish(picked) if is_clearing else picked.release())
    return holds


def overlaps(holds: list[Hold]) -> Iterator[tuple[Hold, Hold]]:
    """Pairs of the same ledger that were held at the same time."""
    last: dict[int, Hold] = {}
    for hold in sorted(holds, key=lambda each: each.began_ns):
        before = last.get(hold.ledger_id)
        if before is not None and hold.began_ns < before.ended_ns:
            yield before, hold
        last[hold.ledger_id] = hold


async def test_workers_of_both_sides_never_hold_the_same_ledger(peer: Peer, java: JavaMetadata) -> None:
    ledger_ids = [11, 12]
    await java.call("mark", ledger_ids=ledger_ids, missing=["10.0.0.9:3181"])
    theirs, ours = await asyncio.gather(java.call("work", count=60), work(peer, 60, is_clearing=False))
    holds = [Hold(*each) for each in theirs["holds"]] + ours
    assert {each.ledger_id for each in holds} == set(ledger_ids)
    assert list(overlaps(holds)) == []


async def test_workers_of_both_sides_share_the_marks(
    peer: Peer, java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    ledger_ids = list(range(60))
    for ledger_id in ledger_ids:
        await peer.marks.mark(ledger_id, ["10.0.0.9:3181"])
    theirs, ours = await asyncio.gather(
        java.call("work", count=60, clear=True, ends_early=True), work(peer, 60, is_clearing=True, ends_early=True)
    )
    done_by_java = [Hold(*each) for each in theirs["holds"]]
    # A mark is read before its lock is taken, on both sides: one that the other has cleared in between is picked again.
    assert {each.ledger_id for each in done_by_java + ours} == set(ledger_ids)
    assert list(overlaps(done_by_java + ours)) == []
    assert done_by_java
    assert ours
    assert [each async for each in list_marks(store, root, ForeignNames())] == []
    await store.sync(root)
    assert await store.children(Paths(root).under_replicated_ledgers) == [], "directories went with the marks"
    assert await store.children(Paths(root).replication_locks) == []


async def test_marks_survive_the_clearing_of_their_neighbours(
    peer: Peer, java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    """Whoever clears the last mark of a directory takes the directory away, while the other marks in it."""
    ledger_ids = list(range(80))
    theirs = asyncio.create_task(java.call("mark", ledger_ids=ledger_ids, missing=["10.0.0.9:3181"]))
    done = [each.ledger_id for each in await work(peer, len(ledger_ids), is_clearing=True)]
    await theirs
    assert sorted(done) == ledger_ids

    async def mark() -> None:
        for ledger_id in ledger_ids:
            await peer.marks.mark(ledger_id, ["10.0.0.9:3181"])

    answer, _ = await asyncio.gather(java.call("work", count=len(ledger_ids), clear=True), mark())
    assert sorted(each[0] for each in answer["holds"]) == ledger_ids
    assert [each async for each in list_marks(store, root, ForeignNames())] == []


async def test_a_lock_of_one_side_keeps_the_other_off(
    peer: Peer, java: JavaMetadata, store: ZooKeeperStore, root: str
) -> None:
    await peer.marks.mark(5, ["10.0.0.9:3181"])
    lock = await peer.locks.acquire(5)
    assert lock is not None
    assert (await java.call("pick"))["ledger_id"] is None
    assert not (await java.call("acquire", ledger_id=5))["acquired"]
    assert (await java.call("marks"))["marks"][0]["worker"] == canonical_host_name()
    await lock.release()

    assert (await java.call("acquire", ledger_id=5))["acquired"]
    assert await peer.locks.acquire(5) is None
    assert await pick_any(peer.work) is None
    # Both sides call the same machine by the same name.
    assert await holder_of(ReplicationLocks(store, root, "reader"), 5) == canonical_host_name()
    await java.close()  # as a worker that stops, or dies: its lock goes with the session

    async def is_picked() -> bool:
        picked = await pick_any(peer.work)
        if picked is not None:
            assert picked.ledger_id == 5
            await picked.release()
        return picked is not None

    await until(is_picked)


@pytest.mark.parametrize("ending", ["release", "finish", "close"])
async def test_a_lock_that_a_java_worker_without_session_deletes_is_known_to_be_lost(
    peer: Peer, java: JavaMetadata, store: ZooKeeperStore, root: str, znodes: KazooClient, ending: str
) -> None:
    """Java gives back what it had before its session expired, although the lock is ours by now."""
    await java.call("mark", ledger_ids=[5], missing=["10.0.0.9:3181"])
    assert (await java.call("pick"))["ledger_id"] == 5
    path = Paths(root).replication_lock(5)
    znodes.delete(path)  # as the end of Java's session does
    lock = await peer.locks.acquire(5)
    assert lock is not None
    await (java.close() if ending == "close" else java.call(ending, ledger_id=5))
    assert await store.exists(path) is None

    async def is_known() -> bool:
        return not lock.is_held

    await until(is_known)
    assert (await java.call("acquire", session="third", ledger_id=5))["acquired"]
    await lock.release()
    assert await store.exists(path) is not None, "the third one's lock is not ours to delete"


@pytest.mark.parametrize("marker", ["java", "bkctl"])
async def test_a_ledger_marked_again_during_its_repair_stays_marked(
    peer: Peer, java: JavaMetadata, store: ZooKeeperStore, root: str, marker: str
) -> None:
    await peer.marks.mark(5, ["10.0.0.9:3181"])
    if marker == "java":
        picked = await pick_any(peer.work, RANDOM)
        assert picked is not None
        await java.call("mark", ledger_ids=[5], missing=["10.0.0.8:3181"])
        assert not await peer.work.finish(picked)
    else:
        assert (await java.call("pick"))["ledger_id"] == 5
        await peer.marks.mark(5, ["10.0.0.8:3181"])
        await java.call("finish", ledger_id=5)
    found = [each async for each in list_marks(store, root, ForeignNames())]
    assert found[0].mark is not None
    assert found[0].mark.missing_bookies == ("10.0.0.9:3181", "10.0.0.8:3181")
    assert await store.children(Paths(root).replication_locks) == []


# --- election ------------------------------------------------------------------------------------------------------


async def test_one_auditor_is_elected_and_succeeded_by_the_other_side(
    java: JavaMetadata, peer: Peer, store: ZooKeeperStore, root: str
) -> None:
    async def auditor() -> str | None:
        found = await read_auditor(store, root, ForeignNames())
        ours = None if found is None else found.bookie_id
        assert (await java.call("auditor", session="watcher"))["bookie_id"] == ours
        return ours

    async def is_java_elected(session: str) -> bool:
        return bool((await java.call("is_elected", session=session))["is_elected"])

    await java.call("campaign", session="first", bookie_id="java-1:3181")
    await until(lambda: is_java_elected("first"))
    election = AuditorElection(store, root, "bkctl-1:3181", lambda _: None)
    campaign = asyncio.create_task(election.campaign())
    await until(lambda: _has_children(store, Paths(root).auditor_election, 2))
    await java.call("campaign", session="second", bookie_id="java-2:3181")
    await until(lambda: _has_children(store, Paths(root).auditor_election, 3))
    assert await auditor() == "java-1:3181"
    assert not election.is_elected
    assert not await is_java_elected("second")

    await java.close("first")
    await asyncio.wait_for(campaign, DEADLINE_S)
    assert await auditor() == "bkctl-1:3181"
    assert not await is_java_elected("second")
    assert (await store.get(Paths(root).auditor_election)).data == b'bookieId: "bkctl-1:3181"\n'

    await election.resign()
    await until(lambda: is_java_elected("second"))
    assert await auditor() == "java-2:3181"


async def _has_children(store: ZooKeeperStore, path: str, count: int) -> bool:
    return len(await store.children(path)) == count


async def test_of_candidates_that_come_at_once_one_wins(
    java: JavaMetadata, peer: Peer, store: ZooKeeperStore, root: str
) -> None:
    election = AuditorElection(store, root, "bkctl:3181", lambda _: None)
    campaign = asyncio.create_task(election.campaign())
    await asyncio.gather(*(java.call("campaign", session=f"{i}", bookie_id=f"java-{i}:3181") for i in range(3)))

    async def winners() -> int:
        answers = [await java.call("is_elected", session=f"{i}") for i in range(3)]
        return [election.is_elected, *(bool(each["is_elected"]) for each in answers)].count(True)

    await until(lambda: _has_children(store, Paths(root).auditor_election, 4))

    async def is_decided() -> bool:
        return await winners() > 0

    await until(is_decided)
    assert await winners() == 1
    campaign.cancel()
    await asyncio.gather(campaign, return_exceptions=True)
    await election.resign()
