"""One Spark session for all of these tests: a JVM takes seconds to start."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator

import pytest
from pyspark.sql import SparkSession

from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.cluster.root import init_cluster
from runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from runtime.metadata.uri import parse_metadata_uri
from runtime.metadata.zookeeper.store import ZooKeeperStore
from spark_reports.session import local_session
from tests.runtime.replication.samples import random_ledger

BOOKIES = [f"bookie-{number}:3181" for number in range(7)]
REGISTRATIONS = Registrations(writable=tuple(BOOKIES[:4]), read_only=("bookie-4:3181", "idle:3181"))
"""The last two of the bookies are gone, and one that is there holds nothing."""

UNREADABLE_IDS = (77, 20_000)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_session(2, log_path=str(tmp_path_factory.mktemp("spark") / "spark.log")) as session:
        yield session


@pytest.fixture
async def ledgers(metadata_uri: str) -> AsyncIterator[LedgerStore]:
    """A cluster of 60 ledgers in three buckets of both kinds, two of which nobody can read."""
    uri = parse_metadata_uri(metadata_uri)
    source = random.Random(3)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await init_cluster(store, uri.root, uri.tree, source)
        ledger_store = await open_ledger_store(store, uri.root, uri.tree)
        for ledger_id in [*range(30), *range(10_000, 10_020), *range(2**40, 2**40 + 10)]:
            await ledger_store.create(random_ledger(source, BOOKIES), ledger_id=ledger_id)
        for ledger_id in UNREADABLE_IDS:
            path = f"{uri.root}/{ledger_store.tree.ledger_path(ledger_id)}"
            await store.create(path, b"not metadata", make_parents=True)
        yield ledger_store
