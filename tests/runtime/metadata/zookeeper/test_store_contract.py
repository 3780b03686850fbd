"""The session contract of ``bkctl.runtime.metadata.store``, sentence by sentence, against ZooKeeper and the model."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from bkctl.runtime.metadata.budgeted_store import BudgetedStore
from bkctl.runtime.metadata.store import (
    CLOSE_TIMEOUT_S,
    NODE_BYTES_MAX,
    CheckNode,
    CreateNode,
    DeleteNode,
    MetadataStore,
    Node,
    NodeWrite,
    SetNode,
)
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.counters import force_counters
from tests.runtime.metadata.linked_servers import Linked, LinkedModel, contract
from tests.sim.loop import run_simulated


def begin(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(coroutine)


async def disconnect(linked: Linked, store: MetadataStore) -> None:
    """Cut the link, and wait until the store has noticed."""
    noticed = asyncio.Event()
    await store.exists("/", noticed.set)
    linked.link.cut()
    await noticed.wait()


async def connected(linked: Linked, operation_timeout_s: float) -> MetadataStore:
    """A session whose operations end so soon. Connecting has the same time-out, and takes what a busy machine takes."""
    while True:
        try:
            return await linked.connect(operation_timeout_s=operation_timeout_s)
        except MetadataUnavailableError:
            continue


async def until_synced(store: MetadataStore) -> None:
    while True:
        try:
            return await store.sync("/")
        except MetadataUnavailableError:
            continue


async def until_exists(store: MetadataStore, path: str, *, wanted: bool = True) -> None:
    changed = asyncio.Event()
    while (await store.exists(path, changed.set) is not None) != wanted:
        await changed.wait()
        changed.clear()


# -- nodes ------------------------------------------------------------------------------------------------------------


@contract
async def test_several_nodes_are_read_with_one_request(linked: Linked) -> None:
    store = await linked.connect()
    await store.create("/a", b"one")
    await store.create("/b", bytes(100_000))
    await store.set("/a", b"two", 0)
    found = await store.get_all(["/a", "/none", "/b", "/", "/a"])
    alone = [await store.get(path) for path in ("/a", "/b", "/", "/a")]
    assert [found[0], *found[2:]] == alone
    assert isinstance(found[1], NoNodeError)
    assert found[1].path == "/none"
    assert await store.get_all(["/a"]) == [alone[0]]
    with pytest.raises(MetadataError, match="not the path"):
        await store.get_all(["/a", "b"])


@contract
async def test_versions_begin_at_0_and_count_the_sets(linked: Linked) -> None:
    store = await linked.connect()
    path = f"{linked.root}/a/b"
    with pytest.raises(NoNodeError, match=path):
        await store.create(path)
    assert await store.create(path, b"one", make_parents=True) == path
    with pytest.raises(NodeExistsError, match=path):
        await store.create(path)
    node = await store.get(path)
    assert (node.data, node.stat.version, node.stat.ephemeral_owner) == (b"one", 0, 0)
    assert (await store.set(path, b"two", 0)).version == 1
    with pytest.raises(BadVersionError, match=path):
        await store.set(path, b"three", 0)
    assert (await store.get(path)).data == b"two"
    assert (await store.set(path, b"four", -1)).version == 2
    with pytest.raises(NotEmptyError):
        await store.delete(f"{linked.root}/a")
    with pytest.raises(BadVersionError):
        await store.delete(path, 1)
    await store.delete(path, 2)
    assert await store.exists(path) is None
    for operation in (store.get(path), store.set(path, b"", 0), store.delete(path), store.children(path)):
        with pytest.raises(NoNodeError, match=path):
            await operation
    await store.create(path)
    assert (await store.get(path)).stat.version == 0


@contract
async def test_what_a_stat_tells(linked: Linked) -> None:
    store = await linked.connect()
    for name in ("c", "a", "b"):
        await store.create(f"{linked.root}/{name}")
    assert await store.children(linked.root) == ["a", "b", "c"]
    before = await store.exists(linked.root)
    assert before is not None
    assert (before.children_count, before.version) == (3, 0)
    after = await store.set(linked.root, b"x", 0)
    assert after.ctime_ms == before.ctime_ms == before.mtime_ms <= after.mtime_ms


@contract
async def test_a_sequential_number_counts_the_children_ever_created(linked: Linked) -> None:
    store = await linked.connect()
    first = await store.create(f"{linked.root}/n-", is_sequential=True, is_ephemeral=True)
    await store.create(f"{linked.root}/other")
    await store.delete(first)
    with pytest.raises(NodeExistsError):
        await store.create(f"{linked.root}/other")
    stat = await store.exists(linked.root)
    assert stat is not None
    assert (stat.children_created_count, stat.children_count) == (2, 1)
    second = await store.create(f"{linked.root}/m-", is_sequential=True)
    assert (first, second) == (f"{linked.root}/n-0000000000", f"{linked.root}/m-0000000002")


async def check_the_counter_sticks(store: MetadataStore, path: str) -> None:
    """With one number left: metadata section 12.2, number 5."""
    prefix = f"{path}/n-"
    assert await store.create(prefix, is_sequential=True) == f"{prefix}2147483646"
    last = f"{prefix}2147483647"
    assert await store.create(prefix, is_sequential=True) == last
    with pytest.raises(NodeExistsError):
        await store.create(prefix, is_sequential=True)
    await store.delete(last)
    assert await store.create(prefix, is_sequential=True, is_ephemeral=True) == last


def test_the_counter_sticks_in_the_model() -> None:
    async def run() -> None:
        linked = LinkedModel(seed=1)
        store = await linked.connect()
        await store.create("/counter")
        linked.server.nodes["/counter"].children_created_count = 2**31 - 2
        await check_the_counter_sticks(store, "/counter")
        await linked.close()

    run_simulated(run())


async def test_the_counter_sticks_in_zookeeper(tmp_path: Path) -> None:
    async with (
        await EmbeddedZooKeeper.start(str(tmp_path)) as server,
        await ZooKeeperStore.connect(server.connect_string) as store,
    ):
        await store.create("/counter")
    async with await EmbeddedZooKeeper.start(str(tmp_path)):
        pass  # a start writes a snapshot
    force_counters(tmp_path, {"/counter": 2**31 - 2})
    async with (
        await EmbeddedZooKeeper.start(str(tmp_path)) as server,
        await ZooKeeperStore.connect(server.connect_string) as store,
    ):
        await check_the_counter_sticks(store, "/counter")


@contract
async def test_an_ephemeral_node_names_its_session_and_has_no_children(linked: Linked) -> None:
    store = await linked.connect()
    path = await store.create(f"{linked.root}/e", is_ephemeral=True)
    stat = await store.exists(path)
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id != 0
    for operation in (store.create(f"{path}/a"), store.write_all([CreateNode(f"{path}/a")])):
        with pytest.raises(MetadataError, match=f"{path}/a"):
            await operation
    assert await store.children(path) == []


@contract
async def test_write_all_is_all_or_none(linked: Linked) -> None:
    store, root = await linked.connect(), linked.root
    await store.create(f"{root}/b")
    with pytest.raises(NodeExistsError, match=f"{root}/b"):
        await store.write_all([CreateNode(f"{root}/a"), CreateNode(f"{root}/b"), CreateNode(f"{root}/c")])
    assert await store.children(root) == ["b"]
    await store.write_all([CreateNode(f"{root}/a", b"x"), CreateNode(f"{root}/a/a")])
    assert (await store.get(f"{root}/a")).data == b"x"
    with pytest.raises(NoNodeError, match=f"{root}/no/a"):
        await store.write_all([CreateNode(f"{root}/d"), CreateNode(f"{root}/no/a")])
    assert await store.children(root) == ["a", "b"]


@contract
async def test_a_transaction_creates_sets_and_deletes(linked: Linked) -> None:
    store, root = await linked.connect(), linked.root
    await store.create(f"{root}/old")
    await store.create(f"{root}/set", b"0")
    writes: list[NodeWrite] = [
        CreateNode(f"{root}/new", b"n", is_ephemeral=True),
        SetNode(f"{root}/set", b"1", 0),
        CheckNode(f"{root}/set", 1),
        DeleteNode(f"{root}/old", 0),
    ]
    created, changed, checked, deleted = await store.write_all(writes)
    assert created is checked is deleted is None
    assert changed == await store.exists(f"{root}/set")
    assert await store.children(root) == ["new", "set"]
    node = await store.get(f"{root}/new")
    assert (node.data, node.stat.ephemeral_owner) == (b"n", store.session_id)
    assert (await store.get(f"{root}/set")).data == b"1"
    faults: list[tuple[NodeWrite, type[MetadataError]]] = [
        (SetNode(f"{root}/set", b"2", 0), BadVersionError),
        (DeleteNode(f"{root}/new", 7), BadVersionError),
        (CheckNode(f"{root}/set", 0), BadVersionError),
        (CheckNode(f"{root}/old", 0), NoNodeError),
        (DeleteNode(root), NotEmptyError),
        (DeleteNode(f"{root}/old"), NoNodeError),
    ]
    for fault, error in faults:
        with pytest.raises(error, match=f"^{fault.path}: "):
            await store.write_all([CreateNode(f"{root}/z"), fault, DeleteNode(f"{root}/set")])
        assert await store.children(root) == ["new", "set"]


@contract
async def test_what_is_no_path_or_too_large_is_refused_unsent(linked: Linked) -> None:
    store = await linked.connect()
    linked.link.freeze()
    for path in ("", "a", "//", "/a/", "/a//b", "/a/../b", "/.", "/a\0", "/a\x1f", "/\ud800"):
        operations: list[Coroutine[Any, Any, object]] = [store.get(path), store.create(path)]
        for operation in (*operations, store.write_all([CreateNode(path)])):
            with pytest.raises(MetadataError, match="node") as caught:
                await operation
            assert not isinstance(caught.value, MetadataUnavailableError)
    large = bytes(NODE_BYTES_MAX + 1)
    path = f"{linked.root}/large"
    operations = [store.create(path, large), store.set(path, large, 0)]
    for operation in (*operations, store.write_all([CreateNode(path, large)])):
        with pytest.raises(MetadataError, match="exceed the size limit of a node"):
            await operation
    linked.link.restore()
    await store.create(path, large[1:])
    assert len((await store.get(path)).data) == NODE_BYTES_MAX


@contract
async def test_parents_that_vanish_meanwhile_are_created_again(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    is_done = False

    async def delete_parents() -> None:
        while not is_done:
            for path in (f"{linked.root}/p/q", f"{linked.root}/p"):
                with contextlib.suppress(NoNodeError, NotEmptyError):
                    await other.delete(path)

    deleter = begin(delete_parents())
    for number in range(30):
        path = await store.create(f"{linked.root}/p/q/n{number}", make_parents=True)
        await store.delete(path)
    is_done = True
    await deleter


# -- waiting ----------------------------------------------------------------------------------------------------------


@contract
async def test_operations_are_carried_out_in_the_order_in_which_they_began(linked: Linked) -> None:
    store = await linked.connect()
    path = f"{linked.root}/a"
    created = begin(store.create(path))
    sets = [begin(store.set(path, b"%d" % number, number)) for number in range(100)]
    node = begin(store.get(path))
    deleted = begin(store.delete(path, 100))
    await asyncio.gather(created, deleted, *sets)
    await asyncio.wait([node])
    # Behind a budget writes go in common transactions, which a read may overtake (BudgetedStore).
    assert isinstance(store, BudgetedStore) or node.result().data == b"99"


@contract
async def test_operations_wait_for_the_connection(linked: Linked) -> None:
    store = await linked.connect()
    await disconnect(linked, store)
    created, read = begin(store.create(f"{linked.root}/a", b"x")), begin(store.get(linked.root))
    await asyncio.sleep(0.3)
    assert not created.done()
    assert not read.done()
    linked.link.restore()
    await created
    await read
    assert (await store.get(f"{linked.root}/a")).data == b"x"


@contract
async def test_a_write_whose_time_ran_out_while_it_waited_is_never_sent(linked: Linked) -> None:
    store, other = await connected(linked, 1.5), await linked.aside()
    await disconnect(linked, store)
    for operation in (store.create(f"{linked.root}/late"), store.get(linked.root)):
        with pytest.raises(MetadataUnavailableError, match=r"no response from ZooKeeper in 1\.5 s"):
            await operation
    linked.link.restore()
    await until_synced(store)
    assert await other.exists(f"{linked.root}/late") is None


@contract
async def test_a_server_that_says_nothing_does_not_keep_an_operation(linked: Linked) -> None:
    store = await connected(linked, 0.5)
    linked.link.freeze()
    for operation in (store.get(linked.root), store.delete(linked.root), store.sync("/"), store.children("/")):
        with pytest.raises(MetadataUnavailableError, match="no response"):
            await operation


@contract
async def test_nobody_there(linked: Linked) -> None:
    linked.link.cut()
    with pytest.raises(MetadataUnavailableError, match="no ZooKeeper server responds"):
        await linked.connect(operation_timeout_s=0.5)


# -- lost answers -----------------------------------------------------------------------------------------------------


@contract
async def test_a_write_whose_answer_is_lost_is_in_doubt_and_not_repeated(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    linked.link.lose_answers()
    created = begin(store.create(f"{linked.root}/n-", is_sequential=True))
    await until_exists(other, f"{linked.root}/n-0000000000")
    linked.link.cut()
    linked.link.restore()
    with pytest.raises(MetadataUnavailableError):
        await created
    await store.sync("/")
    assert await store.children(linked.root) == ["n-0000000000"]


@contract
async def test_a_read_whose_answer_is_lost_is_repeated(linked: Linked) -> None:
    store = await linked.connect()
    linked.link.lose_answers()
    read = begin(store.get(linked.root))
    await asyncio.sleep(0.1)
    linked.link.cut()
    linked.link.restore()
    assert (await read).data == b""


@contract
async def test_a_late_write_is_settled_by_the_next_answer(linked: Linked) -> None:
    store, other = await connected(linked, 0.5), await linked.aside()
    path = f"{linked.root}/late"
    linked.link.freeze()
    with pytest.raises(MetadataUnavailableError):
        await store.create(path, b"x")
    assert await other.exists(path) is None
    linked.link.restore()
    await until_synced(store)
    assert (await other.get(path)).data == b"x"


@contract
async def test_a_cancelled_write_is_in_doubt_and_harms_no_other(linked: Linked) -> None:
    store = await linked.connect()
    linked.link.freeze()
    writes = [begin(store.create(f"{linked.root}/{number}")) for number in range(10)]
    await asyncio.sleep(0.1)
    for write in writes[::2]:
        write.cancel()
    linked.link.restore()
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [isinstance(result, str) for result in results] == [False, True] * 5
    assert set(await store.children(linked.root)) >= {"1", "3", "5", "7", "9"}


# -- sessions ---------------------------------------------------------------------------------------------------------


@contract
async def test_a_session_outlives_its_connection(linked: Linked) -> None:
    store = await linked.connect()
    lost: list[int] = []
    store.on_session_lost(lambda: lost.append(1))
    session_id = store.session_id
    path = await store.create(f"{linked.root}/e", is_ephemeral=True)
    for _ in range(3):
        await disconnect(linked, store)
        linked.link.restore()
        stat = await store.exists(path)
        assert stat is not None
        assert stat.ephemeral_owner == store.session_id == session_id
    assert not lost


@contract
async def test_the_end_of_a_session_is_told_once_to_everyone(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    told: list[tuple[str, int]] = []
    is_told = asyncio.Event()

    def fail() -> None:
        told.append(("first", store.session_id))
        raise RuntimeError("a callback that fails")

    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failures.append(context))
    store.on_session_lost(fail)
    store.on_session_lost(lambda: told.append(("second", store.session_id)))
    store.on_session_lost(is_told.set)
    session_id = store.session_id
    path = await store.create(f"{linked.root}/e", is_ephemeral=True)
    await store.create(f"{linked.root}/p")
    await linked.expire(store)
    await until_exists(other, path, wanted=False)
    await is_told.wait()
    assert await until_answered(store, path) is None
    assert told == [("first", 0), ("second", 0)]
    assert len(failures) == 1
    assert store.session_id not in {0, session_id}
    assert await store.children(linked.root) == ["p"]


async def until_answered(store: MetadataStore, path: str) -> object:
    """What ``exists`` says once nothing of the old session is in its way."""
    while True:
        try:
            return await store.exists(path)
        except SessionExpiredError:
            continue


@contract
async def test_what_began_in_a_session_does_not_outlive_it(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    await disconnect(linked, store)
    began = [
        begin(store.get(linked.root)),
        begin(store.create(f"{linked.root}/e", is_ephemeral=True)),
        begin(store.create(f"{linked.root}/a/b", make_parents=True)),
        begin(store.set(linked.root, b"x", -1)),
        begin(store.sync("/")),
    ]
    await linked.expire(store)
    linked.link.restore()
    for result in await asyncio.gather(*began, return_exceptions=True):
        assert isinstance(result, SessionExpiredError)
    await store.sync("/")
    assert (await other.get(linked.root)).data == b""
    assert await other.children(linked.root) == []


@contract
async def test_silence_ends_a_session(linked: Linked) -> None:
    store, other = await linked.connect(session_timeout_ms=3000, operation_timeout_s=15.0), await linked.aside()
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    path = await store.create(f"{linked.root}/e", is_ephemeral=True)
    linked.link.freeze()
    await until_exists(other, path, wanted=False)
    assert not lost.is_set()
    linked.link.restore()
    await lost.wait()
    assert await until_answered(store, path) is None
    assert await store.create(path, is_ephemeral=True) == path


@contract
async def test_close_takes_the_ephemeral_nodes_away_at_once(linked: Linked) -> None:
    store, other = await linked.connect(session_timeout_ms=60_000), await linked.aside()
    lost: list[int] = []
    store.on_session_lost(lambda: lost.append(1))
    seen: list[Node | None] = []
    path = await store.create(f"{linked.root}/e", is_ephemeral=True)
    store.watch_node(path, seen.append)
    await store.sync("/")
    seen_before = len(seen)
    await store.close()
    await until_exists(other, path, wanted=False)
    await store.close()
    for operation in (store.get("/"), store.create(f"{linked.root}/a"), store.sync("/")):
        with pytest.raises(MetadataUnavailableError, match="closed"):
            await operation
    assert not lost
    assert len(seen) == seen_before
    assert await other.children(linked.root) == []


@contract
async def test_close_does_not_wait_for_a_server_that_says_nothing(linked: Linked) -> None:
    store = await linked.connect(session_timeout_ms=60_000, operation_timeout_s=60.0)
    linked.link.freeze()
    under_way = [begin(store.get(linked.root)), begin(store.delete(linked.root))]
    await asyncio.sleep(0.1)
    async with asyncio.timeout(CLOSE_TIMEOUT_S + 20.0):
        await store.close()
    for operation in under_way:
        with pytest.raises(MetadataUnavailableError):
            await operation


@contract
async def test_close_while_disconnected(linked: Linked) -> None:
    store = await linked.connect(session_timeout_ms=60_000, operation_timeout_s=60.0)
    await disconnect(linked, store)
    waiting = begin(store.get(linked.root))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(CLOSE_TIMEOUT_S + 20.0):
        await store.close()
    with pytest.raises(MetadataUnavailableError, match="closed"):
        await waiting


# -- seeing -----------------------------------------------------------------------------------------------------------


@contract
async def test_sync_shows_what_others_had_finished(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    for number in range(20):
        await other.set(linked.root, b"%d" % number, number)
        await store.sync(linked.root)
        assert (await store.get(linked.root)).data == b"%d" % number


@contract
async def test_a_watch_of_children(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    path = f"{linked.root}/a"
    seen: asyncio.Queue[list[str] | None] = asyncio.Queue()
    watch = store.watch_children(path, seen.put_nowait)
    assert await seen.get() is None
    await other.create(path)
    assert await seen.get() == []
    await other.create(f"{path}/b")
    assert await seen.get() == ["b"]
    await other.delete(f"{path}/b")
    assert await seen.get() == []
    await other.delete(path)
    assert await seen.get() is None
    watch.cancel()
    watch.cancel()
    await other.create(path)
    await store.sync(path)
    await asyncio.sleep(0.05)
    assert seen.empty()


@contract
async def test_a_watch_may_skip_states_but_not_the_last(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    seen: list[bytes] = []
    is_last_seen = asyncio.Event()

    def look(node: Node | None) -> None:
        assert node is not None
        seen.append(node.data)
        if node.data == b"99":
            is_last_seen.set()

    store.watch_node(linked.root, look)
    await asyncio.gather(*(other.set(linked.root, b"%02d" % number, number) for number in range(100)))
    await is_last_seen.wait()
    assert seen == sorted(seen)


@contract
async def test_a_watch_outlives_connections_and_sessions(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    path = await other.create(f"{linked.root}/a", b"one")
    seen: asyncio.Queue[Node | None] = asyncio.Queue()
    store.watch_node(path, seen.put_nowait)

    async def until_seen(data: bytes) -> None:
        while (node := await seen.get()) is None or node.data != data:
            assert node is not None, "absent is not what a lost connection means"

    await until_seen(b"one")
    await disconnect(linked, store)
    await other.set(path, b"two", -1)
    linked.link.restore()
    await until_seen(b"two")
    await linked.expire(store)
    await other.set(path, b"three", -1)
    await until_seen(b"three")
    await other.delete(path)
    while await seen.get() is not None:
        pass


@contract
async def test_a_watch_callback_that_raises_is_called_again(linked: Linked) -> None:
    store = await linked.connect()
    seen: asyncio.Queue[Node | None] = asyncio.Queue()

    def fail(node: Node | None) -> None:
        seen.put_nowait(node)
        raise RuntimeError("a callback that fails")

    store.watch_node(f"{linked.root}/a", fail)
    assert await seen.get() is None
    await store.create(f"{linked.root}/a")
    assert await seen.get() is not None


@contract
async def test_on_change_is_called_once(linked: Linked) -> None:
    store, other = await linked.connect(), await linked.aside()
    path = f"{linked.root}/a"
    calls: list[str] = []
    await store.exists(path, lambda: calls.append("created"))
    with pytest.raises(NoNodeError):
        await store.children(path, lambda: calls.append("never"))
    await other.create(path)
    await store.sync("/")
    assert calls == ["created"]
    await store.exists(path, lambda: calls.append("changed"))
    await store.children(path, lambda: calls.append("children"))
    await other.set(path, b"x", 0)
    await other.set(path, b"y", 1)
    await store.sync("/")
    assert calls == ["created", "changed"]
    await other.create(f"{path}/b")
    await other.create(f"{path}/c")
    await store.sync("/")
    assert calls == ["created", "changed", "children"]


@contract
async def test_on_change_is_called_for_a_lost_connection(linked: Linked) -> None:
    store = await linked.connect()
    calls: list[str] = []
    await store.exists(linked.root, lambda: calls.append("exists"))
    await store.children(linked.root, lambda: calls.append("children"))
    await disconnect(linked, store)
    assert sorted(calls) == ["children", "exists"]
    linked.link.restore()
    await store.set(linked.root, b"x", 0)
    await store.sync("/")
    assert len(calls) == 2
