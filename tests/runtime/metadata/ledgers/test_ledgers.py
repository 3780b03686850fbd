from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest

from bkctl.runtime.errors import (
    BadVersionError,
    ClusterNotFoundError,
    ConfigurationError,
    LedgerExistsError,
    LedgerNotFoundError,
    MetadataFormatError,
    MetadataUnavailableError,
    RefusedError,
)
from bkctl.runtime.ledger.changes import new_ledger, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.cluster.root import init_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore, open_ledger_store
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore

OPEN = new_ledger(("b1:3181", "b2:3181"), 2, 2, DigestType.CRC32C, b"secret")
CLOCK_DIFFERENCE_S = 3600.0
"""ZooKeeper's clock is this machine's: an hour tells milliseconds from any other unit, and nothing else."""
IDS = [0, 1, 9999, 10000, 123456789, 2147483646, 2147483647, 4294967296, 4294967297, 2**63 - 2]


async def open_new(store: ZooKeeperStore, root: str, tree: LedgerTree = LedgerTree.HIERARCHICAL) -> LedgerStore:
    await init_cluster(store, root, tree, random.Random(1))
    return await open_ledger_store(store, root)


async def collect(ids: AsyncIterator[int]) -> list[int]:
    return [ledger_id async for ledger_id in ids]


async def test_a_ledger_from_creation_to_deletion(store: ZooKeeperStore, root: str) -> None:
    ledgers = await open_new(store, root)
    ledger_id, created = await ledgers.create(OPEN)
    assert ledger_id == 0
    found = await ledgers.read(0)
    assert (found.value, found.version) == (created.value, 0)
    assert found.ctime_ms is not None
    assert abs(found.ctime_ms / 1000 - time.time()) < CLOCK_DIFFERENCE_S
    assert created.value == OPEN
    assert created.version == 0
    in_recovery = await ledgers.write(0, to_in_recovery(created.value), created.version)
    with pytest.raises(BadVersionError):
        await ledgers.write(0, to_closed(created.value, 5, 50), created.version)
    closed = await ledgers.write(0, to_closed(in_recovery.value, 5, 50), in_recovery.version)
    assert await ledgers.read(0) == closed
    assert closed.ctime_ms == found.ctime_ms
    with pytest.raises(BadVersionError):
        await ledgers.delete(0, created.version)
    await ledgers.delete(0, closed.version)
    await ledgers.delete(0)
    for operation in (ledgers.read(0), ledgers.write(0, OPEN, 0)):
        with pytest.raises(LedgerNotFoundError, match="ledger 0"):
            await operation


async def test_deleting_the_last_ledger_removes_the_empty_branch(store: ZooKeeperStore, root: str) -> None:
    ledgers = await open_new(store, root)
    for ledger_id in (1, 2, 10000):
        await ledgers.create(OPEN, ledger_id=ledger_id)
    await ledgers.delete(1)
    assert await store.children(f"{root}/00") == ["0000", "0001"]
    await ledgers.delete(2)
    assert await store.children(f"{root}/00") == ["0001"]
    await ledgers.delete(10000)
    assert await store.children(root) == ["INSTANCEID", "LAYOUT", "available"]


async def test_an_id_is_taken_once(store: ZooKeeperStore, root: str) -> None:
    ledgers = await open_new(store, root)
    await ledgers.create(OPEN, ledger_id=0)
    with pytest.raises(LedgerExistsError, match="ledger 0"):
        await ledgers.create(OPEN, ledger_id=0)
    ledger_id, _ = await ledgers.create(OPEN)
    assert ledger_id == 1, "a generated id that is taken is passed over"


@pytest.mark.parametrize("ledger_id", [2**63 - 1, -1])
async def test_ids_that_are_refused(store: ZooKeeperStore, root: str, ledger_id: int) -> None:
    ledgers = await open_new(store, root)
    with pytest.raises(RefusedError, match=str(ledger_id)):
        await ledgers.create(OPEN, ledger_id=ledger_id)
    assert await store.children(root) == ["INSTANCEID", "LAYOUT", "available"]


class LosesAnswers:
    """The real store, but the answer to the first create of a ledger is lost, after or before it was carried out."""

    def __init__(self, store: ZooKeeperStore, *, is_carried_out: bool) -> None:
        self._store = store
        self._is_carried_out = is_carried_out

    def __getattr__(self, name: str) -> Callable[..., object]:
        method: Callable[..., object] = getattr(self._store, name)
        return method

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        if b"BookieMetadataFormatVersion" in data:
            if self._is_carried_out:
                await self._store.create(path, data, **options)
            raise MetadataUnavailableError("the answer is lost")
        return await self._store.create(path, data, **options)


