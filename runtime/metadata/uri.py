"""Where a cluster's metadata is: ``zk+<layout>://<servers>/<ledgers root>``. Source: metadata section 2.2."""

from __future__ import annotations

import urllib.parse

import msgspec

from runtime.errors import ConfigurationError
from runtime.metadata.layout import LedgerTree

EXAMPLE = "zk+hierarchical://localhost:2181/ledgers"
_ANY_TREE = "null"
_URI_NAMES = {tree.uri_name: tree for tree in LedgerTree if tree is not LedgerTree.LEGACY_HIERARCHICAL}


class MetadataUri(msgspec.Struct, frozen=True):
    """A parsed metadata URI. ``tree`` None: whatever the cluster was created with."""

    servers: str
    """Connect string of ZooKeeper, ``host:port,host:port``."""
    root: str
    """Absolute path of the ledgers root."""
    tree: LedgerTree | None

    def __str__(self) -> str:
        name = self.tree.uri_name if self.tree is not None else _ANY_TREE
        return f"zk+{name}://{self.servers.replace(',', ';')}{self.root}"


def parse_metadata_uri(text: str) -> MetadataUri:
    """Parse as Java does; ConfigurationError in one sentence. Servers may be separated by ``;`` or ``,``."""
    scheme, separator, rest = text.strip().partition("://")
    backend, *types = scheme.lower().split("+")
    if not separator or backend != "zk":
        raise ConfigurationError(f"metadata URI {text!r} does not start with zk: write {EXAMPLE}")
    name = types[0] if types else _ANY_TREE
    if name != _ANY_TREE and name not in _URI_NAMES:
        known = ", ".join([*_URI_NAMES, _ANY_TREE])
        raise ConfigurationError(f"metadata URI {text!r}: {name!r} is no ledger layout ({known})")
    authority, slash, path = rest.partition("/")
    path = urllib.parse.unquote(path.partition("?")[0].partition("#")[0])
    if not authority.strip():
        raise ConfigurationError(f"metadata URI {text!r} names no ZooKeeper server: write {EXAMPLE}")
    root = slash + path
    if len(root) < 2 or root.endswith("/") or "//" in root:
        # Java takes the path verbatim and fails on every operation below it.
        raise ConfigurationError(f"metadata URI {text!r}: {root!r} is no ledgers root: write {EXAMPLE}")
    servers = ",".join(part.strip() for part in authority.replace(";", ",").split(",") if part.strip())
    return MetadataUri(servers=servers, root=root, tree=_URI_NAMES.get(name))
