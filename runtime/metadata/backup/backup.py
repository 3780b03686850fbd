"""Surveys a cluster's metadata and backs it up. Source: metadata section 1.

A backup has every persistent node below the ledgers root, at the version at which it was read. It omits nodes that
belong to a session or are created again on demand: registrations, replication locks, votes, ``ID-`` nodes, Pulsar's
``leader``, and all other ephemeral nodes. Of autorecovery's notes, which are not below the root, it has those of
bookies in maintenance: without them a recovery delay that was raised for one would stay. The others describe the
cluster at the time of the backup; auditor and workers find again what still holds. It also has the nodes of logs of
ledgers, as they were before the ledgers were read.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import re
from collections.abc import Callable

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata_format import NewerFormatError, decode_ledger_metadata
from bkctl.runtime.metadata.backup.archive import (
    FORMAT_WITH_LOGS,
    ArchivedLog,
    ArchiveEnd,
    ArchiveHeader,
    ArchiveNode,
    ArchiveWriter,
)
from bkctl.runtime.metadata.doctor.places import LEDGER_LIKE
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes, logs_path
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.paths import AVAILABLE, COOKIES, ID_PREFIX, INSTANCE_ID, LAYOUT, READ_ONLY
from bkctl.runtime.metadata.replication.maintenance import list_maintenance
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote, RecoveryNotes, notes_path
from bkctl.runtime.metadata.store import NODE_BYTES_MAX, MetadataStore
from bkctl.runtime.metadata.tree import walk_tree
from bkctl.storage.ports import FileSystem

UNDER_REPLICATION = "underreplication"
HEALTH_CHECK_DISABLED = "disableHealthCheck"
SHORT_IDS = "idgen"
LONG_IDS = "idgen-long"

_VOTES = f"{UNDER_REPLICATION}/auditorelection"
_LOCKS = f"{UNDER_REPLICATION}/locks"
_LEADER = f"{UNDER_REPLICATION}/leader"
_READ_ONLY_BOOKIES = f"{AVAILABLE}/{READ_ONLY}"
_TOP_LEVEL = {
    LedgerTree.FLAT: re.compile(r"L\d{10,}", re.ASCII),
    LedgerTree.LEGACY_HIERARCHICAL: re.compile(r"\d{2}", re.ASCII),
    LedgerTree.HIERARCHICAL: re.compile(r"\d{2,3}", re.ASCII),
    LedgerTree.LONG_HIERARCHICAL: re.compile(r"\d{3}", re.ASCII),
}
_FAULTS_KEPT_MAX = 10
_PROGRESS_EVERY_NODES = 256


class ChildKind(enum.Enum):
    """Purpose of a child of the ledgers root."""

    LEDGERS = "ledgers"
    LEDGER_IDS = "ledger ids"
    SPECIAL = "special"
    UNKNOWN = "unknown"


_SPECIAL = frozenset({AVAILABLE, COOKIES, LAYOUT, INSTANCE_ID, UNDER_REPLICATION, HEALTH_CHECK_DISABLED})


def child_kind(name: str, tree: LedgerTree) -> ChildKind:
    """Classify a child of the ledgers root by name, like the layout's Java code (metadata sections 3.5 and 4.3)."""
    if name in _SPECIAL:
        return ChildKind.SPECIAL
    if name in {SHORT_IDS, LONG_IDS} or name.startswith(ID_PREFIX):
        return ChildKind.LEDGER_IDS
    return ChildKind.LEDGERS if _TOP_LEVEL[tree].fullmatch(name) else ChildKind.UNKNOWN


def is_left_out(path: str) -> bool:
    """Whether a backup always omits the node at ``path`` below the root, ephemeral or not."""
    parent, _, name = path.rpartition("/")
    if name.startswith(ID_PREFIX) and parent.partition("/")[0] in {"", SHORT_IDS, LONG_IDS}:
        return True
    return (
        path in {_VOTES, _LEADER}
        or parent in {_LOCKS, _READ_ONLY_BOOKIES}
        or (parent == AVAILABLE and name != READ_ONLY)
    )


class ChildSurvey(msgspec.Struct, frozen=True):
    """A child of the root and all nodes below it. ``digest``: SHA-256 over the paths and versions of its nodes."""

    name: str
    kind: ChildKind
    nodes: int
    ledgers: int
    digest: str


class ClusterSurvey(msgspec.Struct, frozen=True):
    """Contents of a cluster. ``faults``: the first ten ledger nodes that a restore would not create.

    ``newer_count``: ledgers of a newer release, which a restore by this one would not create either.
    """

    children: tuple[ChildSurvey, ...]
    faults: tuple[str, ...]
    faults_count: int
    newer_count: int = 0

    @property
    def ledgers(self) -> int:
        """Total number of ledgers."""
        return sum(child.ledgers for child in self.children)

    @property
    def nodes(self) -> int:
        """Total number of nodes, without the root."""
        return sum(child.nodes for child in self.children)


class SurveyedLedger(msgspec.Struct, frozen=True):
    """Meaning of a path in the ledger tree: ``ledger_id``, or the ``fault`` that makes the node useless."""

    ledger_id: int | None
    fault: str | None = None
    is_newer: bool = False


