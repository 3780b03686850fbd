"""A real ZooKeeper store and a root of its own for each test; ``zookeeper`` is the server of the whole run."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import MetadataUnavailableError
from bkctl.runtime.metadata.store import CreateNode, NodeStat, NodeWrite
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.counting_store import CountingStore
from tests.until import wait_until

CONFIG = ZooKeeperConfig(session_timeout_ms=30_000, operation_timeout_s=60.0)
"""No pause of a busy machine ends such a session; tests that want it ended do so themselves."""

_numbers = itertools.count()


@pytest.fixture
async def store(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[ZooKeeperStore]:
    async with await ZooKeeperStore.connect(zookeeper.connect_string, CONFIG) as store:
        yield store


@pytest.fixture
async def other_store(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[ZooKeeperStore]:
    """Another session."""
    async with await ZooKeeperStore.connect(zookeeper.connect_string, CONFIG) as store:
        yield store


@pytest.fixture
def root() -> str:
    """A path that no other test uses; nothing exists there yet."""
    return f"/metadata-{next(_numbers)}/ledgers"


def expire(client_id: tuple[int, bytes], zookeeper: EmbeddedZooKeeper) -> None:
    """End a session behind its owner's back: a second client takes it over and closes it."""
    thief = KazooClient(zookeeper.connect_string, client_id=client_id)
    thief.start()
    thief.stop()
    thief.close()


async def connect_in_time(servers: str, config: ZooKeeperConfig) -> ZooKeeperStore:
    """Connecting has the time-out of an operation, and takes what a busy machine takes."""
    while True:
        with contextlib.suppress(MetadataUnavailableError):
            return await ZooKeeperStore.connect(servers, config)


def session_of(store: ZooKeeperStore) -> tuple[int, bytes]:
    """What a thief needs."""
    client_id: tuple[int, bytes] = store._client.client_id
    return client_id


class LosesSession(CountingStore):
    """A store that loses its session after an ephemeral node was created and before the caller sees the answer."""

    def __init__(self, store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper) -> None:
        super().__init__(store)
        self._session = store
        self._zookeeper = zookeeper

    async def create(self, path: str, data: bytes = b"", *, is_ephemeral: bool = False, **options: bool) -> str:
        created = await super().create(path, data, is_ephemeral=is_ephemeral, **options)
        if is_ephemeral:
            await self._lose_session()
        return created

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        stats = await super().write_all(writes)
        if any(isinstance(write, CreateNode) and write.is_ephemeral for write in writes):
            await self._lose_session()
        return stats

    async def _lose_session(self) -> None:
        lost = asyncio.Event()
        self.on_session_lost(lost.set)
        await asyncio.to_thread(expire, session_of(self._session), self._zookeeper)
        await lost.wait()


def halt(pid: int) -> None:
    """SIGSTOP, and wait until all threads stand still: the signal alone leaves them a moment to answer."""
    os.kill(pid, signal.SIGSTOP)
    for thread in os.listdir(f"/proc/{pid}/task"):
        stat = Path(f"/proc/{pid}/task/{thread}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")  # noqa: B023  called at once
