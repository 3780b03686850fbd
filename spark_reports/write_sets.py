"""Reading write sets from the metadata of many ledgers, in a Spark executor as in a plain process. No Spark in here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from runtime.metadata.ledgers import LedgerStore, open_ledger_store
from runtime.metadata.store import Versioned
from runtime.metadata.uri import parse_metadata_uri
from runtime.metadata.zookeeper import ZooKeeperStore
from runtime.replication.audit import WriteSetRow, unreadable_row, write_set_rows

SOURCE_NAME = "bookkeeper_write_sets"
"""Name of the Spark data source."""

REQUESTS_IN_FLIGHT_MAX = 256
"""Requests to ZooKeeper under way at once, by all readers of one audit together."""


@asynccontextmanager
async def open_ledgers(metadata_uri: str) -> AsyncIterator[LedgerStore]:
    """The ledgers of a cluster over a session of their own."""
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        yield await open_ledger_store(store, uri.root, uri.tree)


async def read_write_sets(
    ledgers: LedgerStore, subtree: str | None, requests_in_flight_max: int
) -> AsyncGenerator[list[WriteSetRow], None]:
    """Rows of every ledger below a subtree (None: of all), one list per ledger.

    Metadata that cannot be read becomes a row with a ``problem``; ledgers deleted meanwhile are left out.
    """
    async with aclosing(ledgers.read_all(subtree, window=requests_in_flight_max)) as found_ledgers:
        async for ledger_id, found in found_ledgers:
            if isinstance(found, Versioned):
                yield write_set_rows(ledger_id, found.value)
            else:
                yield [unreadable_row(ledger_id, str(found))]
