"""Marks are examined and cleared in a real ZooKeeper; the bookies are scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

import pytest

from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.store import ANY_VERSION, Node
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.marks import MarkFinding
from bkctl.runtime.replication.run.mark_repair import ClearOutcome, JudgedMark, MarkClearing, MarkRepair
from tests.runtime.replication.fleet import QUICK, Fleet, length_of
from tests.runtime.replication.samples import ledger


class Marked:
    """Three bookies, and the marks of their ledgers."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.store = fleet.client.store
        self.root = fleet.ledgers.root
        self.paths = Paths(self.root)
        self.marks = UnderReplicationMarks(self.store, self.root, LoopClock())
        self.repair = MarkRepair(fleet.client.ports, self.store, fleet.locks, QUICK)
        self.kept: list[str] = []
        self.outcomes: dict[int, ClearOutcome] = {}

    async def start(self) -> None:
        await self.fleet.start("b1", "b2", "b3")

    async def ledger(self, *ensemble: str, entries: int = 2, holes: Sequence[str] = ()) -> int:
        metadata = ledger({0: ensemble or ("b1", "b2")}, 2, 2, last_entry_id=entries - 1, length=length_of(entries))
        return await self.fleet.store(metadata, holes=holes)

    async def ids(self) -> list[int]:
        found = list_marks(self.store, self.root, ForeignNames())
        return [each.ledger_id async for each in found]

    async def examine(self, *, is_deep: bool = False) -> dict[int, JudgedMark]:
        return {each.ledger_id: each for each in await self.repair.examine(ForeignNames(), is_deep=is_deep)}

    def keep(self, nodes: Sequence[tuple[str, Node]]) -> None:
        self.kept += [path for path, _ in nodes]

    async def clear(self, judged: dict[int, JudgedMark]) -> dict[int, ClearOutcome]:
        clearable = [each for each in judged.values() if each.verdict.is_clearable]
        await self.repair.clear(clearable, self.keep, self.outcomes.__setitem__)
        return self.outcomes


@pytest.fixture
async def marked(fleet: Fleet) -> Marked:
    found = Marked(fleet)
    await found.start()
    return found


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.battery)])
async def test_after_a_bookie_is_back_its_marks_are_cleared_without_copying(marked: Marked, count: int) -> None:
    ledger_ids = await asyncio.gather(*(marked.ledger() for _ in range(count)))
    await marked.fleet.fakes.withdraw("b1")
    await asyncio.gather(*(marked.marks.mark(ledger_id, ["b1"]) for ledger_id in ledger_ids))
    judged = await marked.examine()
    assert {each.verdict.state for each in judged.values()} == {MarkFinding.WAITING}
    await marked.fleet.fakes.register("b1")
    judged = await marked.examine()
    assert {each.verdict.state for each in judged.values()} == {MarkFinding.COPIES_UNKNOWN}
    judged = await marked.examine(is_deep=True)
    assert {each.verdict.state for each in judged.values()} == {MarkFinding.COMPLETE}
    assert marked.fleet.adds() == 0
    assert marked.fleet.reads() == 2 * count, "only the copies of b1"
    outcomes = await marked.clear(judged)
    assert outcomes == dict.fromkeys(ledger_ids, ClearOutcome.CLEARED)
    assert await marked.ids() == []
    assert sorted(marked.kept) == sorted(map(marked.paths.mark, ledger_ids))
    assert await marked.store.children(marked.paths.under_replicated_ledgers) == [], "empty directories are removed"
    assert await marked.store.children(marked.paths.replication_locks) == []


async def test_a_bookie_that_was_frozen_before_it_went_down_comes_back_without_its_last_entries(marked: Marked) -> None:
    """Two of three bookies confirmed all entries; the mark was made while the third was down."""
    metadata = ledger({0: ("b1", "b2", "b3")}, 3, 2, last_entry_id=19, length=length_of(20))
    ledger_id = await marked.fleet.store(metadata, holes=["b3"])
    await marked.fleet.fakes.withdraw("b3")
    await marked.marks.mark(ledger_id, ["b3"])
    await marked.fleet.fakes.register("b3")
    assert (await marked.examine())[ledger_id].verdict.state is MarkFinding.COPIES_UNKNOWN
    judged = await marked.examine(is_deep=True)
    assert judged[ledger_id].verdict.state is MarkFinding.WAITING
    assert "20 of 60 copies are missing or bad, on b3" in judged[ledger_id].verdict.detail
    assert await marked.clear(judged) == {}
    assert await marked.ids() == [ledger_id]


async def test_of_two_segments_only_the_one_with_the_named_bookie_is_read(marked: Marked) -> None:
    """Entries that the named bookie should not store need no copy on it."""
    metadata = ledger({0: ("b1", "b2"), 4: ("b2", "b3")}, 2, 2, last_entry_id=5, length=length_of(6))
    ledger_id = await marked.fleet.store(metadata)
    await marked.marks.mark(ledger_id, ["b3", "gone"])
    judged = await marked.examine(is_deep=True)
    assert judged[ledger_id].verdict.state is MarkFinding.COMPLETE
    assert marked.fleet.reads() == 2


