"""Executors judge the ledgers of a cluster, and ask bookies what they hold of them.

Each ledger is read once: its copies are compared with the metadata by which it is judged. The rates are those of all
partitions together.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.replication.survey.inventory import CopyInventory, InventoryJob
from bkctl.spark_reports.secrets import Secrets
from bkctl.spark_reports.write_set_source import AuditReader, LedgersPartition, OpenedPart, SourceSettings, open_store


class InventoryReader(AuditReader):
    """Judges the ledgers of a partition, and asks bookies about them."""

    name = "bookkeeper_inventory"

    def __init__(self, settings: SourceSettings, secrets: Secrets, job: InventoryJob) -> None:
        super().__init__(settings, secrets)
        self._job = job

    @asynccontextmanager
    async def _opened(self, partition: LedgersPartition) -> AsyncIterator[OpenedPart]:
        settings = self._settings
        os.environ.update(self._secrets)  # where the settings of the connections to bookies name their passwords
        async with open_store(settings, self._secrets, partition.budget_shares) as (store, uri):
            ledgers = await open_ledger_store(store, uri.root, uri.tree, layout_config=settings.zookeeper.layout)
            async with LedgerClient.on_session(store, ledgers, self._job.client) as client:
                request = self._job.request.share(partition.budget_shares)
                facts = settings.facts
                inventory = CopyInventory(client.ports, facts.registrations.live, request, facts.given_up)
                yield (
                    (ledgers.read_all(subtree) for subtree in partition.subtrees),
                    None,
                    inventory,
                )
