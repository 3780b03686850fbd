from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.errors import ConflictError, MetadataFormatError, RefusedError
from bkctl.runtime.ledger.changes import new_ledger, replace_bookies, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.backup.archive import ArchiveHeader, ArchiveNode, ArchiveReader, ArchiveWriter
from bkctl.runtime.metadata.backup.backup import backup_cluster
from bkctl.runtime.metadata.backup.cluster_format import nuke_cluster
from bkctl.runtime.metadata.backup.restore import (
    ArchiveSummary,
    ClusterRestore,
    Fate,
    NewIds,
    NodeFate,
    find_obstacle,
    read_archive,
    read_restore_target,
)
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.store import NODE_BYTES_MAX, Node
from bkctl.runtime.metadata.tree import delete_tree
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.storage.adapters.filesystem import OsFileSystem
from tests.runtime.metadata.backup.test_cluster_format import AT_WORK, TREES, go_on, stop_after
from tests.runtime.metadata.trees import PlantedNode, java_tree, persistent, plant, read_tree

OPEN = new_ledger(("b1:3181", "b2:3181"), 2, 2, DigestType.CRC32C, b"secret")
OTHER_ENSEMBLE = replace_bookies(OPEN, 0, {0: "b3:3181"})
IN_RECOVERY = to_in_recovery(OPEN)
CLOSED = to_closed(OPEN, 9, 100)
ROLLED = replace_bookies(OPEN, 5, {0: "b3:3181"})
VARIANTS = {
    "absent": None,
    "open": OPEN,
    "open elsewhere": OTHER_ENSEMBLE,
    "rolled": ROLLED,
    "in recovery": IN_RECOVERY,
    "closed": CLOSED,
    "closed elsewhere": to_closed(OTHER_ENSEMBLE, 9, 100),
    "closed earlier": to_closed(OPEN, 7, 80),
    "closed empty": to_closed(OPEN, -1, 0),
    "closed rolled": to_closed(ROLLED, 9, 100),
    "another": to_closed(msgspec.structs.replace(OPEN, password=b"other"), 9, 100),
    "version 2": to_closed(msgspec.structs.replace(OPEN, format_version=2), 9, 100),
}


class Restored(msgspec.Struct):
    """What became of a restore."""

    fates: list[NodeFate]
    new_ids: NewIds
    kept: list[tuple[str, Node]]

    def of(self, fate: Fate) -> list[str]:
        return [each.path for each in self.fates if each.fate is fate]


async def save(store: ZooKeeperStore, root: str, tree: LedgerTree, path: Path) -> str:
    instance_id = (await store.get(f"{root}/INSTANCEID")).data.decode()
    header = ArchiveHeader(root=root, instance_id=instance_id, layout=tree.value, created="2026-01-01T00:00:00Z")
    await backup_cluster(store, header, tree, OsFileSystem(), str(path))
    return str(path)


async def bring_back(store: ZooKeeperStore, root: str, path: str, before_each: Callable[[], None] = go_on) -> Restored:
    kept: list[tuple[str, Node]] = []
    with ArchiveReader(OsFileSystem(), path) as reader:
        archive = await read_archive(reader, LoopClock())
        target = await read_restore_target(store, root, archive)
        operation = ClusterRestore(
            store, archive, target, before_each=before_each, keep=lambda path, node: kept.append((path, node))
        )
        expected = [fate async for fate in operation.preview(reader)]
        announced = await operation.preview_new_ids()
        fates = [fate async for fate in operation.run(reader)]
        assert fates == expected, "what was announced is what happens"
        new_ids = await operation.finish()
        assert new_ids.is_counted_anew is announced.is_counted_anew
        assert (new_ids.first_id or 0) >= (announced.first_id or 0)
        return Restored(fates, new_ids, kept)


def sound(tree: dict[str, PlantedNode]) -> dict[str, PlantedNode]:
    """What a restore of the tree brings back: at version 0, without the one ledger that may not be."""
    return {
        path: node._replace(version=0)
        for path, node in persistent(tree).items()
        if not path.startswith("922/3372/0368/5477/L") and path != "underreplication/auditorelection"
    }


