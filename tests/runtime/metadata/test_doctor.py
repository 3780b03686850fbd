"""The metadata doctor on a real ZooKeeper: it finds every bad node, nothing else, and changes nothing."""

from __future__ import annotations

import pytest

from runtime.metadata.doctor import DoctorReport, examine_cluster
from runtime.metadata.doctor_catalogue import RULES, Severity
from runtime.metadata.layout import LedgerTree
from runtime.metadata.store import MetadataStore
from runtime.metadata.zookeeper import ZooKeeperStore
from tests.runtime.metadata.bad_nodes import BAD_NODES, INFORMATION, BadNode, put, sound_cluster, with_bad_node
from tests.runtime.metadata.trees import read_tree

NOW_MS = 0
"""Nodes that are made in a test are younger than that: what takes long has not begun."""


async def examine(store: MetadataStore, root: str, tree: LedgerTree | None = None) -> DoctorReport:
    return await examine_cluster(store, root, tree, NOW_MS, settle_s=0.01)


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
        "writable_bookies": 2,
        "read_only_bookies": 1,
        "cookies": 3,
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
