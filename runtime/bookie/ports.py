"""What a bookie runs on: its adapters, which ``runtime.bookie.boot.process`` makes, and its metadata session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from runtime.bookie.live_settings import LiveSettings
from runtime.config import BookieConfig, ClientConfig, ZooKeeperConfig
from runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from runtime.metadata.request_budget import BudgetedStore, share_of_budget
from runtime.metadata.store import MetadataStore
from runtime.metadata.uri import MetadataUri
from runtime.net.bookie_connection import Resolver
from runtime.ports import Bookies, Clock, Host, Listen, Workers
from storage.ports import Children, FileSystem, OpenIndexStore


class ConnectMetadata(Protocol):
    """How a session with the metadata store is opened."""

    async def __call__(self, servers: str, config: ZooKeeperConfig) -> MetadataStore:
        """A connected session; MetadataUnavailableError, ConfigurationError."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BookiePorts:
    """The adapters of one bookie. The caller that made them closes ``workers`` after the bookie has stopped."""

    file_system: FileSystem
    open_index: OpenIndexStore
    children: Children
    clock: Clock
    workers: Workers
    host: Host
    listen: Listen
    connect_metadata: ConnectMetadata
    connect_bookies: Callable[[Resolver, ClientConfig], Bookies]
    """Requests to the other bookies; no bookie is connected to before the first request."""
    release: str
    """Name and version of this program, as published in the registration."""


@dataclasses.dataclass(frozen=True)
class BookieMetadata:
    """The bookie's session with the metadata store, and where its cluster is there."""

    store: MetadataStore
    uri: MetadataUri
    config: BookieConfig
    live: LiveSettings

    async def open_ledgers(self) -> LedgerStore:
        """The ledgers' metadata, read within the budget that the settings give to scans."""
        budget = share_of_budget(self.config.zookeeper)
        self.live.on_change(lambda changed: budget.set_rate(changed.zookeeper.scan_operations_per_s_max or None))
        budgeted, layout_config = BudgetedStore(self.store, budget), self.config.zookeeper.layout
        return await open_ledger_store(budgeted, self.uri.root, self.uri.tree, layout_config=layout_config)
