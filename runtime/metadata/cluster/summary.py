"""A cluster at a glance: its bookies, its auditor, whether any ledger is marked under-replicated.

Source: cli-parity card 31; metadata sections 1, 10 and 11. Reading creates no nodes, unlike in Java.
"""

from __future__ import annotations

from contextlib import aclosing

import msgspec

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.metadata.bookies.registration import RegistrationClient
from bkctl.runtime.metadata.cluster.root import ClusterInfo, read_cluster_info
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.election import read_auditor
from bkctl.runtime.metadata.replication.marks import list_marks
from bkctl.runtime.metadata.replication.switches import ReplicationSwitches
from bkctl.runtime.metadata.store import MetadataStore


class ClusterSummary(msgspec.Struct, frozen=True):
    """Data of ``cluster info``; ``auditor_id`` is None when no auditor is elected, or its vote cannot be read.

    Only an auditor detects missing copies. ``is_under_replicated`` is None (unknown) if no ledger is marked and either
    no auditor runs or some bookies are not registered, which the auditor may not have noticed yet.
    ``is_replication_enabled`` is None if the switch is on and no auditor is elected.
    ``known_count`` counts the bookies that own a cookie: all that ever joined and were not decommissioned.
    """

    info: ClusterInfo
    is_auditor_elected: bool
    auditor_id: str | None
    is_under_replicated: bool | None
    is_replication_enabled: bool | None
    known_count: int
    writable_count: int
    read_only_count: int

    @property
    def unavailable_count(self) -> int:
        """Known bookies that are not registered."""
        return max(0, self.known_count - self.writable_count - self.read_only_count)


async def read_cluster_summary(
    store: MetadataStore, root: str, layout_config: LayoutConfig | None = None
) -> ClusterSummary:
    """Read the summary of a cluster; ClusterNotFoundError."""
    info = await read_cluster_info(store, root, layout_config)
    client = RegistrationClient(store, root)
    registrations = await client.snapshot()
    foreign = ForeignNames()
    auditor = await read_auditor(store, root, foreign)
    has_mark = await _has_mark(store, root, foreign)
    is_switched_on = await ReplicationSwitches(store, root).is_enabled()
    summary = ClusterSummary(
        info=info,
        is_auditor_elected=auditor is not None,
        auditor_id=None if auditor is None else auditor.bookie_id,
        is_under_replicated=True if has_mark else None,
        is_replication_enabled=None if is_switched_on and auditor is None else is_switched_on,
        known_count=len(await client.with_cookie()),
        writable_count=len(registrations.writable),
        read_only_count=len(registrations.read_only),
    )
    if not has_mark and summary.is_replication_enabled and not summary.unavailable_count:
        return msgspec.structs.replace(summary, is_under_replicated=False)
    return summary


async def _has_mark(store: MetadataStore, root: str, foreign: ForeignNames) -> bool:
    """Whether any ledger is marked. Interior nodes outlive their marks, so one branch is not enough to tell."""
    async with aclosing(list_marks(store, root, foreign, window=1)) as marks:
        async for _ in marks:
            return True
    return False
