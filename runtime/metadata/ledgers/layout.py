"""Ledger layouts: where a ledger's node is, and the LAYOUT node that records it. Source: metadata sections 3 and 4.

A missing LAYOUT is legal: Pulsar's own set-up does not create one. In Java the first client to connect writes it, even
for read-only commands. Here only ``cluster init`` and the creation of the first ledger write it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator

import msgspec

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import ConfigurationError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.paths import LAYOUT, Paths, flat_ledger, long_ledger, short_ledger
from bkctl.runtime.metadata.store import MetadataStore, decode_node, find_node
from bkctl.storage.ids import LEDGER_ID_MAX

SHORT_ID_LIMIT = 2**31 - 1
"""The hierarchical layout stores ids from this one on in the long form; short ids stay below it."""

_DECIMAL_ID_LIMIT = 10**10
_FACTORY_PACKAGE = "org.apache.bookkeeper.meta."
_SHADED_PREFIX = "dlshade."
_FORMAT_VERSION = 2
_OLD_FORMAT_VERSION = 1
_MANAGER_VERSION = 1
_FORMAT_LINE = re.compile(r"\+?0*([12])", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)


class LedgerTree(enum.Enum):
    """The four shapes of the ledger tree; the value is the name in URIs and old LAYOUT nodes."""

    FLAT = "flat"
    LEGACY_HIERARCHICAL = "legacyhierarchical"
    HIERARCHICAL = "hierarchical"
    LONG_HIERARCHICAL = "longhierarchical"

    @property
    def uri_name(self) -> str:
        """Name in metadata URIs; the legacy layout has none of its own."""
        return "null" if self is LedgerTree.LEGACY_HIERARCHICAL else self.value

    @property
    def factory(self) -> str:
        """Java class named in the LAYOUT node."""
        return _FACTORY_PACKAGE + _FACTORIES[self]

    @property
    def prunes_parents(self) -> bool:
        """Whether deleting a ledger removes interior nodes left empty."""
        return self in {LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL}

    @property
    def level_digits(self) -> tuple[tuple[int, ...], ...]:
        """Digits of the interior node names, level by level, for each kind of branch below the root."""
        return _LEVEL_DIGITS[self]

    def ledger_path(self, ledger_id: int) -> str:
        """Path of a ledger's node below the root; RefusedError for an id that must not or cannot be stored."""
        require_storable_id(ledger_id)
        match self:
            case LedgerTree.FLAT:
                return flat_ledger(ledger_id)
            case LedgerTree.LONG_HIERARCHICAL:
                return long_ledger(ledger_id)
            case LedgerTree.HIERARCHICAL:
                return short_ledger(ledger_id) if ledger_id < SHORT_ID_LIMIT else long_ledger(ledger_id)
            case LedgerTree.LEGACY_HIERARCHICAL:
                if ledger_id >= _DECIMAL_ID_LIMIT:
                    raise RefusedError(f"ledger id {ledger_id} has more digits than the {self.value} layout stores")
                return short_ledger(ledger_id)

    def parse_ledger_path(self, path: str) -> int | None:
        """Id of the ledger whose node is at ``path`` below the root; None if this layout has no ledger there.

        A path that spells an id differently from ``ledger_path`` is no ledger: no client would find it by its id. Nor
        is the forbidden id 2^63-1.
        """
        digits = _LEDGER_PATH.fullmatch(path)
        if digits is None:
            return None
        ledger_id = int(path.replace("/", "").replace("L", ""))
        if ledger_id > LEDGER_ID_MAX or (self is LedgerTree.LEGACY_HIERARCHICAL and ledger_id >= _DECIMAL_ID_LIMIT):
            return None
        return ledger_id if self.ledger_path(ledger_id) == path else None


_LEDGER_PATH = re.compile(r"(?:\d{1,4}/){0,4}L\d{1,19}", re.ASCII)
_FACTORIES = {
    LedgerTree.FLAT: "FlatLedgerManagerFactory",
    LedgerTree.LEGACY_HIERARCHICAL: "LegacyHierarchicalLedgerManagerFactory",
    LedgerTree.HIERARCHICAL: "HierarchicalLedgerManagerFactory",
    LedgerTree.LONG_HIERARCHICAL: "LongHierarchicalLedgerManagerFactory",
}
_SHORT_LEVELS = (2, 4)
_LONG_LEVELS = (3, 4, 4, 4)
_LEVEL_DIGITS: dict[LedgerTree, tuple[tuple[int, ...], ...]] = {
    LedgerTree.FLAT: ((),),
    LedgerTree.LEGACY_HIERARCHICAL: (_SHORT_LEVELS,),
    LedgerTree.HIERARCHICAL: (_SHORT_LEVELS, _LONG_LEVELS),
    LedgerTree.LONG_HIERARCHICAL: (_LONG_LEVELS,),
}


def require_storable_id(ledger_id: int) -> None:
    """RefusedError for a negative id and for 2^63-1, which makes every Java bookie delete all its ledgers."""
    if ledger_id > LEDGER_ID_MAX:
        raise RefusedError(
            f"ledger id {ledger_id} is rejected: in the metadata it makes Java bookies delete all their ledgers"
        )
    if ledger_id < 0:
        raise RefusedError(f"{ledger_id} is not a ledger id")