async def test_copies_decide_about_bookies_that_were_up_all_along(marked: Marked) -> None:
    good, holey = await marked.ledger(), await marked.ledger(holes=["b2"])
    lost = await marked.ledger(holes=["b1", "b2"])
    for ledger_id in (good, holey, lost):
        await marked.marks.mark(ledger_id, ["b2"])
    judged = await marked.examine()
    assert {each.verdict.state for each in judged.values()} == {MarkFinding.COPIES_UNKNOWN}
    judged = await marked.examine(is_deep=True)
    states = {ledger_id: each.verdict.state for ledger_id, each in judged.items()}
    assert states == {good: MarkFinding.COMPLETE, holey: MarkFinding.WAITING, lost: MarkFinding.ENTRIES_LOST}
    assert await marked.clear(judged) == {good: ClearOutcome.CLEARED}
    assert await marked.ids() == [holey, lost]


async def test_marks_of_deleted_ledgers_are_cleared_and_only_their_own_branch(marked: Marked) -> None:
    """T14, T27: three levels of directories are shared."""
    kept, deleted = await marked.ledger("b1", "b9"), await marked.ledger()
    for ledger_id in (kept, deleted):
        await marked.marks.mark(ledger_id, ["b9"])
    await marked.store.delete(marked.fleet.ledgers.path(deleted))
    judged = await marked.examine()
    assert judged[deleted].verdict.state is MarkFinding.LEDGER_DELETED
    assert await marked.clear(judged) == {deleted: ClearOutcome.CLEARED}
    assert await marked.ids() == [kept]
    parent = marked.paths.mark_directory(kept).rpartition("/")[0]
    assert await marked.store.children(parent) == [marked.paths.mark_directory(kept).rpartition("/")[2]]


async def test_a_mark_that_was_renewed_or_locked_or_cleared_meanwhile_is_left(marked: Marked) -> None:
    """T26."""
    renewed, locked, gone = [await marked.ledger() for _ in range(3)]
    for ledger_id in (renewed, locked, gone):
        await marked.marks.mark(ledger_id, ["b9"])
    judged = await marked.examine()
    await marked.marks.mark(renewed, ["b3"])
    await marked.marks.clear(gone, 0)
    async with await marked.fleet.fakes.client() as worker:
        path = marked.paths.replication_lock(locked)
        await worker.store.create(path, b'bookieId: "worker"\n', is_ephemeral=True)
        assert await marked.clear(judged) == {
            renewed: ClearOutcome.RENEWED,
            locked: ClearOutcome.LOCKED,
            gone: ClearOutcome.GONE,
        }
        assert (await marked.examine())[locked].verdict.state is MarkFinding.LOCKED
    assert await marked.ids() == [renewed, locked]
    assert marked.kept == []


async def test_a_ledger_that_changed_since_it_was_examined_is_judged_again(marked: Marked) -> None:
    ledger_id = await marked.ledger()
    await marked.marks.mark(ledger_id, ["b9"])
    judged = await marked.examine()
    await marked.fleet.fakes.withdraw("b2")
    assert await marked.clear(judged) == {ledger_id: ClearOutcome.NEEDED}
    assert await marked.ids() == [ledger_id]
    assert marked.kept == []


async def test_a_mark_is_set_again_if_its_bookie_fails_while_it_is_cleared(marked: Marked) -> None:
    """An auditor that found the bookie in the mark has written nothing: nobody else would set it again."""
    ledger_id, other = await marked.ledger(), await marked.ledger()
    for each in (ledger_id, other):
        await marked.marks.mark(each, ["b2", "b3"])
    answers = [[], [ledger_id]]
    clearing = MarkClearing(marked.store, marked.root, marked.marks, marked.fleet.locks)

    async def are_needed(ledger_ids: Sequence[int]) -> Collection[int]:
        assert sorted(ledger_ids) == [ledger_id, other]
        return answers.pop(0)

    await clearing.clear([(ledger_id, 0), (other, 0)], are_needed, marked.keep, marked.outcomes.__setitem__)
    assert marked.outcomes == {ledger_id: ClearOutcome.NEEDED, other: ClearOutcome.CLEARED}
    assert await marked.ids() == [ledger_id]
    assert b'"b2"\nreplica: "b3"' in (await marked.store.get(marked.paths.mark(ledger_id))).data


async def test_marks_without_a_bookie_and_marks_of_any_text(marked: Marked) -> None:
    empty, junk = await marked.ledger(), await marked.ledger()
    await marked.marks.mark(empty, [])
    await marked.marks.mark(junk, ["b1"])
    await marked.store.set(marked.paths.mark(junk), b"junk", ANY_VERSION)
    states = {ledger_id: each.verdict.state for ledger_id, each in (await marked.examine()).items()}
    assert states == {empty: MarkFinding.PLACEMENT_UNKNOWN, junk: MarkFinding.COPIES_UNKNOWN}
    judged = await marked.examine(is_deep=True)
    assert await marked.clear(judged) == {junk: ClearOutcome.CLEARED}
    assert await marked.ids() == [empty]
