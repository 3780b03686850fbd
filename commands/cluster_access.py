"""How a command reaches the cluster that the settings name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from commands.context import CommandContext
from runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from runtime.client import LedgerClient
    from runtime.metadata.registration import RegistrationClient
    from runtime.metadata.uri import MetadataUri
    from runtime.metadata.zookeeper import ZooKeeperStore


def require_metadata_uri(context: CommandContext) -> str:
    """Metadata URI of the settings; ConfigurationError says how to name a cluster."""
    if context.settings.metadata_uri is None:
        raise ConfigurationError(
            "no cluster is named: give --metadata-uri zk+hierarchical://HOST:2181/ledgers, set BKCTL_METADATA_URI, "
            "or point --conf at a bk_server.conf"
        )
    return context.settings.metadata_uri


@asynccontextmanager
async def open_store(context: CommandContext) -> AsyncIterator[tuple[ZooKeeperStore, MetadataUri]]:
    """A session with the metadata store; ConfigurationError, MetadataUnavailableError."""
    from runtime.metadata.uri import parse_metadata_uri
    from runtime.metadata.zookeeper import ZooKeeperStore

    uri = parse_metadata_uri(require_metadata_uri(context))
    async with await ZooKeeperStore.connect(uri.servers, context.settings.zookeeper) as store:
        yield store, uri


@asynccontextmanager
async def open_client(context: CommandContext) -> AsyncIterator[LedgerClient]:
    """A ledger client; ConfigurationError, MetadataUnavailableError, ClusterNotFoundError."""
    from runtime.client import LedgerClient

    settings = context.settings
    uri = require_metadata_uri(context)
    async with await LedgerClient.connect(uri, config=settings.client, zookeeper=settings.zookeeper) as client:
        yield client


def registrations_of(client: LedgerClient) -> RegistrationClient:
    """Who is registered in the client's cluster."""
    from runtime.metadata.registration import RegistrationClient

    return RegistrationClient(client.store, client.ports.ledgers.root)
