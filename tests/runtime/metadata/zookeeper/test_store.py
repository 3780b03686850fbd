from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bkctl.runtime.config import ZooKeeperConfig
from bkctl.runtime.errors import (
    ConfigurationError,
    MetadataUnavailableError,
    NoNodeError,
    SessionExpiredError,
)
from bkctl.runtime.metadata.store import ANY_VERSION, CreateNode, Node
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.conftest import CONFIG, connect_in_time, expire, halt, session_of
from tests.runtime.metadata.link import LOOPBACK, TcpLink
from tests.until import until, wait_until

PATIENT = ZooKeeperConfig(session_timeout_ms=30_000, operation_timeout_s=60.0)
"""For servers that are started again: that takes as long as the machine is busy."""


async def test_the_end_of_a_session(store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str) -> None:
    path = await store.create(f"{root}/e", is_ephemeral=True, make_parents=True)
    lost: asyncio.Queue[int] = asyncio.Queue()
    seen: asyncio.Queue[Node | None] = asyncio.Queue()
    old_session_id = store.session_id
    store.on_session_lost(lambda: lost.put_nowait(store.session_id))
    store.watch_node(path, seen.put_nowait)
    assert await seen.get() is not None
    await asyncio.to_thread(expire, session_of(store), zookeeper)
    assert await lost.get() != old_session_id
    while await seen.get() is not None:
        pass  # a dropped connection may show the node once more before the server's view is known
    assert await store.exists(path) is None
    assert store.session_id not in {0, old_session_id}
    assert lost.empty()


async def test_what_waits_when_the_session_ends(tmp_path: Path) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    async with await ZooKeeperStore.connect(server.connect_string, PATIENT) as store:
        await store.create("/e", is_ephemeral=True)
        session = session_of(store)
        await server.stop()
        waiting: list[asyncio.Task[object]] = [asyncio.create_task(store.get("/e"))]
        async with await EmbeddedZooKeeper.start(str(tmp_path)) as elsewhere:
            await asyncio.to_thread(expire, session, elsewhere)
            waiting.append(asyncio.create_task(store.set("/e", b"", -1)))
        async with await EmbeddedZooKeeper.start(str(tmp_path), port=server.port):
            for task in waiting:
                with pytest.raises(SessionExpiredError):
                    await task
            assert await store.exists("/e") is None
            await store.close()


async def test_a_server_that_comes_back(tmp_path: Path) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    async with await ZooKeeperStore.connect(server.connect_string, PATIENT) as store:
        await store.create("/a", b"one")
        seen: asyncio.Queue[Node | None] = asyncio.Queue()
        store.watch_node("/a", seen.put_nowait)
        await seen.get()
        await server.stop()
        waiting = asyncio.create_task(store.get("/a"))
        async with await EmbeddedZooKeeper.start(str(tmp_path), port=server.port):
            assert (await waiting).data == b"one"
            await store.set("/a", b"two", 0)
            while (node := await seen.get()) is None or node.data != b"two":
                pass
            await store.close()


async def test_operations_end_when_nobody_answers(tmp_path: Path) -> None:
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        config = ZooKeeperConfig(session_timeout_ms=20_000, operation_timeout_s=0.5)
        store = await connect_in_time(server.connect_string, config)
        halt(server.pid)
        try:
            with pytest.raises(MetadataUnavailableError, match=r"no response from ZooKeeper in 0\.5 s"):
                await store.get("/")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await store.close()
        with pytest.raises(MetadataUnavailableError, match="closed"):
            await store.get("/")


async def test_a_write_that_timed_out_while_disconnected_is_not_sent_later(tmp_path: Path) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    config = ZooKeeperConfig(session_timeout_ms=20_000, operation_timeout_s=1.0)
    async with await connect_in_time(server.connect_string, config) as store:
        await server.stop()
        with pytest.raises(MetadataUnavailableError):
            await store.create("/late")  # the lost connection may fail this one at once
        with pytest.raises(MetadataUnavailableError):
            await store.create("/late")
        async with await EmbeddedZooKeeper.start(str(tmp_path), port=server.port):
            async with await ZooKeeperStore.connect(server.connect_string, CONFIG) as fresh:
                await _until_connected(store)
                assert await fresh.exists("/late") is None
            await store.close()


async def test_a_cancelled_command_does_not_wait_for_a_server_that_is_gone(tmp_path: Path) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    works, tidied = asyncio.Event(), asyncio.Event()

    async def command() -> None:
        config = ZooKeeperConfig(operation_timeout_s=600.0)
        async with await connect_in_time(server.connect_string, config) as store:
            try:
                await server.stop()
                await until(lambda: not is_connected(store))
                works.set()
                await asyncio.Event().wait()
            finally:
                found = await asyncio.gather(*(store.delete(each, 0) for each in ("/a", "/b")), return_exceptions=True)
                assert all("no response from ZooKeeper" in str(each) for each in found)
                tidied.set()

    task = asyncio.create_task(command())
    await works.wait()
    task.cancel()
    async with asyncio.timeout(60):
        await asyncio.wait([task])
    assert tidied.is_set()


async def _until_connected(store: ZooKeeperStore) -> None:
    while True:
        try:
            await store.sync("/")
        except MetadataUnavailableError:
            continue
        return


async def test_nobody_there(tmp_path: Path) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    await server.stop()
    with pytest.raises(MetadataUnavailableError, match=f"no ZooKeeper server responds at {server.connect_string}"):
        await ZooKeeperStore.connect(server.connect_string, ZooKeeperConfig(operation_timeout_s=0.3))


