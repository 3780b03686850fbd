"""The same actions as a Java client's leave the same tree, node by node, bytes and versions included."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.errors import RefusedError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, encode_ledger_metadata
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.metadata.ledgers.test_ids import CountsFrom

LARGEST = 2**63 - 1
_GOLDEN = Path(__file__).parents[3] / "golden" / "metadata" / "ledger_trees.json"

Tree = dict[str, tuple[int, bytes]]


def java_tree(*stages: str) -> Tree:
    """Version and data by path below the root."""
    golden = json.loads(_GOLDEN.read_text())["stages"]
    nodes = [node for stage in stages for node in golden[stage]]
    return {
        node["path"].split("/", 2)[2]: (node["version"], bytes.fromhex(node.get("data", "")))
        for node in nodes
        if node["path"].count("/") > 1
    }


def ledgers_of(tree: LedgerTree, nodes: Tree) -> dict[int, LedgerMetadata]:
    """Ledgers of a Java tree in the order in which they were created: that of their ids."""
    found = {}
    for path, (_, data) in nodes.items():
        ledger_id = tree.parse_ledger_path(path)
        if ledger_id is not None:
            found[ledger_id] = decode_ledger_metadata(data)
    return dict(sorted(found.items()))


async def our_tree(store: MetadataStore, root: str) -> Tree:
    found: Tree = {}
    waiting = [name for name in await store.children(root) if name not in {"available", "INSTANCEID", "LAYOUT"}]
    while waiting:
        path = waiting.pop()
        node = await store.get(f"{root}/{path}")
        found[path] = node.stat.version, node.data
        waiting += [f"{path}/{name}" for name in await store.children(f"{root}/{path}")]
    return found


async def repeat(ledgers: LedgerStore, ledger_id: int, final: LedgerMetadata, *, is_id_given: bool) -> None:
    """Create the ledger open, and bring it into its final state."""
    begun = msgspec.structs.replace(final, state=LedgerState.OPEN, last_entry_id=-1, length=0)
    created_id, created = await ledgers.create(begun, ledger_id=ledger_id if is_id_given else None)
    assert created_id == ledger_id
    if final.state is not LedgerState.OPEN:
        await ledgers.write(ledger_id, final, created.version)


def assert_same(ours: Tree, java: Tree) -> None:
    assert sorted(ours) == sorted(java)
    for path, (version, data) in java.items():
        our_version, our_data = ours[path]
        assert our_version == version, path
        if version == 0 and data:  # open: the creator's token is random, all the rest is the same
            token = decode_ledger_metadata(data).creator_token
            our_data = encode_ledger_metadata(
                msgspec.structs.replace(decode_ledger_metadata(our_data), creator_token=token)
            )
        assert our_data == data, path


async def test_hierarchical(store: ZooKeeperStore, root: str) -> None:
    java = java_tree("ledgers hierarchical", "ledgers in recovery")
    java = {path: node for path, node in java.items() if not path.startswith("922")}
    await init_cluster(store, root, LedgerTree.HIERARCHICAL, random.Random(1))
    ledgers = await open_ledger_store(store, root)
    for ledger_id, metadata in ledgers_of(LedgerTree.HIERARCHICAL, java).items():
        await repeat(ledgers, ledger_id, metadata, is_id_given=ledger_id > 13)
    with pytest.raises(RefusedError):
        await ledgers.create(metadata, ledger_id=LARGEST)
    assert_same(await our_tree(store, root), java)


async def test_long_hierarchical(store: ZooKeeperStore, root: str) -> None:
    java = java_tree("longhierarchical: ledgers")
    await init_cluster(store, root, LedgerTree.LONG_HIERARCHICAL, random.Random(1))
    await store.create(f"{root}/cookies")
    ledgers = await open_ledger_store(store, root)
    for ledger_id, metadata in ledgers_of(LedgerTree.LONG_HIERARCHICAL, java).items():
        await repeat(ledgers, ledger_id, metadata, is_id_given=ledger_id > 2)
    assert_same(await our_tree(store, root), java)


async def test_flat(store: ZooKeeperStore, root: str) -> None:
    java = java_tree("flat: ledgers")
    await init_cluster(store, root, LedgerTree.FLAT, random.Random(1))
    await store.create(f"{root}/cookies")
    ledgers = await open_ledger_store(store, root)
    for ledger_id, metadata in ledgers_of(LedgerTree.FLAT, java).items():
        await repeat(ledgers, ledger_id, metadata, is_id_given=ledger_id > 8)
    assert_same(await our_tree(store, root), java)
    await ledgers.delete(2147483648)
    del java["L2147483648"]
    assert_same(await our_tree(store, root), java)


async def test_short_ids_used_up(store: ZooKeeperStore, root: str) -> None:
    java = java_tree("idgen: short ids used up", "idgen-long: HOB 1 used up")
    await init_cluster(store, root, LedgerTree.HIERARCHICAL, random.Random(1))
    await store.create(f"{root}/idgen")
    short_end = CountsFrom(store, f"{root}/idgen", 2147483644)
    later = CountsFrom(store, f"{root}/idgen-long/HOB-0000000001", 2147483645)
    first = await open_ledger_store(store, root)
    second = await open_ledger_store(short_end, root)  # type: ignore[arg-type]
    third = await open_ledger_store(later, root)  # type: ignore[arg-type]
    for ledger_id, metadata in ledgers_of(LedgerTree.HIERARCHICAL, java).items():
        if ledger_id in {0, 2**32 + 1, 2**32 + 2}:
            await repeat(first, ledger_id, metadata, is_id_given=ledger_id > 0)
        else:
            await repeat(second if ledger_id <= 2**32 else third, ledger_id, metadata, is_id_given=False)
    assert_same(await our_tree(store, root), java)
