"""A real bookie in this process whose collector a test drives, with a real cluster around it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from bkctl.runtime.bookie.boot.process import real_ports, running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.collection.collector import GarbageCollector
from bkctl.runtime.config import (
    BookieConfig,
    ClientConfig,
    CompactionConfig,
    GarbageCollectionConfig,
    MajorCompactionConfig,
)
from bkctl.runtime.errors import NodeExistsError
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, EntryLogConfig, JournalConfig, StorageConfig
from bkctl.storage.ports import Children
from tests.runtime.bookie.conftest import Peer
from tests.sim.children import InProcessChildren

BOOKIE_ID = "collected"
PAYLOAD_BYTES = 1000
LOG_BYTES_MAX = 16 * 1024

NEVER_BY_ITSELF = GarbageCollectionConfig(
    wait_s=1e6,
    minor=CompactionConfig(interval_s=2e6),
    major=MajorCompactionConfig(interval_s=3e6),
    copied_entries_per_s_max=1e6,
    metadata_operations_per_s_max=0,
    confirmation_pause_s=0.01,
)
"""Rounds run when a test forces one, with a major compaction each."""


class CollectedBookie:
    """The bookie, its client, and the metadata of its cluster."""

    def __init__(self, server: BookieServer, peer: Peer, ledgers: LedgerStore, store: ZooKeeperStore) -> None:
        self.server = server
        self.peer = peer
        self.ledgers = ledgers
        self.store = store

    @property
    def collector(self) -> GarbageCollector:
        assert self.server.view.collector is not None
        return self.server.view.collector

    def copy_fast(self) -> None:
        """Lift the limit on how fast compaction copies, as a reload of the settings does."""
        config = self.server._config
        rates = msgspec.structs.replace(config.garbage_collection, copied_entries_per_s_max=1e6)
        self.server.reload(msgspec.structs.replace(config, garbage_collection=rates))

    @property
    def log_names(self) -> list[str]:
        """Entry logs with entries in them, over all directories."""
        found = []
        for directory in self.server._config.storage.ledger_directories:
            current = os.path.join(directory, "current")
            for name in sorted(os.listdir(current)):
                if name.endswith(".log") and os.path.getsize(os.path.join(current, name)) > 1024:
                    found.append(name)
        return found

    async def create(
        self,
        ledger_id: int,
        *,
        bookies: Sequence[str] = (BOOKIE_ID,),
        is_closed: bool = True,
        entry_count: int = 4,
    ) -> None:
        """Metadata of a ledger, whose other bookies are registered."""
        for other in {*bookies} - {BOOKIE_ID}:
            with contextlib.suppress(NodeExistsError):
                await self.store.create(Paths(self.ledgers.root).read_only_bookie(other))
        size = len(bookies)
        await self.ledgers.create(
            LedgerMetadata(
                size,
                size,
                size,
                (Segment(0, tuple(bookies)),),
                state=LedgerState.CLOSED if is_closed else LedgerState.OPEN,
                last_entry_id=entry_count - 1 if is_closed else -1,
                length=entry_count * PAYLOAD_BYTES if is_closed else 0,
                digest_type=DigestType.CRC32C,
                password=b"secret",
            ),
            ledger_id=ledger_id,
        )

    def body(self, ledger_id: int, entry_id: int, generation: int = 0) -> bytes:
        payload = random.Random(f"{ledger_id}:{entry_id}:{generation}").randbytes(PAYLOAD_BYTES)
        return self.peer.body(ledger_id, entry_id, payload)

    async def add(self, ledger_id: int, entry_ids: Sequence[int] = range(4), generation: int = 0) -> None:
        adds = (self.peer.add(ledger_id, each, self.body(ledger_id, each, generation)) for each in entry_ids)
        assert set(await asyncio.gather(*adds)) <= {Status.OK}

    async def write(self, ledger_ids: Sequence[int], entry_ids: Sequence[int] = range(4)) -> None:
        """Ledgers with metadata and entries, the entries of all of them mixed in each log."""
        for ledger_id in ledger_ids:
            await self.create(ledger_id, entry_count=len(entry_ids))
        for entry_id in entry_ids:
            for ledger_id in ledger_ids:
                await self.add(ledger_id, [entry_id])
            await self.flush()

    async def flush(self) -> None:
        """Everything taken so far is in entry logs and index."""
        await self.collector._passes.flush()

    async def delete_metadata(self, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            await self.ledgers.delete(ledger_id)

    async def require_readable(
        self, ledger_ids: Sequence[int], entry_ids: Sequence[int] = range(4), generation: int = 0
    ) -> None:
        for ledger_id in ledger_ids:
            for entry_id in entry_ids:
                assert await self.peer.read(ledger_id, entry_id) == self.body(ledger_id, entry_id, generation)

    def local_ids(self) -> set[int]:
        """Ledgers that the bookie has rows of."""
        directories = self.collector._directories
        return {ledger_id for directory in directories for ledger_id in directory._engine.ledger_ids()}


@contextlib.asynccontextmanager
async def collected_bookie(
    metadata_uri: str,
    directory: Path,
    gc: GarbageCollectionConfig = NEVER_BY_ITSELF,
    *,
    ledger_directories: int = 1,
    children: Children | None = None,
) -> AsyncIterator[CollectedBookie]:
    """Boot; leaving the block stops in order. May be entered again for the same directory: a restart.

    ``children`` None: logs are scanned in this process, because a bookie starts a process for each scan.
    """
    uri = parse_metadata_uri(metadata_uri)
    config = BookieConfig(
        metadata_uri=metadata_uri,
        bookie_id=BOOKIE_ID,
        port=0,
        advertised_address="127.0.0.1",
        is_loopback_allowed=True,
        flush_interval_s=3600,
        garbage_collection=gc,
        storage=StorageConfig(
            journal_directories=(str(directory / "journal"),),
            ledger_directories=tuple(str(directory / f"ledgers-{index}") for index in range(ledger_directories)),
            journal=JournalConfig(preallocation_bytes=1024 * 1024),
            engine=EngineConfig(memtable_bytes_max=1024 * 1024, entry_log=EntryLogConfig(size_bytes_max=LOG_BYTES_MAX)),
        ),
    )
    store = await ZooKeeperStore.connect(uri.servers)
    try:
        await init_cluster(store, uri.root, uri.tree, random.Random(1))
        children = children or InProcessChildren(OsFileSystem(), open_plyvel)
        async with running_bookie(config, dataclasses.replace(real_ports(), children=children)) as server:

            async def resolve(bookie_id: str) -> tuple[str, int]:
                return "127.0.0.1", server.port

            pool = BookiePool(resolve, ClientConfig(), LoopClock())
            try:
                ledgers = await open_ledger_store(store, uri.root, uri.tree)
                yield CollectedBookie(server, Peer(pool, BOOKIE_ID), ledgers, store)
            finally:
                await pool.close()
    finally:
        await store.close()


def with_settings(**fields: object) -> GarbageCollectionConfig:
    return msgspec.structs.replace(NEVER_BY_ITSELF, **fields)
