from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from runtime.config import ZooKeeperConfig
from runtime.errors import (
    BadVersionError,
    ConfigurationError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from runtime.metadata.embedded import EmbeddedZooKeeper
from runtime.metadata.store import CreateNode, Node
from runtime.metadata.zookeeper import ZooKeeperStore
from tests.runtime.metadata.conftest import CONFIG, expire, session_of

PATIENT = ZooKeeperConfig(session_timeout_ms=30_000, operation_timeout_s=30.0)
"""For servers that are started again: that takes as long as the machine is busy."""


def halt(pid: int) -> None:
    """SIGSTOP, and wait until all threads stand still: the signal alone leaves them a moment to answer."""
    os.kill(pid, signal.SIGSTOP)
    for thread in os.listdir(f"/proc/{pid}/task"):
        stat = Path(f"/proc/{pid}/task/{thread}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)


async def test_a_node_from_creation_to_deletion(store: ZooKeeperStore, root: str) -> None:
    path = f"{root}/a/b"
    with pytest.raises(NoNodeError, match=path):
        await store.create(path)
    assert await store.create(path, b"one", make_parents=True) == path
    with pytest.raises(NodeExistsError):
        await store.create(path)
    node = await store.get(path)
    assert (node.data, node.stat.version, node.stat.ephemeral_owner) == (b"one", 0, 0)
    assert (await store.set(path, b"two", 0)).version == 1
    with pytest.raises(BadVersionError):
        await store.set(path, b"three", 0)
    assert (await store.get(path)).data == b"two"
    with pytest.raises(NotEmptyError):
        await store.delete(f"{root}/a")
    with pytest.raises(BadVersionError):
        await store.delete(path, 0)
    await store.delete(path, 1)
    assert await store.exists(path) is None
    for operation in (store.get(path), store.set(path, b"", 0), store.delete(path), store.children(path)):
        with pytest.raises(NoNodeError):
            await operation


async def test_children_are_sorted(store: ZooKeeperStore, root: str) -> None:
    for name in ("c", "a", "b"):
        await store.create(f"{root}/{name}", make_parents=True)
    assert await store.children(root) == ["a", "b", "c"]
    stat = await store.exists(root)
    assert stat is not None
    assert stat.children_count == 3


async def test_ephemeral_and_sequential(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    first = await other_store.create(f"{root}/n-", is_ephemeral=True, is_sequential=True, make_parents=True)
    second = await store.create(f"{root}/n-", is_sequential=True)
    assert (first, second) == (f"{root}/n-0000000000", f"{root}/n-0000000001")
    stat = await store.exists(first)
    assert stat is not None
    assert stat.ephemeral_owner == other_store.session_id
    await other_store.close()
    assert await store.children(root) == ["n-0000000001"]


async def test_create_all_is_all_or_none(store: ZooKeeperStore, root: str) -> None:
    await store.create(f"{root}/b", make_parents=True)
    with pytest.raises(NodeExistsError, match=f"{root}/b"):
        await store.create_all([CreateNode(f"{root}/a"), CreateNode(f"{root}/b"), CreateNode(f"{root}/c")])
    assert await store.children(root) == ["b"]
    await store.create_all([CreateNode(f"{root}/a", b"x"), CreateNode(f"{root}/a/a")])
    assert (await store.get(f"{root}/a")).data == b"x"
    with pytest.raises(NoNodeError, match=f"{root}/no/a"):
        await store.create_all([CreateNode(f"{root}/d"), CreateNode(f"{root}/no/a")])


async def test_creators_and_deleters_of_one_parent(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str
) -> None:
    """A creator goes on while the empty parents are deleted under its hands."""
    is_done = False

    async def delete_parents() -> None:
        while not is_done:
            for path in (f"{root}/p/q", f"{root}/p"):
                with contextlib.suppress(NoNodeError, NotEmptyError):
                    await other_store.delete(path)

    deleter = asyncio.create_task(delete_parents())
    for number in range(50):
        path = await store.create(f"{root}/p/q/n{number}", make_parents=True)
        await store.delete(path)
    is_done = True
    await deleter


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
    async with await ZooKeeperStore.connect(server.connect_string, CONFIG) as store:
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
        store = await ZooKeeperStore.connect(server.connect_string, config)
        halt(server.pid)
        try:
            with pytest.raises(MetadataUnavailableError, match=r"no answer from ZooKeeper in 0\.5 s"):
                await store.get("/")
        finally:
            os.kill(server.pid, signal.SIGCONT)
        await store.close()
        with pytest.raises(MetadataUnavailableError, match="closed"):
            await store.get("/")


async def test_a_write_that_timed_out_while_disconnected_is_not_sent_later(tmp_path: Path) -> None:
    server = await EmbeddedZooKeeper.start(str(tmp_path))
    config = ZooKeeperConfig(session_timeout_ms=20_000, operation_timeout_s=1.0)
    async with await ZooKeeperStore.connect(server.connect_string, config) as store:
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
    with pytest.raises(MetadataUnavailableError, match=f"no ZooKeeper server answers at {server.connect_string}"):
        await ZooKeeperStore.connect(server.connect_string, ZooKeeperConfig(operation_timeout_s=0.3))


async def test_nonsense_instead_of_servers() -> None:
    with pytest.raises(ConfigurationError, match="list of ZooKeeper servers"):
        await ZooKeeperStore.connect("host:port")


async def test_a_lost_connection_is_told_once_and_so_is_the_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        port = server.port
        async with await ZooKeeperStore.connect(server.connect_string, CONFIG) as store:
            await server.stop()
            await asyncio.sleep(0.5)  # time for some tries to connect, which are for --debug alone
            async with await EmbeddedZooKeeper.start(str(tmp_path), port=port):
                await store.exists("/")
                await store.close()
    told = [record.message for record in caplog.records if record.name == "runtime.metadata.zookeeper"]
    where = f"127.0.0.1:{port}"
    assert told == [
        f"lost the connection to ZooKeeper at {where}, trying again",
        f"connected to ZooKeeper at {where} again",
    ]


async def test_what_begins_before_the_loop_has_heard_of_the_end(
    store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper, root: str
) -> None:
    """The connection thread is ahead: it has a new session already. What relies on the old one must not go there."""
    await store.create(root, make_parents=True)
    session = session_of(store)
    thief = threading.Thread(target=expire, args=(session, zookeeper))
    thief.start()
    thief.join()
    while store._client.client_id is None or store._client.client_id[0] == session[0]:
        time.sleep(0.01)  # noqa: ASYNC251  the loop must not hear of it
    with pytest.raises(SessionExpiredError):
        await store.create(f"{root}/e", is_ephemeral=True)
    assert await store.children(root) == []
