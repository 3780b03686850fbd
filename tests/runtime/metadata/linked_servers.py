"""The two servers, reached by links, on which the contract of MetadataStore is tested: ZooKeeper and its model."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.link import TcpLink
from tests.sim.loop import VirtualClock, run_simulated
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.zookeeper_model import ModelZooKeeper

SCENARIO_TIMEOUT_S = 120.0
"""Far above what any scenario takes: it turns a hang into a failure."""

_MODEL_SEEDS = range(8)


class Link(Protocol):
    """The way between the store under test and its server."""

    def cut(self) -> None: ...
    def freeze(self) -> None: ...
    def lose_answers(self) -> None: ...
    def restore(self) -> None: ...


class Linked(Protocol):
    """One server, one link to it for the stores under test, and sessions aside that nothing happens to."""

    @property
    def link(self) -> Link: ...
    @property
    def root(self) -> str:
        """A node of this test alone; it exists."""

    async def connect(self, *, session_timeout_ms: int = 20_000, operation_timeout_s: float = 30.0) -> MetadataStore:
        """A store over the link; closed at the end of the test. No pause of a busy machine ends its session."""

    async def aside(self) -> MetadataStore:
        """Another session, over a way of its own."""

    async def expire(self, store: MetadataStore) -> None:
        """The server ends the session of a store."""


class LinkedModel:
    """Everything in this process, in virtual time."""

    def __init__(self, seed: int, *, is_budgeted: bool = False) -> None:
        self._is_budgeted = is_budgeted
        self.clock = VirtualClock(seed)
        self.server = ModelZooKeeper(self.clock)
        self.link = ModelLink()
        self.root = "/contract"
        self._stores: list[MetadataStore] = []

    async def connect(self, *, session_timeout_ms: int = 20_000, operation_timeout_s: float = 30.0) -> MetadataStore:
        config = ZooKeeperConfig(session_timeout_ms=session_timeout_ms, operation_timeout_s=operation_timeout_s)
        return await self._connect(self.link, config)

    async def aside(self) -> MetadataStore:
        return await self._connect(ModelLink(), ZooKeeperConfig())

    async def _connect(self, link: ModelLink, config: ZooKeeperConfig) -> MetadataStore:
        store: MetadataStore = await ModelMetadataStore.connect(self.server, link, self.clock, config)
        if self._is_budgeted:
            store = BudgetedStore(store, RequestBudget(self.clock, 1000.0, 64))
        self._stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        self.server.end_session(store.session_id)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


class LinkedZooKeeper:
    """A real server; the link is a proxy."""

    def __init__(self, server: EmbeddedZooKeeper, link: TcpLink, root: str) -> None:
        self.link = link
        self.root = root
        self._server = server
        self._stores: list[ZooKeeperStore] = []

    async def connect(self, *, session_timeout_ms: int = 20_000, operation_timeout_s: float = 30.0) -> MetadataStore:
        config = ZooKeeperConfig(session_timeout_ms=session_timeout_ms, operation_timeout_s=operation_timeout_s)
        return await self._connect(self.link.address, config)

    async def aside(self) -> MetadataStore:
        return await self._connect(self._server.connect_string, ZooKeeperConfig())

    async def _connect(self, servers: str, config: ZooKeeperConfig) -> MetadataStore:
        store = await ZooKeeperStore.connect(servers, config)
        self._stores.append(store)
        return store

    async def expire(self, store: MetadataStore) -> None:
        assert isinstance(store, ZooKeeperStore)
        client: Any = store._client
        identity = (client._session_id, client._session_passwd)  # while disconnected, client_id is not told
        await asyncio.to_thread(_take_over_and_close, self._server.connect_string, identity)

    async def close(self) -> None:
        self.link.restore()
        for store in self._stores:
            await store.close()
        await self.link.close()


def _take_over_and_close(servers: str, identity: tuple[int, bytes]) -> None:
    thief = KazooClient(servers, client_id=identity)
    thief.start()
    thief.stop()
    thief.close()


Scenario = Callable[[Linked], Awaitable[None]]


async def _run(scenario: Scenario, linked: LinkedModel | LinkedZooKeeper) -> None:
    try:
        async with asyncio.timeout(SCENARIO_TIMEOUT_S):
            store = await linked.aside()
            await store.create(linked.root, make_parents=True)
            await scenario(linked)
    finally:
        await linked.close()


async def _run_in_model(scenario: Scenario, seed: int, *, is_budgeted: bool) -> None:
    await _run(scenario, LinkedModel(seed, is_budgeted=is_budgeted))


async def _run_in_zookeeper(scenario: Scenario, server: EmbeddedZooKeeper, root: str) -> None:
    await _run(scenario, LinkedZooKeeper(server, await TcpLink.open(server.port), root))


def contract(scenario: Callable[[Any], Awaitable[None]]) -> Callable[..., None]:
    """Make a scenario tests: against ZooKeeper, against the model with some seeds, and that behind a request budget."""

    @pytest.mark.parametrize("linked", ["zookeeper", "model", "budgeted model"])
    def test(linked: str, request: pytest.FixtureRequest) -> None:
        if linked != "zookeeper":
            for seed in _MODEL_SEEDS:
                run_simulated(_run_in_model(scenario, seed, is_budgeted=linked == "budgeted model"))
        else:
            server = cast("EmbeddedZooKeeper", request.getfixturevalue("zookeeper"))
            asyncio.run(_run_in_zookeeper(scenario, server, f"/contract/{scenario.__name__}"))

    functools.update_wrapper(test, scenario, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
    del test.__wrapped__  # type: ignore[attr-defined]  # pytest would take the scenario's parameters
    return test
