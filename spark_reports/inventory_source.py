"""Spark data source ``bookkeeper_inventory``: ``bookkeeper_audit``, whose executors also ask bookies what they hold.

Each ledger is read once: it is judged, and its copies are compared with the same metadata. Options are those of
``bookkeeper_audit`` without files, and ``inventory``: an ``InventoryJob`` as JSON, whose rates are those of all
partitions together.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.replication.survey.inventory import CopyInventory, InventoryJob
from bkctl.spark_reports.write_set_source import AuditReader, AuditSource, LedgersPartition, OpenedPart, open_store

INVENTORY_NAME = "bookkeeper_inventory"


class InventorySource(AuditSource):
    """``bookkeeper_inventory``, see the module docstring."""

    _name = INVENTORY_NAME

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._job = msgspec.json.decode(options["inventory"], type=InventoryJob)

    def reader(self, schema: object) -> InventoryReader:  # noqa: ARG002  the source has one schema
        """Reader for the executors."""
        reader = InventoryReader(self._settings, self._secrets)
        reader.job = self._job
        return reader


class InventoryReader(AuditReader):
    """Judges the ledgers of a partition, and asks bookies about them."""

    job: InventoryJob

    @asynccontextmanager
    async def _opened(self, partition: LedgersPartition) -> AsyncIterator[OpenedPart]:
        settings = self._settings
        os.environ.update(self._secrets)  # where the settings of the connections to bookies name their passwords
        async with open_store(settings, self._secrets, partition.budget_shares) as (store, uri):
            ledgers = await open_ledger_store(store, uri.root, uri.tree, layout_config=settings.zookeeper.layout)
            async with LedgerClient.on_session(store, ledgers, self.job.client) as client:
                request = self.job.request.share(partition.budget_shares)
                inventory = CopyInventory(client.ports, settings.facts.registrations.live, request)
                yield (ledgers.read_all(subtree) for subtree in partition.subtrees), None, inventory
