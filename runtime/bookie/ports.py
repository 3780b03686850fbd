"""Environment of a bookie: its adapters, made by ``bkctl.runtime.bookie.boot.process``, and its metadata session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from bkctl.runtime.bookie.live_settings import LiveSettings
from bkctl.runtime.config import BookieConfig, ClientConfig, ZooKeeperConfig
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.request_budget import share_of_budget
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.uri import MetadataUri
from bkctl.runtime.net.frame_connection import Resolver
from bkctl.runtime.ports import Bookies, Clock, Host, Listen, ListenLocal, Workers
from bkctl.runtime.security.tls_contexts import TlsContexts
from bkctl.runtime.security_config import BookieTlsConfig
from bkctl.storage.ports import Children, FileSystem, OpenIndexStore


class ConnectMetadata(Protocol):
    """Opens a session with the metadata store."""

    async def __call__(self, servers: str, config: ZooKeeperConfig) -> MetadataStore:
        """A connected session; MetadataUnavailableError, ConfigurationError."""


class ChildDaemon(Protocol):
    """A daemon in a child process of the bookie. None of its failures concerns the bookie."""

    restarts: int
    """How often it was started again."""
    metrics: bytes
    """Its metrics as text; empty while it does not run, or does not report."""

    async def serve(self, metadata_uri: str, bookie_id: str) -> None:
        """Keep it running until cancelled, then let it end. Never raises."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BookiePorts:
    """The adapters of one bookie. The caller that created them closes ``workers`` after the bookie has stopped."""

    file_system: FileSystem
    open_index: OpenIndexStore
    children: Children
    clock: Clock
    workers: Workers
    host: Host
    listen: Listen
    listen_local: ListenLocal
    read_secret: Callable[[str], bytes]
    """The content of a file that only its owner and its group can read; OSError, ConfigurationError. It may block."""
    tls_contexts: Callable[[BookieTlsConfig], TlsContexts]
    """Contexts of a port of this bookie, from its files and the environment."""
    connect_metadata: ConnectMetadata
    connect_bookies: Callable[[Resolver, ClientConfig], Bookies]
    """Requests to other bookies; connects to a bookie at the first request to it."""
    release: str
    """Name and version of this program, as published in the registration."""
    autorecovery: ChildDaemon | None = None


@dataclasses.dataclass(frozen=True)
class BookieMetadata:
    """The bookie's session with the metadata store, and the place of its cluster there."""

    store: MetadataStore
    uri: MetadataUri
    config: BookieConfig
    live: LiveSettings

    async def open_ledgers(self, clock: Clock) -> LedgerStore:
        """The metadata of the ledgers; reads are limited to the rate that the settings allow for scans."""
        budget = share_of_budget(clock, self.config.zookeeper)
        self.live.on_change(lambda changed: budget.set_rate(changed.zookeeper.scan_operations_per_s_max or None))
        budgeted, layout_config = BudgetedStore(self.store, budget), self.config.zookeeper.layout
        return await open_ledger_store(budgeted, self.uri.root, self.uri.tree, layout_config=layout_config)
