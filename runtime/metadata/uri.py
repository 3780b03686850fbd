"""Metadata URIs: where the metadata of a cluster is. Source: metadata sections 2.2 and 2.3.

BookKeeper writes ``zk+<layout>://<servers>/<ledgers root>``. Pulsar writes ``metadata-store:zk:<servers>[/<path>]``;
its path is a ZooKeeper chroot, and the ledgers root is ``/ledgers`` below it.
"""

from __future__ import annotations

import re
import urllib.parse

import msgspec

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.metadata.ledgers.layout import LedgerTree, tree_of_factory

EXAMPLE = "zk+hierarchical://localhost:2181/ledgers"
PULSAR_EXAMPLE = "metadata-store:zk:localhost:2181"
ROOT_DEFAULT = "/ledgers"

_ANY_TREE = "null"
_URI_NAMES = {tree.uri_name: tree for tree in LedgerTree if tree is not LedgerTree.LEGACY_HIERARCHICAL}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_PATH = re.compile(r"(?:[A-Za-z0-9_.!~*'();:@&=+$,/-]|%[0-9A-Fa-f]{2}|[^\x00-\x7f])*")
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")
_PATH_SAFE = "/-_.!~*'();:@&=+$,"
_PULSAR_SCHEME = "metadata-store:"
_PREFIX = re.compile(r"(?:metadata-store:(?:zk:)?)?(?:[^/]*//)?", re.IGNORECASE)
_SERVER = re.compile(r"(?:\[[^\]]*\]|[^:]*)(?::\d*)?")
_PULSAR_BACKENDS = ("oxia", "etcd", "rocksdb", "memory")
"""Pulsar's backends other than ZooKeeper. As in Pulsar, any other text is a list of ZooKeeper servers."""


class MetadataUri(msgspec.Struct, frozen=True):
    """A parsed metadata URI. ``tree`` None: use the layout that the cluster was created with."""

    servers: str
    """Connect string of ZooKeeper, ``host:port,host:port``."""
    root: str
    """Absolute path of the ledgers root. bkctl sets no chroot, so every process uses the same paths."""
    tree: LedgerTree | None

    def __str__(self) -> str:
        name = self.tree.uri_name if self.tree is not None else _ANY_TREE
        return f"zk+{name}://{self.servers.replace(',', ';')}{urllib.parse.quote(self.root, _PATH_SAFE)}"


def is_pulsar_uri(text: str) -> bool:
    """Whether a metadata URI names Pulsar's metadata driver."""
    return text.strip().lower().startswith(_PULSAR_SCHEME)


def parse_metadata_uri(text: str) -> MetadataUri:
    """Parse as Java does; ConfigurationError. Servers may be separated by ``;`` or ``,``."""
    text = text.strip()
    refuse_credentials(text)
    if '"' in text or text.startswith("'"):
        raise ConfigurationError(f"metadata URI {text} has quotes: remove the quotes")
    if is_pulsar_uri(text):
        return _parse_pulsar_uri(text)
    tree = _parse_scheme(text)
    rest = text.partition(":")[2].partition("#")[0].partition("?")[0]
    authority, slash, path = rest.removeprefix("//").partition("/")
    servers = _parse_servers(authority)
    if not rest.startswith("//") or not servers:
        raise ConfigurationError(
            f"metadata URI {text!r} has no ZooKeeper server: write {EXAMPLE}, or {PULSAR_EXAMPLE} as in Pulsar"
        )
    return MetadataUri(servers=servers, root=_parse_root(text, slash + path), tree=tree)


def refuse_credentials(text: str) -> None:
    """ConfigurationError, which does not show the URI, if it contains a user or a password.

    Logs, errors and the admin interface show metadata URIs. Call this before the URI gets into any of them.
    """
    prefix = _PREFIX.match(text)
    authority, _, path = text[prefix.end() if prefix else 0 :].partition("/")
    # A password may contain a slash; the port of the last server is then not a number.
    is_cut = "@" in path and not all(map(_SERVER.fullmatch, re.split("[;,]", authority)))
    if "@" in authority or is_cut:
        raise ConfigurationError(
            "the metadata URI contains a user or a password (before its '@'), which ZooKeeper clients do not use: "
            "remove it, and set zookeeper.digest or zookeeper.sasl in the TOML file to authenticate"
        )


