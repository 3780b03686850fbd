"""Reading write sets from the metadata of many ledgers, in a Spark executor as in a plain process. No Spark in here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from runtime.config import ZooKeeperConfig
from runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from runtime.metadata.request_budget import BudgetedStore, share_of_budget
from runtime.metadata.store import Versioned
from runtime.metadata.uri import parse_metadata_uri
from runtime.metadata.zookeeper.store import ZooKeeperStore
from runtime.replication.audit import WriteSetRow, unreadable_row, write_set_rows

SOURCE_NAME = "bookkeeper_write_sets"
"""Name of the Spark data source."""


@asynccontextmanager
async def open_ledgers(metadata_uri: str, config: ZooKeeperConfig, shares_count: int = 1) -> AsyncIterator[LedgerStore]:
    """The ledgers of a cluster over a session of their own, with one of so many equal parts of the request budget."""
    uri = parse_metadata_uri(metadata_uri)
    session = await ZooKeeperStore.connect(uri.servers, config)
    async with BudgetedStore(session, share_of_budget(config, shares_count)) as store:
        yield await open_ledger_store(store, uri.root, uri.tree, layout_config=config.layout)


async def read_write_sets(ledgers: LedgerStore, subtree: str | None) -> AsyncGenerator[list[WriteSetRow], None]:
    """Rows of every ledger below a subtree (None: of all), one list per ledger.

    Metadata that cannot be read becomes a row with a ``problem``; ledgers deleted meanwhile are left out.
    """
    async with aclosing(ledgers.read_all(subtree)) as found_ledgers:
        async for ledger_id, found in found_ledgers:
            if isinstance(found, Versioned):
                yield write_set_rows(ledger_id, found.value)
            else:
                yield [unreadable_row(ledger_id, str(found))]