@pytest.mark.parametrize("servers", ["host:port", "a..b:2181", "127.0.0.1:1," + "a" * 64 + ":1"])
async def test_nonsense_instead_of_servers(servers: str) -> None:
    """What cannot be a host's name would end the connection's thread with a stack trace, for the other servers too."""
    with pytest.raises(ConfigurationError, match="list of ZooKeeper servers"):
        await ZooKeeperStore.connect(servers, ZooKeeperConfig(operation_timeout_s=0.5))


def is_connected(store: ZooKeeperStore) -> bool:
    return store.measures.is_connected


async def test_a_lost_connection_is_told_once_and_so_is_the_new_one(
    zookeeper: EmbeddedZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    link = await TcpLink.open(zookeeper.port)
    where = link.address
    outlasting = ZooKeeperConfig(session_timeout_ms=60_000, operation_timeout_s=90.0)
    async with await ZooKeeperStore.connect(where, outlasting) as store:
        assert is_connected(store)
        link.cut()
        await until(lambda: not is_connected(store))
        assert store.session_id, "the session outlives the connection"
        await asyncio.sleep(0.5)  # time for some tries to connect, which are for --debug alone
        link.restore()
        await store.exists("/")
        assert is_connected(store)
    await link.close()
    told = [record.message for record in caplog.records if record.name == "bkctl.runtime.metadata.zookeeper.store"]
    assert told == [
        f"lost the connection to ZooKeeper at {where}, reconnecting",
        f"connected to ZooKeeper at {where} again",
    ]


async def test_a_connection_without_an_answer_does_not_cost_the_session(zookeeper: EmbeddedZooKeeper) -> None:
    """A server that starts accepts connections before it can answer on them."""
    link = await TcpLink.open(zookeeper.port)
    config = ZooKeeperConfig(session_timeout_ms=6_000, operation_timeout_s=60.0)
    async with await connect_in_time(link.address, config) as store:
        await asyncio.sleep(1.2)  # the session ends this much sooner than the last try
        session_id = store.session_id
        link.break_connections(ignores_next=True)
        await until(lambda: not is_connected(store))
        await store.sync("/")
        assert store.session_id == session_id
    await link.close()


async def test_a_machine_that_is_down_does_not_cost_the_session(zookeeper: EmbeddedZooKeeper) -> None:
    """No answer comes from there at all, not even that a port is closed."""
    link = await TcpLink.open(zookeeper.port)
    config = ZooKeeperConfig(session_timeout_ms=6_000, operation_timeout_s=60.0)
    with unreachable_server() as server:
        async with await connect_in_time(f"{server},{link.address}", config) as store:
            session_id = store.session_id
            for _ in range(5):  # which of the two is tried first is random
                link.break_connections()
                await until(lambda: not is_connected(store))
                await store.sync("/")
            assert store.session_id == session_id
    await link.close()


async def test_a_machine_that_is_down_leaves_time_for_the_others(zookeeper: EmbeddedZooKeeper) -> None:
    """Commands have less time than a session: they too get to the server that is up, and blame the one that is down."""
    patient = ZooKeeperConfig(session_timeout_ms=60_000, operation_timeout_s=6.0)
    reasons: list[str | None] = []
    with unreachable_server() as server:
        servers = f"{server},{zookeeper.connect_string}"
        stores = await asyncio.gather(
            *(ZooKeeperStore.connect(servers, patient, on_wait=reasons.append) for _ in range(6))
        )
        await asyncio.gather(*(each.close() for each in stores))
    said = {part for each in reasons if each is not None for part in each.split("; ")}
    assert said <= {f"{server} does not respond", f"{zookeeper.connect_string} is running, but was not tried yet"}


@contextlib.contextmanager
def unreachable_server() -> Iterator[str]:
    """An address where a connection is neither accepted nor refused: too many wait to be accepted."""
    with contextlib.ExitStack() as at_end:
        listener = at_end.enter_context(socket.create_server((LOOPBACK, 0), backlog=0))
        for _ in range(2):
            client = at_end.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield f"{LOOPBACK}:{listener.getsockname()[1]}"


async def test_what_begins_before_the_loop_has_heard_of_the_end(
    store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    """The connection thread is ahead: it has a new session already. What relies on the old one must not go there."""
    await store.create(root, make_parents=True)
    session = session_of(store)
    thief = threading.Thread(target=expire, args=(session, zookeeper))
    thief.start()
    thief.join()
    # Not on the loop, which must not hear of it.
    wait_until(lambda: store._client.client_id is not None and store._client.client_id[0] != session[0])
    with pytest.raises(SessionExpiredError):
        await store.create(f"{root}/e", is_ephemeral=True)
    assert await store.children(root) == []


async def test_operations_are_measured(store: ZooKeeperStore, root: str) -> None:
    path = await store.create(f"{root}/measured", make_parents=True)
    await store.write_all([CreateNode(f"{path}/a", b""), CreateNode(f"{path}/b", b"")])
    assert await store.children(path) == ["a", "b"]
    await store.set(path, b"x", ANY_VERSION)
    assert (await store.get(path)).data == b"x"
    await store.sync(path)
    await store.delete(f"{path}/a")
    assert await store.exists(f"{path}/a") is None
    with pytest.raises(NoNodeError):
        await store.get(f"{path}/a")
    measures = store.measures
    once = (
        measures.transactions,
        measures.lists,
        measures.sets,
        measures.gets,
        measures.syncs,
        measures.deletes,
        measures.exists,
        measures.opened,
    )
    assert [each.succeeded.count for each in once] == [1] * len(once)
    assert all(each.succeeded.total > 0 for each in once)
    assert (measures.gets.failed.count, measures.connections_count) == (1, 1)
    assert measures.creates.succeeded.count >= 1
