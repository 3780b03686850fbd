"""Waiting for a metadata store that is away, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import MetadataOutageError, MetadataUnavailableError
from bkctl.runtime.metadata.outage import ATTEMPTS_MAX, MetadataOutage, OutageWait
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

WAIT_MAX_S = 120.0
OPERATION_TIMEOUT_S = 10.0


class LinkedStore:
    """A store behind a link that can be cut, and a wait over it."""

    def __init__(self, clock: VirtualClock, link: ModelLink, store: ModelMetadataStore) -> None:
        self.clock = clock
        self.link = link
        self.store = store
        self.outages: list[MetadataOutage] = []
        self.wait = OutageWait(self.read, clock, WAIT_MAX_S, self.outages.append)
        self.reads = 0

    async def read(self) -> str:
        """A piece of work: one read."""
        self.reads += 1
        await self.store.exists("/")
        return "done"


def simulate(scenario: Callable[[LinkedStore], Awaitable[None]]) -> None:
    """Run a scenario to its end."""

    async def run() -> None:
        clock, link = VirtualClock(), ModelLink()
        config = ZooKeeperConfig(operation_timeout_s=OPERATION_TIMEOUT_S)
        async with await ModelMetadataStore.connect(ModelZooKeeper(clock), link, clock, config) as store:
            await scenario(LinkedStore(clock, link, store))

    run_simulated(run())


def test_work_is_done_again_after_the_outage_and_each_outage_is_reported_twice() -> None:
    async def scenario(linked: LinkedStore) -> None:
        linked.link.cut()
        linked.clock.call_later(90.0, linked.link.restore)
        assert await linked.wait.outlast(linked.read) == "done"
        began, ended = linked.outages
        assert (began.is_over, ended.is_over) == (False, True)
        assert (began.wait_max_s, began.since_ms) == (WAIT_MAX_S, ended.since_ms)
        assert await linked.wait.outlast(linked.read) == "done"
        assert len(linked.outages) == 2

    simulate(scenario)


def test_a_longer_outage_ends_the_run_at_its_limit_and_not_at_the_next_time_out() -> None:
    async def scenario(linked: LinkedStore) -> None:
        linked.link.cut()
        started_ns = linked.clock.monotonic_ns()
        with pytest.raises(MetadataOutageError, match="unavailable for over 120 s"):
            await linked.wait.outlast(linked.read)
        waited_s = (linked.clock.monotonic_ns() - started_ns) / 1e9
        assert waited_s == pytest.approx(OPERATION_TIMEOUT_S + WAIT_MAX_S, abs=1.5)
        assert [outage.is_over for outage in linked.outages] == [False]

    simulate(scenario)


def test_all_parts_of_a_run_share_one_wait() -> None:
    async def scenario(linked: LinkedStore) -> None:
        linked.link.cut()
        linked.clock.call_later(60.0, linked.link.restore)
        assert await asyncio.gather(*(linked.wait.outlast(linked.read) for _ in range(16))) == ["done"] * 16
        assert [outage.is_over for outage in linked.outages] == [False, True]
        assert linked.reads < 16 * 2 + 10, "one of them asks the store, the others wait"

    simulate(scenario)


def test_all_parts_of_a_run_end_together_when_it_is_too_long() -> None:
    async def scenario(linked: LinkedStore) -> None:
        linked.link.cut()
        results = await asyncio.gather(*(linked.wait.outlast(linked.read) for _ in range(16)), return_exceptions=True)
        assert {type(result) for result in results} == {MetadataOutageError}
        assert linked.clock.monotonic_ns() / 1e9 < OPERATION_TIMEOUT_S + WAIT_MAX_S + 5

    simulate(scenario)


def test_a_new_outage_gets_the_whole_wait_again() -> None:
    async def scenario(linked: LinkedStore) -> None:
        for _ in range(3):
            linked.link.cut()
            linked.clock.call_later(100.0, linked.link.restore)
            await linked.wait.outlast(linked.read)
        assert len(linked.outages) == 6

    simulate(scenario)


def test_work_that_breaks_the_connection_each_time_is_given_up() -> None:
    async def scenario(linked: LinkedStore) -> None:
        attempts = 0

        async def work() -> None:
            nonlocal attempts
            attempts += 1
            raise MetadataUnavailableError("the connection to ZooKeeper was lost before the response")

        with pytest.raises(MetadataUnavailableError, match="lost before the response"):
            await linked.wait.outlast(work)
        assert attempts == ATTEMPTS_MAX

    simulate(scenario)
