from __future__ import annotations

import asyncio
import bisect
import itertools
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import SessionExpiredError
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.request_budget import BURST_S, RequestBudget, share_of_budget
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.runtime.metadata.linked_servers import LinkedModel
from tests.sim.loop import VirtualClock, VirtualLoop, run_simulated


def most_in_a_second(moments: list[float]) -> int:
    """Largest number of moments in any half-open window of one second."""
    assert moments == sorted(moments)
    return max(bisect.bisect_left(moments, moment + 1.0) - number for number, moment in enumerate(moments))


class Operations:
    """Operations of a given length that write down when they began."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self.began_at_s: list[float] = []
        self.order: list[int] = []
        self.under_way = self.under_way_max = 0

    def named(self, name: int) -> Callable[[], Awaitable[int]]:
        async def run() -> int:
            self.began_at_s.append(asyncio.get_running_loop().time())
            self.order.append(name)
            self.under_way += 1
            self.under_way_max = max(self.under_way, self.under_way_max)
            try:
                await asyncio.sleep(self._length_s)
            finally:
                self.under_way -= 1
            return name

        return run


@pytest.mark.parametrize("rate", [1, 7, 100, 5000])
def test_no_second_sees_more_than_the_budget(rate: int) -> None:
    async def run() -> None:
        budget, operations = RequestBudget(VirtualClock(), rate, 50), Operations(0.001)
        for _ in range(3):
            await asyncio.gather(*(budget.run(operations.named(0)) for _ in range(2 * rate)))
            await asyncio.sleep(5.0)  # idle time is not saved up
        assert most_in_a_second(operations.began_at_s) <= rate
        assert len(operations.began_at_s) == 6 * rate
        assert operations.under_way_max <= 50

    run_simulated(run())


def test_the_budget_is_used() -> None:
    async def run() -> None:
        budget, operations = RequestBudget(VirtualClock(), 1000, 100), Operations(0.01)
        await asyncio.gather(*(budget.run(operations.named(0)) for _ in range(3000)))
        assert asyncio.get_running_loop().time() < 3.0 * (1 + BURST_S) + 0.1

    run_simulated(run())


@pytest.mark.parametrize("length_s", [0.0001, 0.001, 0.01])
def test_one_wake_up_begins_many_operations(length_s: float) -> None:
    """Each wake-up costs CPU time, and a timer of a fraction of a millisecond makes uvloop run without a pause."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        budget, operations = RequestBudget(VirtualClock(), 5000, 100), Operations(length_s)
        await asyncio.gather(*(budget.run(operations.named(0)) for _ in range(5000)))
        assert loop.time() < 1.1
        assert len(set(operations.began_at_s)) <= 1.1 / (BURST_S / 2)

    run_simulated(run())


@pytest.mark.parametrize("rate", [3.0, 5000.0])
def test_a_slower_rate_ends_before_its_timer_when_it_is_changed(rate: float) -> None:
    async def run() -> None:
        budget, operations = RequestBudget(VirtualClock(), 0.001, 10), Operations(0.01)
        await budget.run(operations.named(0))
        waiting = asyncio.create_task(budget.run(operations.named(1)))
        await asyncio.sleep(1.0)
        budget.set_rate(rate)
        assert await waiting == 1
        assert asyncio.get_running_loop().time() < 1.5

    run_simulated(run())


@pytest.mark.parametrize(("rate", "in_flight_max"), [(None, 3), (50, 100), (50, 2)])
def test_turns_come_in_the_order_in_which_they_were_asked_for(rate: float | None, in_flight_max: int) -> None:
    async def run() -> None:
        budget, operations = RequestBudget(VirtualClock(), rate, in_flight_max), Operations(0.1)
        tasks = [asyncio.create_task(budget.run(operations.named(number))) for number in range(100)]
        assert await asyncio.gather(*tasks) == list(range(100))
        assert operations.order == list(range(100))
        assert operations.under_way_max <= in_flight_max

    run_simulated(run())


@pytest.mark.parametrize("seed", range(20))
def test_cancelling_and_failing_loses_no_place(seed: int) -> None:
    """Whatever is cancelled or fails, at whatever moment: the others go on, and all places are free in the end."""

    async def run() -> None:
        chance = random.Random(seed)
        budget, operations = RequestBudget(VirtualClock(), chance.choice([None, 20, 300]), 4), Operations(0.01)

        async def fail() -> None:
            await asyncio.sleep(0.01)
            raise OSError

        tasks: list[asyncio.Task[object]] = []
        for number in range(200):
            operation = fail if chance.random() < 0.1 else operations.named(number)
            tasks.append(asyncio.create_task(budget.run(operation)))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.02)
            if chance.random() < 0.3:
                chance.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert budget._in_flight_count == 0
        assert operations.order == sorted(operations.order)
        last = [asyncio.create_task(budget.run(operations.named(1000 + number))) for number in range(4)]
        await asyncio.sleep(1.0 + BURST_S)
        assert all(task.done() for task in last)

    run_simulated(run())


