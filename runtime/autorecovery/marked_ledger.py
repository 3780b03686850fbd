"""Repairs one marked ledger under its replication lock. Source: replication sections 5 and 8.

Members that are not registered are replaced. Members that are registered but that the mark names may lack entries:
their copies are read, and bad ones are written again in place, or moved (``judge/bad_copies.py``).
A mark without bookies asks for a repair of placement.
"""

from __future__ import annotations

import dataclasses

import msgspec

from bkctl.runtime.autorecovery.mark_listing import RepairFailure
from bkctl.runtime.autorecovery.metadata_check import placement_moves
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata, Segment
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import find_given_up, read_given_up
from bkctl.runtime.metadata.replication.work import PickedLedger
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.placement.rules import BrokenRule
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.judge.bad_copies import bad_records_on, plan_in_place
from bkctl.runtime.replication.judge.check_scope import CheckScope
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure
from bkctl.runtime.replication.judge.left_ledgers import Left, situation_of
from bkctl.runtime.replication.judge.marks import bookies_in_question
from bkctl.runtime.replication.judge.verdict import ReplicationState, judge_metadata
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.runtime.replication.survey.given_up import judge_given_up
from bkctl.runtime.replication.turn.state import LedgerTask, TurnTools
from bkctl.runtime.replication.turn.turn import LedgerTurn

_INTERRUPTED = frozenset({FailureReason.LOCK_LOST, FailureReason.CONFLICT})
_FOR_OTHERS = frozenset(
    {FailureReason.NOT_ENOUGH_BOOKIES, FailureReason.TARGETS_FAILED, FailureReason.PLACEMENT, FailureReason.OPEN}
)
"""Failures of a worker that copies only to its own bookie which another worker may not have."""
_UNWILLING = frozenset({FailureReason.READ_ONLY, FailureReason.REFUSED})
_NEED_EVENT = frozenset({FailureReason.LOST, FailureReason.DIFFERENT, FailureReason.STRIPE})
"""Only an event, such as the return of a bookie, can help."""


class _InterruptedError(Exception):
    """The lock was lost, or the metadata kept changing."""


class MarkedOutcome(msgspec.Struct, kw_only=True):
    """What became of a marked ledger. Without anything here the mark is no longer needed."""

    failures: list[RepairFailure] = []
    open_segment: Segment | None = None
    """The last segment of an open ledger with a missing bookie: its writer gets time to replace it."""
    is_interrupted: bool = False
    """The lock was lost, or the metadata kept changing: begin again."""
    is_for_others: bool = False
    """Only a worker with another bookie can repair it."""
    checked_bookies: frozenset[str] = frozenset()
    """Bookies that the mark names and that are registered and complete. An auditor that loses one of them now would
    find it in the mark, and change nothing."""

    broken_rules: list[BrokenRule] = []
    """Placement rules that copies break, because no bookie kept them: one for each copy and rule."""

    @property
    def is_done(self) -> bool:
        """Whether the mark can be cleared."""
        return not (self.failures or self.open_segment or self.is_interrupted or self.is_for_others)


@dataclasses.dataclass(frozen=True)
class RepairTools:
    """What the repairs of one worker share. ``is_local``: copies may only go to the worker's own bookie."""

    turns: TurnTools
    checker: LedgerChecker
    is_local: bool
    notes: RecoveryNotes