class LedgerLayout(msgspec.Struct, frozen=True):
    """Contents of the LAYOUT node."""

    tree: LedgerTree
    format_version: int = _FORMAT_VERSION


def encode_layout(layout: LedgerLayout) -> bytes:
    """Bytes of a LAYOUT node as Java writes it now, without a final newline."""
    return f"{_FORMAT_VERSION}\n{layout.tree.factory}:{_MANAGER_VERSION}".encode()


def decode_layout(data: bytes, *, is_shaded_factory_allowed: bool = False) -> LedgerLayout:
    """LAYOUT from bytes: format 2 has a Java class, format 1 a short name. MetadataFormatError.

    Lines after the second are ignored, as in Java.
    """
    lines = data.decode("utf-8", "replace").split("\n")
    format_line = _FORMAT_LINE.fullmatch(lines[0])
    name, *rest = (lines[1] if len(lines) > 1 else "").rstrip(":").split(":")
    if format_line is None or len(rest) != 1 or not _NUMBER.fullmatch(rest[0]):
        raise MetadataFormatError(f"cannot parse LAYOUT: {data[:100]!r}")
    format_version = int(format_line[1])
    tree = (
        _OLD_NAMES.get(name)
        if format_version == _OLD_FORMAT_VERSION
        else tree_of_factory(name, is_shaded_factory_allowed=is_shaded_factory_allowed)
    )
    if tree is None:
        raise MetadataFormatError(f"LAYOUT has {name!r}, a ledger layout that bkctl does not support")
    if int(rest[0]) != _MANAGER_VERSION:
        raise MetadataFormatError(f"LAYOUT has version {rest[0]} of {name}; only version 1 exists")
    return LedgerLayout(tree=tree, format_version=format_version)


def tree_of_factory(name: str, *, is_shaded_factory_allowed: bool) -> LedgerTree | None:
    """The tree of a Java class, None for an unknown one. MetadataFormatError for a repackaged one unless allowed."""
    plain_name = name.removeprefix(_SHADED_PREFIX)
    tree = next((tree for tree in LedgerTree if tree.factory == plain_name), None)
    if tree is not None and plain_name != name and not is_shaded_factory_allowed:
        raise MetadataFormatError(
            f"LAYOUT has {name}, a repackaged class: allow it with allowShadedLedgerManagerFactoryClass=true"
        )
    return tree


async def read_layout(
    store: MetadataStore, root: str, *, is_shaded_factory_allowed: bool = False
) -> LedgerLayout | None:
    """The cluster's layout; None when no LAYOUT is recorded. MetadataFormatError includes the path of the node."""
    path = Paths(root).layout
    node = await find_node(store, path)
    if node is None:
        return None
    return decode_node(
        path, node, lambda data: decode_layout(data, is_shaded_factory_allowed=is_shaded_factory_allowed)
    )


def choose_tree(
    recorded: LedgerLayout | None, wanted: LedgerTree | None, config: LayoutConfig | None = None
) -> LedgerTree:
    """The tree to use, by metadata section 3.3; ``wanted`` is the layout in the metadata URI.

    ConfigurationError when the cluster's layout is a different one. A LAYOUT of the old format is compared only with
    ``ledgerManagerType``, as in Java.
    """
    manager_type = config.ledger_manager_type if config is not None else None
    if recorded is None:
        return wanted or _tree_of_type(manager_type)
    if recorded.format_version == _OLD_FORMAT_VERSION:
        if manager_type not in {None, recorded.tree.value}:
            raise ConfigurationError(
                f"ledgerManagerType is {manager_type}, but the cluster was created as {recorded.tree.value}"
            )
    elif wanted is not None and wanted is not recorded.tree:
        raise ConfigurationError(
            f"the metadata URI has {wanted.value}, but the cluster was created as {recorded.tree.value}: "
            f"use zk+{recorded.tree.uri_name}:// or zk+null://"
        )
    return recorded.tree


def _tree_of_type(manager_type: str | None) -> LedgerTree:
    if manager_type is None:
        return LedgerTree.HIERARCHICAL
    for tree in _TYPES:
        if manager_type == tree.value:
            return tree
    known = ", ".join(tree.value for tree in _TYPES)
    raise ConfigurationError(f"ledgerManagerType = {manager_type}: no such ledger layout ({known})")


_TYPES = (LedgerTree.FLAT, LedgerTree.HIERARCHICAL, LedgerTree.LONG_HIERARCHICAL)
_OLD_NAMES = {tree.value: tree for tree in (LedgerTree.FLAT, LedgerTree.HIERARCHICAL)}


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
    """A node that may have ledgers below it, and the range of their ids, both ends included.

    The name of an interior node is decimal digits: with those of the nodes above, the leading digits of the ids below.
    The hierarchical layout has two branches, short ids before long ones; the range of each ends where the other begins.
    Nodes outside their branch's range contain no ledgers, because no client looks for ledgers there.
    """

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
