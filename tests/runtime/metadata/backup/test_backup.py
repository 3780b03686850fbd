from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from bkctl.runtime.metadata.backup.archive import ArchiveHeader, ArchiveNode, ArchiveReader
from bkctl.runtime.metadata.backup.backup import (
    ChildKind,
    backup_cluster,
    child_kind,
    is_left_out,
    parse_ledger_node,
    survey_cluster,
)
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.runtime.metadata.trees import PlantedNode, java_tree, persistent, plant, read_tree

AT_WORK = {
    LedgerTree.HIERARCHICAL: "hierarchical at work",
    LedgerTree.LONG_HIERARCHICAL: "longhierarchical at work",
    LedgerTree.FLAT: "flat at work",
}


def header_of(root: str, tree: LedgerTree) -> ArchiveHeader:
    return ArchiveHeader(root=root, instance_id="i", layout=tree.value, created="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        (LedgerTree.FLAT, ["L0000000000", "L9223372036854775806"]),
        (LedgerTree.LEGACY_HIERARCHICAL, ["00", "99"]),
        (LedgerTree.HIERARCHICAL, ["00", "99", "000", "922"]),
        (LedgerTree.LONG_HIERARCHICAL, ["000", "922"]),
    ],
)
def test_children_of_the_root_by_layout(tree: LedgerTree, names: list[str]) -> None:
    candidates = ["L0000000000", "L9223372036854775806", "00", "99", "000", "922", "0000", "L1", "l", "\u0660\u0660"]
    assert [name for name in candidates if child_kind(name, tree) is ChildKind.LEDGERS] == names
    for name in ("available", "cookies", "LAYOUT", "INSTANCEID", "underreplication", "disableHealthCheck"):
        assert child_kind(name, tree) is ChildKind.SPECIAL
    for name in ("idgen", "idgen-long", "ID-0000000001"):
        assert child_kind(name, tree) is ChildKind.LEDGER_IDS
    assert child_kind("mine", tree) is ChildKind.UNKNOWN


@pytest.mark.parametrize(
    ("path", "is_out"),
    [
        ("available", False),
        ("available/readonly", False),
        ("available/b1", True),
        ("available/readonly/b1", True),
        ("cookies/b1", False),
        ("ID-0000000007", True),
        ("idgen", False),
        ("idgen/ID-0000000007", True),
        ("idgen-long/HOB-0000000001", False),
        ("idgen-long/HOB-0000000001/ID-0000000007", True),
        ("cookies/ID-7", False),
        ("underreplication/auditorelection", True),
        ("underreplication/locks", False),
        ("underreplication/locks/urL0000000007", True),
        ("underreplication/ledgers/0000", False),
        ("underreplication/leader", True),
        ("underreplication/disable", False),
    ],
)
def test_what_is_never_stored(path: str, is_out: bool) -> None:
    assert is_left_out(path) is is_out


def test_ledger_nodes_that_no_restore_may_bring_back() -> None:
    found = parse_ledger_node("922/3372/0368/5477/L5807", b"", LedgerTree.HIERARCHICAL)
    assert found is not None
    assert (found.ledger_id, found.fault) == (None, "922/3372/0368/5477/L5807: no ledger can be stored there")
    found = parse_ledger_node("00/0000/L0007", b"junk", LedgerTree.HIERARCHICAL)
    assert found is not None
    assert found.ledger_id == 7
    assert found.fault is not None
    assert parse_ledger_node("00/0000", b"", LedgerTree.HIERARCHICAL) is None
    assert parse_ledger_node("cookies/L1", b"", LedgerTree.HIERARCHICAL) is None


@pytest.mark.parametrize("tree", AT_WORK)
async def test_a_backup_holds_every_lasting_node_and_no_other(
    store: ZooKeeperStore, root: str, tmp_path: Path, tree: LedgerTree
) -> None:
    planted = java_tree(AT_WORK[tree])
    await plant(store, root, planted)
    path = str(tmp_path / "a.gz")
    survey, end = await backup_cluster(store, header_of(root, tree), tree, OsFileSystem(), path)
    with ArchiveReader(OsFileSystem(), path) as reader:
        nodes = {node.path: PlantedNode(node.data, node.version, is_ephemeral=False) for node in reader.nodes()}
    expected = persistent(planted)
    expected.pop("underreplication/auditorelection", None)
    assert nodes == expected
    assert end.nodes == len(expected) == survey.nodes + 1
    ledgers = await open_ledger_store(store, root)
    readable = [ledger_id async for ledger_id in ledgers.list_ids()]
    assert survey.ledgers == end.ledgers == len(readable) + survey.faults_count
    assert survey.faults == (
        ("922/3372/0368/5477/L5807: no ledger can be stored there",) if tree is LedgerTree.HIERARCHICAL else ()
    )
    assert await read_tree(store, root) == planted, "a backup changes nothing"


async def test_a_survey_tells_any_change(store: ZooKeeperStore, root: str) -> None:
    await plant(store, root, java_tree("hierarchical at work"))
    before = await survey_cluster(store, root, LedgerTree.HIERARCHICAL)
    assert await survey_cluster(store, root, LedgerTree.HIERARCHICAL) == before
    await store.set(f"{root}/00/0000/L0003", b"junk", 1)
    after = await survey_cluster(store, root, LedgerTree.HIERARCHICAL)
    changed = [child.name for child, old in zip(after.children, before.children, strict=True) if child != old]
    assert changed == ["00"]
    assert after.faults_count == before.faults_count + 1


async def test_junk_that_a_bookie_put_into_a_directory_is_left_out(store: ZooKeeperStore, root: str) -> None:
    await store.create(f"{root}/available/readonly", b"payload of the first bookie", make_parents=True)
    taken: list[ArchiveNode] = []
    await survey_cluster(store, root, LedgerTree.FLAT, take=taken.append)
    assert [(node.path, node.data) for node in taken][2] == ("available/readonly", b"")


async def test_a_backup_beside_a_busy_cluster_holds_each_ledger_at_one_version(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    """A node says in its data at which version it was written: a mixture would show."""
    await asyncio.gather(
        *(store.create(f"{root}/00/0000/L{number:04d}", b"0", make_parents=True) for number in range(500))
    )
    is_done = asyncio.Event()

    async def keep_writing() -> int:
        rounds = 0
        while not is_done.is_set():
            rounds += 1
            for number in range(0, 500, 7):
                await other_store.set(f"{root}/00/0000/L{number:04d}", b"%d" % rounds, rounds - 1)
                if is_done.is_set():
                    break
            with contextlib.suppress(Exception):
                await other_store.delete(f"{root}/00/0000/L{rounds * 7 + 1:04d}")
        return rounds

    writer = asyncio.ensure_future(keep_writing())
    path = str(tmp_path / "a.gz")
    for number in range(3):
        await backup_cluster(
            store, header_of(root, LedgerTree.FLAT), LedgerTree.FLAT, OsFileSystem(), f"{path}{number}"
        )
    is_done.set()
    assert await writer >= 1
    for number in range(3):
        with ArchiveReader(OsFileSystem(), f"{path}{number}") as reader:
            found = [node for node in reader.nodes() if node.path.count("/") == 2]
        assert all(node.data == b"%d" % node.version for node in found)
        assert len(found) > 400
