"""Repairs one marked ledger under its replication lock. Source: replication sections 5 and 8.

Members that are not registered are replaced. Members that are registered but that the mark names may lack entries:
their copies are read, and bad ones are written again in place, or moved (``in_place_plan``).
A mark without bookies asks for a repair of placement.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

import msgspec

from runtime.autorecovery.failed_ledgers import RepairFailure
from runtime.autorecovery.placement_moves import placement_moves
from runtime.client.ports import ClientPorts
from runtime.errors import LedgerNotFoundError, MetadataFormatError
from runtime.ledger.metadata import LedgerMetadata, Segment
from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.replication.work import PickedLedger
from runtime.metadata.store import Versioned
from runtime.placement.rules import BrokenRule
from runtime.replication.config import ReplicationConfig
from runtime.replication.copy.activity import LedgerActivity
from runtime.replication.judge.bad_copies import bad_records_on, plan_in_place
from runtime.replication.judge.check_scope import CheckScope
from runtime.replication.judge.ledger_result import FailureReason, LedgerFailure
from runtime.replication.judge.marks import bookies_in_question
from runtime.replication.judge.verdict import ReplicationState, judge_ledger, write_set_rows
from runtime.replication.run.engine import Engine
from runtime.replication.survey.checker import LedgerChecker
from runtime.replication.turn.task import LedgerTask

_INTERRUPTED = frozenset({FailureReason.LOCK_LOST, FailureReason.CONFLICT})
_NO_TARGET = frozenset({FailureReason.NOT_ENOUGH_BOOKIES, FailureReason.PLACEMENT})
_UNWILLING = frozenset({FailureReason.READ_ONLY, FailureReason.REFUSED})
_RARE_LEFT = frozenset({FailureReason.LOST, FailureReason.DIFFERENT, FailureReason.STRIPE})


class MarkedOutcome(msgspec.Struct, kw_only=True):
    """What became of a marked ledger. Without anything here the mark is no longer needed."""

    failures: list[RepairFailure] = []
    open_segment: Segment | None = None
    """The last segment of an open ledger with a missing bookie: its writer gets time to replace it."""
    is_interrupted: bool = False
    """The lock was lost, or the metadata kept changing: begin again."""
    is_for_others: bool = False
    """Only a worker with another bookie can repair it."""
    relied_on: frozenset[str] = frozenset()
    """Bookies that the mark names and that are registered and complete. An auditor that loses one of them now would
    find it in the mark, and change nothing."""

    broken_rules: list[BrokenRule] = []
    """Placement rules that copies break, because no bookie kept them: one for each copy and rule."""

    @property
    def is_done(self) -> bool:
        """Whether the mark can be cleared."""
        return not (self.failures or self.open_segment or self.is_interrupted or self.is_for_others)


@dataclasses.dataclass(frozen=True)
class _Task:
    """The repair of one ledger."""

    picked: PickedLedger
    activity: LedgerActivity
    outcome: MarkedOutcome = dataclasses.field(default_factory=MarkedOutcome)

    @property
    def ledger_id(self) -> int:
        return self.picked.ledger_id

    def fail(self, reason: FailureReason, detail: str, *, is_rare: bool = False) -> None:
        """Note a failure."""
        self.outcome.failures.append(RepairFailure(reason.name, detail, is_rare))


class MarkedLedgerRepair:
    """Repairs marked ledgers; safe to call for many of them concurrently."""

    def __init__(
        self,
        ports: ClientPorts,
        engine: Engine,
        config: ReplicationConfig,
        *,
        is_local: bool = False,
    ) -> None:
        """``is_local``: copies may only go to the worker's own bookie."""
        self._ports = ports
        self._engine = engine
        self._config = config
        self._is_local = is_local
        self._live_bookies = engine.live_bookies
        self._checker: tuple[frozenset[str], LedgerChecker] | None = None

    async def run(
        self, picked: PickedLedger, picked_ns: int, seen: Segment | None, activity: LedgerActivity
    ) -> MarkedOutcome:
        """Repair a ledger. ``picked_ns``: when its mark was read. ``seen``: see ``RepairOrder``.

        MetadataUnavailableError, other MetadataError, ConfigurationError.
        """
        task = _Task(picked, activity)
        try:
            stored = await self._ports.ledgers.read(picked.ledger_id)
            registrations = await self._live_bookies.refresh()
            if registrations.live.intersection(_named(picked, stored.value)):
                # They may be in the list only because it is older than the mark.
                age_s = (self._ports.clock.monotonic_ns() - picked_ns) / 1e9
                registrations = await self._live_bookies.refresh(age_s)
            asked = registrations.live.intersection(bookies_in_question(picked.mark, stored.value))
            gone = stored.value.bookies() - registrations.live
            if gone:
                await self._replace_lost(task, stored, gone, seen)
            if asked and not task.outcome.is_interrupted:
                await self._rewrite(task, asked, registrations)
            if _asks_for_placement(picked) and self._config.is_placement_repaired and task.outcome.is_done:
                await self._repair_placement(task, registrations)
        except LedgerNotFoundError:
            return MarkedOutcome()
        except MetadataFormatError as error:
            task.fail(FailureReason.METADATA_UNREADABLE, str(error))
        return task.outcome

    async def _replace_lost(
        self, task: _Task, stored: Versioned[LedgerMetadata], gone: frozenset[str], seen: Segment | None
    ) -> None:
        """Replace members that are not registered."""
        last_segment = stored.value.last_segment
        if not self._config.open_ledger_wait_s:
            seen = last_segment
        wanted = LedgerTask(
            ledger_id=task.ledger_id, leaving=gone, unreachable=gone, seen=seen, stored=stored, is_data_first=True
        )
        for failure in await self._repair(task, wanted):
            if failure.reason is FailureReason.OPEN and seen != last_segment:
                task.outcome.open_segment = last_segment
            elif self._is_local and failure.reason in {*_NO_TARGET, FailureReason.OPEN}:
                task.outcome.is_for_others = True
            else:
                task.outcome.failures.append(_failure(failure, stored.value, gone))

    async def _repair(self, task: _Task, wanted: LedgerTask) -> list[LedgerFailure]:
        """Replace bookies, or write bad copies again; returns the failures, except that the work was interrupted."""
        result = await self._engine.repair_locked(task.picked.lock, wanted, task.activity)
        if result.was_deleted:
            raise LedgerNotFoundError(task.ledger_id, "it was deleted")
        task.outcome.broken_rules.extend(result.broken_rules)
        task.outcome.is_interrupted |= any(failure.reason in _INTERRUPTED for failure in result.failures)
        return [failure for failure in result.failures if failure.reason not in _INTERRUPTED]

    async def _rewrite(self, task: _Task, asked: frozenset[str], registrations: Registrations) -> None:
        """Read the copies of these members, and write bad ones again."""
        checker = self._checker_of(registrations.live)
        check = await checker.check(task.ledger_id, CheckScope(bookie_ids=asked, has_open_end=False))
        if not check.is_deleted and not check.is_clean:
            check = await checker.check(task.ledger_id, CheckScope(has_open_end=False))
        if check.is_deleted:
            raise LedgerNotFoundError(task.ledger_id, "it was deleted")
        task.outcome.relied_on = asked
        if check.is_clean:
            return
        if check.problem is not None:
            task.fail(FailureReason.METADATA_UNREADABLE, check.problem)
            return
        stored = await self._ports.ledgers.read(task.ledger_id)
        bkctl = await self._ports.registrations.running_bkctl(bad_records_on(check))
        plan = plan_in_place(check, stored.value, stored.version, registrations.writable, bkctl)
        left = [*plan.left]
        if plan.changes:
            left += await self._repair(task, LedgerTask(ledger_id=task.ledger_id, bad=plan.bad))
        if task.outcome.is_interrupted:
            return
        left = [each for each in left if not each.bookie_id or each.bookie_id in registrations.live]
        unwilling = frozenset(each.bookie_id for each in left if each.reason in _UNWILLING)
        if unwilling:
            await self._move_from(task, unwilling, stored.value, registrations)
        left = [each for each in left if each.bookie_id not in unwilling]
        if self._is_local and any(each.reason in _NO_TARGET for each in left):
            task.outcome.is_for_others = True
            left = [each for each in left if each.reason not in _NO_TARGET]
        task.outcome.failures.extend(map(_left, left))

    async def _move_from(
        self, task: _Task, bookie_ids: frozenset[str], metadata: LedgerMetadata, registrations: Registrations
    ) -> None:
        """Replace members that lack entries and do not take them: they are read-only, or refuse adds of this ledger."""
        complete = metadata.segments if metadata.is_closed else metadata.segments[:-1]
        unreachable = metadata.bookies() - registrations.live
        wanted = LedgerTask(
            ledger_id=task.ledger_id,
            leaving_segments={segment.first_entry_id: bookie_ids for segment in complete},
            unreachable=unreachable,
            is_data_first=True,
        )
        for failure in await self._repair(task, wanted):
            task.outcome.failures.append(_failure(failure, metadata, unreachable))

    async def _repair_placement(self, task: _Task, registrations: Registrations) -> None:
        """Move copies that break placement rules, if other bookies can keep them."""
        metadata = (await self._ports.ledgers.read(task.ledger_id)).value
        survey = await self._ports.placement.survey(registrations.writable)
        moves = placement_moves(metadata, survey, registrations, self._ports.clock.random)
        unreachable = metadata.bookies() - registrations.live
        wanted = LedgerTask(
            ledger_id=task.ledger_id, leaving_segments=moves.leaving, unreachable=unreachable, must_improve=True
        )
        for failure in await self._repair(task, wanted) if moves.leaving else ():
            if self._is_local and failure.reason in _NO_TARGET:
                task.outcome.is_for_others = True
            else:
                task.outcome.failures.append(_failure(failure, metadata, unreachable))
        if moves.leaving:
            return  # it is as good as it can be: without the mark, the next check finds it again if it can be better
        for first_entry_id, broken in moves.stuck.items():
            detail = f"no bookie can improve the segment from entry {first_entry_id}: {'; '.join(map(str, broken))}"
            task.fail(FailureReason.PLACEMENT, detail, is_rare=True)

    def _checker_of(self, live: frozenset[str]) -> LedgerChecker:
        """A checker for these bookies, shared by all ledgers while the list is the same."""
        if self._checker is None or self._checker[0] != live:
            self._checker = live, LedgerChecker(self._ports, live, self._config, self._engine.pacer.total)
        return self._checker[1]