@pytest.mark.parametrize("format_version", [2, 3])
async def test_a_lost_answer_to_a_create_is_settled_by_the_token(
    store: ZooKeeperStore, root: str, format_version: int
) -> None:
    await open_new(store, root)
    metadata = msgspec.structs.replace(OPEN, format_version=format_version, creator_token=2**63 - 1)
    lossy = LosesAnswers(store, is_carried_out=True)
    ledgers = await open_ledger_store(lossy, root)  # type: ignore[arg-type]
    if format_version == 2:
        with pytest.raises(MetadataUnavailableError, match="lost"):
            await ledgers.create(metadata)
    else:
        ledger_id, created = await ledgers.create(metadata)
        assert (await ledgers.read(ledger_id)).value == created.value


class LosesRaces:
    """The real store, but another client creates each ledger first, and the answer that says so is lost."""

    def __init__(self, store: ZooKeeperStore, rival: bytes) -> None:
        self._store = store
        self._rival = rival

    def __getattr__(self, name: str) -> Callable[..., object]:
        method: Callable[..., object] = getattr(self._store, name)
        return method

    async def create(self, path: str, data: bytes = b"", **options: bool) -> str:
        if b"BookieMetadataFormatVersion" in data:
            await self._store.create(path, self._rival, **options)
            raise MetadataUnavailableError("the answer is lost")
        return await self._store.create(path, data, **options)


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize(
    "rival",
    [
        encode_ledger_metadata(msgspec.structs.replace(OPEN, creator_token=1)),
        encode_ledger_metadata(OPEN),
        encode_ledger_metadata(msgspec.structs.replace(OPEN, format_version=2)),
        b"garbage",
    ],
    ids=["with a token", "without a token", "of an old format", "unreadable"],
)
@pytest.mark.parametrize("ledger_id", [7, None], ids=["id given", "id generated"])
@pytest.mark.parametrize("token", [0, 2], ids=["no token", "another token"])
async def test_a_ledger_of_another_creator_is_not_ours_after_a_lost_answer(
    store: ZooKeeperStore, root: str, format_version: int, rival: bytes, ledger_id: int | None, token: int
) -> None:
    """Two clients that both believe to own a ledger would both write to it."""
    await open_new(store, root)
    ledgers = await open_ledger_store(LosesRaces(store, rival), root)  # type: ignore[arg-type]
    metadata = msgspec.structs.replace(OPEN, format_version=format_version, creator_token=token)
    with pytest.raises(MetadataUnavailableError, match="the answer is lost"):
        await ledgers.create(metadata, ledger_id=ledger_id)
    (stored,) = await collect(ledgers.list_ids())
    assert (await store.get(ledgers.path(stored))).data == rival


async def test_a_create_that_did_not_happen_is_reported(store: ZooKeeperStore, root: str) -> None:
    await open_new(store, root)
    ledgers = await open_ledger_store(LosesAnswers(store, is_carried_out=False), root)  # type: ignore[arg-type]
    with pytest.raises(MetadataUnavailableError, match="lost"):
        await ledgers.create(OPEN)
    assert await collect(ledgers.list_ids()) == []


@pytest.mark.parametrize("tree", LedgerTree)
@pytest.mark.parametrize("window", [1, 3, 128])
async def test_every_ledger_is_listed_once_in_order(
    store: ZooKeeperStore, root: str, tree: LedgerTree, window: int
) -> None:
    ledgers = await open_new(store, root, tree)
    ids = IDS[:-1] if tree is LedgerTree.LEGACY_HIERARCHICAL else IDS
    for ledger_id in reversed(ids):
        await ledgers.create(OPEN, ledger_id=ledger_id)
    assert await collect(ledgers.list_ids(window=window)) == ids
    found = [(ledger_id, outcome) async for ledger_id, outcome in ledgers.read_all(window=window)]
    assert [ledger_id for ledger_id, _ in found] == ids
    for ledger_id, outcome in found:
        assert outcome == await ledgers.read(ledger_id)


@pytest.mark.parametrize("tree", LedgerTree)
async def test_subtrees_partition_the_tree(store: ZooKeeperStore, root: str, tree: LedgerTree) -> None:
    ledgers = await open_new(store, root, tree)
    ids = IDS[:-1] if tree is LedgerTree.LEGACY_HIERARCHICAL else IDS
    for ledger_id in ids:
        await ledgers.create(OPEN, ledger_id=ledger_id)
    subtrees = await ledgers.subtrees()
    assert len(set(subtrees)) == len(subtrees)
    assert len(subtrees) > 4 or tree is LedgerTree.FLAT
    listed = [await collect(ledgers.list_ids(subtree)) for subtree in subtrees]
    assert sorted(ledger_id for part in listed for ledger_id in part) == ids
    assert all(listed)


