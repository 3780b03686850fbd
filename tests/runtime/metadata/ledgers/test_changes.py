from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.changes import ATTEMPTS_MAX, BATCH, Action, LedgerChanges, LedgerFate, Step
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, scan_stored
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import ANY_VERSION, Node
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock


class PlainLedgers:
    """Ledgers whose bytes are plain text, and a record of what was kept before it was changed."""

    def __init__(self, store: ZooKeeperStore, ledgers: LedgerStore) -> None:
        self.store = store
        self.ledgers = ledgers
        self.kept: list[tuple[str, str, bytes, int]] = []

    async def plant(self, ids: Sequence[int]) -> None:
        for ledger_id in ids:
            await self.store.create(self.ledgers.path(ledger_id), b"old", make_parents=True)

    async def contents(self) -> dict[int, tuple[bytes, int]]:
        found = {}
        async for ledger in scan_stored(self.store, self.ledgers):
            assert ledger.node is not None
            found[ledger.ledger_id] = ledger.node.data, ledger.node.stat.version
        return found

    def changes(
        self, decide: Callable[[int, StoredLedger | None], Step], *, before_each: Callable[[], None] = lambda: None
    ) -> LedgerChanges:
        def keep(action: str, nodes: Sequence[tuple[str, Node]]) -> None:
            self.kept += [(action, path, node.data, node.stat.version) for path, node in nodes]

        budget = RequestBudget(LoopClock(), None, BATCH)
        return LedgerChanges(self.store, self.ledgers, decide, keep=keep, before_each=before_each, budget=budget)


@pytest.fixture
async def plain(store: ZooKeeperStore, root: str) -> PlainLedgers:
    await store.create(root.rpartition("/")[0])
    await init_cluster(store, root, LedgerTree.HIERARCHICAL, random.Random(1))
    return PlainLedgers(store, await open_ledger_store(store, root))


async def fates(run: AsyncIterator[LedgerFate]) -> dict[int, LedgerFate]:
    return {fate.ledger_id: fate async for fate in run}


def replace(_: int, stored: StoredLedger | None) -> Step:
    return Step(Action.NONE) if stored is None else Step(Action.SET, b"new")


async def test_each_action_and_what_was_there_is_kept(plain: PlainLedgers) -> None:
    await plain.plant([1, 2, 3, 4])

    def decide(ledger_id: int, stored: StoredLedger | None) -> Step:
        if stored is None:
            return Step(Action.CREATE, b"created")
        steps = {
            1: Step(Action.SET, b"new"),
            2: Step(Action.DELETE),
            3: Step(Action.NONE),
            4: Step(Action.FAIL, b"", "x"),
        }
        return steps[ledger_id]

    found = await fates(plain.changes(decide).run(each_of([1, 2, 3, 4, 5])))
    assert {each: fate.action for each, fate in found.items()} == {
        1: Action.SET,
        2: Action.DELETE,
        3: Action.NONE,
        4: Action.FAIL,
        5: Action.CREATE,
    }
    assert found[4].reason == "x"
    assert await plain.contents() == {1: (b"new", 1), 3: (b"old", 0), 4: (b"old", 0), 5: (b"created", 0)}
    assert sorted((action, data, version) for action, _, data, version in plain.kept) == [
        ("delete", b"old", 0),
        ("set", b"old", 0),
    ]


async def test_a_lost_race_is_decided_anew_and_kept_anew(plain: PlainLedgers, other_store: ZooKeeperStore) -> None:
    await plain.plant([1])
    path = plain.ledgers.path(1)
    rivals = iter([b"rival 1", b"rival 2"])
    seen: list[bytes] = []

    def decide(_: int, stored: StoredLedger | None) -> Step:
        assert stored is not None
        assert stored.node is not None
        seen.append(stored.node.data)
        return Step(Action.SET, stored.node.data + b"!")

    operation = plain.changes(decide)
    carry_out = operation._carry_out

    async def with_a_rival(ledger_id: int, stored: StoredLedger | None, step: Step) -> bool:
        if (data := next(rivals, None)) is not None:
            await other_store.set(path, data, ANY_VERSION)
        return await carry_out(ledger_id, stored, step)

    operation._carry_out = with_a_rival  # type: ignore[method-assign]
    found = await fates(operation.run(each_of([1])))
    assert found[1].action is Action.SET
    assert seen == [b"old", b"rival 1", b"rival 2"]
    assert await plain.contents() == {1: (b"rival 2!", 3)}
    assert [(data, version) for _, _, data, version in plain.kept] == [(b"old", 0), (b"rival 1", 1), (b"rival 2", 2)]


async def test_an_endless_race_is_given_up(plain: PlainLedgers, other_store: ZooKeeperStore) -> None:
    await plain.plant([1])
    path = plain.ledgers.path(1)
    operation = plain.changes(replace)
    carry_out = operation._carry_out

    async def with_a_rival(ledger_id: int, stored: StoredLedger | None, step: Step) -> bool:
        await other_store.set(path, b"rival", ANY_VERSION)
        return await carry_out(ledger_id, stored, step)

    operation._carry_out = with_a_rival  # type: ignore[method-assign]
    found = await fates(operation.run(each_of([1])))
    assert found[1] == LedgerFate(1, Action.FAIL, "other processes keep changing it")
    assert await plain.contents() == {1: (b"rival", ATTEMPTS_MAX)}


async def test_no_more_than_the_limit(plain: PlainLedgers) -> None:
    ids = list(range(3 * BATCH))
    await plain.plant(ids)
    for limit in (1, BATCH, BATCH + 3):
        before = await plain.contents()
        assert len(await fates(plain.changes(_touch).run(each_of(ids), changes_max=limit))) == limit
        after = await plain.contents()
        assert sum(before[each] != after[each] for each in ids) == limit


async def _collect(run: AsyncIterator[LedgerFate], told: list[int]) -> None:
    async for fate in run:
        told.append(fate.ledger_id)


def _touch(_: int, stored: StoredLedger | None) -> Step:
    assert stored is not None
    assert stored.node is not None
    return Step(Action.SET, stored.node.data + b".")


async def test_stopped_at_any_change_nothing_is_changed_that_was_not_kept(plain: PlainLedgers) -> None:
    ids = list(range(BATCH + 10))
    await plain.plant(ids)
    for steps in (0, 1, BATCH - 1, BATCH, BATCH + 5):
        left = iter(range(steps))

        def before_each(left: AsyncIterator[int] | object = left) -> None:
            if next(left, None) is None:  # type: ignore[call-overload]
                raise RefusedError("stopped")

        before = await plain.contents()
        plain.kept.clear()
        told: list[int] = []
        run = plain.changes(_touch, before_each=before_each).run(each_of(ids))
        with pytest.raises(RefusedError):
            await _collect(run, told)
        after = await plain.contents()
        kept = {(path, data, version) for _, path, data, version in plain.kept}
        changed = [each for each in ids if after[each] != before[each]]
        assert changed == sorted(told), "all that happened is told, and nothing is under way any more"
        assert len(changed) == steps
        assert {(plain.ledgers.path(each), *before[each]) for each in changed} <= kept


async def test_a_ledger_that_is_gone_counts_as_none(plain: PlainLedgers) -> None:
    found = await fates(plain.changes(replace).run(each_of([7])))
    assert found[7].action is Action.NONE
    with pytest.raises(RefusedError, match="makes Java bookies delete"):
        await fates(plain.changes(lambda *_: Step(Action.CREATE, b"x")).run(each_of([2**63 - 1])))
    assert await plain.contents() == {}