def _asks_for_placement(picked: PickedLedger) -> bool:
    return picked.mark.mark is not None and not picked.mark.mark.missing_bookies


def _named(picked: PickedLedger, metadata: LedgerMetadata) -> frozenset[str]:
    """Members that the mark names, also those without entries; all members if the mark cannot be read."""
    mark, members = picked.mark.mark, frozenset(metadata.bookies())
    return members if mark is None else members.intersection(mark.missing_bookies)


def _failure(failure: LedgerFailure, metadata: LedgerMetadata, gone: Collection[str]) -> RepairFailure:
    """A failure as a note. Entries without a registered bookie that has them need one to return."""
    is_rare = failure.reason is FailureReason.LOST
    if failure.reason is FailureReason.UNREADABLE:
        live = metadata.bookies() - frozenset(gone)
        verdict = judge_ledger(write_set_rows(failure.ledger_id, metadata), live)
        is_rare = verdict.replication is ReplicationState.UNAVAILABLE
    return RepairFailure(failure.reason.name, f"{failure.place}: {failure.bare_detail}", is_rare)


def _left(left: LedgerFailure) -> RepairFailure:
    detail = left.reason.value
    if left.bookie_id:
        detail = f"{left.copies} copies on {left.bookie_id}: {detail}"
    return RepairFailure(
        left.reason.name, f"{detail}: {left.detail}" if left.detail else detail, left.reason in _RARE_LEFT
    )


def combined(failures: Iterable[RepairFailure]) -> RepairFailure:
    """One note for all failures of a ledger: the first reason that another try can help, else the first."""
    ordered = sorted(failures, key=lambda failure: failure.is_rare)
    return ordered[0]._replace(detail="; ".join(dict.fromkeys(failure.detail for failure in ordered)))
