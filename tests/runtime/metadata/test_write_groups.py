"""Concurrent writes share transactions, and nobody notices: against the model of ZooKeeper, in virtual time."""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections.abc import Awaitable, Callable

import pytest

from bkctl.runtime.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import (
    ANY_VERSION,
    CheckNode,
    CreateNode,
    DeleteNode,
    MetadataStore,
    NodeWrite,
    SetNode,
)
from bkctl.runtime.metadata.write_groups import BYTES_MAX, COST_OF_COMPANY, WRITES_MAX, WriteGroups
from tests.counting_store import CountingStore
from tests.runtime.metadata.linked_servers import LinkedModel
from tests.sim.loop import VirtualClock, run_simulated

Scenario = Callable[[LinkedModel, MetadataStore], Awaitable[None]]


def simulate(scenario: Scenario) -> None:
    async def run(seed: int) -> None:
        linked = LinkedModel(seed)
        try:
            await scenario(linked, await linked.connect())
        finally:
            await linked.close()

    for seed in range(8):
        run_simulated(run(seed))


def test_writes_of_many_callers_need_few_transactions() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        counting = CountingStore(store)
        groups = WriteGroups(counting, RequestBudget(VirtualClock(), None, 128))

        async def live(number: int) -> None:
            path = f"/n{number}"
            assert await groups.write(CreateNode(path)) == [None]
            (stat,) = await groups.write(SetNode(path, b"x", 0))
            assert stat is not None
            assert stat.version == 1
            assert stat == await store.exists(path)
            assert await groups.write(DeleteNode(path, 1)) == [None]

        callers = WRITES_MAX * 2
        await asyncio.gather(*map(live, range(callers)))
        assert await store.children("/") == []
        requests = sum(counting.counts.values())
        assert 3 * callers / WRITES_MAX <= requests <= 3 * callers / 8, counting.counts

    simulate(scenario)


def test_one_caller_alone_needs_no_transaction() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        counting = CountingStore(store)
        groups = WriteGroups(counting, RequestBudget(VirtualClock(), None, 128))
        await groups.write(CreateNode("/a"))
        await groups.write(SetNode("/a", b"", 0))
        await groups.write(DeleteNode("/a", 1))
        assert counting.counts == {"create": 1, "set": 1, "delete": 1}
        await groups.write(CreateNode("/a"), CreateNode("/a/b"))
        assert counting.counts["transaction"] == 1

    simulate(scenario)


def test_each_write_fails_for_itself() -> None:
    faults: list[tuple[tuple[NodeWrite, ...], type[MetadataError]]] = [
        ((CreateNode("/old"),), NodeExistsError),
        ((CreateNode("/no/child"),), NoNodeError),
        ((SetNode("/old", b"", 5),), BadVersionError),
        ((DeleteNode("/gone"),), NoNodeError),
        ((CreateNode("/pair"), DeleteNode("/lost")), NoNodeError),
        ((CreateNode("not a path"),), MetadataError),
    ]

    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        await store.create("/old")
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        good = [groups.write(CreateNode(f"/n{number}")) for number in range(40)]
        bad = [groups.write(*writes) for writes, _ in faults]
        results = await asyncio.gather(*good[:20], *bad, *good[20:], return_exceptions=True)
        assert results[:20] == results[26:] == [[None]] * 20
        for (writes, expected), error in zip(faults, results[20:26], strict=True):
            assert type(error) is expected
            assert error.path == writes[-1].path
        assert sorted(await store.children("/")) == sorted(["old", *(f"n{number}" for number in range(40))])

    simulate(scenario)


@pytest.mark.parametrize("is_target_there", [True, False])
def test_writes_that_check_the_same_node_share_a_transaction(*, is_target_there: bool) -> None:
    """Copies of many ledgers go to the same bookies."""

    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        counting = CountingStore(store)
        groups = WriteGroups(counting, RequestBudget(VirtualClock(), None, 128))
        await store.create("/there")
        if is_target_there:
            await store.create("/target")

        async def move(number: int) -> None:
            checks = [CheckNode("/there", ANY_VERSION)]
            if number % 2:
                checks.append(CheckNode("/target", ANY_VERSION))
            await groups.write(CreateNode(f"/n{number}"), *checks)

        results = await asyncio.gather(*map(move, range(60)), return_exceptions=True)
        failed = [number for number, result in enumerate(results) if result is not None]
        assert failed == ([] if is_target_there else list(range(1, 60, 2)))
        assert {(type(results[each]), getattr(results[each], "path", "")) for each in failed} <= {
            (NoNodeError, "/target")
        }
        if is_target_there:
            assert counting.counts == {"transaction": 1}  # a check that many make counts once against WRITES_MAX

    simulate(scenario)


