"""Spark data source ``bookkeeper_inventory``: executors ask bookies what they hold of the ledgers of a cluster.

One row per partition, the totals of its ledgers as JSON (``InventoryTotals``), to be merged. Options are those of
``bookkeeper_write_sets`` without files, ``facts``, and ``inventory``: an ``InventoryJob`` as JSON, whose rates are
those of all partitions together.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, MutableMapping

import msgspec
import pyarrow as pa

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.replication.survey.inventory import CopyInventory, InventoryJob
from bkctl.spark_reports.write_set_source import (
    TOTALS_SCHEMA,
    LedgersPartition,
    WriteSetReader,
    WriteSetSource,
    open_store,
)

INVENTORY_NAME = "bookkeeper_inventory"


class InventorySource(WriteSetSource):
    """``bookkeeper_inventory``, see the module docstring."""

    _name, _schema = INVENTORY_NAME, TOTALS_SCHEMA

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._job = msgspec.json.decode(options["inventory"], type=InventoryJob)

    def reader(self, schema: object) -> InventoryReader:  # noqa: ARG002  the source has one schema
        """Reader for the executors."""
        reader = InventoryReader(self._settings, self._secrets)
        reader.job = self._job
        return reader


class InventoryReader(WriteSetReader):
    """Asks bookies about the ledgers of a partition."""

    job: InventoryJob

    async def _batches(self, partition: LedgersPartition) -> AsyncGenerator[pa.RecordBatch, None]:
        settings = self._settings
        os.environ.update(self._secrets)  # where the settings of the connections to bookies name their passwords
        async with open_store(settings, self._secrets, partition.budget_shares) as (store, uri):
            ledgers = await open_ledger_store(store, uri.root, uri.tree, layout_config=settings.zookeeper.layout)
            async with LedgerClient.on_session(store, ledgers, self.job.client) as client:
                request = self.job.request.share(partition.budget_shares)
                inventory = CopyInventory(client.ports, settings.facts.registrations.live, request)
                totals = await inventory.take(ledgers.read_all(subtree) for subtree in partition.subtrees)
        yield pa.RecordBatch.from_pydict({"totals": [msgspec.json.encode(totals)]}, schema=TOTALS_SCHEMA)
