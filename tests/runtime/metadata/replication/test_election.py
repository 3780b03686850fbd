from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bkctl.runtime.errors import ClusterNotFoundError, MetadataUnavailableError, NodeExistsError
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import AuditorElection, list_candidates, read_auditor
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.counting_store import CountingStore
from tests.runtime.metadata.conftest import expire, session_of
from tests.runtime.metadata.replication.test_format import golden_nodes

OURS, THEIRS, THIRD = "127.0.0.1:13385", "127.0.0.1:13380", "10.0.0.3:3181"


class Party:
    """A process that wants to be the auditor, from the first time on that it is asked whether it has won."""

    def __init__(self, store: ZooKeeperStore | CountingStore, root: str, bookie_id: str) -> None:
        self.deposed: asyncio.Queue[str] = asyncio.Queue()
        self._store = store if isinstance(store, CountingStore) else CountingStore(store)
        self.election = AuditorElection(self._store, root, bookie_id, self.deposed.put_nowait)
        self._campaign: asyncio.Future[None] | None = None

    def campaign(self) -> asyncio.Future[None]:
        if self._campaign is None:
            self._campaign = asyncio.ensure_future(self.election.campaign())
        return self._campaign

    def campaign_again(self) -> None:
        self._campaign = None

    async def has_won(self) -> bool:
        """Whether it wins while nothing hinders it; who does not stands in line by then, or waits for a number."""
        campaign = self.campaign()
        await self._store.quiet()
        return campaign.done() and self.election.is_elected

    async def win(self) -> None:
        async with asyncio.timeout(60):
            await self.campaign()
        assert self.election.is_elected

    async def leave(self) -> None:
        campaign = self.campaign()
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)
        self.campaign_again()
        await self.election.resign()


@pytest.fixture
async def cluster(store: ZooKeeperStore, root: str) -> str:
    await store.create(root, make_parents=True)
    return root


def foreign(told: list[str] | None = None) -> ForeignNames:
    return ForeignNames((told if told is not None else []).append)


async def test_the_nodes_are_those_of_java(store: ZooKeeperStore, other_store: ZooKeeperStore, cluster: str) -> None:
    first = Party(store, cluster, OURS)
    await first.win()
    second = Party(other_store, cluster, THEIRS)
    assert not await second.has_won()
    seen = [(path, data) for peer, path, data in golden_nodes() if peer in {"auditor running", "two electors"}]
    expected = [(path, data) for path, data in seen if "auditorelection" in path]
    assert len(expected) == 3
    for path, data in expected:
        node = await store.get(cluster + path)
        assert node.data == data
    directory = f"{cluster}/underreplication/auditorelection"
    assert await store.children(f"{cluster}/underreplication") == ["auditorelection"]
    assert (await store.get(directory)).stat.version == 1
    assert (await store.get(f"{directory}/V_0000000000")).stat.ephemeral_owner == store.session_id
    await first.leave()
    await second.win()
    assert (await store.get(directory)).data == f'bookieId: "{THEIRS}"\n'.encode()
    await second.leave()
    assert await store.children(directory) == []


async def test_costs(store: ZooKeeperStore, other_store: ZooKeeperStore, cluster: str) -> None:
    warm_up = Party(store, cluster, OURS)
    await warm_up.win()
    await warm_up.leave()
    counting, other_counting = CountingStore(store), CountingStore(other_store)
    with counting.counted() as counts:
        first = Party(counting, cluster, OURS)
        await first.win()
        await counting.quiet()
    assert counts == {"create": 1, "children": 1, "exists": 1, "set": 1, "watched": 1}, "to win at once"
    with other_counting.counted() as counts:
        second = Party(other_counting, cluster, THEIRS)
        assert not await second.has_won()
    assert counts == {"create": 1, "children": 1, "exists": 1}, "to stand in line"
    with counting.counted() as idle, other_counting.counted() as other_idle:
        await asyncio.sleep(0.3)
    assert (idle, other_idle) == ({}, {}), "to be the auditor, and to wait"
    with other_counting.counted() as counts:
        await first.leave()
        await second.win()
        await other_counting.quiet()
    assert counts == {"children": 1, "exists": 1, "set": 1, "watched": 1}, "to succeed"
    with counting.counted() as counts:
        candidate = await read_auditor(counting, cluster, foreign())
    assert counts == {"children": 1, "get": 1}, "to ask who it is"
    assert candidate is not None
    assert (candidate.bookie_id, candidate.session_id) == (THEIRS, other_store.session_id)
    with other_counting.counted() as counts:
        await second.leave()
    assert counts == {"delete": 1}, "to resign"