def test_a_node_that_one_checks_and_another_writes_is_not_in_one_transaction() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        await store.create("/n")
        writes: list[tuple[NodeWrite, ...]] = [
            (CreateNode("/a"), CheckNode("/n", 0)),
            (SetNode("/n", b"", 0),),
            (CreateNode("/b"), CheckNode("/n", 1)),
            (CreateNode("/c"), CheckNode("/n", 0)),
        ]
        results = await asyncio.gather(*(groups.write(*each) for each in writes), return_exceptions=True)
        assert [isinstance(each, BadVersionError) for each in results] == [False, False, False, True]

    simulate(scenario)


def test_writes_of_one_node_are_carried_out_in_order() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        writes: list[NodeWrite] = [CreateNode("/a"), *(SetNode("/a", b"%d" % n, n) for n in range(30))]
        await asyncio.gather(*(groups.write(write) for write in writes))
        assert (await store.get("/a")).data == b"29"

    simulate(scenario)


def test_of_many_that_create_one_node_one_succeeds() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        results = await asyncio.gather(
            *(groups.write(CreateNode("/a", b"%d" % n)) for n in range(10)), return_exceptions=True
        )
        assert [type(each) for each in results].count(NodeExistsError) == 9
        assert [None] in results

    simulate(scenario)


