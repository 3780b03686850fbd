"""A Java bookie refuses every add to a fenced ledger that it collected. Recovery by bkctl must get past it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import LedgerCredentials
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.errors import NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.protocol.status import Status
from tests.interop.exchange import PASSWORD, append_all, bkctl_reads, payloads
from tests.interop.java import ANSWER_TIMEOUT_S, JavaBookie, write_server_conf
from tests.processes import DevCluster, free_port

SETTINGS = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "16",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "flushInterval": "200",
    "gcWaitTime": "500",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
}


@pytest.fixture
def mixed_cluster(start_dev_cluster: Callable[[int], DevCluster]) -> DevCluster:
    """Three bkctl bookies; the Java bookie joins them."""
    return start_dev_cluster(3)


@pytest.fixture
def java_bookie_id(mixed_cluster: DevCluster, tmp_path: Path) -> Iterator[str]:
    """The id of a Java bookie that collects deleted ledgers after a moment."""
    port = free_port()
    directory = tmp_path / "java-bookie"
    directory.mkdir()
    conf_path = str(tmp_path / "java-bookie.conf")
    write_server_conf(conf_path, mixed_cluster.metadata_uri, str(directory), port, **SETTINGS)
    bookie = JavaBookie(conf_path, str(tmp_path / "java-bookie.log"))
    try:
        yield f"127.0.0.1:{port}"
    finally:
        bookie.stop()


async def recovery_add(client: LedgerClient, bookie_id: str, keys: LedgerCredentials) -> Status:
    """The answer to a recovery add of entry 0."""
    answer: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
    body = keys.codec.encode(0, -1, 4, b"here")
    client.ports.bookies.add(
        bookie_id, keys.ledger_id, 0, keys.master_key, body, answer.set_result, is_recovery_add=True
    )
    return await answer


async def wait_until_stored(client: LedgerClient, bookie_id: str, ledger_id: int, entry_id: int) -> None:
    while True:
        try:
            await client.ports.bookies.read(bookie_id, ledger_id, entry_id)
        except (NoSuchEntryError, NoSuchLedgerError):
            await asyncio.sleep(0.2)
        else:
            return


async def has_collected(client: LedgerClient, bookie_id: str, ledger_id: int) -> bool:
    try:
        await client.ports.bookies.read(bookie_id, ledger_id, 0)
    except (NoSuchEntryError, NoSuchLedgerError):
        return True
    return False


async def test_a_dead_bookie_is_replaced_although_a_java_bookie_refuses_the_ledger(
    mixed_cluster: DevCluster, java_bookie_id: str
) -> None:
    dead, sound, spare = (bookie.id for bookie in mixed_cluster.bookies)
    entries = payloads(60)
    async with await LedgerClient.connect(mixed_cluster.metadata_uri) as client, asyncio.timeout(ANSWER_TIMEOUT_S):
        ports = client.ports
        while java_bookie_id not in await ports.registrations.writable():  # noqa: ASYNC110  ZooKeeper is asked
            await asyncio.sleep(0.2)
        metadata = new_ledger((dead, java_bookie_id, sound), 3, 2, DigestType.CRC32C, PASSWORD.encode())
        ledger_id, stored = await ports.ledgers.create(metadata)
        keys = LedgerCredentials(ledger_id, DigestType.CRC32C, PASSWORD.encode())
        writer = LedgerWriter(ports, keys, stored)
        await append_all(writer, entries)
        await wait_until_stored(client, java_bookie_id, ledger_id, len(entries) - 1)  # two acknowledgements are enough
        writer.abandon()

        await ports.bookies.read(java_bookie_id, ledger_id, 0, fence_with=keys.master_key)
        await ports.ledgers.delete(ledger_id)
        while not await has_collected(client, java_bookie_id, ledger_id):  # noqa: ASYNC110  the bookie sends no event
            await asyncio.sleep(0.2)
        await ports.ledgers.create(metadata, ledger_id=ledger_id)
        assert await recovery_add(client, java_bookie_id, keys) is Status.FENCED

        mixed_cluster.kill_bookie(dead)
        repaired = await asyncio.to_thread(mixed_cluster.run, "recover", "failed-bookie", dead, "--yes")
        assert repaired.exit_code == 0, repaired.stdout + repaired.stderr
        after = (await ports.ledgers.read(ledger_id)).value
        assert after.is_closed
        assert after.last_segment.ensemble == (spare, java_bookie_id, sound)
        assert await bkctl_reads(client, ledger_id) == entries
