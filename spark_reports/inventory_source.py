"""Executors ask bookies what they hold of the ledgers of a cluster. The rates are those of all partitions together."""

from __future__ import annotations

import asyncio
import os

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.replication.cluster_audit.inventory import InventoryTotals
from bkctl.runtime.replication.survey.inventory import CopyInventory, InventoryJob
from bkctl.spark_reports.secrets import Secrets
from bkctl.spark_reports.write_set_source import LedgersPartition, SourceSettings, WriteSetReader, open_store


class InventoryReader(WriteSetReader):
    """Asks bookies about the ledgers of a partition."""

    name = "bookkeeper_inventory"

    def __init__(self, settings: SourceSettings, secrets: Secrets, job: InventoryJob) -> None:
        super().__init__(settings, secrets)
        self._job = job

    def totals(self, partition: LedgersPartition) -> bytes:
        """``InventoryTotals`` of the partition as JSON, to be merged."""
        return msgspec.json.encode(asyncio.run(self._take(partition)))

    async def _take(self, partition: LedgersPartition) -> InventoryTotals:
        settings = self._settings
        os.environ.update(self._secrets)  # where the settings of the connections to bookies name their passwords
        async with open_store(settings, self._secrets, partition.budget_shares) as (store, uri):
            ledgers = await open_ledger_store(store, uri.root, uri.tree, layout_config=settings.zookeeper.layout)
            async with LedgerClient.on_session(store, ledgers, self._job.client) as client:
                request = self._job.request.share(partition.budget_shares)
                inventory = CopyInventory(client.ports, settings.facts.registrations.live, request)
                return await inventory.take(ledgers.read_all(subtree) for subtree in partition.subtrees)
