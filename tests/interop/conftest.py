"""Both sides of the interoperation tests, started once for all of them: bkctl bookies and a Java client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from runtime.client import LedgerClient
from tests.interop.java import JavaClient, is_built
from tests.processes import Cluster

HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder; without the jars it is skipped, with the way to get them."""
    for item in items:
        if str(item.path).startswith(HERE + os.sep):
            item.add_marker(pytest.mark.interop)
            if not is_built():
                item.add_marker(pytest.mark.skip(reason="the Java side is not built: make interop"))


@pytest.fixture(scope="session")
def bkctl_bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Four bkctl bookies; tests may not kill them."""
    cluster = Cluster(str(tmp_path_factory.mktemp("bkctl-bookies")))
    try:
        cluster.up(4)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def java_client(bkctl_bookies: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """A Java client of the bkctl bookies."""
    client = JavaClient(bkctl_bookies.metadata_uri, str(tmp_path_factory.mktemp("java-client") / "log"))
    try:
        yield client
    finally:
        client.stop()


@pytest.fixture
async def bkctl_client(bkctl_bookies: Cluster) -> AsyncIterator[LedgerClient]:
    """A bkctl client of the bkctl bookies."""
    async with await LedgerClient.connect(bkctl_bookies.metadata_uri) as client:
        yield client
