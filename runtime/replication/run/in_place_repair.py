"""Writes bad copies again to the bookies that the metadata names, or moves their stripes where that is not safe.

The plan comes from a verification; ``judge/bad_copies.py`` has the rules.
Source: replication section 5.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import LedgerNotFoundError
from bkctl.runtime.metadata.outage import MetadataOutage, OutageWait
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.replication.config import Policy
from bkctl.runtime.replication.copy.limits import SharedPacer, for_each_bounded
from bkctl.runtime.replication.judge.bad_copies import (
    InPlacePlan,
    LedgerInPlace,
    bad_records_on,
    left_copies,
    plan_in_place,
)
from bkctl.runtime.replication.judge.check_scope import CheckScope
from bkctl.runtime.replication.judge.findings import CopyFinding
from bkctl.runtime.replication.judge.fragments import merge_ranges
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure, LedgerResult
from bkctl.runtime.replication.judge.targets import PlacementForecast
from bkctl.runtime.replication.plan.recovery_plan import PlanTotals
from bkctl.runtime.replication.plan.store import RecoveryJob
from bkctl.runtime.replication.run.ledgers import LedgerRun, RecoveryProgress
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.runtime.replication.turn.state import LedgerTask, TurnTools


class InPlaceReport(msgspec.Struct, frozen=True):
    """Results of a run. ``left``: all bad copies that stay, by ledger, also those that the plan had already left."""

    plan: InPlacePlan
    results: tuple[LedgerResult, ...]
    left: tuple[LedgerFailure, ...]
    seconds: float

    @property
    def copies_written(self) -> int:
        """Copies that were written and read back."""
        return sum(result.copies_written for result in self.results)

    @property
    def copies_moved(self) -> int:
        """Bad copies whose stripes are on other bookies now."""
        return sum(result.copies_moved for result in self.results)

    @property
    def stripes_moved(self) -> int:
        """Number of these stripes."""
        return sum(result.stripes_moved for result in self.results)

    @property
    def bytes_written(self) -> int:
        """Bytes of all new copies."""
        return sum(result.bytes_copied for result in self.results)

    @property
    def copies_not_needed(self) -> int:
        """Planned copies that were good, moved or deleted before they were written."""
        left = sum(left.copies for left in self.left) - sum(left.copies for left in self.plan.left)
        return max(0, self.plan.copies - self.copies_written - self.copies_moved - left)

    @property
    def is_complete(self) -> bool:
        """Whether no bad copy that was found is left."""
        return not self.left


@dataclasses.dataclass(frozen=True)
class InPlaceRepair:
    """Verifies ledgers, and repairs what it found."""

    ports: ClientPorts
    locks: ReplicationLocks
    policy: Policy
    on_outage: Callable[[MetadataOutage], None]

    @functools.cached_property
    def outage(self) -> OutageWait:
        """Waits for the metadata store while ledgers are verified. Callers that build on this class may use it too."""
        probe, wait_max_s = self.ports.registrations.snapshot, self.policy.config.metadata_outage_max_s
        return OutageWait(probe, self.ports.clock, wait_max_s, self.on_outage)

    async def plan(
        self,
        ledger_ids: Sequence[int],
        found_before: Mapping[int, Sequence[CopyFinding]],
        on_progress: Callable[[int, int], None],
        given_up: Mapping[int, GivenUpNote] = MappingProxyType({}),
    ) -> InPlacePlan:
        """Verify these ledgers, or of those with bad copies in ``found_before`` only these; MetadataOutageError.

        ``on_progress`` gets the ledgers done and the bytes read. ``given_up``: accepted losses, which are left.
        """
        ledgers: list[LedgerInPlace] = []
        deleted: list[int] = []
        bytes_read = 0
        registrations = await self.outage.outlast(self.ports.registrations.snapshot)
        pace, pacer = self.policy.pace, SharedPacer(self.ports.clock)
        pacer.change(pace.bytes_per_s, pace.bytes_per_s_per_bookie)
        checker = LedgerChecker(self.ports, registrations.live, self.policy.config, pacer, given_up=given_up)
        survey = await self.outage.outlast(lambda: self.ports.placement.survey(registrations.writable))
        forecast = PlacementForecast(survey, (), self.ports.clock.random)

        async def plan_one(ledger_id: int) -> None:
            nonlocal bytes_read
            scope, before = CheckScope(has_open_end=False), found_before.get(ledger_id, ())
            if before:
                scope = CheckScope(merge_ranges(each.entries for each in before), has_open_end=False)
            check = await self.outage.outlast(lambda: checker.check(ledger_id, scope))
            bytes_read += check.bytes_read
            try:
                if check.is_deleted:
                    deleted.append(ledger_id)
                elif check.problem is not None:
                    reason = FailureReason.METADATA_UNREADABLE
                    left = LedgerFailure(ledger_id, reason, (), check.problem, is_refused=check.is_refused)
                    ledgers.append(LedgerInPlace(ledger_id=ledger_id, left=(left,)))
                else:
                    stored = await self.outage.outlast(lambda: self.ports.ledgers.read(ledger_id))
                    bkctl = await self.outage.outlast(
                        lambda: self.ports.registrations.running_bkctl(bad_records_on(check))
                    )
                    known = registrations.writable, bkctl, forecast.of, before
                    ledgers.append(plan_in_place(check, stored.value, stored.version, *known))
            except LedgerNotFoundError:
                deleted.append(ledger_id)
            on_progress(len(ledgers) + len(deleted), bytes_read)

        await for_each_bounded(each_of(ledger_ids), plan_one, self.policy.config.ledgers_in_parallel)
        return InPlacePlan(tuple(sorted(ledgers, key=lambda ledger: ledger.ledger_id)), tuple(sorted(deleted)))

    async def run(
        self, plan: InPlacePlan, on_progress: Callable[[RecoveryProgress], None], job: RecoveryJob | None = None
    ) -> InPlaceReport:
        """Carry out a plan. Waits during an outage of the metadata store; MetadataOutageError if it is too long."""
        planned = {ledger.ledger_id: ledger for ledger in plan.to_repair}
        results: list[LedgerResult] = []
        totals = PlanTotals(ledgers=len(planned), entries=plan.copies, bytes_to_copy=plan.bytes_estimate)
        tools = TurnTools(
            self.ports,
            self.locks,
            self.policy,
            on_outage=self.on_outage,
            job=job,
        )
        run = LedgerRun(tools, totals, results.append, on_progress)
        tasks = [
            LedgerTask(
                ledger_id=ledger_id,
                bad=ledger.bad,
                bytes_to_copy=ledger.bytes_to_copy,
            )
            for ledger_id, ledger in planned.items()
        ]
        seconds = await run.run(each_of(tasks))
        results.sort(key=lambda result: result.ledger_id)
        left = [each for result in results for each in _left_of(result, planned[result.ledger_id])]
        left = sorted([*plan.left, *left], key=lambda each: (each.ledger_id, each.bookie_id))
        return InPlaceReport(plan, tuple(results), tuple(left), seconds)


def _left_of(result: LedgerResult, planned: LedgerInPlace) -> Iterator[LedgerFailure]:
    """A failure that is about the whole ledger leaves all bad copies as they are."""
    for failure in result.failures:
        if failure.bookie_id or failure.reason is FailureReason.TARGET_GONE:
            yield failure
            continue
        for each in planned.changes:
            yield left_copies(
                result.ledger_id, failure.reason, each.bookie_id, each.copies, each.entries, failure.bare_detail
            )
