"""Both sides of the interoperation tests, started once for all of them: bkctl bookies and a Java client."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.interop.java import JavaClient, JavaProgram, is_built
from tests.interop.java_metadata import JavaMetadata
from tests.interop.security_modes import Mode
from tests.kerberos import Realm, require_kerberos
from tests.processes import DevCluster
from tests.runtime.metadata.conftest import CONFIG

HERE = os.path.dirname(os.path.abspath(__file__))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this directory; without the jars it is skipped, with the way to get them."""
    for item in items:
        if str(item.path).startswith(HERE + os.sep):
            item.add_marker(pytest.mark.interop)
            if not is_built():
                item.add_marker(pytest.mark.skip(reason="the Java side is not built: make interop"))


@pytest.fixture(scope="session")
def bkctl_bookies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    """Four bkctl bookies; tests may not kill them."""
    cluster = DevCluster(str(tmp_path_factory.mktemp("bkctl-bookies")))
    try:
        cluster.up(4)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session", params=["v3", "v2"])
def java_client(
    request: pytest.FixtureRequest, bkctl_bookies: DevCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    """A Java client of the bkctl bookies, in each wire protocol."""
    log_path = str(tmp_path_factory.mktemp("java-client") / "log")
    is_v2 = "true" if request.param == "v2" else "false"
    client = JavaClient(bkctl_bookies.metadata_uri, log_path, useV2WireProtocol=is_v2)
    try:
        yield client
    finally:
        client.stop()


@pytest.fixture
async def bkctl_client(bkctl_bookies: DevCluster) -> AsyncIterator[LedgerClient]:
    """A bkctl client of the bkctl bookies."""
    async with await LedgerClient.connect(bkctl_bookies.metadata_uri) as client:
        yield client


@pytest.fixture(scope="session")
def java_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """One JVM with Java's metadata code and shell, for any root of any server."""
    program = JavaProgram(str(tmp_path_factory.mktemp("java-metadata") / "log"), "bkctl.interop.MetadataPeer")
    try:
        yield program
    finally:
        program.stop()


@pytest.fixture
async def java(java_program: JavaProgram, metadata_uri: str) -> AsyncIterator[JavaMetadata]:
    """Java at this test's root, where nothing exists yet."""
    metadata = JavaMetadata(java_program, metadata_uri)
    yield metadata
    await metadata.close_all()


@pytest.fixture
def root(metadata_uri: str) -> str:
    """Path of this test's root."""
    return parse_metadata_uri(metadata_uri).root


@pytest.fixture
async def store(zookeeper: EmbeddedZooKeeper) -> AsyncIterator[ZooKeeperStore]:
    """Our session."""
    async with await ZooKeeperStore.connect(zookeeper.connect_string, CONFIG) as store:
        yield store


@pytest.fixture(scope="session")
def znodes(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    """A bare client to look at nodes and to plant bad ones."""
    client = KazooClient(zookeeper.connect_string)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture(scope="session")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    """A Kerberos realm; skips the test where there is no KDC."""
    require_kerberos()
    with Realm(tmp_path_factory.mktemp("realm")) as realm:
        yield realm


@pytest.fixture
def realm_of_mode(request: pytest.FixtureRequest, mode: Mode) -> Realm | None:
    """For tests with a parameter ``mode``: one mode alone needs a KDC."""
    realm: Realm | None = request.getfixturevalue("realm") if mode is Mode.KERBEROS else None
    return realm
