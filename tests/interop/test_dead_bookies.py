"""A bkctl bookie dies under a Java client; either side's recovery repairs what the other wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from tests.interop.exchange import PASSWORD, append_all, bkctl_creates, bkctl_reads, java_writes, payloads
from tests.interop.java import JavaClient
from tests.processes import DevCluster

BOOKIE_COUNT = 5


@pytest.fixture
def mortal_bookies(start_dev_cluster: Callable[[int], DevCluster]) -> DevCluster:
    """Five bkctl bookies that a test may kill."""
    return start_dev_cluster(BOOKIE_COUNT)


@pytest.fixture
def java(mortal_bookies: DevCluster, tmp_path: Path) -> Iterator[JavaClient]:
    """A Java client of these bookies."""
    client = JavaClient(mortal_bookies.metadata_uri, str(tmp_path / "java.log"))
    try:
        yield client
    finally:
        client.stop()


async def last_ensemble(client: LedgerClient, ledger_id: int) -> tuple[str, ...]:
    """Bookies of the segment that a writer appends to."""
    return (await client.ports.ledgers.read(ledger_id)).value.last_segment.ensemble


async def test_java_replaces_a_dead_bookie_and_goes_on(mortal_bookies: DevCluster, java: JavaClient) -> None:
    entries = payloads(200)
    async with await LedgerClient.connect(mortal_bookies.metadata_uri) as client:
        ledger_id = await java_writes(java, entries[:100], "CRC32C", is_closing=False)
        dead = (await last_ensemble(client, ledger_id))[0]
        mortal_bookies.kill_bookie(dead)
        assert await java.append(ledger_id, entries[100:]) == list(range(100, 200))
        assert dead not in await last_ensemble(client, ledger_id)
        assert await java.close_ledger(ledger_id) == 199
        assert await java.read(ledger_id, password=PASSWORD) == entries
        assert await bkctl_reads(client, ledger_id) == entries


async def test_bkctl_repairs_what_java_wrote(mortal_bookies: DevCluster, java: JavaClient) -> None:
    entries = payloads(100)
    async with await LedgerClient.connect(mortal_bookies.metadata_uri) as client:
        ledger_id = await java_writes(java, entries, "MAC")
        dead = (await last_ensemble(client, ledger_id))[0]
        mortal_bookies.kill_bookie(dead)
        repaired = mortal_bookies.run("recover", "failed-bookie", dead, "--yes")
        assert repaired.exit_code == 0, repaired.stdout + repaired.stderr
        assert dead not in await last_ensemble(client, ledger_id)
    verified = mortal_bookies.run("ledger", "verify", "--all")
    assert verified.exit_code == 0, verified.stdout + verified.stderr
    assert await java.read(ledger_id, digest_type="MAC", password=PASSWORD) == entries


async def test_java_repairs_what_bkctl_wrote(mortal_bookies: DevCluster, java: JavaClient) -> None:
    entries = payloads(100)
    async with await LedgerClient.connect(mortal_bookies.metadata_uri) as client:
        async with await bkctl_creates(client, "CRC32C") as writer:
            await append_all(writer, entries)
        dead = (await last_ensemble(client, writer.ledger_id))[0]
        mortal_bookies.kill_bookie(dead)
        await java.call("recover_bookie", bookie_id=dead)
        assert dead not in await last_ensemble(client, writer.ledger_id)
        assert await bkctl_reads(client, writer.ledger_id) == entries
    verified = mortal_bookies.run("ledger", "verify", "--all")
    assert verified.exit_code == 0, verified.stdout + verified.stderr
