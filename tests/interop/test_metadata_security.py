"""A server with users: both sides protect the same nodes, leave the same ones open, and share them as one user."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.config import ZooKeeperConfig, ZooKeeperSaslConfig
from bkctl.runtime.errors import MetadataAuthError
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.net.loop import LoopClock
from tests.interop.java import JavaProgram
from tests.interop.java_metadata import JavaMetadata
from tests.interop.metadata_exchange import NEW, create_ledger, ids_of, init_by_java, new_metadata
from tests.interop.test_metadata_shell import COOKIE, ENDPOINTS, WRITABLE, cookie, register
from tests.interop.znodes import comparable, dump
from tests.zookeeper_servers import ZooKeeperServer, secured_server

PASSWORD = "sesame-7f3a"
SASL_PROVIDER = {"authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
LOGIN = "org.apache.zookeeper.server.auth.DigestLoginModule required"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Users of DIGEST-MD5."""
    directory = tmp_path_factory.mktemp("secured")
    (directory / "jaas.conf").write_text(f'Server {{ {LOGIN} user_bkctl="{PASSWORD}"; }};\n')
    with secured_server(directory, SASL_PROVIDER, {"java.security.auth.login.config": "./jaas.conf"}) as server:
        yield server


@pytest.fixture(scope="module")
def java_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProgram]:
    """Java that logs in as the same user as we; its ZooKeeper client refuses DIGEST-MD5 in its default FIPS mode."""
    directory = tmp_path_factory.mktemp("java-user")
    jaas = directory / "jaas.conf"
    jaas.write_text(f'Client {{ {LOGIN} username="bkctl" password="{PASSWORD}"; }};\n')
    program = JavaProgram(
        str(directory / "log"),
        "bkctl.interop.MetadataPeer",
        jvm_flags=(f"-Djava.security.auth.login.config={jaas}", "-Dzookeeper.fips-mode=false"),
    )
    try:
        yield program
    finally:
        program.stop()


@pytest.fixture
async def user(secured: ZooKeeperServer, tmp_path: Path) -> AsyncIterator[ZooKeeperStore]:
    """Our session of that user."""
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    sasl = ZooKeeperSaslConfig(username="bkctl", password=f"file:{password}")
    config = ZooKeeperConfig(sasl=sasl, has_secure_acl=True)
    async with await ZooKeeperStore.connect(secured.address, config) as store:
        yield store


async def test_both_sides_protect_the_same_nodes(
    secured: ZooKeeperServer, java_user: JavaProgram, user: ZooKeeperStore
) -> None:
    root, twin_root = "/java", "/bkctl"
    java = JavaMetadata(java_user, f"zk+hierarchical://{secured.address}{root}", zkEnableSecurity="true")
    await init_by_java(java, LedgerTree.HIERARCHICAL)
    await init_cluster(user, twin_root, LedgerTree.HIERARCHICAL, LoopClock(1).random)
    ledgers = await open_ledger_store(user, twin_root)
    for ledger_id in (5, 2**40):
        await java.call("ledger_create", ledger_id=ledger_id, **NEW)
        await create_ledger(ledgers, new_metadata(), ledger_id=ledger_id)
    await java.call("ledger_create", **NEW)
    await create_ledger(ledgers, new_metadata())
    await java.call("cookie_write", bookie_id=WRITABLE, **COOKIE)
    await CookieStore(user, twin_root).create(cookie(WRITABLE, None))
    await java.call("register", bookie_id=WRITABLE, endpoints=ENDPOINTS, properties={"rack": "/a"})
    await register(user, twin_root, WRITABLE, BookieMode.WRITABLE)
    await java.call("mark", ledger_ids=[5], missing=[WRITABLE])
    await UnderReplicationMarks(user, twin_root, LoopClock(1)).mark(5, [WRITABLE])
    await java.call("acquire", ledger_id=5)
    assert await ReplicationLocks(user, twin_root, canonical_host_name()).acquire(5) is not None
    await java.call("set_switches", initial_delay_s=0, is_enabled=False)
    switches = ReplicationSwitches(user, twin_root)
    await switches.set_recovery_delay(0)
    await switches.disable()

    client = KazooClient(
        secured.address, sasl_options={"mechanism": "DIGEST-MD5", "username": "bkctl", "password": PASSWORD}
    )
    client.start()
    try:
        by_java, by_bkctl = comparable(dump(client, root)), comparable(dump(client, twin_root))
    finally:
        client.stop()
        client.close()
    assert by_bkctl == by_java
    open_nodes = [path for path, node in by_bkctl.items() if node.acl != ("sasl:bkctl:31",)]
    assert open_nodes == ["/underreplication/lostBookieRecoveryDelay"]

    # One user, two sides; and nobody else.
    shared = await open_ledger_store(user, root)
    found = await shared.read(5)
    await shared.write(5, found.value, found.version)
    assert await java.list_ledgers() == await ids_of(shared)
    await java.close()
    async with await ZooKeeperStore.connect(secured.address) as stranger:
        with pytest.raises(MetadataAuthError):
            await stranger.get(Paths(root).instance_id)
