"""Trees of nodes as ZooKeeper has them, permissions included; and what of them may differ between two runs."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, encode_ledger_metadata

_UUID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MARK_TIME = re.compile(rb"ctime: \d{13}\n")
_CHECK_TIME = re.compile(rb"\x08[\x80-\xff]{5}[\x01-\x7f]")


class Znode(NamedTuple):
    """A node: data, version, whether it goes with its session, and who may do what with it."""

    data: bytes
    version: int
    is_ephemeral: bool
    acl: tuple[str, ...]


def dump(client: KazooClient, root: str) -> dict[str, Znode]:
    """All nodes at and below a root, by path below it; empty when there are none."""
    found: dict[str, Znode] = {}
    pending = [root]
    while pending:
        path = pending.pop()
        try:
            data, stat = client.get(path)
            acls, _ = client.get_acls(path)
            children = client.get_children(path)
        except NoNodeError:
            continue
        acl = tuple(sorted(f"{each.id.scheme}:{each.id.id}:{each.perms}" for each in acls))
        found[path[len(root) :]] = Znode(data or b"", stat.version, stat.ephemeralOwner != 0, acl)
        pending += [f"{path}/{name}" for name in children]
    return {path: found[path] for path in sorted(found)}


def comparable(tree: dict[str, Znode]) -> dict[str, Znode]:
    """The tree with the same identity, times and creators' tokens for everybody, and labels in order."""
    return {path: node._replace(data=_comparable_data(path, node.data)) for path, node in tree.items()}


def _comparable_data(path: str, data: bytes) -> bytes:
    if path.rpartition("/")[2].startswith("L") and data.startswith(b"BookieMetadataFormatVersion"):
        return _without_token(data)
    if path.endswith("ctime") and _CHECK_TIME.fullmatch(data):
        return b"a time"
    return _MARK_TIME.sub(b"ctime: a time\n", _UUID.sub(b"an instance id", data))


def _without_token(data: bytes) -> bytes:
    """Only what encodes to the very same bytes again is touched, so nothing else can be hidden by it."""
    try:
        metadata = decode_ledger_metadata(data)
    except MetadataFormatError:
        return data
    if encode_ledger_metadata(metadata) != data:
        return data
    labels = tuple(sorted(metadata.custom_metadata))
    return encode_ledger_metadata(
        msgspec.structs.replace(metadata, creator_token=1 if metadata.creator_token else 0, custom_metadata=labels)
    )
