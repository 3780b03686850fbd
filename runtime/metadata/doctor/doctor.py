"""The metadata doctor: reads the whole tree below the ledgers root, autorecovery's notes and Pulsar's racks.

It writes nothing, and its memory does not grow with the tree. Other processes may change the tree meanwhile: a
suspicious node is read again before it is reported, and what compares several nodes must show twice. A node that this
user may not read is itself a finding, so no findings means that everything was read. ``bkctl audit`` counts the copies
of ledgers, not the doctor. Sessions of ephemeral nodes are not checked: ZooKeeper deletes such nodes itself.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from bkctl.runtime.config import LayoutConfig
from bkctl.runtime.errors import ClusterNotFoundError, MetadataAuthError, MetadataFormatError, NoNodeError, RefusedError
from bkctl.runtime.metadata.bookies.bookie_rows import usual_racks_path
from bkctl.runtime.metadata.doctor.bookies import (
    DownRules,
    Reference,
    References,
    Snapshot,
    compare,
    examine_racks,
    still_named,
)
from bkctl.runtime.metadata.doctor.catalogue import RULES, MetadataFinding, finding
from bkctl.runtime.metadata.doctor.notes import NotedCluster, examine_notes
from bkctl.runtime.metadata.doctor.places import Kind, Place, is_below_stray, place_of
from bkctl.runtime.metadata.doctor.rules import Surroundings, examine
from bkctl.runtime.metadata.ledgers.layout import LedgerLayout, LedgerTree, choose_tree, read_layout
from bkctl.runtime.metadata.paths import READ_ONLY, Paths
from bkctl.runtime.metadata.replication.switches import AuditRequest
from bkctl.runtime.metadata.store import MetadataStore, Node
from bkctl.runtime.metadata.tree import walk_tree
from bkctl.runtime.ports import Clock
from bkctl.storage.errors import BkctlError
from bkctl.storage.severity import Severity

T = TypeVar("T")

KEPT_MAX = 1000
"""Default maximum of listed findings per rule; all are counted."""
SETTLE_S = 1.0
"""Pause before the second read: other processes usually need less time between two steps."""

_SUSPECTS_MAX = 1000
_BATCH = 128
_PROGRESS_EVERY_NODES = 256


class DoctorReport(msgspec.Struct, frozen=True):
    """Findings, the worst first. ``counts`` by rule id, and those ``by_severity``, are complete even if ``findings``
    are truncated.

    ``looked_at``: number of nodes read, by kind.
    """

    root: str
    tree: LedgerTree
    instance_id: str | None
    looked_at: Mapping[str, int]
    counts: Mapping[str, int]
    by_severity: Mapping[Severity, int]
    findings: tuple[MetadataFinding, ...]

    @property
    def is_truncated(self) -> bool:
        """Whether there are more findings than listed."""
        return len(self.findings) < sum(self.counts.values())

    def count(self, severity: Severity) -> int:
        """Number of findings of this severity."""
        return self.by_severity.get(severity, 0)


async def examine_cluster(
    store: MetadataStore,
    root: str,
    wanted_tree: LedgerTree | None,
    clock: Clock,
    down_rules: DownRules,
    *,
    layout_config: LayoutConfig | None = None,
    is_wanted: Callable[[MetadataFinding], bool] = lambda _: True,
    kept_max: int = KEPT_MAX,
    settle_s: float = SETTLE_S,
    racks_path: str | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> DoctorReport:
    """Examine everything below ``root``; ``wanted_tree`` is the layout in the metadata URI.

    ``is_wanted`` selects findings; ``kept_max`` of each rule are kept. ``racks_path``: Pulsar's node of racks, None:
    the usual place. ClusterNotFoundError; MetadataAuthError when this user may not even read the root;
    MetadataUnavailableError.
    """
    await store.sync(root)
    try:
        await store.get(root)
    except NoNodeError:
        raise ClusterNotFoundError(root) from None
    config = layout_config or LayoutConfig()
    around = Surroundings(
        root=root,
        tree=await _find_tree(store, root, wanted_tree, config),
        wanted_tree=wanted_tree,
        is_shaded_factory_allowed=config.is_shaded_factory_allowed,
        has_long_ids=await _is_there(store, Paths(root).long_ids),
        now_ms=clock.now_ms(),
    )
    notes = _Notes(is_wanted, kept_max)
    examination = _Examination(store, around, notes, clock, settle_s, down_rules)
    await examination.walk(on_progress)
    snapshot = await examination.compare()
    async with contextlib.aclosing(
        examine_notes(store, NotedCluster(root, around.tree, snapshot.known_bookies, around.now_ms))
    ) as of_notes:
        async for each in of_notes:
            notes.add(each)
    racks_path = racks_path or usual_racks_path(root)
    try:
        racks = (await store.get(racks_path)).data
    except MetadataAuthError:
        notes.add(finding("node-without-permission", racks_path, "This user has no permission to read it."))
    except NoNodeError:
        pass
    else:
        for each in examine_racks(racks_path, racks, snapshot):
            notes.add(each)
    instance_id = snapshot.instance_id.data.decode("utf-8", "replace") if snapshot.instance_id else None
    return notes.report(root, around.tree, instance_id)


async def _is_there(store: MetadataStore, path: str) -> bool:
    """Whether a node exists. Newer servers do not say so without read permission; the node then counts as existing."""
    try:
        return await store.exists(path) is not None
    except MetadataAuthError:
        return True


async def _find_tree(store: MetadataStore, root: str, wanted: LedgerTree | None, config: LayoutConfig) -> LedgerTree:
    """The layout to read by: the recorded one, whatever is wanted; if there is none, the likeliest."""
    recorded: LedgerLayout | None = None
    with contextlib.suppress(MetadataFormatError, MetadataAuthError):
        recorded = await read_layout(store, root, is_shaded_factory_allowed=config.is_shaded_factory_allowed)
    if recorded is not None:
        return recorded.tree
    try:
        return choose_tree(None, wanted, config)
    except BkctlError:
        return LedgerTree.HIERARCHICAL


def _urgency(found: MetadataFinding) -> tuple[Severity, bool]:
    """Of equal severity, what may lose data comes first, like a dead bookie with the only copies, whose rule is a
    warning: writers that stop lose nothing."""
    return found.severity, found.rule.id != "writers-stop"


class _Notes:
    """Counts findings by rule and keeps the first ones of each."""

    def __init__(self, is_wanted: Callable[[MetadataFinding], bool], kept_max: int) -> None:
        self._is_wanted = is_wanted
        self._kept_max = kept_max
        self._kept: dict[str, list[MetadataFinding]] = {rule_id: [] for rule_id in RULES}
        self._counts: collections.Counter[str] = collections.Counter()
        self._by_severity: collections.Counter[Severity] = collections.Counter()
        self.looked_at: collections.Counter[str] = collections.Counter()

    def add(self, found: MetadataFinding) -> None:
        rule = found.rule
        if not self._is_wanted(found):
            return
        self._by_severity[found.severity] += 1
        self._counts[rule.id] += 1
        if len(self._kept[rule.id]) < self._kept_max:
            self._kept[rule.id].append(found)

    def report(self, root: str, tree: LedgerTree, instance_id: str | None) -> DoctorReport:
        worst_first = sorted(itertools.chain(*self._kept.values()), key=_urgency, reverse=True)
        return DoctorReport(
            root=root,
            tree=tree,
            instance_id=instance_id,
            looked_at={kind.value: self.looked_at[kind.value] for kind in Kind if self.looked_at[kind.value]},
            counts={rule_id: self._counts[rule_id] for rule_id in RULES if self._counts[rule_id]},
            by_severity=dict(self._by_severity),
            findings=tuple(worst_first),
        )


class _PermittedReads:
    """Reads for a walk; reports nodes that this user may not read and treats them as absent."""

    def __init__(self, store: MetadataStore, on_denied: Callable[[str], None]) -> None:
        self._store = store
        self._on_denied = on_denied

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""
        return await self._look(path, self._store.get(path))

    async def children(self, path: str) -> list[str]:
        """Sorted child names; NoNodeError."""
        return await self._look(path, self._store.children(path))

    async def _look(self, path: str, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except MetadataAuthError:
            self._on_denied(path)
            raise NoNodeError(f"no permission to read {path}", path) from None


class _Examination:
    def __init__(
        self,
        store: MetadataStore,
        around: Surroundings,
        notes: _Notes,
        clock: Clock,
        settle_s: float,
        down_rules: DownRules,
    ) -> None:
        self._store = store
        self._around = around
        self._paths = Paths(around.root)
        self._notes = notes
        self._clock = clock
        self._settle_s = settle_s
        self._suspects: list[Place] = []
        self._owned: list[Place] = []
        self._down_rules = down_rules
        self._references = References(down_rules)

    # -- node by node -----------------------------------------------------------------------------------------------

    async def walk(self, on_progress: Callable[[int], None] | None) -> None:
        """Check each node by itself, and collect the ledgers of marks and locks."""
        root, tree = self._around.root, self._around.tree
        reads = _PermittedReads(self._store, self._note_denied)
        nodes = walk_tree(reads, root, is_skipped=lambda path: is_below_stray(path[len(root) + 1 :], tree))
        nodes_count = 0
        async with contextlib.aclosing(nodes):
            async for found in nodes:
                nodes_count += 1
                if on_progress is not None and nodes_count % _PROGRESS_EVERY_NODES == 0:
                    on_progress(nodes_count)
                place = place_of(found.path[len(root) + 1 :], tree)
                self._notes.looked_at[place.kind.value] += 1
                self._look_at(place, found.node)
                if len(self._owned) >= _BATCH:
                    await self._look_for_ledgers()
                if len(self._suspects) >= _SUSPECTS_MAX:
                    await self._look_again()
        await self._look_for_ledgers()
        if self._suspects:
            await self._clock.sleep(self._settle_s)
            await self._look_again()

    def _note_denied(self, path: str) -> None:
        self._notes.add(finding("node-without-permission", path, "This user has no permission to read it."))

    def _look_at(self, place: Place, node: Node) -> None:
        found = examine(place, node, self._around)
        if place.kind in {Kind.MARK, Kind.LOCK}:
            self._owned.append(place)
        elif place.kind is Kind.LEDGER:
            self._references.note(self._path(place), place.number, node.data)
        if all(each.rule.is_settled for each in found):
            for each in found:
                self._notes.add(each)
        else:
            self._suspects.append(place)

    async def _look_again(self) -> None:
        """Check suspicious nodes again and report their current problems; skip deleted and repaired nodes."""
        suspects, self._suspects = self._suspects, []
        for start in range(0, len(suspects), _BATCH):
            batch = suspects[start : start + _BATCH]
            for place, node in zip(batch, await asyncio.gather(*map(self._read, batch)), strict=True):
                if node is not None:
                    for each in examine(place, node, self._around):
                        self._notes.add(each)

    async def _read(self, place: Place) -> Node | None:
        try:
            return await self._store.get(self._path(place))
        except (NoNodeError, MetadataAuthError):
            return None

    async def _look_for_ledgers(self) -> None:
        """Report remaining marks and locks whose ledger is gone; ids are not reused, so it cannot come back."""
        owned, self._owned = self._owned, []
        is_orphan = await asyncio.gather(*map(self._is_without_ledger, owned))
        for place in itertools.compress(owned, is_orphan):
            rule_id = "mark-without-ledger" if place.kind is Kind.MARK else "lock-without-ledger"
            problem = f"There is no ledger {place.number}."
            self._notes.add(finding(rule_id, self._path(place), problem, place.number))

    async def _is_without_ledger(self, place: Place) -> bool:
        assert place.number is not None
        try:
            path = f"{self._around.root}/{self._around.tree.ledger_path(place.number)}"
        except RefusedError:
            path = None  # an id that no ledger can have
        if path is not None and await _is_there(self._store, path):
            return False
        return await self._read(place) is not None

    def _path(self, place: Place) -> str:
        return f"{self._around.root}/{place.path}" if place.path else self._around.root

    # -- as a whole -------------------------------------------------------------------------------------------------

    async def compare(self) -> Snapshot:
        """Report problems of bookies and votes that two snapshots agree on; return the first one."""
        snapshot = await self._snapshot(self._references.by_bookie)
        rules = self._down_rules
        found = list(compare(self._around.root, snapshot, rules))
        if found:
            await self._clock.sleep(self._settle_s)
            second = await self._snapshot(await self._references_left(snapshot))
            again = {(each.rule.id, each.path, each.subject) for each in compare(self._around.root, second, rules)}
            for each in found:
                if (each.rule.id, each.path, each.subject) in again:
                    self._notes.add(each)
        return snapshot

    async def _references_left(self, snapshot: Snapshot) -> dict[str, Reference]:
        """Unregistered bookies to which ledgers still refer: a recovery may have replaced some meanwhile."""
        left: dict[str, Reference] = {}
        registered = {*(snapshot.writable or {}), *(snapshot.read_only or {})}
        for bookie_id, reference in snapshot.references.items():
            if bookie_id not in registered:
                ledgers = [await self._data_at(path) for path in reference.first_paths]
                if still_named(reference, bookie_id, ledgers):
                    left[bookie_id] = reference
        return left

    async def _data_at(self, path: str) -> bytes:
        try:
            return (await self._store.get(path)).data
        except (NoNodeError, MetadataAuthError):
            return b""

    async def _snapshot(self, references: Mapping[str, Reference]) -> Snapshot:
        paths = self._paths
        election = Place(paths.auditor_election[len(paths.root) + 1 :], Kind.ELECTION)
        instance = Place(paths.instance_id[len(paths.root) + 1 :], Kind.INSTANCE_ID)
        # A bookie that changes its mode registers again before it deletes the old node: read writable before and after.
        writable = await self._nodes_in(paths.available)
        read_only = await self._nodes_in(paths.read_only)
        writable_again = await self._nodes_in(paths.available)
        if writable is not None and writable_again is not None:
            writable = {**writable, **writable_again}
            writable.pop(READ_ONLY, None)
        return Snapshot(
            writable=writable,
            read_only=read_only,
            cookies=await self._nodes_in(paths.cookies),
            votes=await self._nodes_in(paths.auditor_election),
            elected=await self._read(election),
            instance_id=await self._read(instance),
            present=await self._present(),
            is_auditor_ours=await self._is_auditor_ours(),
            references=references,
        )

    async def _is_auditor_ours(self) -> bool:
        """Also if this user may not read it: then nothing can be said about Java's auditor."""
        try:
            return await AuditRequest(self._store, self._paths.root).is_understood()
        except MetadataAuthError:
            return True

    async def _nodes_in(self, directory: str) -> dict[str, Node] | None:
        """Children by name; None when this user may not list or read them all."""
        nodes: dict[str, Node] = {}

        async def read(name: str) -> None:
            with contextlib.suppress(NoNodeError):
                nodes[name] = await self._store.get(f"{directory}/{name}")

        try:
            names = await self._store.children(directory)
            for start in range(0, len(names), _BATCH):
                await asyncio.gather(*map(read, names[start : start + _BATCH]))
        except NoNodeError:
            return {}
        except MetadataAuthError:
            return None
        return nodes

    async def _present(self) -> frozenset[str]:
        paths = self._paths
        asked = (
            paths.available,
            paths.layout,
            paths.instance_id,
            paths.cookies,
            paths.lost_bookie_recovery_delay,
            paths.pulsar_auditor,
        )
        answers = await asyncio.gather(*(_is_there(self._store, path) for path in asked))
        return frozenset(itertools.compress(asked, answers))