@pytest.mark.parametrize("tree", TREES)
async def test_a_lost_cluster_comes_back_node_by_node(
    store: ZooKeeperStore, root: str, tmp_path: Path, tree: LedgerTree
) -> None:
    planted = persistent(java_tree(AT_WORK[tree]))
    await plant(store, root, planted)
    path = await save(store, root, tree, tmp_path / "a")
    await nuke_cluster(store, root, tree, before_each=go_on)
    restored = await bring_back(store, root, path)
    found = await read_tree(store, root)
    generators = {path for path in found if path.startswith("idgen-long")}
    assert {path: node for path, node in found.items() if path not in generators} == sound(planted) | {
        "": PlantedNode(b"", 1, is_ephemeral=False)  # it told of the restore meanwhile
    }
    assert restored.new_ids.is_counted_anew
    if tree is LedgerTree.FLAT:
        assert generators == set()
    else:
        high = restored.new_ids.first_id >> 32 if restored.new_ids.first_id else 0
        assert generators == {"idgen-long", f"idgen-long/HOB-{high:010d}"}
    assert restored.of(Fate.CONFLICT) == []


async def test_a_restore_stopped_at_any_change_is_ended_by_the_next(
    store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    """And until it has ended no bookie can register, and ``init`` does not help it to."""
    planted = persistent(java_tree("longhierarchical at work"))
    await plant(store, root, planted)
    path = await save(store, root, LedgerTree.LONG_HIERARCHICAL, tmp_path / "a")
    await nuke_cluster(store, root, LedgerTree.LONG_HIERARCHICAL, before_each=go_on)
    await bring_back(store, root, path)
    whole = await read_tree(store, root)
    for steps in itertools.count():
        await nuke_cluster(store, root, LedgerTree.LONG_HIERARCHICAL, before_each=go_on)
        try:
            await bring_back(store, root, path, stop_after(steps))
        except RefusedError:
            left = await read_tree(store, root)
            assert "available" not in left
            if left:
                with pytest.raises(RefusedError, match=r"a restore into .* is unfinished"):
                    await init_cluster(store, root, None, random.Random(1))
                assert await read_tree(store, root) == left
        else:
            assert steps > 10
            break
        await bring_back(store, root, path)
        found = await read_tree(store, root)
        assert found == whole


async def test_a_restore_killed_between_its_last_two_steps(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    await init_cluster(store, root, None, random.Random(1))
    path = await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a")
    with ArchiveReader(OsFileSystem(), path) as reader:
        mark = b"bkctl restore " + (await read_archive(reader, LoopClock())).sha256.encode()
    await store.set(root, mark, 0)
    await bring_back(store, root, path)
    assert (await store.get(root)).data == b""


async def test_again_changes_nothing(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    planted = persistent(java_tree("hierarchical at work"))
    await plant(store, root, planted)
    path = await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a")
    restored = await bring_back(store, root, path)
    assert {fate.fate for fate in restored.fates} == {Fate.SAME, Fate.SKIPPED}
    assert restored.new_ids == NewIds()
    assert await read_tree(store, root) == planted


async def test_what_is_missing_in_an_existing_cluster_is_added(
    store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    """Ledgers and cookies; switches and marks may be absent for a reason."""
    planted = persistent(java_tree("hierarchical at work"))
    await plant(store, root, planted)
    await store.create(f"{root}/disableHealthCheck")
    path = await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a")
    gone = ["00", "cookies/127.0.0.1:13384", "underreplication", "disableHealthCheck"]
    for name in gone:
        await delete_tree(store, f"{root}/{name}", before_each=go_on)
    await bring_back(store, root, path)
    expected = {path: node for path, node in planted.items() if not f"{path}/".startswith("underreplication/")}
    for lost in [*(path for path in planted if path.startswith("00/0000/L")), "cookies/127.0.0.1:13384"]:
        expected[lost] = planted[lost]._replace(version=0)
    assert await read_tree(store, root) == expected


async def test_a_cookie_that_differs_is_left_and_told_of(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    await plant(store, root, persistent(java_tree("flat at work")))
    path = await save(store, root, LedgerTree.FLAT, tmp_path / "a")
    cookie = f"{root}/cookies/127.0.0.1:13389"
    await store.set(cookie, b"changed", 0)
    restored = await bring_back(store, root, path)
    assert restored.of(Fate.CONFLICT) == ["cookies/127.0.0.1:13389"]
    assert (await store.get(cookie)).data == b"changed"


def is_backwards(before: LedgerMetadata, after: LedgerMetadata) -> bool:
    """Independent of the code: what must never happen to a ledger."""
    return (
        after.state < before.state
        or (before.is_closed and (after.last_entry_id, after.length) != (before.last_entry_id, before.length))
        or after.password != before.password
        or [segment.first_entry_id for segment in after.segments][: len(before.segments)]
        != [segment.first_entry_id for segment in before.segments]
    )


async def test_no_pair_of_metadata_lets_a_ledger_go_back(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    """Every variant in the archive against every variant in the cluster."""
    pairs = dict(enumerate(itertools.product(VARIANTS.items(), VARIANTS.items())))
    await init_cluster(store, root, None, random.Random(1))
    ledgers = await open_ledger_store(store, root)

    def bytes_of(metadata: LedgerMetadata) -> bytes:
        return encode_ledger_metadata(metadata)

    for ledger_id, ((_, archived), _) in pairs.items():
        if archived is not None:
            await store.create(f"{root}/00/0000/L{ledger_id:04d}", bytes_of(archived), make_parents=True)
    path = await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a")
    await delete_tree(store, f"{root}/00", before_each=go_on)
    await store.create(f"{root}/idgen")
    for ledger_id, (_, (_, present)) in pairs.items():
        if present is not None:
            await store.create(f"{root}/00/0000/L{ledger_id:04d}", bytes_of(present), make_parents=True)
    restored = await bring_back(store, root, path)
    advanced = set()
    for ledger_id, ((archived_name, archived), (present_name, present)) in pairs.items():
        if archived is None and present is None:
            continue
        found = (await ledgers.read(ledger_id)).value
        if present is None:
            assert found == archived
        elif found != present:
            assert found == archived
            assert not is_backwards(present, found)
            advanced.add((present_name, archived_name))
    closes = ["closed", "closed elsewhere", "closed earlier", "closed empty", "version 2"]
    assert advanced == {
        *(("open", name) for name in [*closes, "in recovery", "closed rolled"]),
        *(("open elsewhere", name) for name in [*closes, "in recovery", "closed rolled"]),
        *(("in recovery", name) for name in [*closes, "closed rolled"]),
        ("rolled", "closed rolled"),
    }
    assert len(restored.of(Fate.ADVANCED)) == len(advanced) == len(restored.kept)
    assert all(fate.reason for fate in restored.fates if fate.fate is Fate.CONFLICT)
    again = await bring_back(store, root, path)
    assert again.of(Fate.ADVANCED) == again.of(Fate.CREATED) == []
    assert again.of(Fate.CONFLICT) == restored.of(Fate.CONFLICT)


@pytest.mark.parametrize(
    ("present", "archived", "reason"),
    [
        (CLOSED, OPEN, "its state is CLOSED, in the backup OPEN: a state never moves back"),
        (CLOSED, VARIANTS["closed earlier"], "it is closed at entry 9, but in the backup at 7"),
        (VARIANTS["closed earlier"], CLOSED, "it is closed at entry 7, but in the backup at 9"),
        (OPEN, ROLLED, "it is OPEN in both, but they differ: the cluster's version is treated as the newer one"),
        (OPEN, VARIANTS["another"], "the backup has a different ledger with the same id"),
        (ROLLED, CLOSED, "its segments differ from those in the backup"),
        (OPEN, CLOSED, None),
    ],
)
def test_the_reason_is_told(present: LedgerMetadata, archived: LedgerMetadata, reason: str | None) -> None:
    assert find_obstacle(present, archived) == reason


async def test_a_ledger_that_is_changed_at_the_same_moment_is_left(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    await init_cluster(store, root, None, random.Random(1))
    node = f"{root}/00/0000/L0000"
    await store.create(node, encode_ledger_metadata(CLOSED), make_parents=True)
    path = await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a")
    await store.set(node, encode_ledger_metadata(OPEN), 0)
    theirs = encode_ledger_metadata(ROLLED)

    class Slow:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def set(self, path: str, data: bytes, expected_version: int) -> object:
            await other_store.set(node, theirs, expected_version)
            return await store.set(path, data, expected_version)

    with ArchiveReader(OsFileSystem(), path) as reader:
        archive = await read_archive(reader, LoopClock())
        target = await read_restore_target(store, root, archive)
        operation = ClusterRestore(Slow(), archive, target, before_each=go_on, keep=lambda _path, _node: None)  # type: ignore[arg-type]
        fates = [fate async for fate in operation.run(reader)]
    assert [(fate.path, fate.reason) for fate in fates if fate.fate is Fate.CONFLICT] == [
        ("00/0000/L0000", "another process is changing it")
    ]
    assert (await store.get(node)).data == theirs


async def test_two_restores_at_once_make_one_cluster(
    store: ZooKeeperStore, other_store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    """The command's lock keeps them apart; without it they would still do no harm."""
    planted = persistent(java_tree("longhierarchical at work"))
    await plant(store, root, planted)
    path = await save(store, root, LedgerTree.LONG_HIERARCHICAL, tmp_path / "a")
    await nuke_cluster(store, root, LedgerTree.LONG_HIERARCHICAL, before_each=go_on)

    async def run(at: ZooKeeperStore) -> None:
        with ArchiveReader(OsFileSystem(), path) as reader:
            archive = await read_archive(reader, LoopClock())
            target = await read_restore_target(at, root, archive)
            operation = ClusterRestore(at, archive, target, before_each=go_on, keep=lambda _path, _node: None)
            async for fate in operation.run(reader):
                assert fate.fate is not Fate.CONFLICT
            await operation.finish()

    await asyncio.gather(run(store), run(other_store))
    found = await read_tree(store, root)
    assert sound(planted).keys() <= found.keys()
    assert found[""].data == b""


async def summary_of(path: str) -> ArchiveSummary:
    with ArchiveReader(OsFileSystem(), path) as reader:
        return await read_archive(reader, LoopClock())


async def test_where_a_backup_must_not_go(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    await init_cluster(store, root, None, random.Random(1))
    archive = await summary_of(await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a"))
    with pytest.raises(RefusedError, match=f"the backup is of {root}, but the metadata URI has /elsewhere"):
        await read_restore_target(store, "/elsewhere", archive)
    assert not (await read_restore_target(store, root, archive)).is_fresh
    await nuke_cluster(store, root, LedgerTree.HIERARCHICAL, before_each=go_on)
    assert (await read_restore_target(store, root, archive)).is_fresh
    await store.create(root)
    assert (await read_restore_target(store, root, archive)).is_fresh, "an empty node, as administrators prepare them"
    await store.set(root, b"bkctl restore of another", 0)
    with pytest.raises(ConflictError, match="a restore of another backup"):
        await read_restore_target(store, root, archive)
    await store.delete(root)
    await init_cluster(store, root, None, random.Random(2))
    with pytest.raises(RefusedError, match="is instance"):
        await read_restore_target(store, root, archive)


async def test_ledgers_that_cannot_be_restored_are_counted(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    await plant(store, root, persistent(java_tree("hierarchical at work")))
    await store.create(f"{root}/00/0000/L0777", b"junk")
    archive = await summary_of(await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a"))
    assert archive.faults_count == 2
    assert [fault.partition(":")[0] for fault in archive.faults] == ["ledger 777", "922/3372/0368/5477/L5807"]
    assert archive.ids.next_high == 2, "the forbidden id does not count"
    restored = await bring_back(store, root, str(tmp_path / "a"))
    assert {fate.path for fate in restored.fates if fate.is_ledger and fate.fate is Fate.SKIPPED} == {
        "00/0000/L0777",
        "922/3372/0368/5477/L5807",
    }


async def test_nodes_that_nobody_should_have_written_are_not_written_again(
    store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    """A cookie of an impossible id hangs Java clients (metadata section 9.4); the rest is of no use, or fatal too."""
    planted = persistent(java_tree("hierarchical at work"))
    await plant(store, root, planted)
    bad = {
        "cookies/READONLY": b"",
        "00/0000/Lxyz": b"",
        "00/zzzz": b"",
        "00/zzzz/L0001": b"",
        "underreplication/LAYOUT": b"junk",
        "underreplication/lostBookieRecoveryDelay": b"junk",
        "underreplication/checkallledgersctime": b"\xff",
        "underreplication/ledgers/zzzz": b"",
        "underreplication/ledgers/0000/0000/0000/0009/urL0000000009": b"junk",
    }
    theirs = ["of a third party", "of a third party/child"]
    for path, data in {**bad, **dict.fromkeys(theirs, b"x")}.items():
        if await store.exists(f"{root}/{path}") is not None:
            await store.delete(f"{root}/{path}")
        await store.create(f"{root}/{path}", data, make_parents=True)
    path = await save(store, root, LedgerTree.HIERARCHICAL, tmp_path / "a")
    await delete_tree(store, root, before_each=go_on)
    restored = await bring_back(store, root, path)
    found = await read_tree(store, root)
    assert bad.keys() & found.keys() == set()
    assert {fate.path for fate in restored.fates if fate.reason and not fate.is_ledger} == bad.keys()
    assert found.keys() >= {*theirs}, "not BookKeeper's, so their owner's business"
    assert found.keys() >= {path for path in sound(planted) if path.startswith(("00/0000/L", "cookies"))} - bad.keys()


async def test_a_nuke_that_was_cut_off_is_undone(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    """With the place where bookies register, which goes first."""
    planted = persistent(java_tree("longhierarchical at work"))
    await plant(store, root, planted)
    path = await save(store, root, LedgerTree.LONG_HIERARCHICAL, tmp_path / "a")
    with pytest.raises(RefusedError):
        await nuke_cluster(store, root, LedgerTree.LONG_HIERARCHICAL, before_each=stop_after(6))
    assert await store.exists(f"{root}/available") is None
    await bring_back(store, root, path)
    found = await read_tree(store, root)
    assert found.keys() >= {"available", "available/readonly"}
    assert found.keys() >= {path for path in sound(planted) if path.startswith(("000", "cookies"))}


async def test_a_ledger_larger_than_any_node_is_known_before_anything_is_written(
    store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    """Servers may be set to take more (jute.maxbuffer); this side never writes so much."""
    path = str(tmp_path / "a")
    header = ArchiveHeader(root=root, instance_id=None, layout="hierarchical", created="2026-01-01T00:00:00Z")
    with ArchiveWriter(OsFileSystem(), path, header) as writer:
        for name in ("", "00", "00/0000"):
            writer.add(ArchiveNode(name, 0, 0, b""))
        writer.add(ArchiveNode("00/0000/L0001", 0, 0, encode_ledger_metadata(CLOSED) + bytes(NODE_BYTES_MAX)))
        writer.finish(1)
    assert (await summary_of(path)).faults_count == 1


async def test_metadata_that_cannot_be_read_is_not_overwritten(
    store: ZooKeeperStore, root: str, tmp_path: Path
) -> None:
    await plant(store, root, persistent(java_tree("flat at work")))
    path = await save(store, root, LedgerTree.FLAT, tmp_path / "a")
    await store.set(f"{root}/L0000000004", b"junk", 1)
    restored = await bring_back(store, root, path)
    [conflict] = [fate for fate in restored.fates if fate.fate is Fate.CONFLICT]
    assert conflict.path == "L0000000004"
    assert "delete that node first" in conflict.reason
    await store.delete(f"{root}/L0000000004")
    assert (await bring_back(store, root, path)).of(Fate.CREATED) == ["L0000000004"]


async def test_an_unknown_layout_is_refused(store: ZooKeeperStore, root: str, tmp_path: Path) -> None:
    await init_cluster(store, root, None, random.Random(1))
    header = ArchiveHeader(root=root, instance_id="i", layout="round", created="")
    await backup_cluster(store, header, LedgerTree.FLAT, OsFileSystem(), str(tmp_path / "a"))
    with pytest.raises(MetadataFormatError, match="unknown layout 'round'"):
        await summary_of(str(tmp_path / "a"))


def test_states_are_ordered_as_they_may_follow() -> None:
    assert LedgerState.OPEN < LedgerState.IN_RECOVERY < LedgerState.CLOSED
