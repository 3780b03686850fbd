"""A bkctl client on Java bookies: the same exchange with the sides swapped."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.interop.exchange import DIGESTS, PASSWORD, append_all, bkctl_creates, bkctl_reads, java_writes, payloads
from tests.interop.java import FENCED_CODE, JavaBookie, JavaClient, JavaError, write_server_conf
from tests.processes import free_port, run_bkctl
from tests.until import until

BOOKIE_COUNT = 3


@pytest.fixture(scope="module")
def java_bookies_uri(zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of a cluster that bkctl has initialised and whose bookies are Java's."""
    directory = tmp_path_factory.mktemp("java-bookies")
    uri = f"zk+hierarchical://{zookeeper.connect_string}/java-ledgers"
    result = run_bkctl("cluster", "init", "--metadata-uri", uri)
    assert result.exit_code == 0, result.stderr
    bookies = []
    try:
        for number in range(BOOKIE_COUNT):
            conf_path = str(directory / f"{number}.conf")
            write_server_conf(conf_path, uri, str(directory / str(number)), free_port())
            os.mkdir(directory / str(number))
            bookies.append(JavaBookie(conf_path, str(directory / f"{number}.log")))
        asyncio.run(_wait_for_bookies(uri, bookies))
        yield uri
    finally:
        for bookie in bookies:
            bookie.stop()


async def _wait_for_bookies(uri: str, bookies: list[JavaBookie]) -> None:
    def are_writable() -> bool:
        assert all(bookie.is_running for bookie in bookies), "a Java bookie ended: see its log"
        listing = run_bkctl("bookie", "list", "--state", "writable", "--metadata-uri", uri, "-o", "name")
        return len(listing.stdout.split()) == len(bookies)

    await until(are_writable)


@pytest.fixture(scope="module")
def java_client_of_java(java_bookies_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """A Java client of the Java bookies."""
    client = JavaClient(java_bookies_uri, str(tmp_path_factory.mktemp("java-client") / "log"))
    try:
        yield client
    finally:
        client.stop()


@pytest.fixture
async def bkctl_client_of_java(java_bookies_uri: str) -> AsyncIterator[LedgerClient]:
    """A bkctl client of the Java bookies."""
    async with await LedgerClient.connect(java_bookies_uri) as client:
        yield client


@pytest.mark.parametrize("digest", DIGESTS)
async def test_java_reads_what_bkctl_wrote(
    java_client_of_java: JavaClient, bkctl_client_of_java: LedgerClient, digest: str
) -> None:
    entries = payloads(100)
    async with await bkctl_creates(bkctl_client_of_java, digest) as writer:
        await append_all(writer, entries)
    assert await java_client_of_java.read(writer.ledger_id, digest_type=digest, password=PASSWORD) == entries
    assert await bkctl_reads(bkctl_client_of_java, writer.ledger_id) == entries


async def test_bkctl_recovers_what_a_java_writer_left(
    java_client_of_java: JavaClient, bkctl_client_of_java: LedgerClient
) -> None:
    entries = payloads(50)
    ledger_id = await java_writes(java_client_of_java, entries, "CRC32C", is_closing=False)
    assert await bkctl_reads(bkctl_client_of_java, ledger_id, recover=True) == entries
    with pytest.raises(JavaError) as refused:
        await java_client_of_java.append(ledger_id, [b"too late"])
    assert refused.value.code == FENCED_CODE


async def test_an_open_ledger_on_java_bookies_is_explained_without_a_fence_and_closed(
    java_bookies_uri: str, java_client_of_java: JavaClient, bkctl_client_of_java: LedgerClient
) -> None:
    entries = payloads(50)
    ledger_id = await java_writes(java_client_of_java, entries[:40], "CRC32C", is_closing=False)
    empty = (await bkctl_creates(bkctl_client_of_java, "CRC32C")).ledger_id
    for each, last in ((ledger_id, "39"), (empty, None)):
        result = run_bkctl("ledger", "explain", str(each), "--metadata-uri", java_bookies_uri, "-o", "json")
        assert result.exit_code == 0, result
        explained = result.json()
        assert (explained["closable"], explained["problems"]) == (True, [])
        assert {each["answers"] for each in explained["bookies"]} == {True}
        assert last in {each["last_entry_id"] for each in explained["bookies"]}
    assert await java_client_of_java.append(ledger_id, entries[40:]) == list(range(40, 50))

    arguments = ("--grace", "0s", "--yes", "--metadata-uri", java_bookies_uri, "-o", "json")
    closed = run_bkctl("ledger", "close", str(ledger_id), str(empty), *arguments)
    assert closed.exit_code == 0, closed
    assert [row["last_entry_id"] for row in closed.json()["ledgers"]] == ["49", None]
    with pytest.raises(JavaError) as refused:
        await java_client_of_java.append(ledger_id, [b"too late"])
    assert refused.value.code == FENCED_CODE
    assert await java_client_of_java.read(ledger_id, password=PASSWORD) == entries


async def test_verify_and_audit_work_on_java_bookies(java_bookies_uri: str, java_client_of_java: JavaClient) -> None:
    ledger_id = await java_writes(java_client_of_java, payloads(100), "CRC32C")
    verified = run_bkctl("ledger", "verify", str(ledger_id), "-o", "json", "--metadata-uri", java_bookies_uri)
    assert verified.exit_code == 0, verified.stdout + verified.stderr
    audited = run_bkctl("audit", "--fail-on", "critical", "-o", "json", "--metadata-uri", java_bookies_uri)
    assert audited.exit_code == 0, audited.stdout + audited.stderr
