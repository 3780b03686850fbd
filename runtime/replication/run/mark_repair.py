"""Examines the marks of under-replicated ledgers, and clears those that are not needed. Copies nothing.

``judge_mark`` is the rule. This module reads what it needs: the metadata of the marked ledgers, the registrations,
placement, and with a deep examination the copies of the named bookies, if all bookies of the ledger are registered.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError, RefusedError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.format import decode_mark
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks, list_locked_ids
from bkctl.runtime.metadata.replication.marks import ListedMark, UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.metadata.store import MetadataStore, Node, find_node
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.check_scope import CheckScope
from bkctl.runtime.replication.judge.copies import LedgerCheck
from bkctl.runtime.replication.judge.marks import (
    MarkedLedger,
    MarkFinding,
    MarkVerdict,
    bookies_in_question,
    judge_mark,
)
from bkctl.runtime.replication.survey.checker import LedgerChecker

_AT_ONCE_MAX = 64

KeepNodes = Callable[[Sequence[tuple[str, Node]]], None]
"""Saves nodes, with their paths, before they are deleted."""
AreNeeded = Callable[[Sequence[int]], Awaitable[Collection[int]]]
"""Looks again, and returns the ledgers whose marks are needed."""
_READS_IN_FLIGHT_MAX = 128
_CHECKED = frozenset({MarkFinding.COPIES_UNKNOWN, MarkFinding.PLACEMENT_UNKNOWN})
"""States in which all bookies are registered, so that a deep examination reads the copies."""


class ClearOutcome(enum.Enum):
    """What became of a mark that was to be cleared. The values appear in reports."""

    CLEARED = "cleared"
    GONE = "cleared by another process"
    RENEWED = "renewed meanwhile"
    LOCKED = "worker is busy"
    NEEDED = "needed again"

    @property
    def is_cleared(self) -> bool:
        """Whether the mark is gone."""
        return self in {ClearOutcome.CLEARED, ClearOutcome.GONE}


class MarkClearing:
    """Clears marks that are not needed: under the replication lock, at the version read, with a copy saved first.

    The lock keeps workers away from the ledger meanwhile. The version protects a mark that was renewed. But an auditor
    that finds its bookie in the mark writes nothing: a bookie that fails after the last look would go unnoticed. So
    marks are judged again after they are cleared, and those needed by then are set again.
    """

    def __init__(self, store: MetadataStore, root: str, marks: UnderReplicationMarks, locks: ReplicationLocks) -> None:
        self._store = store
        self._paths = Paths(root)
        self._marks = marks
        self._locks = locks

    async def clear(
        self,
        versions: Sequence[tuple[int, int]],
        are_needed: AreNeeded,
        keep: KeepNodes,
        on_done: Callable[[int, ClearOutcome], None],
    ) -> None:
        """Clear the marks of these ledgers if they still have these versions, and the directories that become empty.

        ``on_done`` receives each ledger and what became of its mark. A MetadataError ends the work; marks that were
        cleared stay so.
        """
        for first in range(0, len(versions), _AT_ONCE_MAX):
            outcomes = await self._clear_some(dict(versions[first : first + _AT_ONCE_MAX]), are_needed, keep)
            for ledger_id, outcome in outcomes.items():
                on_done(ledger_id, outcome)

    async def _clear_some(
        self, versions: dict[int, int], are_needed: AreNeeded, keep: KeepNodes
    ) -> dict[int, ClearOutcome]:
        outcomes: dict[int, ClearOutcome] = {}
        locks: dict[int, ReplicationLock] = {}
        nodes: dict[int, Node] = {}

        async def take(ledger_id: int) -> None:
            """Lock the ledger, and read its mark if that still has its version."""
            lock = await self._locks.acquire(ledger_id)
            if lock is None:
                outcomes[ledger_id] = ClearOutcome.LOCKED
                return
            locks[ledger_id] = lock
            node = await find_node(self._store, self._paths.mark(ledger_id))
            if node is None:
                outcomes[ledger_id] = ClearOutcome.GONE
            elif node.stat.version != versions[ledger_id]:
                outcomes[ledger_id] = ClearOutcome.RENEWED
            else:
                nodes[ledger_id] = node

        try:
            await _all(map(take, versions))
            found = [ledger_id for ledger_id in versions if ledger_id in nodes]
            needed = frozenset(await are_needed(found)) if found else frozenset[int]()
            outcomes |= dict.fromkeys(needed & nodes.keys(), ClearOutcome.NEEDED)
            due = {ledger_id: nodes[ledger_id] for ledger_id in found if ledger_id not in needed}
            if due:
                keep([(self._paths.mark(ledger_id), node) for ledger_id, node in due.items()])
                await _all(self._delete(locks[ledger_id], node, outcomes) for ledger_id, node in due.items())
                await self._set_again(due, are_needed, outcomes)
        finally:
            await asyncio.gather(*(lock.release() for lock in locks.values()))
        return {ledger_id: outcomes[ledger_id] for ledger_id in versions}

    async def _delete(self, lock: ReplicationLock, node: Node, outcomes: dict[int, ClearOutcome]) -> None:
        if not lock.is_held:
            outcomes[lock.ledger_id] = ClearOutcome.LOCKED
            return
        is_cleared = await self._marks.clear(lock.ledger_id, node.stat.version)
        outcomes[lock.ledger_id] = ClearOutcome.CLEARED if is_cleared else ClearOutcome.RENEWED

    async def _set_again(
        self, nodes: dict[int, Node], are_needed: AreNeeded, outcomes: dict[int, ClearOutcome]
    ) -> None:
        await self._store.sync(self._paths.root)
        cleared = [ledger_id for ledger_id in nodes if outcomes[ledger_id] is ClearOutcome.CLEARED]
        for ledger_id in await are_needed(cleared) if cleared else ():
            await self._marks.mark(ledger_id, _missing_bookies(nodes[ledger_id]))
            outcomes[ledger_id] = ClearOutcome.NEEDED


def _missing_bookies(node: Node) -> tuple[str, ...]:
    """Bookies that a mark names; none if it cannot be read: then a worker checks all of them anyway."""
    try:
        return decode_mark(node.data).missing_bookies
    except MetadataFormatError:
        return ()


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Do all work; if some fails, raise its error once the rest has ended."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if result is not None:
            raise result


class JudgedMark(msgspec.Struct, frozen=True):
    """A mark and its verdict. ``metadata_version`` and ``owner`` are those of the ledger, None if it is gone."""

    mark: ListedMark
    verdict: MarkVerdict
    metadata_version: int | None = None
    owner: str | None = None
    check: LedgerCheck | None = None

    @property
    def ledger_id(self) -> int:
        """Id of the marked ledger."""
        return self.mark.ledger_id


class MarkRepair:
    """Examines and clears the marks of one cluster."""

    def __init__(
        self, ports: ClientPorts, store: MetadataStore, locks: ReplicationLocks, config: ReplicationConfig
    ) -> None:
        self._ports = ports
        self._store = store
        self._root = ports.ledgers.root
        self._config = config
        marks = UnderReplicationMarks(store, self._root, ports.clock)
        self._clearing = MarkClearing(store, self._root, marks, locks)

    async def examine(
        self,
        foreign: ForeignNames,
        *,
        is_deep: bool = False,
        missing: str | None = None,
        on_judged: Callable[[int], None] = lambda _: None,
    ) -> list[JudgedMark]:
        """Judge all marks, or those that name ``missing`` or cannot be read; ``on_judged`` receives how many so far.

        Changes nothing. MetadataError, ConfigurationError.
        """
        locked = frozenset(await list_locked_ids(self._store, self._root, foreign))
        registrations = await self._ports.registrations.snapshot()
        checker = None
        if is_deep:
            given_up = await read_given_up(RecoveryNotes(self._store, self._root))
            checker = LedgerChecker(self._ports, registrations.live, self._config, given_up=given_up)
        marks = list_marks(self._store, self._root, foreign, missing=missing)

        async def judge(mark: ListedMark) -> JudgedMark:
            return await self._judge(mark, registrations, is_locked=mark.ledger_id in locked, checker=checker)

        window = self._config.ledgers_in_parallel if is_deep else _READS_IN_FLIGHT_MAX
        judged: list[JudgedMark] = []
        async with aclosing(marks), aclosing(pipelined(marks, judge, window)) as verdicts:
            async for each in verdicts:
                judged.append(each)
                on_judged(len(judged))
        return judged

    async def clear(
        self, judged: Sequence[JudgedMark], keep: KeepNodes, on_done: Callable[[int, ClearOutcome], None]
    ) -> None:
        """Clear these marks, unless they are renewed, or needed by now; see ``MarkClearing.clear``."""
        by_id = {each.ledger_id: each for each in judged}

        async def are_needed(ledger_ids: Sequence[int]) -> Collection[int]:
            await self._ports.ledgers.migration.require_none()
            registrations = await self._ports.registrations.snapshot()
            again = [await self._judge(by_id[each].mark, registrations, former=by_id[each]) for each in ledger_ids]
            return [each.ledger_id for each in again if not each.verdict.is_clearable]

        await self._clearing.clear([(each.ledger_id, each.mark.version) for each in judged], are_needed, keep, on_done)

    async def _judge(
        self,
        mark: ListedMark,
        registrations: Registrations,
        *,
        is_locked: bool = False,
        checker: LedgerChecker | None = None,
        former: JudgedMark | None = None,
    ) -> JudgedMark:
        """Judge a mark; ``former`` has the check of the copies, which counts while the metadata is unchanged."""
        ledger = MarkedLedger(is_locked=is_locked, is_placement_repaired=self._config.is_placement_repaired)

        def verdict(**known: Any) -> MarkVerdict:
            nonlocal ledger
            ledger = msgspec.structs.replace(ledger, **known)
            return judge_mark(mark, ledger, registrations)

        try:
            versioned = await self._ports.ledgers.read(mark.ledger_id)
        except LedgerNotFoundError:
            return JudgedMark(mark, verdict())
        except (MetadataFormatError, RefusedError) as error:
            return JudgedMark(mark, verdict(problem=str(error)))
        metadata = versioned.value
        is_unchanged = former is not None and former.metadata_version == versioned.version
        found = verdict(metadata=metadata, check=former.check if former is not None and is_unchanged else None)
        if checker is not None and (found.is_clearable or found.state in _CHECKED):
            found = verdict(check=await _check(checker, mark, metadata))
        if found.state is MarkFinding.PLACEMENT_UNKNOWN:
            broken = await self._ports.placement.broken_rules(metadata, registrations.writable)
            if broken is not None:
                rules = [f"from entry {first}: {each}" for first, some in broken.items() for each in some]
                found = verdict(broken_rules=rules)
        owner = owner_of(dict(metadata.custom_metadata))
        return JudgedMark(mark, found, versioned.version, owner, ledger.check)


async def _check(checker: LedgerChecker, mark: ListedMark, metadata: LedgerMetadata) -> LedgerCheck | None:
    """Read the copies of the bookies in question; only if some are bad all copies, which show what can be repaired.

    A mark that names no bookie is about all of them. None: no named bookie should store entries.
    """
    if mark.mark is not None and mark.mark.missing_bookies:
        bookie_ids = frozenset(bookies_in_question(mark, metadata))
        if not bookie_ids:
            return None
        check = await checker.check(mark.ledger_id, CheckScope(bookie_ids=bookie_ids))
        if check.is_clean:
            return check
    return await checker.check(mark.ledger_id)