@dataclasses.dataclass
class MarkedLedgerRepair:
    """The repair of one marked ledger. Call ``run`` once."""

    tools: RepairTools
    picked: PickedLedger
    activity: LedgerActivity

    def __post_init__(self) -> None:
        self._ports, self._config = self.tools.turns.ports, self.tools.turns.policy.config
        self._ledger_id = self.picked.ledger_id
        self._registrations = Registrations(writable=(), read_only=())
        self._outcome = MarkedOutcome()

    async def run(self, picked_ns: int, earlier_segment: Segment | None) -> MarkedOutcome:
        """Repair it. ``picked_ns``: when its mark was read. ``earlier_segment``: see ``LedgerTask``.

        MetadataUnavailableError, other MetadataError, ConfigurationError.
        """
        try:
            stored = await self._ports.ledgers.read(self._ledger_id)
            self._registrations = await self._read_registrations(stored.value, picked_ns)
            await self._replace_lost(stored, earlier_segment)
            await self._rewrite(stored.value)
            await self._repair_placement()
        except LedgerNotFoundError:
            return MarkedOutcome()
        except _InterruptedError:
            self._outcome.is_interrupted = True
        except MetadataFormatError as error:
            self._fail(FailureReason.METADATA_UNREADABLE, str(error))
        return self._outcome

    async def _read_registrations(self, metadata: LedgerMetadata, picked_ns: int) -> Registrations:
        """Who is registered. Members that the mark names may be in the list only because it is older than the mark."""
        bookies, mark = self.tools.turns.live_bookies, self.picked.mark.mark
        registrations = await bookies.refresh()
        in_doubt = metadata.bookies() if mark is None else metadata.bookies().intersection(mark.missing_bookies)
        if registrations.live.isdisjoint(in_doubt):
            return registrations
        return await bookies.refresh((self._ports.clock.monotonic_ns() - picked_ns) / 1e9)

    async def _replace_lost(self, stored: Versioned[LedgerMetadata], earlier_segment: Segment | None) -> None:
        """Replace members that are not registered."""
        gone, last_segment = self._gone(stored.value), stored.value.last_segment
        if not gone:
            return
        if not self._config.open_ledger_wait_s:
            earlier_segment = last_segment
        task = LedgerTask(
            ledger_id=self._ledger_id,
            leaving=gone,
            unreachable=gone,
            earlier_segment=earlier_segment,
            stored=stored,
            is_data_first=True,
        )
        failures = await self._carry_out(task)
        if any(each.reason is FailureReason.LOST for each in failures):
            failures = await self._without_accepted(failures)
        for failure in failures:
            if failure.reason is FailureReason.OPEN and earlier_segment != last_segment:
                self._outcome.open_segment = last_segment
            else:
                self._note(failure, stored.value)

    async def _without_accepted(self, failures: list[LedgerFailure]) -> list[LedgerFailure]:
        """Without losses that an operator accepted with bookies that the ledger still names."""
        given_up = await find_given_up(self.tools.notes, self._ledger_id)
        accepted = await judge_given_up(self._ports.ledgers, given_up, self._registrations.live)
        return [each for each in failures if situation_of(each, accepted) is not Left.ACCEPTED]

    async def _rewrite(self, metadata: LedgerMetadata) -> None:
        """Read the copies of the registered members that the mark names, and write bad ones again."""
        live, writable = self._registrations.live, self._registrations.writable
        asked = live.intersection(bookies_in_question(self.picked.mark, metadata))
        if not asked:
            return
        checker = self.tools.checker
        check = await checker.check(self._ledger_id, CheckScope(bookie_ids=asked, has_open_end=False))
        if not check.is_deleted and not check.is_clean:
            checker.given_up = await read_given_up(self.tools.notes)
            check = await checker.check(self._ledger_id, CheckScope(has_open_end=False))
        if check.is_deleted:
            raise LedgerNotFoundError(self._ledger_id, "it was deleted")
        self._outcome.checked_bookies = asked
        if check.is_clean:
            return
        if check.problem is not None:
            self._fail(FailureReason.METADATA_UNREADABLE, check.problem)
            return
        stored = await self._ports.ledgers.read(self._ledger_id)
        bkctl = await self._ports.registrations.running_bkctl(bad_records_on(check))
        plan = plan_in_place(check, stored.value, stored.version, writable, bkctl)
        left = [*plan.left]
        if plan.changes:
            left += await self._carry_out(LedgerTask(ledger_id=self._ledger_id, bad=plan.bad))
        unwilling = live.intersection(each.bookie_id for each in left if each.reason in _UNWILLING)
        if unwilling:
            await self._move_from(unwilling, stored.value)
        for failure in left:
            if not failure.bookie_id or failure.bookie_id in live - unwilling:
                self._note(failure, stored.value)

    async def _move_from(self, bookie_ids: frozenset[str], metadata: LedgerMetadata) -> None:
        """Replace members that lack entries and do not take them: they are read-only, or refuse adds of this ledger."""
        complete = metadata.segments if metadata.is_closed else metadata.segments[:-1]
        leaving = {segment.first_entry_id: bookie_ids for segment in complete}
        task = LedgerTask(
            ledger_id=self._ledger_id,
            leaving_segments=leaving,
            unreachable=self._gone(metadata),
            is_data_first=True,
        )
        for failure in await self._carry_out(task):
            self._note(failure, metadata)

    async def _repair_placement(self) -> None:
        """If the mark asks for it, move copies that break placement rules, if other bookies can keep them."""
        mark = self.picked.mark.mark
        is_asked = mark is not None and not mark.missing_bookies and self._config.is_placement_repaired
        if not is_asked or not self._outcome.is_done:
            return
        metadata = (await self._ports.ledgers.read(self._ledger_id)).value
        survey = await self._ports.placement.survey(self._registrations.writable)
        moves = placement_moves(metadata, survey, self._registrations, self._ports.clock.random)
        if not moves.leaving:
            for first_entry_id, broken in moves.stuck.items():
                detail = f"no bookie can improve the segment from entry {first_entry_id}: {'; '.join(map(str, broken))}"
                self._fail(FailureReason.PLACEMENT, detail, needs_event=True)
            return
        task = LedgerTask(
            ledger_id=self._ledger_id,
            leaving_segments=moves.leaving,
            unreachable=self._gone(metadata),
            must_improve=True,
        )
        for failure in await self._carry_out(task):
            self._note(failure, metadata)
        # It is as good as it can be: without the mark, the next check finds it again if it can be better.

    async def _carry_out(self, task: LedgerTask) -> list[LedgerFailure]:
        """The failures of a turn; _InterruptedError."""
        result = await LedgerTurn(self.tools.turns, task, self.activity).run_locked(self.picked.lock)
        if result.was_deleted:
            raise LedgerNotFoundError(self._ledger_id, "it was deleted")
        self._outcome.broken_rules.extend(result.broken_rules)
        if any(failure.reason in _INTERRUPTED for failure in result.failures):
            raise _InterruptedError
        return [*result.failures]

    def _gone(self, metadata: LedgerMetadata) -> frozenset[str]:
        return metadata.bookies() - self._registrations.live

    def _note(self, failure: LedgerFailure, metadata: LedgerMetadata) -> None:
        """Note a failure of a turn, or leave it to others."""
        if self.tools.is_local and failure.reason in _FOR_OTHERS:
            self._outcome.is_for_others = True
            return
        needs_event = failure.reason in _NEED_EVENT
        if failure.reason is FailureReason.UNREADABLE:
            verdict = judge_metadata(self._ledger_id, metadata, self._registrations.live)
            needs_event = verdict.replication is ReplicationState.UNAVAILABLE
        subject, detail = failure.ledger_and_entries, failure.bare_detail
        if failure.bookie_id:
            subject = f"{failure.copies} copies on {failure.bookie_id}: {failure.reason.value}"
        reason = FailureReason.REFUSES_CLIENT if failure.is_refused else failure.reason
        self._fail(reason, f"{subject}: {detail}" if detail else subject, needs_event=needs_event)

    def _fail(self, reason: FailureReason, detail: str, *, needs_event: bool = False) -> None:
        self._outcome.failures.append(RepairFailure(reason.name, detail, needs_event))
