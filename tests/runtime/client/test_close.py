"""The end of a client whose entries were acknowledged before all their copies were written."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from bkctl.runtime.client import LedgerClient
from tests.processes import Cluster

ENTRIES = 60
ENTRY_BYTES = 500_000
"""More in all than the buffers of sockets hold."""


@pytest.mark.cluster
async def test_copies_that_are_on_their_way_arrive_before_a_client_ends(cluster: Cluster) -> None:
    async with await LedgerClient.connect(cluster.metadata_uri) as client:
        writer = await client.create(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2)
        await writer.append(b"the first")
        slow = cluster.bookies[0]
        os.kill(slow.pid, signal.SIGSTOP)
        try:
            await asyncio.gather(*(writer.append(bytes(ENTRY_BYTES)) for _ in range(ENTRIES)))
            await writer.close()
        finally:
            threading.Timer(0.5, os.kill, (slow.pid, signal.SIGCONT)).start()
    verified = cluster.run("ledger", "verify", str(writer.ledger_id))
    assert verified.exit_code == 0, verified.stdout
