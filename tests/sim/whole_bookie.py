"""A whole bookie on adapters in memory, on a machine whose power can fail."""

from __future__ import annotations

import asyncio
import random

from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.ports import BookiePorts
from bkctl.runtime.config import BookieConfig, ClientConfig, ZooKeeperConfig
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.net.frame_connection import Resolver
from bkctl.runtime.ports import Bookies
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.security.tls_contexts import bookie_contexts
from bkctl.storage.config import EngineConfig, JournalConfig, StorageConfig
from tests.crash.model_disk import Mode
from tests.sim.bookies import ModelBookies
from tests.sim.children import InProcessChildren
from tests.sim.disk import MemoryDisk
from tests.sim.index_store import opening_on
from tests.sim.loop import VirtualClock
from tests.sim.metadata_store import ModelLink, ModelMetadataStore
from tests.sim.network import MemoryNetwork, WireClient
from tests.sim.workers import LoopWorkers
from tests.sim.zookeeper_model import ModelZooKeeper

CONFIG = BookieConfig(
    metadata_uri="zk+hierarchical://model:2181/ledgers",
    bookie_id="bookie-1",
    advertised_address="127.0.0.1",
    is_loopback_allowed=True,
    storage=StorageConfig(
        journal_directories=("/journal",),
        ledger_directories=("/ledgers",),
        journal=JournalConfig(preallocation_bytes=64 * 1024),
        engine=EngineConfig(memtable_bytes_max=256 * 1024),
    ),
)


class ModelHost:
    """A machine that knows its own name and address alone."""

    def name(self) -> str:
        return "machine"

    def user(self) -> str:
        return "bookie"

    def canonical_name(self) -> str:
        return "machine"

    def address_of(self, name: str) -> str:
        return "127.0.0.1"

    def name_of(self, address: str) -> str:
        return "machine"

    def address_of_interface(self, interface: str) -> str:
        return "127.0.0.1"

    def describe_owner(self, port: int) -> str:
        return "another process"

    def open_files_max(self) -> int | None:
        return None


class WholeBookie:
    """One bookie and its metadata store. Made and used on a virtual loop."""

    def __init__(self, mode: Mode, seed: int = 0) -> None:
        self.clock = VirtualClock(seed)
        self.zookeeper = ModelZooKeeper(self.clock)
        self.disk = MemoryDisk(mode)
        self.network = MemoryNetwork()
        self.workers = LoopWorkers()
        self.link = ModelLink()
        self._tasks_before: set[asyncio.Task[object]] = set()

    async def format_cluster(self) -> None:
        """A new cluster without ledgers."""
        uri = parse_metadata_uri(CONFIG.metadata_uri)
        async with await ModelMetadataStore.connect(self.zookeeper, ModelLink(), self.clock) as store:
            await init_cluster(store, uri.root, uri.tree, random.Random(1))

    def ports(self) -> BookiePorts:
        """The adapters of the next process."""
        self.link = ModelLink()
        self.workers = LoopWorkers()
        open_index = opening_on(self.disk)

        async def connect_metadata(servers: str, config: ZooKeeperConfig) -> MetadataStore:
            return await ModelMetadataStore.connect(self.zookeeper, self.link, self.clock, config)

        def connect_bookies(_: Resolver, __: ClientConfig) -> Bookies:
            return ModelBookies(self.clock, lambda request: Status.UNAVAILABLE)

        return BookiePorts(
            file_system=self.disk,
            open_index=open_index,
            children=InProcessChildren(self.disk, open_index),
            clock=self.clock,
            workers=self.workers,
            host=ModelHost(),
            listen=self.network.listen,
            listen_local=self.network.listen_local,
            read_secret=self.disk.read_file,
            tls_contexts=lambda files: bookie_contexts(files, {}),
            connect_metadata=connect_metadata,
            connect_bookies=connect_bookies,
            release="bkctl in memory",
        )

    async def boot(self, config: BookieConfig = CONFIG) -> BookieServer:
        """A bookie that serves. End it with ``stop`` or ``lose_power``."""
        self._tasks_before = asyncio.all_tasks()
        return await BookieServer(config, self.ports()).__aenter__()

    async def stop(self, bookie: BookieServer) -> None:
        """Stop the bookie in order."""
        await bookie.__aexit__(None, None, None)
        await self.workers.close()

    def connect(self) -> WireClient:
        """A client of the bookie."""
        return self.network.connect(CONFIG.port)

    async def lose_power(self, chance: random.Random) -> None:
        """End the bookie between two callbacks, and lose what ``chance`` draws of what was not synced."""
        self.disk = self.disk.after_power_failure(chance)
        self.link.cut()
        self.network.ports.clear()
        tasks = asyncio.all_tasks() - self._tasks_before - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
