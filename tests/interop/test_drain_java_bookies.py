"""bkctl drains and removes a Java bookie that serves, while Java writes and Java's replication worker runs."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.metadata.uri import parse_metadata_uri
from tests.interop.copy_watch import WrittenLedgers
from tests.interop.java import JavaClient
from tests.interop.java_cluster import HTTP, JavaCluster

LEDGER_COUNT = 30
ENTRY_COUNT = 20
BATCH = [base64.b64encode(b"an entry of a writer that works on").decode()] * 5


@pytest.fixture
def java(metadata_uri: str, tmp_path: Path) -> Iterator[JavaCluster]:
    """Five bookies, and a replication worker."""
    with JavaCluster(str(tmp_path / "java"), metadata_uri) as cluster:
        cluster.start_bookies(5, **HTTP)
        cluster.start_replication_worker(lostBookieRecoveryDelay="3600")
        yield cluster


@pytest.fixture
def new_client(java: JavaCluster, tmp_path: Path) -> Iterator[Callable[[str], JavaClient]]:
    """Starts Java clients."""
    clients: list[JavaClient] = []

    def start(name: str) -> JavaClient:
        clients.append(JavaClient(java.metadata_uri, str(tmp_path / f"{name}.log")))
        return clients[-1]

    yield start
    for client in clients:
        client.stop()


def test_a_java_bookie_is_drained_and_removed_while_java_writes(
    java: JavaCluster, new_client: Callable[[str], JavaClient], znodes: KazooClient
) -> None:
    root = parse_metadata_uri(java.metadata_uri).root
    ledgers = WrittenLedgers(new_client("reader"), znodes, root, count=LEDGER_COUNT, entries=ENTRY_COUNT)
    writer = new_client("writer")
    sizes = {"ensemble_size": 4, "write_quorum_size": 2, "ack_quorum_size": 2}
    ledger_id = writer.call_and_wait("create", digest_type="CRC32C", password="", **sizes)["ledger_id"]
    shown = java.run("ledger", "show", str(ledger_id), "-o", "json").json()
    victim = shown["ensembles"][0]["ensemble"][0]
    assert ledgers.referencing(victim)
    is_over = threading.Event()
    written: list[int] = []
    failures: list[BaseException] = []

    def write() -> None:
        try:
            while not is_over.is_set():
                answer = writer.call_and_wait("append", ledger_id=ledger_id, payloads=BATCH)
                written.extend(answer["entry_ids"])
        except BaseException as error:
            failures.append(error)

    refused = java.run("decommission", victim, "--by-retention", "--yes")
    assert (refused.exit_code, "persistBookieStatusEnabled=true" in refused.stderr) == (3, True), refused
    writing = threading.Thread(target=write)
    writing.start()
    try:
        with ledgers.watched():
            drained = java.run("bookie", "drain", victim, "--yes", "-o", "json")
            assert drained.exit_code == 0, drained.stderr
    finally:
        is_over.set()
        writing.join()
    assert "persistBookieStatusEnabled is not true" in drained.stderr
    assert java.registered("read-only") == [victim]
    assert not failures, failures
    assert ledgers.referencing(victim) == []
    closed = writer.call_and_wait("close", ledger_id=ledger_id)
    assert closed["last_add_confirmed"] == written[-1] == len(written) - 1

    back = java.run("bookie", "undrain", victim, "-o", "json")
    assert (back.exit_code, back.json()["changed"]) == (0, [victim]), back.stderr
    assert java.run("bookie", "drain", victim, "--yes").exit_code == 0
    java.kill(victim)
    removed = java.run("decommission", victim, "--yes", "-o", "json")
    assert (removed.exit_code, removed.json()["is_cookie_deleted"]) == (0, True), removed.stderr
    ledgers.require_all_copies()
    verified = java.run("ledger", "verify", str(ledger_id), "-o", "json")
    assert verified.exit_code == 0, verified.stdout
