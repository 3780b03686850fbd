"""How a command reaches the cluster that the settings name."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from commands.context import CommandContext
from runtime.errors import ConfigurationError

if TYPE_CHECKING:
    from runtime.client import LedgerClient
    from runtime.metadata.ledgers import LedgerStore
    from runtime.metadata.registration import RegistrationClient
    from runtime.metadata.store import MetadataStore
    from runtime.metadata.uri import MetadataUri
    from runtime.ports import Bookies


def require_metadata_uri(context: CommandContext) -> str:
    """Metadata URI of the settings; ConfigurationError says how to name a cluster."""
    if context.settings.metadata_uri is None:
        raise ConfigurationError(
            "no cluster is named: give --metadata-uri zk+hierarchical://HOST:2181/ledgers, set BKCTL_METADATA_URI, "
            "or point --conf at a bk_server.conf"
        )
    return context.settings.metadata_uri


@asynccontextmanager
async def open_store(
    context: CommandContext, *, takes_part_for_whole: bool = True
) -> AsyncIterator[tuple[MetadataStore, MetadataUri]]:
    """A session with the metadata store, within the request budget of the settings (``--rate``).

    A restore that has not ended is warned of, unless the command itself looks for one (``takes_part_for_whole`` False).
    ConfigurationError, MetadataUnavailableError, MetadataAuthError.
    """
    from runtime.metadata.request_budget import BudgetedStore, share_of_budget
    from runtime.metadata.uri import parse_metadata_uri
    from runtime.metadata.zookeeper import ZooKeeperStore

    uri = parse_metadata_uri(require_metadata_uri(context))
    config = context.settings.zookeeper
    async with BudgetedStore(await ZooKeeperStore.connect(uri.servers, config), share_of_budget(config)) as store:
        if takes_part_for_whole:
            await _warn_of_unfinished_restore(context, store, uri.root)
        yield store, uri


@asynccontextmanager
async def open_ledgers(context: CommandContext) -> AsyncIterator[tuple[MetadataStore, LedgerStore]]:
    """The cluster's ledger metadata, for commands that talk to no bookie; errors also ClusterNotFoundError."""
    from runtime.metadata.ledgers import open_ledger_store

    layout_config = context.settings.zookeeper.layout
    async with open_store(context) as (store, uri):
        yield store, await open_ledger_store(store, uri.root, uri.tree, layout_config=layout_config)


@asynccontextmanager
async def open_client(context: CommandContext) -> AsyncIterator[LedgerClient]:
    """A ledger client whose metadata operations keep to the same budget; errors also ClusterNotFoundError."""
    from runtime.client import LedgerClient
    from runtime.metadata.request_budget import share_of_budget

    uri, config, zookeeper = require_metadata_uri(context), context.settings.client, context.settings.zookeeper
    async with await LedgerClient.connect(
        uri, config=config, zookeeper=zookeeper, budget=share_of_budget(zookeeper)
    ) as client:
        await _warn_of_unfinished_restore(context, client.store, client.ports.ledgers.root)
        yield client


@asynccontextmanager
async def open_bookies(
    context: CommandContext, registration: RegistrationClient, *, timeout_max_s: float
) -> AsyncIterator[Bookies]:
    """Connections to the cluster's bookies, for a command that only asks how they are.

    Connecting, and the answer to a read, take at most ``timeout_max_s`` each, or less if the settings say so.
    """
    import msgspec

    from runtime.net.loop import LoopClock
    from runtime.net.pool import BookiePool

    async def resolve(bookie_id: str) -> tuple[str, int]:
        address = await registration.address(bookie_id)
        return address.host, address.port

    config = context.settings.client
    config = msgspec.structs.replace(
        config,
        connect_timeout_s=min(config.connect_timeout_s, timeout_max_s),
        read_timeout_s=min(config.read_timeout_s, timeout_max_s),
    )
    bookies = BookiePool(resolve, config, LoopClock())
    try:
        yield bookies
    finally:
        await bookies.close()


async def _warn_of_unfinished_restore(context: CommandContext, store: MetadataStore, root: str) -> None:
    from runtime.errors import MetadataAuthError
    from runtime.metadata.cluster import is_restore_unfinished, unfinished_restore_text

    # Whether the command needs to read the root itself is for the command to find out.
    with contextlib.suppress(MetadataAuthError):
        if await is_restore_unfinished(store, root):
            context.console.warn(unfinished_restore_text(root))


def registrations_of(client: LedgerClient) -> RegistrationClient:
    """Who is registered in the client's cluster."""
    from runtime.metadata.registration import RegistrationClient

    return RegistrationClient(client.store, client.ports.ledgers.root)