async def test_what_is_no_ledger_is_left_out(
    store: ZooKeeperStore, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    ledgers = await open_new(store, root)
    await ledgers.create(OPEN, ledger_id=5)
    for path in (
        "922/3372/0368/5477/L5807",
        "99/9999/L9999",
        "00/0000/junk",
        "00/junk/L0001",
        "idgen/ID-1",
        "0/0000/L0000",
    ):
        await store.create(f"{root}/{path}", make_parents=True)
    with caplog.at_level(logging.WARNING):
        assert await collect(ledgers.list_ids()) == [5]
    warnings = "\n".join(caplog.messages)
    assert "922/3372/0368/5477/L5807 was ignored" in warnings
    assert "/99 was ignored" in warnings


async def test_an_unreadable_ledger_does_not_end_a_scan(store: ZooKeeperStore, root: str) -> None:
    ledgers = await open_new(store, root)
    for ledger_id in (1, 3):
        await ledgers.create(OPEN, ledger_id=ledger_id)
    await store.create(f"{root}/00/0000/L0002", b"junk")
    outcomes = {ledger_id: outcome async for ledger_id, outcome in ledgers.read_all()}
    assert list(outcomes) == [1, 2, 3]
    assert isinstance(outcomes[1], Versioned)
    assert isinstance(outcomes[2], MetadataFormatError)
    assert outcomes[2].path == f"{root}/00/0000/L0002"
    with pytest.raises(MetadataFormatError, match="ledger 2: ledger metadata: the header line is missing"):
        await ledgers.read(2)


async def test_ledgers_that_vanish_during_a_scan(store: ZooKeeperStore, other_store: ZooKeeperStore, root: str) -> None:
    ledgers = await open_new(store, root)
    ids = [bucket * 10000 + number for bucket in range(6) for number in range(5)]
    for ledger_id in ids:
        await ledgers.create(OPEN, ledger_id=ledger_id)
    deleter = await open_ledger_store(other_store, root)
    seen = []
    async for ledger_id, outcome in ledgers.read_all(window=2):
        assert isinstance(outcome, Versioned)
        seen.append(ledger_id)
        if ledger_id == 0:
            for doomed in range(20000, 60000):
                if doomed in ids:
                    await deleter.delete(doomed)
    assert seen[:10] == ids[:10]
    assert len(seen) < 20, "what was deleted before its turn is not reported"


async def test_a_scan_can_be_left_early(store: ZooKeeperStore, root: str) -> None:
    ledgers = await open_new(store, root)
    for ledger_id in range(20):
        await ledgers.create(OPEN, ledger_id=ledger_id)
    scan = ledgers.read_all(window=5)
    assert (await anext(scan))[0] == 0
    await scan.aclose()
    assert [task for task in asyncio.all_tasks() if "_read_or_reason" in repr(task)] == []


async def test_opening(store: ZooKeeperStore, root: str) -> None:
    with pytest.raises(ClusterNotFoundError, match=root):
        await open_ledger_store(store, root)
    await store.create(root, make_parents=True)
    ledgers = await open_ledger_store(store, root, LedgerTree.LONG_HIERARCHICAL)
    assert await store.children(root) == [], "looking changes nothing"
    await ledgers.create(OPEN)
    assert (await store.get(f"{root}/LAYOUT")).data.endswith(b"LongHierarchicalLedgerManagerFactory:1")
    assert (await open_ledger_store(store, root)).tree is LedgerTree.LONG_HIERARCHICAL
    with pytest.raises(ConfigurationError, match="created as longhierarchical"):
        await open_ledger_store(store, root, LedgerTree.FLAT)


async def test_a_layout_recorded_meanwhile_by_somebody_else(store: ZooKeeperStore, root: str) -> None:
    await store.create(root, make_parents=True)
    ours = await open_ledger_store(store, root, LedgerTree.LONG_HIERARCHICAL)
    theirs = await open_ledger_store(store, root, LedgerTree.HIERARCHICAL)
    await theirs.create(OPEN)
    with pytest.raises(ConfigurationError, match="created as hierarchical"):
        await ours.create(OPEN)


@pytest.mark.parametrize("opened_as", list(LedgerTree))
@pytest.mark.parametrize("tree", list(LedgerTree))
async def test_without_layout_the_nodes_of_another_layout_prove_nothing(
    store: ZooKeeperStore, root: str, tree: LedgerTree, opened_as: LedgerTree
) -> None:
    ledgers = await open_new(store, root, tree)
    ledger_id, _ = await ledgers.create(OPEN)
    if tree in {LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL}:
        await ledgers.create(OPEN, ledger_id=2**31 + 5)
    await store.delete(f"{root}/LAYOUT")
    opened = await open_ledger_store(store, root, opened_as)
    if opened_as is tree or (tree, opened_as) == (LedgerTree.LEGACY_HIERARCHICAL, LedgerTree.HIERARCHICAL):
        assert ledger_id in await collect(opened.list_ids())
        with pytest.raises(LedgerNotFoundError):
            await opened.read(ledger_id + 1)
        return
    init = init_cluster(store, root, opened_as, random.Random(1))
    for operation in (opened.read(ledger_id + 1), collect(opened.list_ids()), opened.create(OPEN), init):
        with pytest.raises(MetadataFormatError, match=f"{root}/LAYOUT is missing, and {root}/.* does not belong to"):
            await operation
    [unknown] = [part async for part in opened.list_parts()]
    assert unknown.error is not None
    assert await store.exists(f"{root}/LAYOUT") is None
