"""The adapters that a bookie runs on, in one value. ``runtime.bookie.boot.process`` makes the real ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from runtime.config import ClientConfig, ZooKeeperConfig
from runtime.metadata.store import MetadataStore
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
