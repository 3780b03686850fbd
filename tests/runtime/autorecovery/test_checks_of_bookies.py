"""The check of copies against real bookies, one of which has a damaged disk, and one an incomplete index."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.metadata.replication.marks import read_mark
from bkctl.runtime.metadata.replication.recovery_notes import CopyCheckCounts, LedgerCount, RecoveryNotes
from tests.commands.test_cluster_walk import succeed
from tests.commands.test_recover_ledger import damage, forget
from tests.processes import Cluster

pytestmark = pytest.mark.cluster

ENTRY_COUNT = 9


async def first_round(client: LedgerClient) -> CopyCheckCounts:
    """What an auditor finds that reads every entry."""
    config = AutorecoveryConfig(check_period_s=1, check_entries_percentage=100)
    notes = RecoveryNotes(client.store, client.ports.ledgers.root)
    serving = asyncio.ensure_future(Auditor(client.ports, client.store, config).serve())
    try:
        async with asyncio.timeout(60):
            while (note := await notes.copy_check.find()) is None or note.last is None:
                assert not serving.done()
                await asyncio.sleep(0.05)
        return note.last
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def test_a_ledger_with_damaged_and_missing_copies_is_marked_with_their_bookies(cluster: Cluster) -> None:
    written = succeed(cluster, "ledger", "write-test", "--entries", str(ENTRY_COUNT), "-E", "3", "-W", "3")
    ledger_id = int(written.json()["items"][0]["ledger_id"])
    cluster.down()
    damaged, forgetful, good = cluster.bookies
    damage(damaged)
    forget(forgetful, ledger_id, 3, 4, 5)
    cluster.up(3)

    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        found = await first_round(client)

        mark = await read_mark(client.store, client.ports.ledgers.root, ledger_id)
        assert mark is not None
        assert mark.mark is not None
        assert set(mark.mark.missing_bookies) == {damaged.id, forgetful.id}
        assert good.id not in mark.mark.missing_bookies
        assert (found.copies, found.copies_bad, found.copies_unknown) == (3 * ENTRY_COUNT, 5, 0)
        assert (found.marked, found.lost) == (LedgerCount(1, (ledger_id,)), LedgerCount())
