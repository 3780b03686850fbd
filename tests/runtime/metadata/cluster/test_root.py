from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import ClusterNotFoundError, ConfigurationError, MetadataFormatError
from bkctl.runtime.metadata.cluster.root import init_cluster, read_cluster_info
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from tests.runtime.golden_metadata import java_nodes


async def test_a_new_cluster_has_what_java_creates(store: ZooKeeperStore, root: str) -> None:
    with pytest.raises(ClusterNotFoundError, match="bkctl cluster init"):
        await read_cluster_info(store, root)
    info, is_created = await init_cluster(store, root, LedgerTree.HIERARCHICAL, random.Random(1))
    assert is_created
    assert await store.children(root) == ["INSTANCEID", "LAYOUT", "available"]
    assert await store.children(f"{root}/available") == ["readonly"]
    assert (await store.get(f"{root}/LAYOUT")).data == dict(java_nodes("/ledgers/LAYOUT"))["/ledgers/LAYOUT"]
    assert info.instance_id is not None
    assert (await store.get(f"{root}/INSTANCEID")).data == info.instance_id.encode()
    assert str(uuid.UUID(info.instance_id)) == info.instance_id
    assert uuid.UUID(info.instance_id).version == 4


async def test_again_changes_nothing(store: ZooKeeperStore, root: str) -> None:
    first, _ = await init_cluster(store, root, LedgerTree.FLAT, random.Random(1))
    assert await init_cluster(store, root, None, random.Random(2)) == (first, False)
    with pytest.raises(ConfigurationError, match="created as flat"):
        await init_cluster(store, root, LedgerTree.HIERARCHICAL, random.Random(2))


async def test_a_cluster_of_pulsar_keeps_its_identity(store: ZooKeeperStore, root: str) -> None:
    """Its set-up writes the root and the instance id alone; a launcher of old clusters not even that."""
    await store.create(f"{root}/INSTANCEID", b"mine", make_parents=True)
    info, is_created = await init_cluster(store, root, None, random.Random(1))
    assert (info.instance_id, is_created) == ("mine", False)
    assert info.layout is not None
    await store.delete(f"{root}/INSTANCEID")
    info, _ = await init_cluster(store, root, None, random.Random(1))
    assert info.instance_id is None


async def test_settings_choose_the_layout_that_the_uri_leaves_open(store: ZooKeeperStore, root: str) -> None:
    """With another layout than the ledgers have, bookies would delete them."""
    flat = LayoutConfig(ledger_manager_type="flat")
    info, _ = await init_cluster(store, root, None, random.Random(1), flat)
    assert info.layout == LedgerLayout(LedgerTree.FLAT)
    await store.delete(f"{root}/LAYOUT")
    info, is_created = await init_cluster(store, root, None, random.Random(1), flat)
    assert (info.layout, is_created) == (LedgerLayout(LedgerTree.FLAT), False)


async def test_a_repackaged_class_is_read_where_the_settings_allow_it(store: ZooKeeperStore, root: str) -> None:
    await store.create(
        f"{root}/LAYOUT", b"2\ndlshade.org.apache.bookkeeper.meta.FlatLedgerManagerFactory:1", make_parents=True
    )
    with pytest.raises(MetadataFormatError, match="allowShadedLedgerManagerFactoryClass"):
        await read_cluster_info(store, root)
    allowed = LayoutConfig(is_shaded_factory_allowed=True)
    assert (await read_cluster_info(store, root, allowed)).layout == LedgerLayout(LedgerTree.FLAT)
    assert not (await init_cluster(store, root, None, random.Random(1), allowed))[1]


async def test_two_at_the_same_time(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    outcomes = await asyncio.gather(
        init_cluster(store, root, None, random.Random(1)), init_cluster(other_store, root, None, random.Random(2))
    )
    assert sorted(is_created for _, is_created in outcomes) == [False, True]
    assert outcomes[0][0] == outcomes[1][0]
