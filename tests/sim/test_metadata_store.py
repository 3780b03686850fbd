"""Random faults on the model: the contract's promises about writes in doubt, and that a seed replays exactly."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import subprocess
import sys

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import BadVersionError, MetadataUnavailableError, SessionExpiredError
from bkctl.runtime.metadata.store import Node
from tests.sim.loop import SimulationStuckError, VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

CONFIG = ZooKeeperConfig(session_timeout_ms=2000, operation_timeout_s=1.0)


class Counting:
    """Three clients count together by compare-and-set, and add to a log, while their links and sessions break."""

    def __init__(self, seed: int) -> None:
        self.clock = VirtualClock(seed)
        self.server = ModelZooKeeper(self.clock)
        self.trace: list[str] = []
        self.done_count = self.doubtful_count = 0
        self.is_over = False
        self.added: dict[str, bool | None] = {}
        """Whether what was added under a prefix is there, or the doubt that was never settled."""

    def note(self, text: str) -> None:
        self.trace.append(f"{self.clock.monotonic_ns()} {self.server.zxid} {text}")

    async def run(self) -> None:
        links = [ModelLink() for _ in range(3)]
        stores = [await ModelMetadataStore.connect(self.server, link, self.clock, CONFIG) for link in links]
        await stores[0].create("/count", b"0")
        await stores[0].create("/log")
        seen: list[int] = []
        stores[0].watch_node("/count", lambda node: seen.append(_count(node)))
        breaking = asyncio.create_task(self.break_things(links, stores))
        await asyncio.gather(*(self.count(number, store) for number, store in enumerate(stores)))
        self.is_over = True
        await breaking
        for link in links:
            link.cut()  # a deaf connection is damaged
            link.restore()
        await self.clock.sleep(5.0)
        node = self.server.nodes["/count"]
        # Whatever was answered has happened, and nothing happened twice.
        assert int(node.data) == node.version
        assert self.done_count <= node.version <= self.done_count + self.doubtful_count
        assert seen[-1] == node.version
        assert seen == sorted(seen)
        found = [name[:-10] for name in self.server.nodes["/log"].children]
        assert len(found) == len(set(found)), "something was added twice"
        for prefix, is_there in self.added.items():
            assert is_there in {prefix in found, None}, f"{prefix} was settled otherwise"
        for store in stores:
            await store.close()

    async def add(self, store: ModelMetadataStore, prefix: str) -> None:
        """A doubt is settled by the next answer."""
        try:
            await store.create(f"/log/{prefix}", is_sequential=True)
        except MetadataUnavailableError:
            self.added[prefix] = None
            while self.added[prefix] is None and not self.is_over:
                with contextlib.suppress(MetadataUnavailableError):
                    self.added[prefix] = any(name.startswith(prefix) for name in await store.children("/log"))
        else:
            self.added[prefix] = True
        self.note(f"added {prefix} {self.added[prefix]}")

    async def count(self, number: int, store: ModelMetadataStore) -> None:
        while self.done_count < 1000:
            await self.clock.sleep(self.clock.random.uniform(0, 0.02))
            if self.clock.random.random() < 0.2:
                await self.add(store, f"{number}-{len(self.added)}-")
            try:
                node = await store.get("/count")
                await store.set("/count", b"%d" % (_count(node) + 1), node.stat.version)
            except SessionExpiredError:
                self.doubtful_count += 1
                self.note(f"{number} expired")
            except MetadataUnavailableError:
                self.doubtful_count += 1
                self.note(f"{number} doubts")
            except BadVersionError:
                self.note(f"{number} too late")
            else:
                self.done_count += 1
                self.note(f"{number} counted {_count(node) + 1}")

    async def break_things(self, links: list[ModelLink], stores: list[ModelMetadataStore]) -> None:
        chance = self.clock.random
        while not self.is_over:
            await self.clock.sleep(chance.uniform(0, 0.5))
            link = chance.choice(links)
            what = chance.choice([link.cut, link.freeze, link.lose_answers, None])
            if what is None:
                self.server.end_session(chance.choice(stores).session_id)
                continue
            what()
            await self.clock.sleep(chance.choice([0.0, 0.001, chance.uniform(0, 3.0)]))
            link.cut()
            link.restore()


def _count(node: Node | None) -> int:
    assert node is not None, "absent is not what a lost connection means"
    return int(node.data)


@functools.cache
def trace_of(seed: int) -> list[str]:
    """Computed once in a process: several tests ask for the same."""

    async def run() -> list[str]:
        counting = Counting(seed)
        await counting.run()
        return counting.trace

    return run_simulated(run())


@pytest.mark.parametrize(
    "seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.battery) for seed in range(10, 25))]
)
def test_counting_together_under_faults(seed: int) -> None:
    assert trace_of(seed)


def test_the_faults_are_felt() -> None:
    words = {line.split()[3] for seed in range(10) for line in trace_of(seed) if line.split()[2] in "012"}
    assert words == {"counted", "doubts", "expired", "too"}


def test_a_seed_replays_exactly() -> None:
    program = "import sys; from tests.sim.test_metadata_store import trace_of; print('\\n'.join(trace_of(7)))"
    traces = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert traces[0] == traces[1]
    assert len(traces[0].splitlines()) > 200
    assert trace_of(8) != trace_of(7)


def test_a_hang_is_told() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def go_round() -> None:
        while True:  # noqa: ASYNC110  what hangs by going round
            await asyncio.sleep(100.0)

    for hang in (wait_for_ever, go_round):
        with pytest.raises(SimulationStuckError):
            run_simulated(hang())