def parse_ledger_node(path: str, data: bytes, tree: LedgerTree) -> SurveyedLedger | None:
    """Classify the node at ``path`` below the root as a ledger; None when it neither is nor resembles one."""
    if not LEDGER_LIKE.fullmatch(path):
        return None
    ledger_id = tree.parse_ledger_path(path)
    if ledger_id is None:
        return SurveyedLedger(None, f"{path}: no ledger can be stored there")
    if len(data) > NODE_BYTES_MAX:
        return SurveyedLedger(ledger_id, f"ledger {ledger_id}: {len(data)} bytes exceed the size limit of a node")
    try:
        decode_ledger_metadata(data)
    except MetadataFormatError as error:
        return SurveyedLedger(ledger_id, f"ledger {ledger_id}: {error}", isinstance(error, NewerFormatError))
    return SurveyedLedger(ledger_id)


async def survey_cluster(
    store: MetadataStore,
    root: str,
    tree: LedgerTree,
    *,
    take: Callable[[ArchiveNode], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> ClusterSurvey:
    """Read every node that a backup stores and pass each to ``take``; ``on_progress`` gets the nodes so far."""
    await store.sync(root)
    counts: list[_Count] = []
    faults: list[str] = []
    faults_count = nodes_count = newer_count = 0
    nodes = walk_tree(store, root, is_skipped=lambda path: is_left_out(path[len(root) + 1 :]))
    async with contextlib.aclosing(nodes):
        async for found in nodes:
            if found.node.stat.ephemeral_owner:
                continue
            path = found.path[len(root) + 1 :]
            # Data that a bookie stored in this node is not metadata (metadata section 1, note a).
            data = b"" if path == _READ_ONLY_BOOKIES else found.node.data
            if take is not None:
                take(ArchiveNode(path, found.node.stat.version, found.node.stat.ctime_ms, data))
            nodes_count += 1
            if on_progress is not None and nodes_count % _PROGRESS_EVERY_NODES == 0:
                on_progress(nodes_count)
            if not path:
                continue
            name = path.partition("/")[0]
            if not counts or counts[-1].name != name:
                counts.append(_Count(name))
            ledger = parse_ledger_node(path, data, tree)
            counts[-1].add(path, found.node.stat.version, is_ledger=ledger is not None)
            if ledger is not None and ledger.fault is not None:
                faults_count += 1
                newer_count += ledger.is_newer
                if len(faults) < _FAULTS_KEPT_MAX:
                    faults.append(ledger.fault)
    return ClusterSurvey(tuple(count.finish(tree) for count in counts), tuple(faults), faults_count, newer_count)


async def survey_notes(store: MetadataStore, root: str) -> ChildSurvey | None:
    """Autorecovery's notes of the cluster; None if there are none. ``name`` is their path."""
    return await _survey_outside(store, notes_path(root))


async def survey_logs(store: MetadataStore, root: str) -> ChildSurvey | None:
    """The nodes of the cluster's logs of ledgers; None if there are none. ``name`` is their path."""
    return await _survey_outside(store, logs_path(root))


async def _survey_outside(store: MetadataStore, path: str) -> ChildSurvey | None:
    count = _Count(path)
    nodes_count = 0
    async with contextlib.aclosing(walk_tree(store, path)) as nodes:
        async for found in nodes:
            if not found.node.stat.ephemeral_owner:
                count.add(found.path, found.node.stat.version, is_ledger=False)
                nodes_count += 1
    return count.finish_as(ChildKind.SPECIAL) if nodes_count else None


async def read_maintenance(store: MetadataStore, root: str) -> dict[str, MaintenanceNote] | msgspec.UnsetType:
    """What the first line of an archive has of autorecovery's notes; without those that cannot be read."""
    found = await list_maintenance(RecoveryNotes(store, root))
    return {each.bookie_id: each.note for each in found if each.note is not None} or msgspec.UNSET


class _Count:
    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes = 0
        self._ledgers = 0
        self._hash = hashlib.sha256()

    def add(self, path: str, version: int, *, is_ledger: bool) -> None:
        """Count one node of it."""
        self._nodes += 1
        self._ledgers += is_ledger
        self._hash.update(f"{path} {version}\n".encode())

    def finish(self, tree: LedgerTree) -> ChildSurvey:
        """Return the totals."""
        return self.finish_as(child_kind(self.name, tree))

    def finish_as(self, kind: ChildKind) -> ChildSurvey:
        """Return the totals of a child of this kind."""
        return ChildSurvey(self.name, kind, self._nodes, self._ledgers, self._hash.hexdigest())


async def backup_cluster(
    store: MetadataStore,
    header: ArchiveHeader,
    tree: LedgerTree,
    fs: FileSystem,
    path: str,
    *,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[ClusterSurvey, ArchiveEnd]:
    """Write the cluster at ``header.root`` to a new archive file, all or nothing; OSError, ConflictError."""
    with ArchiveWriter(fs, path, header) as writer:
        if header.format == FORMAT_WITH_LOGS:
            async for name, data in LogNodes(store, header.root).raw_nodes():
                writer.add_log(ArchivedLog(name, data))
        survey = await survey_cluster(store, header.root, tree, take=writer.add, on_progress=on_progress)
        return survey, writer.finish(survey.ledgers)
