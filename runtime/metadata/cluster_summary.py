"""A cluster at one glance: its bookies, its auditor, whether anything is marked under-replicated.

Source: cli-parity card 31; metadata sections 1, 10 and 11. Nothing is created by looking, unlike in Java.
"""

from __future__ import annotations

import msgspec

from runtime.errors import MetadataFormatError, NoNodeError
from runtime.ledger.protobuf_text import parse_fields
from runtime.metadata.cluster import ClusterInfo, read_cluster_info
from runtime.metadata.metadata_nodes_pb2 import ReplicationLockRecord
from runtime.metadata.paths import MARK_PREFIX, Paths
from runtime.metadata.registration import RegistrationClient
from runtime.metadata.store import MetadataStore

_VOTE_PREFIX = "V_"


class ClusterSummary(msgspec.Struct, frozen=True):
    """What ``cluster info`` shows; ``auditor_id`` is None when nobody is elected, or the vote cannot be read.

    ``known_count`` counts the bookies that own a cookie: all that ever joined and were not decommissioned.
    """

    info: ClusterInfo
    is_auditor_elected: bool
    auditor_id: str | None
    is_under_replicated: bool
    is_replication_enabled: bool
    known_count: int
    writable_count: int
    read_only_count: int

    @property
    def unavailable_count(self) -> int:
        """Known bookies that are not registered."""
        return max(0, self.known_count - self.writable_count - self.read_only_count)


async def read_cluster_summary(store: MetadataStore, root: str) -> ClusterSummary:
    """Look at a cluster; ClusterNotFoundError."""
    paths = Paths(root)
    info = await read_cluster_info(store, root)
    client = RegistrationClient(store, root)
    registrations = await client.snapshot()
    is_elected, auditor_id = await _read_auditor(store, paths)
    return ClusterSummary(
        info=info,
        is_auditor_elected=is_elected,
        auditor_id=auditor_id,
        is_under_replicated=await _has_mark(store, paths.under_replicated_ledgers),
        is_replication_enabled=await store.exists(paths.replication_disabled) is None,
        known_count=len(await client.with_cookie()),
        writable_count=len(registrations.writable),
        read_only_count=len(registrations.read_only),
    )


async def _read_auditor(store: MetadataStore, paths: Paths) -> tuple[bool, str | None]:
    """The lowest vote wins; its contents name the bookie."""
    votes = [name for name in await _children(store, paths.auditor_election) if name.startswith(_VOTE_PREFIX)]
    if not votes:
        return False, None
    winner = min(votes, key=lambda name: int(name.removeprefix(_VOTE_PREFIX)))
    try:
        node = await store.get(f"{paths.auditor_election}/{winner}")
        # A vote and a lock hold the same single field.
        vote = parse_fields(node.data.decode("utf-8", "replace"), ReplicationLockRecord(), winner)
    except NoNodeError:
        return False, None  # the winner has just gone
    except MetadataFormatError:
        return True, None
    return True, vote.bookieId or None


async def _has_mark(store: MetadataStore, path: str) -> bool:
    """Whether any ledger below is marked. Interior nodes outlive their marks, so the first branch may be empty."""
    for name in await _children(store, path):
        if name.startswith(MARK_PREFIX) or await _has_mark(store, f"{path}/{name}"):
            return True
    return False


async def _children(store: MetadataStore, path: str) -> list[str]:
    try:
        return await store.children(path)
    except NoNodeError:
        return []
