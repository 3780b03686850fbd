"""Examines the marks of under-replicated ledgers, and clears those that are not needed. Copies nothing.

``judge_mark`` is the rule. This module reads what it needs: the metadata of the marked ledgers, the registrations,
placement, and with a deep examination the copies of the named bookies, if all bookies of the ledger are registered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError, RefusedError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.lock import ReplicationLocks, list_locked_ids
from bkctl.runtime.metadata.replication.marks import ListedMark, UnderReplicationMarks, list_marks
from bkctl.runtime.metadata.store import MetadataStore
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
from bkctl.runtime.replication.run.mark_clearing import ClearOutcome, KeepNodes, MarkClearing
from bkctl.runtime.replication.survey.checker import LedgerChecker

_READS_IN_FLIGHT_MAX = 128
_CHECKED = frozenset({MarkFinding.COPIES_UNKNOWN, MarkFinding.PLACEMENT_UNKNOWN})
"""States in which all bookies are registered, so that a deep examination reads the copies."""


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
        checker = LedgerChecker(self._ports, registrations.live, self._config) if is_deep else None
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
