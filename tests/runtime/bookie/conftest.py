"""A real bookie in this process, on a real ZooKeeper, reached over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.ports import LacReply, PollReply
from bkctl.runtime.protocol.digest import master_key
from bkctl.runtime.protocol.entry_body import EntryCodec
from bkctl.runtime.protocol.entry_list import EntryList
from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import EngineConfig, JournalConfig, StorageConfig
from tests.runtime.bookie.open_logs import FAST, TRANSACTIONAL, make_mixed
from tests.runtime.bookie.small_disk import SmallDisk, small_disk

KEY = master_key(b"secret")


class Peer:
    """A client of one bookie that speaks for a ledger's writer, reader or recoverer."""

    def __init__(self, pool: BookiePool, bookie_id: str) -> None:
        self._pool = pool
        self.bookie_id = bookie_id

    def body(self, ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int | None = None) -> bytes:
        codec = EntryCodec(ledger_id, DigestType.CRC32C, b"secret")
        return codec.encode(entry_id, entry_id - 1 if lac is None else lac, len(payload), payload)

    async def add(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | None = None,
        *,
        key: bytes = KEY,
        recovery: bool = False,
        high_priority: bool = False,
    ) -> Status:
        answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        self._pool.add(
            self.bookie_id,
            ledger_id,
            entry_id,
            key,
            self.body(ledger_id, entry_id) if body is None else body,
            answer.set_result,
            is_recovery_add=recovery,
            is_high_priority=high_priority,
        )
        return await answer

    async def read(self, ledger_id: int, entry_id: int, *, fence_with: bytes | None = None) -> bytes:
        reply = await self._pool.read(self.bookie_id, ledger_id, entry_id, fence_with=fence_with)
        return reply.body

    async def read_many(self, ledger_id: int, entry_ids: list[int]) -> list[bytes | Status]:
        return await self._pool.read_many(self.bookie_id, ledger_id, entry_ids, bytes_max=1 << 20)

    async def read_with_lac(self, ledger_id: int, entry_id: int) -> tuple[bytes, int | None]:
        reply = await self._pool.read(self.bookie_id, ledger_id, entry_id)
        return reply.body, reply.max_last_add_confirmed

    async def read_lac(self, ledger_id: int) -> LacReply:
        return await self._pool.read_lac(self.bookie_id, ledger_id)

    async def poll(self, ledger_id: int, previous_lac: int, timeout_s: float) -> PollReply:
        return await self._pool.poll(self.bookie_id, ledger_id, previous_lac, timeout_s)

    async def list_entries(self, ledger_id: int) -> EntryList:
        return await self._pool.list_entries(self.bookie_id, ledger_id)

    async def free_bytes(self) -> int:
        return (await self._pool.info(self.bookie_id)).free_bytes


@pytest.fixture
def ledger_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "ledgers") as disk:
        yield disk


@pytest.fixture
def journal_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "journal") as disk:
        yield disk


@pytest.fixture
async def store(metadata_uri: str) -> AsyncIterator[ZooKeeperStore]:
    uri = parse_metadata_uri(metadata_uri)
    store = await ZooKeeperStore.connect(uri.servers)
    await init_cluster(store, uri.root, uri.tree, random.Random(1))
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def bookie_config(metadata_uri: str, tmp_path: Path, store: ZooKeeperStore) -> BookieConfig:
    return BookieConfig(
        metadata_uri=metadata_uri,
        bookie_id="bookie-under-test",
        port=0,
        advertised_address="127.0.0.1",
        is_loopback_allowed=True,
        flush_interval_s=3600,  # tests say themselves when a checkpoint happens
        storage=StorageConfig(
            journal_directories=(str(tmp_path / "journal"),),
            ledger_directories=(str(tmp_path / "ledgers"),),
            journal=JournalConfig(preallocation_bytes=1024 * 1024),
            engine=EngineConfig(memtable_bytes_max=256 * 1024),
        ),
    )


@pytest.fixture
def boot(
    store: ZooKeeperStore, metadata_uri: str
) -> Callable[[BookieConfig], contextlib.AbstractAsyncContextManager[Peer]]:
    """Boots a bookie and connects to it; leaving the block stops it in order."""

    @contextlib.asynccontextmanager
    async def boot(config: BookieConfig) -> AsyncIterator[Peer]:
        async with running_bookie(config) as server:

            async def resolve(bookie_id: str) -> tuple[str, int]:
                assert bookie_id == server.bookie_id
                return "127.0.0.1", server.port

            pool = BookiePool(resolve, ClientConfig(), LoopClock())
            try:
                yield Peer(pool, server.bookie_id)
            finally:
                await pool.close()

    return boot


MODES = pytest.mark.parametrize("config", [FAST, TRANSACTIONAL], ids=["normal", "transactional"])
"""Of compaction."""


@pytest.fixture(scope="session")
def mixed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: logs to compact, of a bookie that was stopped."""
    return make_mixed(tmp_path_factory.mktemp("mixed") / "current")


@pytest.fixture
def mixed(mixed_once: Path, tmp_path: Path) -> Path:
    """A copy of them for this test."""
    return Path(shutil.copytree(mixed_once, tmp_path / "current"))
