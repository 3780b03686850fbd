"""A Java client and a bkctl client on bkctl bookies: each writes, both read, either recovers what the other left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import LedgerFencedError
from tests.interop.exchange import (
    DIGESTS,
    PASSWORD,
    append_all,
    bkctl_creates,
    bkctl_reads,
    java_writes,
    payloads,
)
from tests.interop.java import FENCED_CODE, RELEASES, UNAUTHORIZED_CODE, JavaClient, JavaError
from tests.processes import DevCluster


@pytest.mark.parametrize("digest", DIGESTS)
async def test_both_read_what_java_wrote(java_client: JavaClient, bkctl_client: LedgerClient, digest: str) -> None:
    entries = payloads(200)
    ledger_id = await java_writes(java_client, entries, digest)
    assert await java_client.read(ledger_id, digest_type=digest, password=PASSWORD) == entries
    assert await bkctl_reads(bkctl_client, ledger_id) == entries


@pytest.mark.parametrize("digest", DIGESTS)
async def test_both_read_what_bkctl_wrote(java_client: JavaClient, bkctl_client: LedgerClient, digest: str) -> None:
    entries = payloads(200)
    async with await bkctl_creates(bkctl_client, digest) as writer:
        assert await append_all(writer, entries) == list(range(len(entries)))
    assert await java_client.read(writer.ledger_id, digest_type=digest, password=PASSWORD) == entries
    assert await bkctl_reads(bkctl_client, writer.ledger_id) == entries


async def test_large_entries_go_both_ways(java_client: JavaClient, bkctl_client: LedgerClient) -> None:
    entries = payloads(6, size_bytes_max=1_000_000)
    ledger_id = await java_writes(java_client, entries, "CRC32C")
    assert await bkctl_reads(bkctl_client, ledger_id) == entries
    async with await bkctl_creates(bkctl_client, "CRC32C") as writer:
        await append_all(writer, entries)
    assert await java_client.read(writer.ledger_id, password=PASSWORD) == entries


async def test_empty_ledgers_go_both_ways(java_client: JavaClient, bkctl_client: LedgerClient) -> None:
    ledger_id = await java_client.create(password=PASSWORD)
    assert await java_client.close_ledger(ledger_id) == -1
    assert await bkctl_reads(bkctl_client, ledger_id) == []
    async with await bkctl_creates(bkctl_client, "CRC32C") as writer:
        pass
    assert await java_client.read(writer.ledger_id, password=PASSWORD) == []


@pytest.mark.parametrize("digest", DIGESTS)
async def test_java_recovers_what_a_bkctl_writer_left(
    java_client: JavaClient, bkctl_client: LedgerClient, digest: str
) -> None:
    entries = payloads(50)
    writer = await bkctl_creates(bkctl_client, digest)
    await append_all(writer, entries)
    assert await java_client.read(writer.ledger_id, recover=True, digest_type=digest, password=PASSWORD) == entries
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")
    assert await bkctl_reads(bkctl_client, writer.ledger_id) == entries


@pytest.mark.parametrize("digest", DIGESTS)
async def test_bkctl_recovers_what_a_java_writer_left(
    java_client: JavaClient, bkctl_client: LedgerClient, digest: str
) -> None:
    entries = payloads(50)
    ledger_id = await java_writes(java_client, entries, digest, is_closing=False)
    assert await bkctl_reads(bkctl_client, ledger_id, recover=True) == entries
    with pytest.raises(JavaError) as refused:
        await java_client.append(ledger_id, [b"too late"])
    assert refused.value.code == FENCED_CODE
    answer = await java_client.call("read", ledger_id=ledger_id, recover=False, digest_type=digest, password=PASSWORD)
    assert answer["is_closed"]
    assert answer["last_add_confirmed"] == len(entries) - 1
    assert answer["length"] == sum(map(len, entries))


async def test_ledger_close_stops_a_java_writer_and_java_reads_every_entry(
    java_client: JavaClient, bkctl_bookies: DevCluster
) -> None:
    entries = payloads(50)
    ledger_id = await java_writes(java_client, entries, "CRC32C", is_closing=False)
    closed = bkctl_bookies.run("ledger", "close", str(ledger_id), "--grace", "0s", "--yes")
    assert closed.exit_code == 0, closed.stdout + closed.stderr
    with pytest.raises(JavaError) as refused:
        await java_client.append(ledger_id, [b"too late"])
    assert refused.value.code == FENCED_CODE
    assert await java_client.read(ledger_id, password=PASSWORD) == entries


async def test_java_recovers_an_empty_open_ledger(java_client: JavaClient, bkctl_client: LedgerClient) -> None:
    writer = await bkctl_creates(bkctl_client, "CRC32C")
    assert await java_client.read(writer.ledger_id, recover=True, password=PASSWORD) == []
    with pytest.raises(LedgerFencedError):
        await writer.append(b"too late")


async def test_java_with_a_wrong_password_is_refused(java_client: JavaClient, bkctl_client: LedgerClient) -> None:
    async with await bkctl_creates(bkctl_client, "CRC32C") as writer:
        await append_all(writer, [b"secret"])
    with pytest.raises(JavaError) as refused:
        await java_client.read(writer.ledger_id, password="wrong")
    assert refused.value.code == UNAUTHORIZED_CODE


async def test_verify_finds_every_copy_that_java_wrote(java_client: JavaClient, bkctl_bookies: DevCluster) -> None:
    ledger_id = await java_writes(java_client, payloads(100), "CRC32C")
    result = bkctl_bookies.run("ledger", "verify", str(ledger_id), "-o", "json")
    assert result.exit_code == 0, result.stdout + result.stderr


@pytest.mark.parametrize("release", RELEASES)
async def test_java_follows_forces_and_writes_explicit_lacs(
    bkctl_bookies: DevCluster, bkctl_client: LedgerClient, tmp_path: Path, release: str
) -> None:
    """Long polls, deferred sync and explicit LACs are v3 only."""
    entries = payloads(20)
    java = JavaClient(bkctl_bookies.metadata_uri, str(tmp_path / "log"), release=release, explicitLacInterval="50")
    try:
        async with await bkctl_creates(bkctl_client, "CRC32C") as writer:
            following = asyncio.ensure_future(java.follow(writer.ledger_id, len(entries) - 1, password=PASSWORD))
            for entry in entries:
                await writer.append(entry)
                await asyncio.sleep(0.05)
            assert await following == entries[:-1], "the last entry is confirmed by the one after it"
        ledger_id = await java.create(password=PASSWORD, deferred_sync=True)
        assert await java.append(ledger_id, entries) == list(range(len(entries)))
        forced = await java.call("force", ledger_id=ledger_id)
        assert forced["last_add_confirmed"] == len(entries) - 1, "only a force confirms entries with deferred sync"
        assert await java.follow(ledger_id, len(entries), password=PASSWORD) == entries, "an explicit LAC confirms all"
        confirmed = await java.call("explicit_lac", ledger_id=ledger_id, digest_type="CRC32C", password=PASSWORD)
        assert confirmed["last_add_confirmed"] == len(entries) - 1
    finally:
        java.stop()