async def test_only_the_predecessor_is_watched(
    store: ZooKeeperStore, other_store: ZooKeeperStore, cluster: str
) -> None:
    counting = CountingStore(other_store)
    parties = [Party(store, cluster, OURS)]
    await parties[0].win()
    for bookie_id in (THEIRS, THIRD):
        parties.append(Party(counting, cluster, bookie_id))
        assert not await parties[-1].has_won()
    with counting.counted() as counts:
        await parties[0].leave()
        await parties[1].win()
        await counting.quiet()
    assert counts["children"] == 1, "the third in line did not even wake"
    assert not parties[2].election.is_elected
    candidates = await list_candidates(store, cluster, foreign())
    assert [candidate.bookie_id for candidate in candidates] == [THEIRS, THIRD]
    for party in parties[1:]:
        await party.leave()


async def test_the_middle_of_the_line_may_leave(
    store: ZooKeeperStore, other_store: ZooKeeperStore, cluster: str
) -> None:
    first, second = Party(store, cluster, OURS), Party(other_store, cluster, THEIRS)
    await first.win()
    assert not await second.has_won()
    third = Party(other_store, cluster, THIRD)
    assert not await third.has_won()
    await second.leave()
    assert not await third.has_won()
    await first.leave()
    await third.win()
    await third.leave()


async def test_a_vote_deleted_by_hand_deposes(store: ZooKeeperStore, other_store: ZooKeeperStore, cluster: str) -> None:
    """Java does not notice, and two auditors are at work from then on."""
    first, second = Party(store, cluster, OURS), Party(other_store, cluster, THEIRS)
    await first.win()
    assert not await second.has_won()
    directory = f"{cluster}/underreplication/auditorelection"
    await other_store.delete(f"{directory}/V_0000000000")
    assert "deleted" in await first.deposed.get()
    assert not first.election.is_elected
    await second.win()
    first.campaign_again()
    assert not await first.has_won()
    await second.leave()
    await first.win()
    assert first.deposed.empty()
    await first.leave()
    assert first.deposed.empty(), "who resigns is not deposed"


async def test_a_waiting_vote_deleted_by_hand_is_cast_anew(
    store: ZooKeeperStore, other_store: ZooKeeperStore, cluster: str
) -> None:
    first, second = Party(store, cluster, OURS), Party(other_store, cluster, THEIRS)
    await first.win()
    assert not await second.has_won()
    await store.delete(f"{cluster}/underreplication/auditorelection/V_0000000001")
    await first.leave()
    await second.win()
    assert [each.vote for each in await list_candidates(store, cluster, foreign())] == ["V_0000000002"]
    await second.leave()


async def test_a_lost_session_deposes_at_once(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, cluster: str
) -> None:
    first, second = Party(store, cluster, OURS), Party(other_store, cluster, THEIRS)
    await first.win()
    assert not await second.has_won()
    was_elected_when_lost: list[bool] = []
    store.on_session_lost(lambda: was_elected_when_lost.append(first.election.is_elected))
    await asyncio.to_thread(expire, session_of(store), zookeeper)
    assert "session expired" in await first.deposed.get()
    assert was_elected_when_lost == [False]
    await second.win()
    await first.leave()
    await second.leave()


async def test_a_candidate_outlives_its_session(
    store: ZooKeeperStore, other_store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, cluster: str
) -> None:
    first, second = Party(store, cluster, OURS), Party(other_store, cluster, THEIRS)
    await first.win()
    assert not await second.has_won()
    await asyncio.to_thread(expire, session_of(other_store), zookeeper)
    await asyncio.sleep(0.3)
    assert second.deposed.empty()
    await first.leave()
    try:
        await second.win()
    except MetadataUnavailableError:  # when it was asking at that moment
        second.campaign_again()
        await second.win()
    assert len(await list_candidates(store, cluster, foreign())) == 1
    await second.leave()


