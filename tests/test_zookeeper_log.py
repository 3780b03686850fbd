"""The transaction log shows who changed a ledger, and whether it held the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.zookeeper_log import RepairWatch, ZooKeeperLog
from tests.zookeeper_servers import ZooKeeperServer, secured_server

ROOT = "/ledgers"
LEDGER_PATH = f"{ROOT}/00/0000/L0007"
LOCK_PATH = f"{ROOT}/underreplication/locks/urL0000000007"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A server whose directory is known."""
    with secured_server(tmp_path_factory.mktemp("zookeeper"), {}, {}) as server:
        yield server


@pytest.fixture
def connect(server: ZooKeeperServer) -> Iterator[Callable[[], KazooClient]]:
    """Opens sessions, which end with the test."""
    clients = []

    def open_session() -> KazooClient:
        client = KazooClient(server.address)
        client.start()
        clients.append(client)
        return client

    yield open_session
    for client in clients:
        client.stop()
        client.close()


def data_directory(server: ZooKeeperServer) -> Path:
    """Where the log is."""
    return server.directory / "data"


def session_of(client: KazooClient) -> int:
    """Its id."""
    assert client.client_id is not None
    return int(client.client_id[0])


def test_changes_one_by_one_and_in_common_transactions(
    server: ZooKeeperServer, connect: Callable[[], KazooClient]
) -> None:
    client = connect()
    log = ZooKeeperLog(data_directory(server))
    list(log.new_changes())
    client.create("/a", b"data", ephemeral=True)
    transaction = client.transaction()
    transaction.create("/b", b"")
    transaction.set_data("/b", b"more")
    transaction.delete("/b")
    transaction.commit()
    failing = client.transaction()
    failing.create("/c", b"")
    failing.delete("/absent")
    failing.commit()
    client.delete("/a")
    found = list(log.new_changes())
    assert [(each.kind, each.path, each.is_ephemeral) for each in found] == [
        ("create", "/a", True),
        ("create", "/b", False),
        ("set", "/b", False),
        ("delete", "/b", False),
        ("delete", "/a", False),
    ]
    assert {each.session for each in found} == {session_of(client)}


def test_a_change_needs_the_lock_of_the_ledger(server: ZooKeeperServer, connect: Callable[[], KazooClient]) -> None:
    first, second, writer = connect(), connect(), connect()
    writer.create(LEDGER_PATH, b"", makepath=True)
    watch = RepairWatch(data_directory(server), ROOT)
    first.create(LOCK_PATH, b"", ephemeral=True, makepath=True)
    first.set(LEDGER_PATH, b"1")
    writer.set(LEDGER_PATH, b"2")  # it takes no locks
    watch.read()
    was_first = session_of(first)
    first.stop()  # the lock ends with the session
    second.create(LOCK_PATH, b"", ephemeral=True)
    second.set(LEDGER_PATH, b"3")
    watch.read()
    assert (watch.problems, watch.repairs) == ([], {(was_first, 7): 1, (session_of(second), 7): 1})
    second.delete(LOCK_PATH)
    second.set(LEDGER_PATH, b"4")
    watch.read()
    assert watch.problems == [f"session {session_of(second):#x} changed ledger 7, whose lock no session had"]
