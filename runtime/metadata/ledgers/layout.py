"""Ledger layouts: where a ledger's node is, and the LAYOUT node that records it. Source: metadata sections 3 and 4.

A missing LAYOUT is legal: Pulsar's own set-up does not create one. In Java the first client to connect writes it, even
for read-only commands. Here only ``cluster init`` and the creation of the first ledger write it.
"""

from __future__ import annotations

import enum
import re

import msgspec

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import ConfigurationError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.paths import Paths, flat_ledger, long_ledger, short_ledger
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
