"""One Spark session for all of these tests: a JVM takes seconds to start."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from pyspark.sql import SparkSession

from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts, Loss
from bkctl.spark_reports.deployment import SparkDeployment
from bkctl.spark_reports.session import spark_context
from tests.runtime.replication.samples import demand_of, random_ledger

BOOKIES = [f"bookie-{number}:3181" for number in range(7)]
REGISTRATIONS = Registrations(writable=tuple(BOOKIES[:4]), read_only=("bookie-4:3181", "idle:3181"))
"""The last two of the bookies are gone, and one that is there holds nothing."""
FACTS = AuditFacts(
    registrations=REGISTRATIONS,
    now_ms=1_700_000_000_000,
    with_cookie=frozenset((*BOOKIES[:6], "idle:3181")),
    survey=BookieSurvey(
        writable=frozenset(BOOKIES[:4]),
        tables=(RackTable({bookie_id: f"/r{number % 3}" for number, bookie_id in enumerate(BOOKIES[:6])}),),
        groups={"gold": frozenset(BOOKIES[:3]), "silver": frozenset(BOOKIES[3:6])},
        rules=PlacementRules(min_racks_per_write_quorum=2),
    ),
    what_if=(Loss("two", frozenset(BOOKIES[1:3])), Loss("mixed", frozenset(BOOKIES[4:5]), frozenset({"/r0"}))),
)

QUERY_SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
}
"""Compiling the code of a query takes longer than a short job runs."""

UNREADABLE_IDS = (77, 20_000)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    log_path = str(tmp_path_factory.mktemp("spark") / "spark.log")
    with spark_context(SparkDeployment(cores=2), log_path=log_path) as context:
        yield SparkSession(context, options=QUERY_SETTINGS)


@pytest.fixture
async def ledgers(metadata_uri: str) -> AsyncIterator[LedgerStore]:
    """A cluster of 60 ledgers in three buckets of both kinds, and two that cannot be read. Every third has groups."""
    uri = parse_metadata_uri(metadata_uri)
    source = random.Random(3)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, source)
        ledger_store = await open_ledger_store(store, uri.root, uri.tree)
        for ledger_id in [*range(30), *range(10_000, 10_020), *range(2**40, 2**40 + 10)]:
            made = random_ledger(source, BOOKIES)
            if ledger_id % 3 == 0:
                demand = demand_of([("gold", "silver")[ledger_id % 2]], ["other"])
                made = msgspec.structs.replace(made, custom_metadata=(*made.custom_metadata, demand))
            await ledger_store.create(made, ledger_id=ledger_id)
        for ledger_id in UNREADABLE_IDS:
            path = f"{uri.root}/{ledger_store.tree.ledger_path(ledger_id)}"
            await store.create(path, b"not metadata", make_parents=True)
        yield ledger_store
