"""Repairs one marked ledger under its replication lock. Source: replication sections 5 and 8.

Members that are not registered are replaced. Members that are registered but that the mark names may lack entries:
their copies are read, and bad ones are written again in place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

import msgspec

from runtime.autorecovery.failed_ledgers import RepairFailure
from runtime.client.ports import ClientPorts
from runtime.errors import LedgerNotFoundError, MetadataFormatError
from runtime.ledger.metadata import LedgerMetadata, Segment
from runtime.metadata.bookies.registration import Registrations
from runtime.metadata.replication.work import PickedLedger
from runtime.metadata.store import Versioned
from runtime.replication.audit import ReplicationState, judge_ledger, write_set_rows
from runtime.replication.byte_window import ByteWindow
from runtime.replication.check_scope import CheckScope
from runtime.replication.checker import LedgerChecker
from runtime.replication.config import OpenLedgers, ReplicationConfig
from runtime.replication.copies import BATCH_ENTRIES
from runtime.replication.in_place_ledger import InPlaceTools, LedgerInPlaceRepair
from runtime.replication.in_place_plan import LeftCopies, LeftReason, plan_in_place
from runtime.replication.ledger_activity import LedgerActivity
from runtime.replication.mark_rules import bookies_in_question
from runtime.replication.recovery_report import FailureReason, LedgerFailure
from runtime.replication.repair_order import RepairOrder
from runtime.replication.repair_worker import RepairWorker

_INTERRUPTED = frozenset({FailureReason.LOCK_LOST, FailureReason.CONFLICT})
_NO_TARGET = frozenset({FailureReason.NOT_ENOUGH_BOOKIES, FailureReason.PLACEMENT})
_RARE_LEFT = frozenset({LeftReason.LOST, LeftReason.DIFFERENT})


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

    @property
    def is_done(self) -> bool:
        """Whether the mark can be cleared."""
        return not (self.failures or self.open_segment or self.is_interrupted or self.is_for_others)


class MarkedLedgerRepair:
    """Repairs marked ledgers; safe to call for many of them concurrently."""

    def __init__(
        self, ports: ClientPorts, engine: RepairWorker, config: ReplicationConfig, *, is_local: bool = False
    ) -> None:
        """``is_local``: copies may only go to the worker's own bookie."""
        self._ports = ports
        self._engine = engine
        self._config = config
        self._is_local = is_local
        self._live_bookies = engine.tools.live_bookies
        self._checker: tuple[frozenset[str], LedgerChecker] | None = None
        self.bytes_rewritten = 0
        self._in_place = InPlaceTools(
            ports=ports,
            locks=engine.tools.locks,
            config=config,
            rate=engine.pacer.total,
            window=ByteWindow(config.bytes_in_flight_max, max(1, config.entries_in_flight_max // BATCH_ENTRIES)),
            copies=engine.copies,
            live_bookies=self._live_bookies,
            outage=engine.tools.outage,
            unusable={},
            on_written=self._count_rewritten,
        )

    async def run(
        self, picked: PickedLedger, picked_ns: int, seen: Segment | None, activity: LedgerActivity
    ) -> MarkedOutcome:
        """Repair a ledger. ``picked_ns``: when its mark was read. ``seen``: see ``RepairOrder``.

        MetadataUnavailableError, other MetadataError, ConfigurationError.
        """
        outcome = MarkedOutcome()
        try:
            stored = await self._ports.ledgers.read(picked.ledger_id)
            registrations = await self._live_bookies.refresh()
            asked = registrations.live.intersection(bookies_in_question(picked.mark, stored.value))
            if asked:  # they may be in the list only because it is older than the mark
                age_s = (self._ports.clock.monotonic_ns() - picked_ns) / 1e9
                registrations = await self._live_bookies.refresh(age_s)
                asked &= registrations.live
            gone = stored.value.bookies() - registrations.live
            if gone:
                await self._replace(picked, stored, gone, seen, activity, outcome)
            if asked and not outcome.is_interrupted:
                await self._rewrite(picked, asked, registrations, outcome)
        except LedgerNotFoundError:
            return MarkedOutcome()
        except MetadataFormatError as error:
            outcome.failures.append(RepairFailure(FailureReason.METADATA_UNREADABLE.name, str(error)))
        return outcome

    async def _replace(
        self,
        picked: PickedLedger,
        stored: Versioned[LedgerMetadata],
        gone: frozenset[str],
        seen: Segment | None,
        activity: LedgerActivity,
        outcome: MarkedOutcome,
    ) -> None:
        """Replace members that are not registered."""
        last_segment = stored.value.last_segment
        if not self._config.open_ledger_wait_s:
            seen = last_segment
        order = RepairOrder(gone, gone, OpenLedgers.WAIT, seen)
        result = await self._engine.repair_locked(picked.lock, order, activity, stored)
        if result.was_deleted:
            raise LedgerNotFoundError(picked.ledger_id, "it was deleted")
        for failure in result.failures:
            if failure.reason in _INTERRUPTED:
                outcome.is_interrupted = True
            elif failure.reason is FailureReason.OPEN and seen != last_segment:
                outcome.open_segment = last_segment
            elif self._is_local and failure.reason in {*_NO_TARGET, FailureReason.OPEN}:
                outcome.is_for_others = True
            else:
                outcome.failures.append(_failure(failure, stored.value, gone))

    async def _rewrite(
        self, picked: PickedLedger, asked: frozenset[str], registrations: Registrations, outcome: MarkedOutcome
    ) -> None:
        """Read the copies of these members, and write bad ones again."""
        checker = self._checker_of(registrations.live)
        check = await checker.check(picked.ledger_id, CheckScope(bookie_ids=asked, has_open_end=False))
        if not check.is_deleted and not check.is_clean:
            check = await checker.check(picked.ledger_id, CheckScope(has_open_end=False))
        if check.is_deleted:
            raise LedgerNotFoundError(picked.ledger_id, "it was deleted")
        outcome.relied_on = asked
        if check.is_clean:
            return
        if check.problem is not None:
            outcome.failures.append(RepairFailure(FailureReason.METADATA_UNREADABLE.name, check.problem))
            return
        stored = await self._ports.ledgers.read(picked.ledger_id)
        plan = plan_in_place(check, stored.value, stored.version, registrations.writable)
        tools = dataclasses.replace(self._in_place, unusable={})
        result = await LedgerInPlaceRepair(tools, plan).run_locked(picked.lock)
        if result is None:
            outcome.is_interrupted = True
            return
        left = [each for each in (*plan.left, *result.left) if each.bookie_id in registrations.live]
        outcome.failures.extend(map(_left, left))

    def _checker_of(self, live: frozenset[str]) -> LedgerChecker:
        """A checker for these bookies, shared by all ledgers while the list is the same."""
        if self._checker is None or self._checker[0] != live:
            self._checker = live, LedgerChecker(self._ports, live, self._config, self._engine.pacer.total)
        return self._checker[1]

    def _count_rewritten(self, _copies: int, size_bytes: int) -> None:
        self.bytes_rewritten += size_bytes


def live_copies(ledger_id: int, metadata: LedgerMetadata, live: Collection[str]) -> int:
    """Live copies of the entries that have the fewest. Pure."""
    rows = judge_ledger(write_set_rows(ledger_id, metadata), live).rows
    return min(row.live_copies if row.write_set.write_set else row.write_set.write_quorum_size or 0 for row in rows)


def _failure(failure: LedgerFailure, metadata: LedgerMetadata, gone: Collection[str]) -> RepairFailure:
    """A failure as a note. Entries without a registered bookie that has them need one to return."""
    is_rare = failure.reason is FailureReason.LOST
    if failure.reason is FailureReason.UNREADABLE:
        live = metadata.bookies() - frozenset(gone)
        verdict = judge_ledger(write_set_rows(failure.ledger_id, metadata), live)
        is_rare = verdict.replication is ReplicationState.UNAVAILABLE
    return RepairFailure(failure.reason.name, f"{failure.place}: {failure.bare_detail}", is_rare)


def _left(left: LeftCopies) -> RepairFailure:
    detail = f"{left.copies} copies on {left.bookie_id}: {left.reason.value}"
    return RepairFailure(
        left.reason.name, f"{detail}: {left.detail}" if left.detail else detail, left.reason in _RARE_LEFT
    )


def combined(failures: Iterable[RepairFailure]) -> RepairFailure:
    """One note for all failures of a ledger: the first reason that another try can help, else the first."""
    ordered = sorted(failures, key=lambda failure: failure.is_rare)
    return ordered[0]._replace(detail="; ".join(dict.fromkeys(failure.detail for failure in ordered)))
