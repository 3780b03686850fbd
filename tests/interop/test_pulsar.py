"""A real Pulsar broker with its default wire protocol (v2), on our bookies, and on ours next to Java's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.pulsar.references import PulsarStore
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.orphans import OrphanTerms
from bkctl.runtime.replication.survey.orphan_search import OrphanFinder, OrphanSearch, SearchView
from tests.interop.java import is_built
from tests.interop.java_cluster import HTTP, JavaCluster
from tests.interop.pulsar_cluster import JVM_FLAGS, RELEASE, PulsarCluster
from tests.processes import DevCluster
from tests.recovery_daemons import RecoveryDaemon
from tests.runtime.metadata.conftest import CONFIG
from tests.until import wait_until

pytestmark = [
    pytest.mark.battery,
    pytest.mark.skipif(not is_built(RELEASE), reason="Pulsar's jars are missing: make pulsar"),
]

PER_SECOND = 300


class Site(NamedTuple):
    """What runs: bookies of ours, perhaps Java's, and the broker."""

    bookies: DevCluster
    java: JavaCluster
    pulsar: PulsarCluster

    def run(self, *arguments: str) -> Any:
        """The result of a bkctl command that must succeed."""
        result = self.bookies.run(*arguments, "-o", "json")
        assert result.exit_code == 0, result.stderr
        return result.json()

    def writable(self) -> list[str]:
        """Ids of the bookies that may take new ledgers."""
        return self.java.registered("writable")

    def closed_ledgers(self, *filters: str) -> list[str]:
        """Ids of the closed ledgers that pass the filters of ``ledger list``."""
        return self.bookies.run("ledger", "list", "--state", "closed", *filters, "-o", "name").stdout.split()

    def call(self, command: str, **arguments: Any) -> dict[str, Any]:
        """See ``PulsarCluster``."""
        return self.pulsar.call(command, **arguments)


