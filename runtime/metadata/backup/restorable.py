"""Which nodes of an archive are not written again, beside ledgers that nobody can read. Pure.

A backup holds what was there, also what nobody should have written. A restore does not bring that back: it would make
Java clients hang, auditors fail, or nobody read it (metadata sections 4.3, 9.4, 10 and 12).
"""

from __future__ import annotations

from runtime.metadata.backup.archive import ArchiveNode
from runtime.metadata.backup.backup import ChildKind, child_kind
from runtime.metadata.doctor.places import Kind, place_of
from runtime.metadata.doctor.rules import Surroundings, examine
from runtime.metadata.ledgers.layout import LedgerTree
from runtime.metadata.store import NODE_BYTES_MAX, Node, NodeStat

_RULES = frozenset(
    {
        "invalid-bookie-name",
        "stray-among-ledgers",
        "stray-node",
        "replication-layout-unreadable",
        "unreadable-mark",
        "delay-unreadable",
        "check-time-unreadable",
    }
)
"""Of the metadata doctor."""


def find_node_fault(node: ArchiveNode, tree: LedgerTree) -> str | None:
    """Why a node that is no ledger is left out by a restore; None for one that is brought back."""
    if len(node.data) > NODE_BYTES_MAX:
        return f"{node.path}: {len(node.data)} bytes are more than a node holds"
    place = place_of(node.path, tree)
    top = node.path.partition("/")[0]
    if place.kind is Kind.STRAY_IN_LEDGERS and child_kind(top, tree) is not ChildKind.LEDGERS:
        return None  # below a name that is not BookKeeper's: its owner's business
    stat = NodeStat(node.version, node.ctime_ms, node.ctime_ms, ephemeral_owner=0, children_count=0)
    around = Surroundings("", tree, None, is_shaded_factory_allowed=True, has_long_ids=True, now_ms=node.ctime_ms)
    found = (each for each in examine(place, Node(node.data, stat), around) if each.rule.id in _RULES)
    return next((f"{node.path}: {each.problem}" for each in found), None)
