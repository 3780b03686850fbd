"""Concurrent reads share requests, and no caller notices: against the model of ZooKeeper, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from bkctl.runtime.errors import MetadataError, NoNodeError, SessionExpiredError
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.read_groups import BYTES_MAX, COST_OF_COMPANY, READS_MAX, ReadGroups
from bkctl.runtime.metadata.request_budget import BURST_S, RequestBudget
from bkctl.runtime.metadata.store import MetadataStore, Node
from tests.counting_store import CountingStore
from tests.runtime.metadata.linked_servers import LinkedModel
from tests.runtime.metadata.test_write_groups import simulate
from tests.sim.loop import VirtualClock


async def _fill(store: MetadataStore, count: int, size_bytes: int = 0) -> list[str]:
    paths = [f"/n{number}" for number in range(count)]
    for path in paths:
        await store.create(path, path.encode().ljust(size_bytes))
    return paths


def test_reads_of_many_callers_need_few_requests() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        paths = await _fill(store, READS_MAX * 2)
        counting = CountingStore(store)
        groups = ReadGroups(counting, RequestBudget(VirtualClock(), None, 128))
        found = await asyncio.gather(*map(groups.get, paths))
        assert [node.data.decode() for node in found] == paths
        assert counting.counts["get_all"] <= 4
        assert sum(counting.counts.values()) == counting.counts["get_all"]
        assert await groups.get("/n7") == await store.get("/n7")
        assert counting.counts["get"] == 1, "one caller alone needs no common request"

    simulate(scenario)


def test_each_read_fails_for_itself() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        paths = await _fill(store, 20)
        groups = ReadGroups(store, RequestBudget(VirtualClock(), None, 128))
        wanted = [*paths, "/gone", "not a path", "/n0/none"]
        results = await asyncio.gather(*map(groups.get, wanted), return_exceptions=True)
        assert [each.data.decode() for each in results[:20] if isinstance(each, Node)] == paths
        assert [type(each) for each in results[20:]] == [NoNodeError, MetadataError, NoNodeError]
        assert [each.path for each in results[20:] if isinstance(each, MetadataError)] == wanted[20:]

    simulate(scenario)


@pytest.mark.parametrize("rate", [20, 300])
def test_reads_keep_to_the_budget_by_what_they_cost(rate: int) -> None:
    """A common request counts as one read, and each further node in it as ``COST_OF_COMPANY``."""

    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        paths = await _fill(store, 1000)
        counting = CountingStore(store)
        budgeted = BudgetedStore(counting, RequestBudget(VirtualClock(), rate, 64))
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        await asyncio.gather(*map(budgeted.get, paths))
        requests = counting.counts["get"] + counting.counts["get_all"]
        cost = requests + (len(paths) - requests) * COST_OF_COMPANY
        assert cost / rate <= loop.time() - before_s + BURST_S + 1 / rate

    simulate(scenario)


def test_answers_stay_small() -> None:
    """Once the size of nodes is known, a request is for no more of them than fit."""

    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        size_bytes = BYTES_MAX // 4
        paths = await _fill(store, 40, size_bytes)
        counting = CountingStore(store)
        groups = ReadGroups(counting, RequestBudget(VirtualClock(), None, 1))
        await asyncio.gather(*map(groups.get, paths[:8]))
        with counting.counted() as counts:
            await asyncio.gather(*map(groups.get, paths))
        assert counts["get_all"] == 10

    simulate(scenario)


def test_a_cancelled_read_is_never_sent_and_holds_no_place() -> None:
    async def scenario(_: LinkedModel, store: MetadataStore) -> None:
        paths = await _fill(store, 200)
        counting = CountingStore(store)
        budgeted = BudgetedStore(counting, RequestBudget(VirtualClock(), 1, 1))
        tasks = [asyncio.create_task(budgeted.get(path)) for path in paths]
        await asyncio.sleep(2.5)
        sent = sum(counting.counts.values())
        assert 0 < sent < 10
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await budgeted.children("/")
        assert sum(counting.counts.values()) == sent + 1

    simulate(scenario)


def test_what_waits_for_its_turn_does_not_outlive_its_session() -> None:
    async def scenario(linked: LinkedModel, store: MetadataStore) -> None:
        paths = await _fill(store, 10)
        budgeted = BudgetedStore(store, RequestBudget(VirtualClock(), 1, 10))
        reads = [asyncio.create_task(budgeted.get(path)) for path in paths]
        await asyncio.sleep(2.5)
        await linked.expire(store)
        results = await asyncio.gather(*reads, return_exceptions=True)
        assert {type(each) for each in results} == {Node, SessionExpiredError}
        assert (await budgeted.get("/n1")).data == b"/n1"

    simulate(scenario)