def _parse_pulsar_uri(text: str) -> MetadataUri:
    """``metadata-store:zk:<servers>[/<path>][?<options>]``. Pulsar always uses the hierarchical layout."""
    url = text[len(_PULSAR_SCHEME) :].partition("?")[0]
    for backend in _PULSAR_BACKENDS:
        if url.lower().startswith(f"{backend}:"):
            raise ConfigurationError(
                f"metadata URI {text!r}: the metadata is in {backend!r}, but bkctl supports only ZooKeeper; for "
                f"ZooKeeper write {PULSAR_EXAMPLE}"
            )
    url = url[len("zk:") :] if url.lower().startswith("zk:") else url
    authority, slash, path = url.partition("/")
    servers = _parse_servers(authority)
    if not servers or "#" in servers:
        problem = "has '#' in the name of a server" if servers else "has no ZooKeeper server"
        raise ConfigurationError(f"metadata URI {text!r} {problem}: write {PULSAR_EXAMPLE}")
    chroot = slash + path if path else ""  # Pulsar does not percent-decode it
    root = chroot + ROOT_DEFAULT
    if not _is_usable_root(root):
        raise ConfigurationError(f"metadata URI {text!r}: {chroot!r} is no ZooKeeper path: write {PULSAR_EXAMPLE}/path")
    return MetadataUri(servers=servers, root=root, tree=LedgerTree.HIERARCHICAL)


def _parse_servers(authority: str) -> str:
    return ",".join(part.strip() for part in authority.replace(";", ",").split(",") if part.strip())


def _parse_scheme(text: str) -> LedgerTree | None:
    scheme = _SCHEME.match(text)
    backend, *types = (scheme[1] if scheme else "").lower().rstrip("+").split("+")
    if backend != "zk":
        is_backend = scheme is not None and not text[scheme.end() :][:1].isdigit()  # not host:port
        why = f"bkctl does not support the backend {backend!r}; for ZooKeeper " if is_backend else ""
        raise ConfigurationError(f"metadata URI {text!r} does not start with zk: {why}write {EXAMPLE}")
    name = types[0] if types else _ANY_TREE
    if name == LedgerTree.LEGACY_HIERARCHICAL.value:
        raise ConfigurationError(
            f"metadata URI {text!r}: {name!r} is not a ledger layout in a URI; write zk+{_ANY_TREE}:// to use "
            "the recorded layout"
        )
    if name != _ANY_TREE and name not in _URI_NAMES:
        known = ", ".join([*_URI_NAMES, _ANY_TREE])
        raise ConfigurationError(f"metadata URI {text!r}: {name!r} is not a ledger layout ({known})")
    return _URI_NAMES.get(name)


def _parse_root(text: str, raw_path: str) -> str:
    """The decoded path is the ledgers root, verbatim. Java fails on every operation if it is not a valid znode path."""
    if not _PATH.fullmatch(raw_path):
        raise ConfigurationError(f"metadata URI {text!r}: the path must be percent-encoded (%20 is a space)")
    root = urllib.parse.unquote(raw_path)
    if root in {"", "/"}:
        raise ConfigurationError(f"metadata URI {text!r}: '{root}' is not a ledgers root: write {EXAMPLE}")
    if root.endswith("/"):
        raise ConfigurationError(
            f"metadata URI {text!r}: '{root}' is not a ledgers root because it ends with a slash: remove the slash"
        )
    if not _is_usable_root(root):
        raise ConfigurationError(f"metadata URI {text!r}: {root!r} is not a ledgers root: write {EXAMPLE}")
    return root


def _is_usable_root(root: str) -> bool:
    return not any(name in {"", ".", ".."} for name in root[1:].split("/")) and not _UNUSABLE.search(root)


def legacy_metadata_uri(servers: str, root: str | None = None, factory_class: str | None = None) -> str:
    """URI built from zkServers (comma-separated), zkLedgersRootPath and ledgerManagerFactoryClass, as Java builds it.

    A chroot after the servers becomes the start of the root: ``h1:2181/chroot`` means the nodes in /chroot/ledgers.
    ConfigurationError for a class that has no name in URIs.
    """
    name = _ANY_TREE
    if factory_class is not None:
        tree = tree_of_factory(factory_class, is_shaded_factory_allowed=True)
        name = next((name for name in _URI_NAMES if _URI_NAMES[name] is tree), "")
    if not name:
        raise ConfigurationError(
            f"ledgerManagerFactoryClass = {factory_class}: cannot be converted to a metadata URI; set "
            f"metadataServiceUri=zk+{_ANY_TREE}://... to use the recorded layout"
        )
    return f"zk+{name}://{servers.replace(',', ';')}{ROOT_DEFAULT if root is None else root}"
