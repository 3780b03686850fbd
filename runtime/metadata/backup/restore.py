"""Restores a cluster's metadata from an archive. Source: metadata sections 1, 3 and 6.7.

If the root is absent, everything is restored. ``available`` comes last, with INSTANCEID, so that no bookie can
register earlier: it would find ledgers missing and delete its copies of them. Until then the root's own data marks the
restore as unfinished and identifies the archive, so that it can continue after a kill.

In an existing cluster with the same instance id, missing ledgers and cookies are added. An existing ledger is replaced,
by compare-and-set, only where the archive is ahead of it; otherwise the cluster's version is kept and reported.
Switches, delays, marks and bookies in maintenance are not changed, because their absence is information too.

In both cases, bookies of ours delete no ledgers afterwards until an operator confirms it (``CollectionNote.restored``).
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import AsyncIterator, Callable

import msgspec

from bkctl.runtime.errors import (
    BadVersionError,
    ConflictError,
    MetadataFormatError,
    NodeExistsError,
    NoNodeError,
    RefusedError,
)
from bkctl.runtime.ledger.changes import find_regression, has_other_end
from bkctl.runtime.ledger.metadata import LedgerMetadata, is_valid_bookie_id
from bkctl.runtime.ledger.metadata_format import NewerFormatError, decode_ledger_metadata
from bkctl.runtime.metadata.backup.archive import ArchiveHeader, ArchiveNode, ArchiveReader
from bkctl.runtime.metadata.backup.backup import (
    LONG_IDS,
    UNDER_REPLICATION,
    ChildKind,
    child_kind,
    is_left_out,
    parse_ledger_node,
)
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.cluster.root import RESTORE_MARK, clear_restore_mark, read_instance_id
from bkctl.runtime.metadata.doctor.places import Kind, place_of
from bkctl.runtime.metadata.doctor.rules import Surroundings, examine
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.runtime.metadata.ledgers.ids import RestoredIds, advance_ids, least_new_id
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, encode_layout
from bkctl.runtime.metadata.paths import AVAILABLE, COOKIES, INSTANCE_ID, LAYOUT, Paths
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.recovery_notes import CollectionNote, RecoveryNotes
from bkctl.runtime.metadata.store import NODE_BYTES_MAX, CreateNode, MetadataStore, Node, NodeStat, find_node
from bkctl.runtime.metadata.tree import WINDOW
from bkctl.runtime.ports import Clock
from bkctl.storage.words import counted

_FAULTS_KEPT_MAX = 10
_YIELD_EVERY_NODES = 256
_OPEN_ACL_PATHS = frozenset({f"{UNDER_REPLICATION}/lostBookieRecoveryDelay"})


_FAULTY_NODE_RULES = frozenset(
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
"""Rules of the metadata doctor. A node that breaks one of them is not restored: it would make Java clients hang or
auditors fail, or no client could read it (metadata sections 4.3, 9.4, 10 and 12)."""


class ArchiveSummary(msgspec.Struct, frozen=True):
    """A complete and undamaged archive. ``faults``: ledger nodes that cannot be restored."""

    header: ArchiveHeader
    tree: LedgerTree
    sha256: str
    nodes: int
    ledgers: int
    ids: RestoredIds
    logs: tuple[str, ...]
    """Names of the logs of ledgers."""
    bookies: frozenset[str]
    """Ids of the cookies."""
    faults: tuple[str, ...]
    faults_count: int


class Fate(enum.Enum):
    """Outcome for a node of the archive."""

    CREATED = "created"
    SAME = "already present"
    ADVANCED = "advanced to the state in the archive"
    CONFLICT = "kept as it is in the cluster"
    SKIPPED = "not restored"


class NodeFate(msgspec.Struct, frozen=True):
    """Outcome for one node. ``is_ledger``: whether it is a node of the ledger tree.

    A conflict has a reason, and so has a node that cannot be restored.
    """

    path: str
    fate: Fate
    is_ledger: bool = False
    reason: str = ""


class RestoreTarget(msgspec.Struct, frozen=True):
    """Where an archive goes. ``is_fresh``: nothing is there, or an unfinished restore of the same archive."""

    root: str
    is_fresh: bool


class NewIds(msgspec.Struct, frozen=True):
    """Where ids of new ledgers continue: unchanged, or at ``first_id``, which is None if it is too far away."""

    is_counted_anew: bool = False
    first_id: int | None = None


async def read_archive(
    reader: ArchiveReader, clock: Clock, on_progress: Callable[[int], None] | None = None
) -> ArchiveSummary:
    """Read and check all of it; MetadataFormatError when it is damaged."""
    tree = next((tree for tree in LedgerTree if tree.value == reader.header.layout), None)
    if tree is None:
        raise MetadataFormatError(f"{reader.path} has the unknown layout {reader.header.layout!r}")
    ids = RestoredIds()
    logs = tuple(each.log for each in reader.logs())
    bookies: set[str] = set()
    faults: list[str] = []
    faults_count = ledgers_count = nodes_count = 0
    for node in reader.nodes():
        nodes_count += 1
        ledger = parse_ledger_node(node.path, node.data, tree)
        if ledger is not None:
            ledgers_count += 1
            if ledger.ledger_id is not None:
                ids.add_ledger(ledger.ledger_id)
            if ledger.fault is not None:
                faults_count += 1
                faults += [ledger.fault] if len(faults) < _FAULTS_KEPT_MAX else []
        elif node.path.startswith(f"{LONG_IDS}/"):
            ids.add_generator(node.path.removeprefix(f"{LONG_IDS}/"))
        elif is_valid_bookie_id(bookie_id := node.path.removeprefix(f"{COOKIES}/")) and bookie_id != node.path:
            bookies.add(bookie_id)
        if nodes_count % _YIELD_EVERY_NODES == 0:
            await clock.sleep(0)
            if on_progress is not None:
                on_progress(nodes_count)
    assert reader.end is not None
    if reader.end.ledgers != ledgers_count:
        raise MetadataFormatError(
            f"backup {reader.path} is damaged: it should have {counted(reader.end.ledgers, 'ledger')}"
        )
    return ArchiveSummary(
        header=reader.header,
        tree=tree,
        sha256=reader.end.sha256,
        nodes=nodes_count,
        ledgers=ledgers_count,
        ids=ids,
        logs=logs,
        bookies=frozenset(bookies),
        faults=tuple(faults),
        faults_count=faults_count,
    )


async def read_restore_target(store: MetadataStore, root: str, archive: ArchiveSummary) -> RestoreTarget:
    """Whether the archive may be restored to ``root``; RefusedError, ConflictError. Compare layouts before."""
    if archive.header.root != root:
        raise RefusedError(
            f"nothing was changed: the backup is of {archive.header.root}, but the metadata URI has {root}"
        )
    await store.sync(root)
    node = await find_node(store, root)
    if node is None:
        return RestoreTarget(root, is_fresh=True)
    if node.data.startswith(RESTORE_MARK):
        if node.data != _restore_mark(archive):
            raise ConflictError(
                f"nothing was changed: a restore of another backup into {root} is unfinished: finish that one "
                "first, or remove what it restored with bkctl cluster nuke"
            )
        return RestoreTarget(root, is_fresh=True)
    if node.stat.children_count == 0:
        return RestoreTarget(root, is_fresh=True)
    instance_id = await read_instance_id(store, root)
    if instance_id != archive.header.instance_id:
        raise RefusedError(
            f"nothing was changed: the backup is of instance {archive.header.instance_id}, but the cluster at "
            f"{root} is instance {instance_id}: a backup can be restored only into its own cluster, or where no "
            "cluster exists"
        )
    return RestoreTarget(root, is_fresh=False)


class ClusterRestore:
    """Carries out one restore; every step can be repeated.

    ``before_each`` is called before every change and may raise; ``keep`` gets each node before it is replaced. Nodes
    with faults are omitted; a caller that must not lose any checks the summary first.
    """

    def __init__(
        self,
        store: MetadataStore,
        archive: ArchiveSummary,
        target: RestoreTarget,
        *,
        before_each: Callable[[], None],
        keep: Callable[[str, Node], None],
    ) -> None:
        self._store = store
        self._archive = archive
        self._target = target
        self._paths = Paths(target.root)
        self._before_each = before_each
        self._keep = keep

    async def preview(self, reader: ArchiveReader) -> AsyncIterator[NodeFate]:
        """What ``run`` would do to each node in the current state."""
        async with contextlib.aclosing(pipelined(each_of(reader.nodes()), self._preview_node, WINDOW)) as fates:
            async for fate in fates:
                yield fate

    async def run(self, reader: ArchiveReader) -> AsyncIterator[NodeFate]:
        """Restore each node, then the logs; call ``finish`` afterwards."""
        if self._target.is_fresh:
            await self._begin()
        await self._stop_deletion()
        async with contextlib.aclosing(pipelined(each_of(reader.nodes()), self._restore_node, WINDOW)) as fates:
            async for fate in fates:
                yield fate
        await self._restore_logs(reader)

    async def preview_new_ids(self) -> NewIds:
        """What ``finish`` would do to the id generators in the current state."""
        if await self._has_generators():
            return NewIds()
        return NewIds(is_counted_anew=True, first_id=least_new_id(self._archive.tree, self._archive.ids))

    async def finish(self) -> NewIds:
        """Advance the id generators if they were lost too, then let bookies register."""
        new_ids = NewIds()
        if not await self._has_generators():
            first_id = await advance_ids(
                self._store, self._target.root, self._archive.tree, self._archive.ids, before_each=self._before_each
            )
            new_ids = NewIds(is_counted_anew=True, first_id=first_id)
        await (self._create_registration_nodes() if self._target.is_fresh else self._recreate_registration_nodes())
        return new_ids

    async def _has_generators(self) -> bool:
        if self._target.is_fresh:
            return False
        if self._archive.tree is LedgerTree.FLAT:
            return True
        found = [await self._store.exists(path) for path in (self._paths.short_ids, self._paths.long_ids)]
        return any(stat is not None for stat in found)

    async def _begin(self) -> None:
        root, mark = self._target.root, _restore_mark(self._archive)
        self._before_each()
        try:
            await self._store.create(root, mark, make_parents=True)
        except NodeExistsError:
            node = await self._store.get(root)
            if node.data != mark:
                await self._store.set(root, mark, node.stat.version)
        with contextlib.suppress(NodeExistsError):
            await self._store.create(self._paths.layout, encode_layout(LedgerLayout(self._archive.tree)))
        for bookie_id, note in (self._archive.header.maintenance or {}).items():
            self._before_each()
            await RecoveryNotes(self._store, self._target.root).maintenance.add(bookie_id, note)

    async def _stop_deletion(self) -> None:
        """Bookies may have ledgers that are newer than the archive: none is deleted until an operator confirms it.

        Only bookies of ours read these notes.
        """
        notes = RecoveryNotes(self._store, self._target.root).collection
        cookies = await CookieStore(self._store, self._target.root).ids()
        for bookie_id in sorted(self._archive.bookies.union(filter(is_valid_bookie_id, cookies))):
            self._before_each()
            await notes.put(bookie_id, CollectionNote(restored=self._archive.header.created))

    async def _restore_logs(self, reader: ArchiveReader) -> None:
        """After the ledgers that they name. A log that is there is kept: it is newer."""
        nodes = LogNodes(self._store, self._target.root)
        for each in reader.logs():
            self._before_each()
            with contextlib.suppress(NodeExistsError):
                await nodes.create_raw(each.log, each.data)

    async def _create_registration_nodes(self) -> None:
        nodes = [CreateNode(self._paths.available), CreateNode(self._paths.read_only)]
        if (instance_id := self._archive.header.instance_id) is not None:
            nodes.append(CreateNode(self._paths.instance_id, instance_id.encode()))
        self._before_each()
        try:
            await self._store.write_all(nodes)
        except NodeExistsError:
            for node in nodes:
                with contextlib.suppress(NodeExistsError):
                    await self._store.create(node.path, node.data)
        await clear_restore_mark(self._store, self._target.root)

    async def _recreate_registration_nodes(self) -> None:
        """Create the directories of registrations if an interrupted nuke has deleted them; it does so first."""
        for path in (self._paths.available, self._paths.read_only):
            if await self._store.exists(path) is None:
                self._before_each()
                with contextlib.suppress(NodeExistsError):
                    await self._store.create(path)

    # -- one node -----------------------------------------------------------------------------------------------

    async def _preview_node(self, node: ArchiveNode) -> NodeFate:
        fate = self._fate_without_looking(node)
        if fate is not None:
            return fate
        present = await self._find(node)
        if present is None:
            return NodeFate(node.path, Fate.CREATED, self._is_ledger(node))
        return self._compare(node, present)

    async def _restore_node(self, node: ArchiveNode) -> NodeFate:
        fate = self._fate_without_looking(node)
        if fate is not None:
            return fate
        # Usually nearly all nodes exist or none does; reading first saves ZooKeeper failing writes.
        present = None if self._target.is_fresh else await self._find(node)
        if present is None:
            if await self._create(node):
                return NodeFate(node.path, Fate.CREATED, self._is_ledger(node))
            present = await self._find(node)
        if present is None:
            return NodeFate(node.path, Fate.CONFLICT, self._is_ledger(node), "another process is deleting it")
        fate = self._compare(node, present)
        if fate.fate is Fate.ADVANCED and not await self._replace(node, present):
            return NodeFate(node.path, Fate.CONFLICT, fate.is_ledger, "another process is changing it")
        return fate

    async def _find(self, node: ArchiveNode) -> Node | None:
        return await find_node(self._store, self._path(node))

    async def _create(self, node: ArchiveNode) -> bool:
        self._before_each()
        is_open = node.path in _OPEN_ACL_PATHS
        try:
            await self._store.create(self._path(node), node.data, make_parents=True, is_open_acl=is_open)
        except NodeExistsError:
            return False
        return True

    async def _replace(self, node: ArchiveNode, present: Node) -> bool:
        self._keep(self._path(node), present)
        self._before_each()
        try:
            await self._store.set(self._path(node), node.data, present.stat.version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    def _fate_without_looking(self, node: ArchiveNode) -> NodeFate | None:
        """Outcome for nodes that this restore skips or creates at another time."""
        top = node.path.partition("/")[0]
        ledger = parse_ledger_node(node.path, node.data, self._archive.tree)
        if ledger is not None:
            return NodeFate(node.path, Fate.SKIPPED, is_ledger=True, reason=ledger.fault) if ledger.fault else None
        is_own_business = top in {"", AVAILABLE, INSTANCE_ID, LAYOUT, LONG_IDS} or is_left_out(node.path)
        if is_own_business or not (self._target.is_fresh or node.path.startswith(f"{COOKIES}/")):
            return NodeFate(node.path, Fate.SKIPPED)
        fault = find_node_fault(node, self._archive.tree)
        return None if fault is None else NodeFate(node.path, Fate.SKIPPED, reason=fault)

    def _compare(self, node: ArchiveNode, present: Node) -> NodeFate:
        is_ledger = self._is_ledger(node)
        if present.data == node.data:
            return NodeFate(node.path, Fate.SAME, is_ledger)
        if not is_ledger:
            return NodeFate(node.path, Fate.CONFLICT, is_ledger, "its content differs")
        try:
            reason = find_obstacle(decode_ledger_metadata(present.data), decode_ledger_metadata(node.data))
        except NewerFormatError as error:
            reason = str(error)
        except MetadataFormatError as error:
            reason = f"the cluster's own cannot be read ({error}): delete that node first to restore it"
        return NodeFate(node.path, Fate.CONFLICT if reason else Fate.ADVANCED, is_ledger, reason or "")

    def _is_ledger(self, node: ArchiveNode) -> bool:
        return self._archive.tree.parse_ledger_path(node.path) is not None

    def _path(self, node: ArchiveNode) -> str:
        return f"{self._target.root}/{node.path}"


def find_obstacle(present: LedgerMetadata, archived: LedgerMetadata) -> str | None:
    """Why differing metadata must not be replaced by the archive's; None when the archive is ahead.

    The archive is ahead if its state is further, by the rules for any replacement of metadata. In the same state it is
    unknown which one is newer.
    """
    if present.state is archived.state and not (present.is_closed and has_other_end(present, archived)):
        return f"it is {present.state.name} in both, but they differ: the cluster's version is treated as the newer one"
    return find_regression(present, archived, "the backup")


def _restore_mark(archive: ArchiveSummary) -> bytes:
    return RESTORE_MARK + archive.sha256.encode()


def find_node_fault(node: ArchiveNode, tree: LedgerTree) -> str | None:
    """Why a restore omits a node that is no ledger; None for one that it creates."""
    if len(node.data) > NODE_BYTES_MAX:
        return f"{node.path}: {len(node.data)} bytes exceed the size limit of a node"
    place = place_of(node.path, tree)
    top = node.path.partition("/")[0]
    if place.kind is Kind.STRAY_IN_LEDGERS and child_kind(top, tree) is not ChildKind.LEDGERS:
        return None  # below a name that BookKeeper does not use: not checked
    stat = NodeStat(node.version, node.ctime_ms, node.ctime_ms, ephemeral_owner=0, children_count=0)
    around = Surroundings("", tree, None, is_shaded_factory_allowed=True, has_long_ids=True, now_ms=node.ctime_ms)
    found = (each for each in examine(place, Node(node.data, stat), around) if each.rule.id in _FAULTY_NODE_RULES)
    return next((f"{node.path}: {each.problem}" for each in found), None)