def test_a_turn_that_was_given_to_somebody_cancelled_goes_on() -> None:
    async def run() -> None:
        budget, operations = RequestBudget(VirtualClock(), None, 1), Operations(1.0)
        first, second, third = (asyncio.create_task(budget.run(operations.named(number))) for number in range(3))
        await asyncio.sleep(1.0)  # the first ends in this very step, and gives its place to the second
        second.cancel()
        assert await third == 2
        assert first.done()
        assert budget._in_flight_count == 0

    run_simulated(run())


def test_shares_of_the_budget() -> None:
    async def run() -> None:
        config = ZooKeeperConfig(scan_operations_per_s_max=100.0, in_flight_max=10)
        operations = Operations(0.0)
        for shares in (1, 4, 50):
            budgets = [share_of_budget(VirtualClock(), config, shares) for _ in range(shares)]
            operations.began_at_s.clear()
            await asyncio.gather(*(budget.run(operations.named(0)) for budget in budgets * 4 * (100 // shares)))
            assert most_in_a_second(operations.began_at_s) <= 100 + shares  # each may begin with one at once
        unlimited = share_of_budget(VirtualClock(), ZooKeeperConfig(scan_operations_per_s_max=0.0))
        before_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(unlimited.run(operations.named(0)) for _ in range(10_000)))
        assert asyncio.get_running_loop().time() == before_s

    run_simulated(run())


def test_what_waits_for_its_turn_does_not_outlive_its_session() -> None:
    async def run() -> None:
        linked = LinkedModel(seed=1)
        store = BudgetedStore(await linked.connect(), RequestBudget(VirtualClock(), 10, 10))
        writes = [asyncio.create_task(store.create(f"/n{number}")) for number in range(10)]
        await asyncio.sleep(0.35)
        await linked.expire(store)
        results = await asyncio.gather(*writes, return_exceptions=True)
        created = [result for result in results if isinstance(result, str)]
        assert [type(result) for result in results] == [str] * len(created) + [SessionExpiredError] * (
            10 - len(created)
        )
        assert 0 < len(created) < 10
        assert await store.children("/") == [path[1:] for path in created]
        await store.close()

    run_simulated(run())


async def packets_received(server: EmbeddedZooKeeper) -> int:
    """Packets that the server has ever received, by its own count."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"srvr")
    answer = (await reader.read()).decode()
    writer.close()
    return next(int(line.split()[1]) for line in answer.splitlines() if line.startswith("Received:"))


async def test_a_real_server_never_sees_more_than_the_budget(tmp_path: Path) -> None:
    """Counted by the server itself. The more the machine is busy, the less it sees: the bound holds at any speed."""
    rate, in_flight_max, nodes_count = 500, 16, 1000
    async with (
        await EmbeddedZooKeeper.start(str(tmp_path)) as server,
        await ZooKeeperStore.connect(server.connect_string) as session,
    ):
        await asyncio.gather(*(session.create(f"/n{number}") for number in range(nodes_count)))
        store = BudgetedStore(session, RequestBudget(LoopClock(), rate, in_flight_max))
        loop = asyncio.get_running_loop()
        samples: list[tuple[float, int, float]] = []
        is_done = False

        async def sample() -> None:
            while not is_done:
                before_s = loop.time()
                samples.append((before_s, await packets_received(server), loop.time()))
                await asyncio.sleep(0.2)

        sampler = asyncio.create_task(sample())
        await asyncio.gather(*(store.exists(f"/n{number}") for number in range(nodes_count)))
        is_done = True
        await sampler
        others = len(samples) + 10  # the questions themselves, pings
        for (begin_s, begin_count, _), (_, end_count, end_s) in itertools.combinations(samples, 2):
            # What was sent before the window and arrives in it was under way: that has its own limit.
            assert end_count - begin_count <= rate * (end_s - begin_s + BURST_S) + in_flight_max + others
        assert samples[-1][1] - samples[0][1] > nodes_count / 2


class EarlyTimerLoop(VirtualLoop):
    """Time goes on while the program computes, and timers come up to a millisecond early, as those of real loops do."""

    def __init__(self) -> None:
        super().__init__()
        self._clock_resolution = 0.001

    def time(self) -> float:
        self._now_s += 0.00005
        return self._now_s


def test_a_moment_that_comes_between_two_looks_at_the_clock_is_not_missed() -> None:
    """A listing of 200,000 buckets once stood still for ever: its one timer came early, and none followed."""
    lengths = random.Random(1)

    async def operation() -> None:
        await asyncio.sleep(lengths.random() * 0.02)

    async def run() -> int:
        budget = RequestBudget(VirtualClock(), 50.0, 1)
        return len(await asyncio.gather(*(budget.run(operation) for _ in range(300))))

    with asyncio.Runner(loop_factory=EarlyTimerLoop) as runner:
        assert runner.run(run()) == 300
