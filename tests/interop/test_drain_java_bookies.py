"""bkctl drains and removes a Java bookie that serves, while Java writes and Java's replication worker runs."""

from __future__ import annotations

import base64
import os
import signal
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


def test_a_bookie_that_was_only_halted_is_removed_again_while_it_serves(java: JavaCluster) -> None:
    """It registers again without a cookie and takes adds; stopped, it could not start, and might have the only copy."""
    victim = java.registered("writable")[0]
    os.kill(java.pid_of(victim), signal.SIGSTOP)
    try:
        java.wait_until(lambda: victim not in java.registered("writable"))
        removed = java.run("decommission", victim, "--yes")
        assert removed.exit_code == 0, removed.stderr
    finally:
        os.kill(java.pid_of(victim), signal.SIGCONT)
    java.wait_until(lambda: victim in java.registered("writable"))

    def is_referenced() -> bool:
        written = java.run("ledger", "write-test", "--entries", "9", "-E", "1", "-W", "1", "-A", "1")
        assert written.exit_code == 0, written.stderr
        return bool(java.run("ledger", "list", "--bookie", victim, "-o", "name").stdout.split())

    java.wait_until(is_referenced)
    status = java.run("status", "-o", "json").json()
    (found,) = [each for each in status["findings"] if each["part"] == "bookies_without_cookie"]
    assert found["finding"].endswith("is registered without a cookie, and cannot start again")
    (rule,) = [
        each
        for each in java.run("metadata", "doctor", "-o", "json").json()["findings"]
        if each["rule"] == "registered-without-cookie"
    ]
    assert rule["cure"].startswith(f"Do not stop it first: bkctl decommission {victim} ")
    again = java.run("decommission", victim, "--yes", "--stop-command", java.command_to_stop(victim))
    assert again.exit_code == 0, again.stderr
    assert java.run("ledger", "verify", "--all").exit_code == 0