async def test_foreign_names_are_survived(store: ZooKeeperStore, cluster: str) -> None:
    """Any of them ends every Java elector."""
    directory = f"{cluster}/underreplication/auditorelection"
    for name in ("junk", "V_", "V_x", "leader"):
        await store.create(f"{directory}/{name}", b"x", make_parents=True)
    told: list[str] = []
    assert await read_auditor(store, cluster, foreign(told)) is None
    assert sorted(sentence.split(" ")[0].rpartition("/")[2] for sentence in told) == ["V_", "V_x", "junk", "leader"]
    party = Party(store, cluster, OURS)
    await party.win()
    await party.leave()
    assert await store.children(directory) == ["V_", "V_x", "junk", "leader"]


async def test_a_vote_that_cannot_be_read_wins_all_the_same(store: ZooKeeperStore, cluster: str) -> None:
    directory = f"{cluster}/underreplication/auditorelection"
    await store.create(f"{directory}/V_0000000000", b"junk", make_parents=True)
    candidate = await read_auditor(store, cluster, foreign())
    assert candidate is not None
    assert candidate.bookie_id is None
    assert candidate.problem is not None
    party = Party(store, cluster, OURS)
    assert not await party.has_won()
    await store.delete(f"{directory}/V_0000000000")
    await party.win()
    await party.leave()


class _Faulty(CountingStore):
    """Loses answers, or refuses numbers as a count at its end does."""

    def __init__(self, store: ZooKeeperStore) -> None:
        super().__init__(store)
        self.loses_next_create = False
        self.loses_next_delete = False
        self.is_count_at_end: Callable[[], bool] = lambda: False

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        if options.get("is_sequential") and self.is_count_at_end():
            name = f"{path}2147483647"
            return await super().create(name, data, is_ephemeral=True)
        created = await super().create(path, data, **options)
        if options.get("is_sequential") and self.loses_next_create:
            self.loses_next_create = False
            raise MetadataUnavailableError("lost", path)
        return created

    async def delete(self, path: str, expected_version: int = -1) -> None:
        await super().delete(path, expected_version)
        if self.loses_next_delete:
            self.loses_next_delete = False
            raise MetadataUnavailableError("lost", path)


async def test_a_vote_whose_answer_was_lost_is_found(store: ZooKeeperStore, cluster: str) -> None:
    faulty = _Faulty(store)
    faulty.loses_next_create = True
    party = Party(faulty, cluster, OURS)
    with pytest.raises(MetadataUnavailableError):
        await party.win()
    party.campaign_again()
    await party.win()
    assert len(await list_candidates(store, cluster, foreign())) == 1
    faulty.loses_next_delete = True
    with pytest.raises(MetadataUnavailableError):
        await party.leave()
    await party.leave()
    assert await list_candidates(store, cluster, foreign()) == []
    faulty.loses_next_create = True
    party = Party(faulty, cluster, OURS)
    with pytest.raises(MetadataUnavailableError):
        await party.win()
    await party.leave()
    assert await list_candidates(store, cluster, foreign()) == [], "resigning finds it as well"


async def test_one_at_a_time_when_the_numbers_are_used_up(
    store: ZooKeeperStore, other_store: ZooKeeperStore, cluster: str
) -> None:
    """The count of children sticks at 2147483647; a Java elector that gets no vote ends."""
    first_store, second_store = _Faulty(store), _Faulty(other_store)
    first_store.is_count_at_end = second_store.is_count_at_end = lambda: True
    warm_up = Party(store, cluster, OURS)
    await warm_up.win()
    await warm_up.leave()
    first = Party(first_store, cluster, OURS)
    await first.win()
    second = Party(second_store, cluster, THEIRS)
    assert not await second.has_won()
    with second_store.counted() as counts:
        await asyncio.sleep(0.3)
    assert counts == {}
    with pytest.raises(NodeExistsError):
        await first_store.create(f"{cluster}/underreplication/auditorelection/V_", is_sequential=True)
    await first.leave()
    await second.win()
    await second.leave()


async def test_no_cluster_and_nobody_elected(store: ZooKeeperStore, root: str) -> None:
    with pytest.raises(ClusterNotFoundError):
        await AuditorElection(store, root, OURS, lambda _: None).campaign()
    with pytest.raises(AssertionError):
        AuditorElection(store, root, "not a bookie", lambda _: None)
    await store.create(root, make_parents=True)
    assert await read_auditor(store, root, foreign()) is None
    assert await list_candidates(store, root, foreign()) == []
    assert await store.children(root) == []
