"""Range of ledger ids of each node of the ledger tree. Source: metadata sections 4.1 and 4.3. Pure.

The name of an interior node is decimal digits: with those of the nodes above, the leading digits of the ids below it.
The hierarchical layout has two branches, short ids before long ones; the range of each ends where the other begins.
Nodes outside their branch's range contain no ledgers, because no client looks for ledgers there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec

from bkctl.runtime.metadata.ledgers.layout import SHORT_ID_LIMIT, LedgerTree
from bkctl.runtime.metadata.paths import LAYOUT, long_ledger
from bkctl.storage.ids import LEDGER_ID_MAX

Ignore = Callable[[str], None]
"""Called with the path below the root of each child that neither is a ledger nor leads to one."""

_SHORT_DIGITS = 10
_LEAF_DIGITS = 4
_PLAIN_LEAVES = re.compile(r"L\d{4}(?:/L\d{4})*", re.ASCII)
_PLAIN_FLAT = re.compile(r"L\d{10}", re.ASCII)
_LONG_OF_SHORT_IDS = "000/0000"
"""Where the long layout stores the ids below ``SHORT_ID_LIMIT``, for which the hierarchical one has another branch."""
_LEDGER_BRANCH = re.compile(r"L\d{10,19}|\d{2,3}", re.ASCII)
_FLAT_SPECIAL = re.compile(
    rf"{LAYOUT}|INSTANCEID|available|cookies|underreplication|idgen|idgen-long|disableHealthCheck|ID-.*"
)


class LedgerNode(msgspec.Struct, frozen=True, gc=False):
    """A node that may have ledgers below it, and the range of their ids, both ends included."""

    path: str
    """Path below the ledgers root; empty for the root itself."""
    first_ledger_id: int
    last_ledger_id: int
    digits_below: tuple[int, ...] | None
    """Digits of the names of the interior nodes below, level by level; empty: its children are the ledgers. None: the
    root of a tree, whose branches differ."""


def root_node(tree: LedgerTree) -> LedgerNode:
    """The root, whose range is every id."""
    return LedgerNode("", 0, LEDGER_ID_MAX, () if tree is LedgerTree.FLAT else None)


def node_at(tree: LedgerTree, path: str) -> LedgerNode | None:
    """The node at a path below the root; None if the layout has no ledgers there."""
    node = root_node(tree)
    for name in path.split("/") if path else ():
        below = [] if node.digits_below == () else interior_children(tree, node, [name], lambda _: None)
        if not below:
            return None
        node = below[0]
    return node


def interior_children(tree: LedgerTree, node: LedgerNode, names: Iterable[str], ignore: Ignore) -> list[LedgerNode]:
    """Children that lead to ledgers, ascending by range; passes other names to ``ignore``."""
    assert node.digits_below != (), "a bucket's children are ledgers"
    if node.digits_below is None:
        return [child for branch in tree.level_digits for child in _children(tree, node, branch, names, ignore)]
    return list(_children(tree, node, node.digits_below, names, ignore))


def _children(
    tree: LedgerTree, node: LedgerNode, digits_below: tuple[int, ...], names: Iterable[str], ignore: Ignore
) -> Iterator[LedgerNode]:
    digits, *rest = digits_below
    width = 10 ** (sum(rest) + _LEAF_DIGITS)
    domain_first, domain_last = _domain(tree, sum(digits_below) + _LEAF_DIGITS + _digits_in(node.path))
    base = int(node.path.replace("/", "") or 0) * 10**digits * width
    for name in sorted(names):
        path = f"{node.path}/{name}" if node.path else name
        if len(name) != digits or not (name.isascii() and name.isdecimal()):
            if node.path:
                ignore(path)
            continue
        start = base + int(name) * width
        first, last = max(start, domain_first), min(start + width - 1, domain_last)
        if first <= last:
            yield LedgerNode(path, first, last, tuple(rest))
        else:
            ignore(path)


def _digits_in(path: str) -> int:
    return len(path) - path.count("/")


def _domain(tree: LedgerTree, digits: int) -> tuple[int, int]:
    """First and last id of the branch for ids with this many digits."""
    if tree is LedgerTree.HIERARCHICAL:
        return (0, SHORT_ID_LIMIT - 1) if digits == _SHORT_DIGITS else (SHORT_ID_LIMIT, LEDGER_ID_MAX)
    return 0, min(10**digits - 1, LEDGER_ID_MAX)


def ledgers_in(tree: LedgerTree, bucket: LedgerNode, names: list[str], ignore: Ignore) -> list[int]:
    """Ids of the ledgers among the sorted children of a bucket, ascending."""
    if bucket.path:
        joined = "/".join(names)
        if _PLAIN_LEAVES.fullmatch(joined):
            base = int(bucket.path.replace("/", "")) * 10**_LEAF_DIGITS
            ids = [base + leaf for leaf in map(int, joined.replace("L", "").split("/"))]
            if bucket.first_ledger_id <= ids[0] and ids[-1] <= bucket.last_ledger_id:
                return ids
    ids = []
    for name in names:
        if not bucket.path and _PLAIN_FLAT.fullmatch(name):
            ids.append(int(name[1:]))
            continue
        path = f"{bucket.path}/{name}" if bucket.path else name
        ledger_id = tree.parse_ledger_path(path)
        if ledger_id is not None:
            ids.append(ledger_id)
        elif bucket.path or not _FLAT_SPECIAL.fullmatch(name):
            ignore(path)
    ids.sort()
    return ids


async def find_foreign_branch(tree: LedgerTree, children: Callable[[str], Awaitable[list[str]]]) -> str | None:
    """A node below the root that only ledgers of other layouts have; None if there is none.

    ``children`` lists the children of a path below the root.
    """
    names = await children("")
    widths = {digits[0] for digits in tree.level_digits if digits}
    for name in names:
        is_own = tree is LedgerTree.FLAT if name.startswith("L") else len(name) in widths
        if _LEDGER_BRANCH.fullmatch(name) and not is_own:
            return name
    if tree is LedgerTree.HIERARCHICAL and "000" in names:
        last = long_ledger(SHORT_ID_LIMIT).split("/")[2]
        below = await children(_LONG_OF_SHORT_IDS)
        return next((f"{_LONG_OF_SHORT_IDS}/{name}" for name in below if name < last), None)
    return None
