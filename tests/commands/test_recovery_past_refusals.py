"""`bkctl recover` with a dead bookie and one that refuses the ledger: real processes, and one bookie in this process.

No bkctl bookie answers EFENCED to recovery adds. A Java bookie does after it collected a fenced ledger;
``tests/interop/test_collected_ledgers.py`` runs the same scenario with one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import LedgerCredentials
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.metadata.bookies.registration import BookieMode, BookieRegistration
from bkctl.runtime.metadata.bookies.service_info import rpc_service_info
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.protocol.status import Status
from bkctl.storage.errors import BkctlError
from tests.processes import Cluster
from tests.runtime.client.fakes import payload
from tests.runtime.client.scripted_bookie import LOOPBACK, ScriptedBookie

PASSWORD = b"sesame"
ENTRY_COUNT = 40
REFUSING = "refusing-bookie"


def _must_not_fail(error: BkctlError) -> None:
    raise AssertionError(error)


async def test_a_dead_bookie_is_replaced_although_another_one_refuses_the_ledger(
    start_cluster: Callable[[int], Cluster],
) -> None:
    cluster = await asyncio.to_thread(start_cluster, 3)
    dead, sound, spare = (bookie.id for bookie in cluster.bookies)
    refusing = ScriptedBookie(REFUSING)
    await refusing.start()
    try:
        async with await LedgerClient.connect(cluster.metadata_uri) as client:
            root = client.ports.ledgers.root
            service = rpc_service_info(LOOPBACK, refusing.port)
            registration = BookieRegistration(
                client.store,
                root,
                REFUSING,
                service,
                clock=LoopClock(),
                session_timeout_ms=10_000,
                on_failed=_must_not_fail,
            )
            await registration.register(BookieMode.WRITABLE)
            metadata = new_ledger((dead, REFUSING, sound), 3, 2, DigestType.CRC32C, PASSWORD)
            ledger_id, stored = await client.ports.ledgers.create(metadata)
            writer = LedgerWriter(client.ports, LedgerCredentials(ledger_id, DigestType.CRC32C, PASSWORD), stored)
            for entry_id in range(ENTRY_COUNT):
                await writer.append(payload(entry_id))
            writer.abandon()

            del refusing.ledgers[ledger_id]
            for kind in ("read", "read_lac"):
                refusing.refuse(kind, Status.NO_SUCH_LEDGER)
            refusing.refuse("add", Status.FENCED)
            await asyncio.to_thread(cluster.stop_bookie, dead)
            words = ("recover", "failed-bookie", dead, "--open-ledgers", "fence", "--yes")
            repaired = await asyncio.to_thread(cluster.run, *words)

            assert repaired.exit_code == 0, repaired.stdout + repaired.stderr
            reader = await client.open(ledger_id, password=PASSWORD)
            assert reader.is_closed
            assert reader.metadata.last_segment.ensemble == (spare, REFUSING, sound)
            assert [entry.payload for entry in await reader.read(0)] == [payload(i) for i in range(ENTRY_COUNT)]
    finally:
        await refusing.stop()
        refusing.release_port()