@pytest.fixture(scope="module", params=["ours", "mixed"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = str(tmp_path_factory.mktemp("pulsar"))
    with contextlib.ExitStack() as stack:
        bookies = DevCluster(os.path.join(directory, "bookies"))
        stack.callback(bookies.stop)
        bookies.up(4 if request.param == "ours" else 2)
        java = JavaCluster(os.path.join(directory, "java"), bookies.metadata_uri, release=RELEASE, jvm_flags=JVM_FLAGS)
        stack.enter_context(java)
        if request.param == "mixed":
            java.start_bookies(2, **HTTP)
        pulsar = stack.enter_context(PulsarCluster(os.path.join(directory, "pulsar"), bookies.metadata_uri))
        pulsar.call("set_up")
        yield Site(bookies, java, pulsar)


def assert_whole(result: dict[str, Any]) -> None:
    assert result["failures"] == []
    assert (result["lost"], result["out_of_order"]) == (0, 0)
    assert result["acknowledged"] > 0


async def test_all_that_makes_ledgers_has_owners_and_only_true_orphans_are_found(site: Site) -> None:
    for topic in ("plain", "forgotten"):
        site.call("start_flow", topic=topic, per_second=5000, count=3000)
        assert_whole(site.call("end_flow", topic=topic))
    site.call("individual_acks", topic="holes", count=1500)
    assert site.call("schemas", topic="schemas")["versions"] == 2
    assert site.call("compact", topic="compacted", count=1500) == {"status": "SUCCESS", "messages": 10}
    assert site.call("transactions", topic="transactions", count=60)["committed"] == 40
    for topic in ("plain", "forgotten", "holes", "compacted"):
        site.call("unload", topic=topic)
    assert_whole(site.call("read_all", topic="plain"))

    named = site.call("ledgers")
    assert {name_of(topic) for topic in named.values()} >= {"plain", "holes", "schemas", "compacted", "transactions"}
    for ledger_id, topic in named.items():
        assert name_of(topic) in site.run("ledger", "show", ledger_id)["owner"], f"ledger {ledger_id} of {topic}"

    closed = {int(ledger_id) for ledger_id in site.closed_ledgers()}
    lost = {int(ledger_id) for ledger_id, topic in named.items() if name_of(topic) == "forgotten"} & closed
    site.pulsar.forget_topic("forgotten")
    found = {each.ledger.ledger_id for each in (await _orphans(site)).orphans}
    assert len(lost) > 1
    assert lost <= found
    assert found.isdisjoint({int(ledger_id) for ledger_id in named} - lost)


def name_of(topic: str) -> str:
    return topic.rpartition("/")[2]


async def _orphans(site: Site) -> OrphanSearch:
    """As ``audit orphans`` finds them, whose ledgers are a day old: here a second is enough."""
    uri = site.bookies.metadata_uri
    servers = parse_metadata_uri(uri).servers
    async with await LedgerClient.connect(uri) as client, await ZooKeeperStore.connect(servers, CONFIG) as store:
        await asyncio.sleep(1.1)
        terms = OrphanTerms(now_ms=LoopClock(1).now_ms(), age_ms=1000)
        place = PulsarStore(store, "", "the cluster")
        view = SearchView(lambda _: None, lambda _: None)
        return await OrphanFinder(client.ports, store, [place], terms, settle_s=1, only=None, view=view).find()


def test_spark_names_owners_and_ages_of_a_running_brokers_ledgers(site: Site, tmp_path: Path) -> None:
    """As the plain audit does; and the bookies hold every copy."""
    started_ms = time.time_ns() // 1_000_000
    site.call("start_flow", topic="judged", per_second=5000, count=3000)
    assert_whole(site.call("end_flow", topic="judged"))
    site.call("unload", topic="judged")
    named = {int(ledger_id): name_of(topic) for ledger_id, topic in site.call("ledgers").items()}
    plain = _write_sets(site, tmp_path / "plain")
    spark = _write_sets(site, tmp_path / "spark", "--spark", "--cores", "2")

    # The broker's own topics get new ledgers meanwhile.
    both = [ledger_id for ledger_id in named if {"closed"} == _states(plain, ledger_id) | _states(spark, ledger_id)]
    assert len([ledger_id for ledger_id in both if named[ledger_id] == "judged"]) > 1
    for ledger_id in both:
        assert plain[ledger_id] == spark[ledger_id]
        for row in spark[ledger_id]:
            assert named[ledger_id] in row["owner"]
            assert row["replication"] in {"replicated", "empty"}
            assert named[ledger_id] != "judged" or row["created_ms"] >= started_ms


def _write_sets(site: Site, directory: Path, *arguments: str) -> dict[int, list[dict[str, Any]]]:
    """The rows of each ledger in the report of an audit that reads every entry and finds every copy good."""
    result = site.bookies.run("audit", "--inventory", "--read", "--all-entries", "--out", str(directory), *arguments)
    assert result.exit_code in {0, 10}, result.stderr
    summary = json.loads((directory / "report.json").read_text())["summary"]
    assert summary["read_copies"] > 3000
    assert (summary["bad_copies"], summary["unknown_copies"], summary["unreadable"]) == (0, 0, 0)
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in pq.read_table(directory / "write_sets").to_pylist():
        rows.setdefault(row["ledger_id"], []).append(row)
    return rows


def _states(write_sets: dict[int, list[dict[str, Any]]], ledger_id: int) -> set[str]:
    return {row["ledger_state"] for row in write_sets.get(ledger_id, [])}


def test_no_message_is_lost_while_bookie_and_broker_are_killed(site: Site) -> None:
    """Nor while the dead bookie's ledgers are recovered, and a live one is drained."""
    site.call("start_flow", topic="killed", per_second=PER_SECOND)
    dead, drained = (bookie.id for bookie in site.bookies.bookies[:2])
    site.bookies.kill_bookie(dead)
    wait_until(lambda: dead not in site.writable(), "the session of the dead bookie ends")
    recovered = site.bookies.run("recover", "failed-bookie", dead, "--open-ledgers", "skip", "--yes")
    assert recovered.exit_code in {0, 9}, recovered.stderr
    site.pulsar.kill_broker()
    site.pulsar.start_broker()
    site.bookies.start_bookie(dead)
    moved = site.bookies.run("bookie", "drain", drained, "--open-ledgers", "skip", "--yes")
    assert moved.exit_code in {0, 9}, moved.stderr
    assert_whole(site.call("end_flow", topic="killed"))
    site.call("unload", topic="killed")
    assert_whole(site.call("read_all", topic="killed"))
    site.run("bookie", "undrain", drained, "--yes")


def test_autorecovery_repairs_while_producers_run(site: Site, tmp_path: Path) -> None:
    site.call("start_flow", topic="healed", per_second=PER_SECOND)
    dead = site.bookies.bookies[0].id
    daemon = RecoveryDaemon(site.bookies.metadata_uri, tmp_path / "daemon", BKCTL_AUTORECOVERY_LOST_BOOKIE_DELAY_S="0")
    daemon.start()
    try:
        assert site.closed_ledgers("--bookie", dead)
        site.bookies.kill_bookie(dead)
        wait_until(lambda: dead not in site.writable(), "the session of the dead bookie ends")
        wait_until(
            lambda: not site.closed_ledgers("--bookie", dead), "the daemon moves all closed ledgers away from it"
        )
    finally:
        daemon.stop()
    assert_whole(site.call("end_flow", topic="healed"))
    site.call("unload", topic="healed")
    assert_whole(site.call("read_all", topic="healed"))
    site.bookies.start_bookie(dead)