def test_a_write_that_was_cancelled_while_it_waited_is_never_sent() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        tasks = [asyncio.create_task(groups.write(CreateNode(f"/a{number}"))) for number in range(20)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # these are under way
        late = [asyncio.create_task(groups.write(CreateNode(f"/b{number}"))) for number in range(300)]
        await asyncio.sleep(0)
        for task in late[::2]:
            task.cancel()
        await asyncio.gather(*tasks, *late[1::2])
        await asyncio.sleep(1)
        expected = {*(f"a{number}" for number in range(20)), *(f"b{number}" for number in range(1, 300, 2))}
        assert set(await store.children("/")) == expected

    simulate(scenario)


def test_large_writes_stay_below_the_limit_of_a_transaction() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        sizes: list[int] = []
        write_all = store.write_all

        async def noting(writes: list[NodeWrite]) -> object:
            sizes.append(sum(len(write.data) for write in writes if isinstance(write, CreateNode)))
            return await write_all(writes)

        store.write_all = noting  # type: ignore[method-assign,assignment]
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        parts = [60_000] * 20 + [BYTES_MAX * 2]
        await asyncio.gather(*(groups.write(CreateNode(f"/n{n}", bytes(size))) for n, size in enumerate(parts)))
        assert len(await store.children("/")) == len(parts)
        assert sizes
        assert max(sizes) <= BYTES_MAX

    simulate(scenario)


def test_an_error_that_is_not_the_stores_reaches_every_caller() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        async def broken(_: object) -> object:
            raise OverflowError("a number does not fit")

        store.write_all = broken  # type: ignore[method-assign,assignment]
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        results = await asyncio.gather(*(groups.write(CreateNode(f"/n{n}")) for n in range(5)), return_exceptions=True)
        assert [type(each) for each in results] == [OverflowError] * 5
        await groups.write(CreateNode("/next"))

    simulate(scenario)


def test_a_lost_connection_and_a_lost_session_end_what_began() -> None:
    async def scenario(linked: LinkedModel, store: MetadataStore) -> None:
        groups, count = WriteGroups(store, RequestBudget(VirtualClock(), None, 128)), WRITES_MAX * 6

        def begin(name: str) -> list[asyncio.Task[object]]:
            return [asyncio.create_task(groups.write(CreateNode(f"/{name}{number}"))) for number in range(count)]

        lost = begin("lost")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        linked.link.lose_answers()
        await asyncio.sleep(0.5)
        linked.link.cut()
        linked.link.restore()
        results = await asyncio.gather(*lost, return_exceptions=True)
        errors = [each for each in results if isinstance(each, Exception)]
        assert errors
        for result, number in zip(results, range(count), strict=True):
            if isinstance(result, Exception):
                assert type(result) is MetadataUnavailableError
                assert str(result).startswith(f"/lost{number}: ")
            else:
                assert await store.exists(f"/lost{number}") is not None
        ended = begin("ended")
        linked.link.freeze()
        await asyncio.sleep(0.01)
        await linked.expire(store)
        linked.link.restore()
        results = await asyncio.gather(*ended, return_exceptions=True)
        assert {type(each) for each in results[WRITES_MAX * 2 :]} == {SessionExpiredError}
        await groups.write(CreateNode("/after"))
        created = set(await store.children("/"))
        assert "after" in created
        assert not created & {f"ended{number}" for number in range(WRITES_MAX * 2, count)}

    simulate(scenario)


def test_an_ephemeral_node_belongs_to_the_session() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        await asyncio.gather(*(groups.write(CreateNode(f"/e{n}", b"", is_ephemeral=n > 0)) for n in range(3)))
        owners = [stat.ephemeral_owner for n in range(3) if (stat := await store.exists(f"/e{n}"))]
        assert owners == [0, store.session_id, store.session_id]

    simulate(scenario)


@pytest.mark.parametrize("is_ephemeral", [False, True])
def test_no_node_is_left_without_its_callers_knowledge(*, is_ephemeral: bool) -> None:
    """A create that ended with an error, or was cancelled, is not carried out after a later answer of the session."""

    async def scenario(linked: LinkedModel, store: MetadataStore) -> None:
        groups = WriteGroups(store, RequestBudget(VirtualClock(), None, 128))
        source = linked.clock.random
        for turn in range(5):
            tasks = [
                asyncio.create_task(groups.write(CreateNode(f"/t{turn}-{number}", is_ephemeral=is_ephemeral)))
                for number in range(200)
            ]
            await asyncio.sleep(source.uniform(0, 0.004))
            for task in source.sample(tasks, 50):
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            seen = set(await store.children("/"))
            await asyncio.sleep(1)
            assert set(await store.children("/")) == seen
            assert {f"t{turn}-{n}" for n, result in enumerate(results) if result == [None]} <= seen

    simulate(scenario)


class Noting:
    """The moments at which requests to a store begin, with their costs; ``order`` has the first path of each."""

    def __init__(self, store: MetadataStore) -> None:
        self.costs: list[tuple[float, float]] = []
        self.order: list[str] = []
        for name in ("get", "create", "set", "delete"):
            setattr(store, name, self._noting(getattr(store, name), lambda path: ([path], 1.0)))
        store.write_all = self._noting(store.write_all, _paths_and_cost)  # type: ignore[method-assign]

    def _noting(self, operation: Callable[..., Awaitable[object]], describe: Callable[..., tuple[list[str], float]]):  # type: ignore[no-untyped-def]
        async def run(first: object, *others: object, **options: object) -> object:
            paths, cost = describe(first)
            self.order += paths
            self.costs.append((asyncio.get_running_loop().time(), cost))
            return await operation(first, *others, **options)

        return run

    def most_in_a_second(self) -> float:
        """Largest cost of any second."""
        moments = [moment for moment, _ in self.costs]
        total = list(itertools.accumulate((cost for _, cost in self.costs), initial=0.0))
        return max(
            total[bisect.bisect_left(moments, moment + 1.0)] - total[number] for number, moment in enumerate(moments)
        )


def _paths_and_cost(writes: list[NodeWrite]) -> tuple[list[str], float]:
    return [write.path for write in writes], 1.0 + (len(writes) - 1) * COST_OF_COMPANY


@pytest.mark.parametrize("rate", [1, 10, 300, 1000])
def test_no_second_costs_more_than_the_budget(rate: int) -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        noting = Noting(store)
        budgeted = BudgetedStore(store, RequestBudget(VirtualClock(), rate, 64))
        for turn in range(2):
            writes = [budgeted.create(f"/{turn}-{number}") for number in range(2 * rate)]
            # One fails, and with it each transaction that it is in: the others are sent again, and cost again.
            failing = [budgeted.set(f"/{turn}-{number}", b"", 5) for number in range(0, rate, 50)]
            reads = [budgeted.get("/") for _ in range(rate)]
            await asyncio.gather(*writes, *failing, *reads, return_exceptions=True)
            await asyncio.sleep(3.0)  # idle time is not saved up
        assert len(await store.children("/")) == 4 * rate
        assert noting.most_in_a_second() < rate + 1  # a transaction's cost has fractions

    simulate(scenario)


@pytest.mark.parametrize("rate", [5, 1000, None])
def test_no_write_waits_longer_than_its_place_in_the_queue(rate: int | None) -> None:
    """A scan keeps the queue full of reads; the writes that asked meanwhile keep their places among them."""

    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        noting = Noting(store)
        budgeted = BudgetedStore(store, RequestBudget(VirtualClock(), rate, 16))
        asked: list[str] = []
        tasks: list[asyncio.Task[object]] = []
        for number in range(40):
            asked += ["/", "/", f"/n{number}"]
            tasks += (asyncio.create_task(budgeted.get("/")) for _ in range(2))
            tasks.append(asyncio.create_task(budgeted.create(f"/n{number}")))
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # a write takes its place at the end of the turn of the loop
        await asyncio.gather(*tasks)
        for number in range(40):
            path = f"/n{number}"
            # Two transactions are enough to keep a server busy: what is sent meanwhile may be other reads.
            slack = 16 if rate is None else 3
            assert noting.order.index(path) <= asked.index(path) + slack

    simulate(scenario)


def test_writes_that_were_cancelled_while_they_waited_cost_nothing() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        loop = asyncio.get_running_loop()
        budgeted = BudgetedStore(store, RequestBudget(VirtualClock(), 10, 64))
        await budgeted.get("/")
        late = [asyncio.create_task(budgeted.create(f"/n{number}")) for number in range(100)]
        await asyncio.sleep(0.01)
        for task in late:
            task.cancel()
        before_s = loop.time()
        await budgeted.get("/")
        assert loop.time() - before_s < 0.3
        assert await store.children("/") == []

    simulate(scenario)


@pytest.mark.parametrize("rate", [5, 50, 1000])
def test_slow_answers_do_not_hold_up_what_the_budget_allows(rate: int) -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        loop = asyncio.get_running_loop()
        for name in ("create", "write_all"):
            setattr(store, name, _delayed(getattr(store, name), 0.5))
        budgeted = BudgetedStore(store, RequestBudget(VirtualClock(), rate, 64))
        before_s = loop.time()
        await asyncio.gather(*(budgeted.create(f"/n{number}") for number in range(4 * rate)))
        assert loop.time() - before_s < 4.0 + 3 * 0.5

    simulate(scenario)


def _delayed(operation: Callable[..., Awaitable[object]], delay_s: float) -> Callable[..., Awaitable[object]]:
    async def run(*arguments: object, **options: object) -> object:
        await asyncio.sleep(delay_s)
        return await operation(*arguments, **options)

    return run


@pytest.mark.parametrize("rate", [1000, None])
def test_the_first_writes_are_not_the_last_ones_where_transactions_fail(rate: int | None) -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        loop = asyncio.get_running_loop()
        budgeted = BudgetedStore(store, RequestBudget(VirtualClock(), rate, 64))
        begin_s = loop.time()
        ended_s: dict[int, float] = {}

        async def write(number: int) -> None:
            if number % 20:
                await budgeted.create(f"/n{number}")
            else:
                with pytest.raises(NoNodeError):
                    await budgeted.set(f"/none{number}", b"", 7)
            ended_s[number] = loop.time() - begin_s

        await asyncio.gather(*map(write, range(1000)))
        assert max(ended_s[number] for number in range(100)) < max(ended_s.values()) / 2

    simulate(scenario)


def test_a_write_that_is_cancelled_together_with_the_read_before_it_costs_nothing() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        loop = asyncio.get_running_loop()
        store.get = _delayed(store.get, 5.0)  # type: ignore[method-assign,assignment]
        budgeted = BudgetedStore(store, RequestBudget(VirtualClock(), 1, 1))
        tasks: list[asyncio.Task[object]] = [asyncio.create_task(budgeted.get("/"))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(budgeted.create("/n")))
        await asyncio.sleep(3)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        before_s = loop.time()
        await budgeted.children("/")
        assert loop.time() - before_s < 0.5

    simulate(scenario)


def test_an_interrupt_leaves_no_task(capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario(linked: LinkedModel, store: MetadataStore) -> None:
        budgeted = BudgetedStore(store, RequestBudget(linked.clock, linked.clock.random.choice([20, 300, None]), 8))
        callers = [asyncio.create_task(budgeted.create(f"/n{number}")) for number in range(300)]
        await asyncio.sleep(linked.clock.random.uniform(0, 0.05))
        for task in callers:
            task.cancel()
        await asyncio.wait(callers)

    simulate(scenario)
    assert "destroyed" not in capsys.readouterr().err
