"""The metadata doctor on a real ZooKeeper: it finds every bad node, nothing else, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.doctor.catalogue import RULES
from bkctl.runtime.metadata.doctor.doctor import DoctorReport, examine_cluster
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, encode_layout
from bkctl.runtime.metadata.store import MetadataStore, Node
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.needed_bookies import NeededBookies
from bkctl.storage.severity import Severity
from tests.runtime.metadata.bad_nodes import (
    BAD_NODES,
    BOOKIES,
    FORBIDDEN,
    INFORMATION,
    INSTANCE_ID,
    LEDGER,
    BadNode,
    put,
    sound_cluster,
    with_bad_node,
)
from tests.runtime.metadata.counters import force_counters
from tests.runtime.metadata.trees import java_tree, plant, read_tree


class EarlyClock(LoopClock):
    """At this time no node has been there for long that is made in a test."""

    def now_ms(self) -> int:
        return 0


async def examine(store: MetadataStore, root: str, tree: LedgerTree | None = None) -> DoctorReport:
    return await examine_cluster(store, root, tree, EarlyClock(), NeededBookies(()), settle_s=0.01)


def found_in(report: DoctorReport, root: str) -> dict[str, set[str]]:
    """Paths below the root by rule."""
    found: dict[str, set[str]] = {}
    for each in report.findings:
        found.setdefault(each.rule.id, set()).add(each.path[len(root) + 1 :])
    return found


async def test_a_sound_cluster_has_no_findings(store: ZooKeeperStore, root: str) -> None:
    await put(store, root, sound_cluster())
    report = await examine(store, root)
    assert report.findings == ()
    assert report.looked_at == {
        "root": 1,
        "instance_id": 1,
        "layout": 1,
        "directories": 6,
        "writable_bookies": 3,
        "read_only_bookies": 1,
        "cookies": 4,
        "id_directories": 1,
        "ledger_directories": 2,
        "ledgers": 2,
        "mark_directories": 4,
        "marks": 1,
        "locks": 1,
        "election": 1,
        "votes": 1,
        "switches": 3,
    }
    assert sum(report.looked_at.values()) == len(sound_cluster())


@pytest.mark.parametrize("bad", BAD_NODES + INFORMATION, ids=lambda bad: bad.name)
async def test_every_bad_node_is_found_alone(store: ZooKeeperStore, root: str, bad: BadNode) -> None:
    await put(store, root, with_bad_node(sound_cluster(), bad))
    before = await read_tree(store, root)
    report = await examine(store, root)
    found = found_in(report, root)
    serious = {rule_id for rule_id in found if RULES[rule_id].severity is not Severity.INFORMATION}
    if bad in BAD_NODES:
        assert serious == bad.rules
    else:
        assert set(found) == bad.rules
        assert not serious
    assert any(bad.path in found[rule_id] for rule_id in bad.rules), found
    assert await read_tree(store, root) == before


END = 2**31 - 1
COUNTERS: dict[str, tuple[LedgerTree, dict[str, int], dict[str, set[str]]]] = {
    "/short-before-its-end": (LedgerTree.HIERARCHICAL, {"idgen": END - 1}, {}),
    "/short": (LedgerTree.HIERARCHICAL, {"idgen": END}, {"long-ids-begin": {"idgen"}}),
    "/long": (LedgerTree.HIERARCHICAL, {"idgen": END, "idgen-long/HOB-0000000001": END}, {}),
    "/legacy": (LedgerTree.LEGACY_HIERARCHICAL, {"idgen": END}, {"ledger-ids-used-up": {"idgen"}}),
    "/legacy-soon": (LedgerTree.LEGACY_HIERARCHICAL, {"idgen": END - 9}, {"ledger-ids-nearly-used-up": {"idgen"}}),
    "/flat": (LedgerTree.FLAT, {"": END}, {"ledger-ids-used-up": {""}}),
    "/votes": (
        LedgerTree.HIERARCHICAL,
        {"underreplication/auditorelection": END},
        {"votes-used-up": {"underreplication/auditorelection"}},
    ),
}
"""By root: layout, counters of children ever created, and what must be found."""


def plant_counters(server: EmbeddedZooKeeper) -> None:
    """Make the nodes."""
    client = KazooClient(server.connect_string)
    client.start()
    try:
        for root, (tree, counters, _) in COUNTERS.items():
            client.ensure_path(f"{root}/available/readonly")
            client.create(f"{root}/INSTANCEID", INSTANCE_ID.encode())
            client.create(f"{root}/LAYOUT", encode_layout(LedgerLayout(tree)))
            for path in counters:
                client.ensure_path(f"{root}/{path}".rstrip("/"))
    finally:
        client.stop()
        client.close()


async def test_a_counter_at_its_end_is_seen_without_using_a_number(tmp_path: Path) -> None:
    async with await EmbeddedZooKeeper.start(str(tmp_path)) as server:
        await asyncio.to_thread(plant_counters, server)
    async with await EmbeddedZooKeeper.start(str(tmp_path)):
        pass  # a start writes a snapshot
    forced = {
        f"{root}/{path}".rstrip("/"): count
        for root, (_, counters, _) in COUNTERS.items()
        for path, count in counters.items()
    }
    force_counters(tmp_path, forced)
    async with (
        await EmbeddedZooKeeper.start(str(tmp_path)) as server,
        await ZooKeeperStore.connect(server.connect_string) as store,
    ):
        for root, (_, _, expected) in COUNTERS.items():
            assert found_in(await examine(store, root), root) == expected, root
        for path, count in forced.items():
            stat = await store.exists(path)
            assert stat is not None
            assert stat.children_created_count == count
            assert await store.create(f"{path}/n-", is_sequential=True) == f"{path}/n-{count:010d}"


# -- a tree that changes --------------------------------------------------------------------------------------------


class Meddler:
    """The real store, but somebody else acts right after a path was read for the first time."""

    def __init__(self, store: ZooKeeperStore, actions: dict[str, Callable[[], Awaitable[object]]]) -> None:
        self._store = store
        self._actions = actions

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def get(self, path: str) -> Node:
        node = await self._store.get(path)
        await self._act(path)
        return node

    async def children(self, path: str) -> list[str]:
        names = await self._store.children(path)
        await self._act(path)
        return names

    async def _act(self, path: str) -> None:
        action = self._actions.pop(path, None)
        if action is not None:
            await action()


@pytest.mark.parametrize(
    "name",
    [
        "garbage mark",
        "garbage lock",
        "mark without ledger",
        "lock without ledger",
        "persistent lock",
        "garbage ledger",
        "garbage registration",
        "empty bucket",
        "empty directory of marks",
        "name among the votes",
        "ID node left",
    ],
)
async def test_what_vanishes_meanwhile_is_no_finding(store: ZooKeeperStore, root: str, name: str) -> None:
    bad = next(bad for bad in BAD_NODES + INFORMATION if bad.name == name)
    await put(store, root, with_bad_node(sound_cluster(), bad))
    path = f"{root}/{bad.path}"
    meddler = Meddler(store, {path: lambda: store.delete(path)})
    report = await examine(meddler, root)  # type: ignore[arg-type]
    assert set(found_in(report, root)).isdisjoint(bad.rules)
    assert set(found_in(await examine(store, root), root)).isdisjoint(bad.rules)


async def test_what_is_mended_meanwhile_is_no_finding(store: ZooKeeperStore, root: str) -> None:
    nodes = sound_cluster()
    sound = nodes[LEDGER][0]
    nodes[LEDGER] = (b"junk", False)
    nodes["00/0007"] = (b"", False)
    nodes[f"cookies/{BOOKIES[0]}"] = (b"junk", False)
    await put(store, root, nodes)
    meddler = Meddler(
        store,
        {
            f"{root}/{LEDGER}": lambda: store.set(f"{root}/{LEDGER}", sound, 0),
            f"{root}/00/0007": lambda: store.create(f"{root}/00/0007/L0000", sound),
            f"{root}/underreplication/auditorelection": lambda: store.set(
                f"{root}/cookies/{BOOKIES[0]}", sound_cluster()[f"cookies/{BOOKIES[0]}"][0], 0
            ),
        },
    )
    assert (await examine(meddler, root)).findings == ()  # type: ignore[arg-type]


async def test_a_bookie_that_changes_its_mode_is_never_gone(store: ZooKeeperStore, root: str) -> None:
    await put(store, root, sound_cluster())
    writable, read_only = f"{root}/available/{BOOKIES[0]}", f"{root}/available/readonly/{BOOKIES[0]}"
    data = sound_cluster()[f"available/{BOOKIES[0]}"][0]

    async def change_mode() -> None:
        await store.create(read_only, data, is_ephemeral=True)
        await store.delete(writable)

    meddler = Meddler(store, {f"{root}/available/readonly": change_mode})
    assert (await examine(meddler, root)).findings == ()  # type: ignore[arg-type]


async def test_a_bookie_that_is_replaced_meanwhile_misses_no_copy(store: ZooKeeperStore, root: str) -> None:
    nodes = sound_cluster()
    dead = BOOKIES[2]
    del nodes[f"available/readonly/{dead}"]
    await put(store, root, nodes)
    [found] = (await examine(store, root)).findings
    assert (found.rule.id, found.subject) == ("bookie-down-with-ledgers", dead)
    assert found.problem == f"Bookie {dead} is not registered, and 2 ledgers reference it."
    assert f"bkctl recover failed-bookie {dead} " in found.cure
    assert f"bkctl decommission {dead} " in found.cure

    healed = encode_ledger_metadata(to_closed(new_ledger(BOOKIES[:2], 2, 2, DigestType.CRC32C, b""), 0, 1))

    async def recover() -> None:
        for path in (LEDGER, "00/0000/L0002"):
            await store.set(f"{root}/{path}", healed, 0)

    meddler = Meddler(store, {f"{root}/available/readonly": recover})
    assert (await examine(meddler, root)).findings == ()  # type: ignore[arg-type]
    [left] = (await examine(store, root)).findings
    assert left.rule.id == "bookie-down"


async def test_a_bookie_without_a_cookie_is_found_by_the_ledgers_that_name_it(store: ZooKeeperStore, root: str) -> None:
    nodes = sound_cluster()
    await put(store, root, {path: node for path, node in nodes.items() if not path.endswith(f"/{BOOKIES[2]}")})
    [found] = (await examine(store, root)).findings
    removed = BOOKIES[2]
    assert (found.rule.id, found.path, found.subject) == ("removed-bookie-with-ledgers", f"{root}/{LEDGER}", removed)
    assert "has no cookie and is not registered" in found.problem
    assert "Start the bookie" not in found.cure
    assert "bkctl decommission" not in found.cure
    assert f"bkctl recover failed-bookie {removed} moves what still has copies" in found.cure


# -- trees of Java --------------------------------------------------------------------------------------------------


NOBODY_ELECTED = {"no-auditor": {"underreplication/auditorelection"}}
AT_WORK = {
    "forbidden-ledger-id": {FORBIDDEN},
    "bookie-down-with-ledgers": {"cookies/127.0.0.1:13384"},
    "ledger-ack-quorum-one": {"00/0000/L0003"},
    "ledger-format-one": {"00/0000/L0010"},
    "empty-mark-directory": {"underreplication/ledgers/0000/0001/0000"},
}


@pytest.mark.parametrize(
    ("layout", "expected"), [("hierarchical", AT_WORK), ("longhierarchical", NOBODY_ELECTED), ("flat", NOBODY_ELECTED)]
)
async def test_trees_that_java_wrote(
    store: ZooKeeperStore, root: str, layout: str, expected: dict[str, set[str]]
) -> None:
    """Golden: a new cluster of each kind, and one at work, in which somebody created the ledger with the largest id."""
    await plant(store, root, java_tree(f"init {layout}"))
    assert (await examine(store, root)).findings == ()
    at_work = f"{root}-at-work"
    await plant(store, at_work, java_tree(f"{layout} at work"))
    assert found_in(await examine(store, at_work), at_work) == expected
