from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable

import pytest

from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.backup.cluster_format import (
    find_unknown_children,
    format_cluster,
    nuke_cluster,
    require_no_connections,
)
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.trees import PlantedNode, java_tree, persistent, plant, read_tree

AT_WORK = {
    LedgerTree.HIERARCHICAL: "hierarchical at work",
    LedgerTree.LONG_HIERARCHICAL: "longhierarchical at work",
    LedgerTree.FLAT: "flat at work",
}
TREES = [pytest.param(tree, id=tree.value) for tree in AT_WORK]
SMALL_TREES = TREES[1:]


def go_on() -> None:
    """Nobody stops it."""


def stop_after(steps: int) -> Callable[[], None]:
    """Stops at a change as a kill would: that one and all later ones do not happen."""
    left = iter(range(steps))

    def step() -> None:
        if next(left, None) is None:
            raise RefusedError("stopped")

    return step


def without_identity(tree: dict[str, PlantedNode]) -> dict[str, PlantedNode]:
    return {path: node for path, node in tree.items() if path != "INSTANCEID"}


@pytest.mark.parametrize("tree", TREES)
async def test_init_leaves_the_very_tree_that_java_leaves(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    java = java_tree(f"init {tree.value}")
    info, _ = await init_cluster(store, root, tree, random.Random(1))
    ours = await read_tree(store, root)
    assert without_identity(ours) == without_identity(java)
    assert ours["INSTANCEID"]._replace(data=b"") == java["INSTANCEID"]._replace(data=b"")
    assert ours["INSTANCEID"].data.decode() == info.instance_id != java["INSTANCEID"].data.decode()


async def format_as(store: MetadataStore, root: str, tree: LedgerTree, before_each: Callable[[], None] = go_on) -> str:
    return await format_cluster(store, root, tree, random.SystemRandom(), before_each=before_each)


@pytest.mark.parametrize("tree", TREES)
async def test_format_leaves_an_empty_cluster_of_the_same_layout(
    store: ZooKeeperStore, root: str, tree: LedgerTree
) -> None:
    planted = persistent(java_tree(AT_WORK[tree]))
    await plant(store, root, planted)
    instance_id = await format_as(store, root, tree)
    left = await read_tree(store, root)
    kept = {path: node for path, node in planted.items() if path in _KEPT}
    assert without_identity(left) == without_identity(java_tree(f"init {tree.value}")) | kept
    assert left["INSTANCEID"].data == instance_id.encode() != planted["INSTANCEID"].data
    assert str(uuid.UUID(instance_id)) == instance_id


_KEPT = {
    "underreplication",
    "underreplication/LAYOUT",
    "underreplication/auditorelection",
    "underreplication/checkallledgersctime",
    "underreplication/lostBookieRecoveryDelay",
}


async def test_format_differs_from_java_in_the_layout_alone(store: ZooKeeperStore, root: str) -> None:
    """Java's metaformat turns a longhierarchical cluster into a hierarchical one."""
    await plant(store, root, java_tree("longhierarchical at work"))
    await format_as(store, root, LedgerTree.LONG_HIERARCHICAL)
    ours, java = await read_tree(store, root), java_tree("after metaformat longhierarchical")
    assert {path for path, node in ours.items() if node != java.get(path)} == {"INSTANCEID", "LAYOUT"}
    assert ours.keys() == java.keys()
    assert ours["LAYOUT"] == java_tree("init longhierarchical")["LAYOUT"]


async def test_format_brings_back_directories_that_are_missing(store: ZooKeeperStore, root: str) -> None:
    await store.create(f"{root}/INSTANCEID", b"of Pulsar", make_parents=True)
    await format_as(store, root, LedgerTree.HIERARCHICAL)
    assert without_identity(await read_tree(store, root)) == without_identity(java_tree("init hierarchical"))


async def test_format_ends_a_restore_that_nobody_ended(store: ZooKeeperStore, root: str) -> None:
    await store.create(root, b"bkctl restore 00ff", make_parents=True)
    await format_as(store, root, LedgerTree.HIERARCHICAL)
    assert (await store.get(root)).data == b""
    await init_cluster(store, root, None, random.Random(1))


async def test_format_leaves_what_is_not_bookkeepers(store: ZooKeeperStore, root: str) -> None:
    await plant(store, root, persistent(java_tree("flat at work")))
    await store.create(f"{root}/mine/below", b"x", make_parents=True)
    await store.create(f"{root}/disableHealthCheck")
    await format_as(store, root, LedgerTree.FLAT)
    assert {"mine", "mine/below", "disableHealthCheck"} <= (await read_tree(store, root)).keys()


@pytest.mark.parametrize("tree", SMALL_TREES)
async def test_a_format_stopped_at_any_change_is_ended_by_the_next(
    store: ZooKeeperStore, root: str, tree: LedgerTree
) -> None:
    """And whenever it is stopped after its first change, no bookie with the old identity starts."""
    planted = persistent(java_tree(AT_WORK[tree]))
    await plant(store, f"{root}-whole", planted)
    await format_as(store, f"{root}-whole", tree)
    formatted = without_identity(await read_tree(store, f"{root}-whole"))
    for steps in range(200):
        here = f"{root}-{steps}"
        await plant(store, here, planted)
        try:
            await format_as(store, here, tree, stop_after(steps))
        except RefusedError:
            left = await read_tree(store, here)
            is_identity_old = left.get("INSTANCEID") == planted["INSTANCEID"]
            assert is_identity_old == (steps == 0)
            assert not is_identity_old or left == planted
        else:
            assert steps > 5
            break
        await format_as(store, here, tree)
        assert without_identity(await read_tree(store, here)) == formatted
    else:
        pytest.fail("it never comes to its end")


@pytest.mark.parametrize("tree", TREES)
async def test_nuke_leaves_nothing(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    await plant(store, root, persistent(java_tree(AT_WORK[tree])))
    await store.create(f"{root}/disableHealthCheck")
    await nuke_cluster(store, root, tree, before_each=go_on)
    assert await read_tree(store, root) == {}
    assert await store.exists(root.rpartition("/")[0]) is not None, "the parent is not ours"


@pytest.mark.parametrize("tree", SMALL_TREES)
async def test_a_nuke_stopped_at_any_change_is_ended_by_the_next(
    store: ZooKeeperStore, root: str, tree: LedgerTree
) -> None:
    """And as long as there are ledgers, the cluster's identity can be read."""
    planted = persistent(java_tree(AT_WORK[tree]))
    for steps in range(200):
        here = f"{root}-{steps}"
        await plant(store, here, planted)
        try:
            await nuke_cluster(store, here, tree, before_each=stop_after(steps))
        except RefusedError:
            left = await read_tree(store, here)
            has_content = left.keys() - {"", "INSTANCEID"}
            assert "INSTANCEID" in left or not has_content
        else:
            assert await read_tree(store, here) == {}
            break
        await nuke_cluster(store, here, tree, before_each=go_on)
        assert await read_tree(store, here) == {}
    else:
        pytest.fail("it never comes to its end")


@pytest.mark.parametrize("name", ["mine", "0000", "L0000000001", "bookies"])
async def test_nuke_looks_at_every_child_before_the_first_deletion(store: ZooKeeperStore, root: str, name: str) -> None:
    planted = persistent(java_tree("hierarchical at work")) | {name: PlantedNode(b"", 0, is_ephemeral=False)}
    await plant(store, root, planted)
    assert await find_unknown_children(store, root, LedgerTree.HIERARCHICAL) == [name]
    with pytest.raises(RefusedError, match=f"{root}/{name} does not belong to BookKeeper"):
        await nuke_cluster(store, root, LedgerTree.HIERARCHICAL, before_each=go_on)
    assert await read_tree(store, root) == planted


@pytest.mark.parametrize("where", ["available/b1:3181", "available/readonly/b1:3181"])
async def test_a_bookie_that_registers_at_the_last_moment_stops_a_nuke(
    store: ZooKeeperStore, root: str, where: str
) -> None:
    planted = persistent(java_tree("hierarchical at work")) | {where: PlantedNode(b"", 0, is_ephemeral=True)}
    await plant(store, root, planted)
    with pytest.raises(RefusedError, match="has just registered"):
        await nuke_cluster(store, root, LedgerTree.HIERARCHICAL, before_each=go_on)
    assert await read_tree(store, root) == planted


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("available/b1:3181", "bookie b1:3181 is registered"),
        ("available/readonly/b1:3181", "bookie b1:3181 is registered"),
        ("available/no bookie id", "bookie no bookie id is registered"),
        ("underreplication/auditorelection/V_0000000003", "auditorelection/V_0000000003: stop autorecovery"),
        ("underreplication/locks/urL0000000007", "locks/urL0000000007: stop autorecovery"),
        ("underreplication/leader", "underreplication/leader: stop autorecovery"),
    ],
)
async def test_nobody_may_be_connected(store: ZooKeeperStore, root: str, where: str, sentence: str) -> None:
    await plant(store, root, persistent(java_tree("hierarchical at work")))
    await require_no_connections(store, root)
    await require_no_connections(store, f"{root}-absent")
    await store.create(f"{root}/{where}", is_ephemeral=True)
    with pytest.raises(RefusedError, match=sentence):
        await require_no_connections(store, root)


async def test_many_bookies_are_counted(store: ZooKeeperStore, root: str) -> None:
    await asyncio.gather(*(store.create(f"{root}/available/b{n}", make_parents=True) for n in range(7)))
    with pytest.raises(RefusedError, match=r"7 bookies \(b0, b1, b2, b3, b4 and 2 more\) are registered"):
        await require_no_connections(store, root)
