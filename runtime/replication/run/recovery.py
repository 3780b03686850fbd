"""Re-replicates all data of leaving bookies, dead or alive: plans over all ledgers, repairs each, and reports.

Source: replication sections 6 and 15.1. Unlike Java's `recover` it takes the replication lock of every ledger, limits
requests in flight, verifies copies before the metadata references them, and continues after failed ledgers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.errors import SILENCE, BookieError, RefusedError
from bkctl.runtime.metadata.bookies.cookies import CookieStore
from bkctl.runtime.metadata.outage import MetadataOutage, OutageWait
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.placement.rules import PlacementRule
from bkctl.runtime.replication.config import Policy, VerifyMode
from bkctl.runtime.replication.copy.reader import reason_of
from bkctl.runtime.replication.judge.ledger_result import (
    FailureReason,
    LedgerFailure,
    LedgerResult,
    SourceDefect,
    rule_counts,
)
from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, RecoveryPlan
from bkctl.runtime.replication.plan.scan import PlanDemand, RecoveryScan
from bkctl.runtime.replication.plan.store import OpenDatabase, RecoveryJob, UnfinishedJob
from bkctl.runtime.replication.run.ledgers import LedgerRun, RecoveryProgress
from bkctl.runtime.replication.survey.loss_proof import LossProof
from bkctl.runtime.replication.turn.state import LedgerTask, TurnTools

MEBIBYTE = 1024 * 1024


class FencedLedger(msgspec.Struct, frozen=True):
    """An open ledger that the run fenced and closed."""

    ledger_id: int
    owner: str | None


class RecoveryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a recovery. ``failures``: ledgers that still reference the failed bookies, with range and reason."""

    bookie_ids: tuple[str, ...]
    ledgers: int = 0
    """Ledgers of the plan: the sum of repaired, repaired by another process, deleted and failed ones."""
    ledgers_repaired: int = 0
    """Ledgers that this run repaired completely, by rewriting a segment or closing the ledger."""
    ledgers_repaired_by_others: int = 0
    """Ledgers in which another recovery or the writer had already replaced the failed bookies."""
    ledgers_deleted: int = 0
    """Ledgers that were deleted before they were repaired."""
    ledgers_failed: int = 0
    """Ledgers that still reference the failed bookies, including partly repaired ones."""
    ledgers_unreadable: int = 0
    """Ledgers outside the plan with unreadable metadata, which may reference the bookies."""
    fenced: tuple[FencedLedger, ...]
    """Open ledgers that were fenced and closed; these also count above."""
    fragments: int = 0
    entries: int = 0
    bytes_copied: int = 0
    seconds: float
    failures: tuple[LedgerFailure, ...]
    defects: tuple[SourceDefect, ...]
    """Bad copies on surviving bookies. They were not used, and still exist."""
    broken_rules: Mapping[str, int] = {}
    """Copies that break a placement rule, by rule."""
    verify: VerifyMode = VerifyMode.ALL
    """Which copies were read back."""

    @property
    def ledgers_closed(self) -> int:
        """Number of fenced ledgers."""
        return len(self.fenced)

    @property
    def mebibytes_per_second(self) -> float:
        """Verified bytes copied per second of the whole run."""
        return self.bytes_copied / MEBIBYTE / self.seconds if self.seconds > 0 else 0.0

    @property
    def has_progress(self) -> bool:
        """Whether anything was changed."""
        return self.fragments > 0 or bool(self.fenced)

    def with_left(self, ledger_ids: Sequence[int], unreadable: Sequence[LedgerFailure]) -> RecoveryReport:
        """The same, with ledgers that were not in the plan: those that a last scan found, and unreadable ones."""
        detail = f"it references {', '.join(self.bookie_ids)}: run the command again without --resume"
        left = [LedgerFailure(each, FailureReason.NOT_PLANNED, (), detail) for each in ledger_ids]
        failures = sorted([*self.failures, *left, *unreadable], key=lambda failure: failure.ledger_id)
        return msgspec.structs.replace(
            self,
            ledgers=self.ledgers + len(left),
            ledgers_failed=self.ledgers_failed + len(left),
            ledgers_unreadable=self.ledgers_unreadable + len(unreadable),
            failures=tuple(failures),
        )

    @property
    def is_complete(self) -> bool:
        """Whether all planned work is done."""
        return not self.failures


class RecoveryTally:
    """Counts the results of a run, and keeps only those that a report names."""

    def __init__(self, verify: VerifyMode = VerifyMode.ALL) -> None:
        self._verify = verify
        self._sums: Counter[str] = Counter()
        self._failures: list[LedgerFailure] = []
        self._defects: list[SourceDefect] = []
        self._broken_rules: Counter[PlacementRule] = Counter()
        self._fenced: list[FencedLedger] = []

    def add(self, result: LedgerResult) -> None:
        """Count the result of one more ledger."""
        self._sums["ledgers"] += 1
        self._sums[f"ledgers_{result.outcome.name.lower()}"] += 1
        for name in ("fragments", "entries", "bytes_copied"):
            self._sums[name] += getattr(result, name)
        self._failures += result.failures
        self._defects += result.defects
        self._broken_rules.update(broken.rule for broken in result.broken_rules)
        if result.was_closed:
            self._fenced.append(FencedLedger(result.ledger_id, result.owner))

    def report(
        self, bookie_ids: tuple[str, ...], seconds: float, unreadable: Sequence[LedgerFailure] = ()
    ) -> RecoveryReport:
        """Summarize the run. ``unreadable``: ledgers outside the plan with unreadable metadata."""
        sums: dict[str, Any] = self._sums
        return RecoveryReport(
            bookie_ids=bookie_ids,
            ledgers_unreadable=len(unreadable),
            fenced=tuple(sorted(self._fenced, key=lambda each: each.ledger_id)),
            seconds=seconds,
            failures=tuple(sorted([*unreadable, *self._failures], key=lambda failure: failure.ledger_id)),
            broken_rules=rule_counts(self._broken_rules),
            verify=self._verify,
            defects=tuple(sorted(self._defects, key=lambda defect: (defect.ledger_id, defect.bookie_id))),
            **sums,
        )


class BookieRecovery:
    """Plans and runs recoveries of bookies."""

    def __init__(
        self,
        ports: ClientPorts,
        cookies: CookieStore,
        locks: ReplicationLocks,
        policy: Policy,
        on_outage: Callable[[MetadataOutage], None] = lambda _: None,
        find_leaving: Callable[[], Awaitable[frozenset[str]]] | None = None,
        *,
        open_database: OpenDatabase,
    ) -> None:
        """``on_outage`` is called when the metadata store stops answering and the run waits, and when it continues.

        ``find_leaving``: the bookies that other operations empty now, which are a last resort as targets.

        ``open_database`` is called for each plan.
        """
        self._ports = ports
        self.locks = locks
        self.policy = policy
        self._on_outage = on_outage
        self._find_leaving = find_leaving
        self.outage = OutageWait(
            ports.registrations.snapshot, ports.clock, policy.config.metadata_outage_max_s, on_outage
        )
        """Waits for the metadata store in all methods but ``run``. Callers that build on this class may use it too."""
        self.loss_proof = LossProof(ports, policy.config)
        self._scan = RecoveryScan(ports, cookies, policy.config, open_database)

    async def require_down(
        self,
        bookie_ids: Collection[str],
        on_wait: Callable[[str], None] | None = None,
        advice_of: Callable[[str], str] = lambda _: "stop it first",
        *,
        is_waiting: bool = True,
    ) -> None:
        """Return once none of the bookies is registered; RefusedError if one is running or stays registered.

        The session of a killed bookie lasts some seconds longer. So this waits up to ``registration_wait_s`` if a
        registered bookie does not answer, and calls ``on_wait`` once with its id. If it answers, with whatever, raises
        immediately; ``advice_of`` says what to do with such a bookie. Without ``is_waiting`` it only looks once.
        """
        deadline_ns = self._ports.clock.monotonic_ns() + int(self.policy.config.registration_wait_s * 1e9)
        told: set[str] = set()
        while True:
            registered = await self.outage.outlast(lambda: self.registered(bookie_ids))
            if not registered:
                return
            for bookie_id in registered:
                error = await self.error_of(bookie_id)
                if not isinstance(error, SILENCE):
                    state = "serving" if error is None else f"answers: {reason_of(error)}"
                    raise RefusedError(f"bookie {bookie_id} is up and {state}; {advice_of(bookie_id)}")
                if on_wait is not None and bookie_id not in told:
                    told.add(bookie_id)
                    on_wait(bookie_id)
            if not is_waiting:
                return
            if self._ports.clock.monotonic_ns() >= deadline_ns:
                waited = f"after {self.policy.config.registration_wait_s:g} s"
                raise RefusedError(f"bookie {registered[0]} does not respond but is still registered {waited}")
            await self._ports.clock.sleep(0.5)

    async def registered(self, bookie_ids: Collection[str]) -> list[str]:
        """The given bookies that are currently registered, sorted."""
        return sorted((await self._ports.registrations.snapshot()).live.intersection(bookie_ids))

    async def error_of(self, bookie_id: str) -> BookieError | None:
        """What the bookie answers, or that it is silent, though it may be registered; None if it serves."""
        try:
            await self._ports.bookies.info(bookie_id)
        except BookieError as error:
            return error
        return None

    async def plan(
        self,
        bookie_ids: Collection[str],
        ledger_ids: Collection[int] | None = None,
        *,
        unreachable: Collection[str] | None = None,
        only_targets: Collection[str] = (),
        may_be_gone: bool = False,
    ) -> RecoveryPlan:
        """Like ``scan``, but refuses ids that are probably misspelt, and targets that cannot be used.

        ``ledger_ids``: read only these; LedgerNotFoundError if one is absent, unless it ``may_be_gone``.
        ``unreachable`` None: all of the bookies, which is right for dead ones. BookieNotFoundError for a bookie without
        cookie, registration and ledgers. ``only_targets``: copy only to these; RefusedError if one is not writable, or
        if strict placement rules forbid it.
        """
        demand = PlanDemand(
            leaving=frozenset(bookie_ids),
            unreachable=frozenset(bookie_ids if unreachable is None else unreachable),
            ledger_ids=None if ledger_ids is None else tuple(ledger_ids),
            only_targets=frozenset(only_targets),
            may_be_gone=may_be_gone,
        )
        return await self.outage.outlast(lambda: self._scan.plan(demand))

    async def plan_unfinished(self, unfinished: UnfinishedJob) -> RecoveryPlan:
        """Plan what an interrupted job has left. Its ledgers may have been deleted meanwhile. Errors as in ``plan``."""
        start = unfinished.start
        plan = await self.plan(
            start.bookie_ids, unfinished.ledger_ids, only_targets=start.only_targets, may_be_gone=True
        )
        return msgspec.structs.replace(
            plan, is_of_ledgers=start.is_of_ledgers, is_unfinished_job=not start.is_of_ledgers
        )

    async def scan(self, bookie_ids: Collection[str], unreachable: Collection[str]) -> RecoveryPlan:
        """Find all ledgers that reference any of the bookies, with one scan of all ledger metadata.

        ``unreachable``: bookies that are never asked. MetadataOutageError.
        """
        demand = PlanDemand(frozenset(bookie_ids), frozenset(unreachable))
        return await self.outage.outlast(lambda: self._scan.scan(demand))

    async def run(
        self,
        plan: RecoveryPlan,
        on_progress: Callable[[RecoveryProgress], None] | None = None,
        *,
        job: RecoveryJob | None = None,
    ) -> RecoveryReport:
        """Carry out a plan, after checking or reading the metadata of each ledger again. Safe to interrupt and repeat.

        Unless the plan is of a drain, the policy ``WAIT`` means that ledgers with a leaving bookie in the open last
        segment are worked on last, ``open_ledger_wait_s`` after the plan was made, and fenced only if the segment is
        still the same.

        ``on_progress`` is called at most ten times per second, and once at the end, even after an error. Unreachable
        bookies must be down: call ``require_down`` first. Waits during an outage of the metadata store;
        MetadataOutageError if it is too long.

        After the rest of an interrupted job, all ledgers are scanned again: those that still reference the bookies were
        not in its plan, and are failures of the report.
        """
        report = await self._carry_out(plan, on_progress, job)
        if not plan.is_unfinished_job or not report.is_complete:
            return report
        last = await self.scan(plan.bookie_ids, plan.unreachable)
        return report.with_left([ledger.ledger_id for ledger in last.ledgers], last.unreadable)

    async def _carry_out(
        self,
        plan: RecoveryPlan,
        on_progress: Callable[[RecoveryProgress], None] | None,
        job: RecoveryJob | None,
    ) -> RecoveryReport:
        leaving = frozenset() if self._find_leaving is None else await self.outage.outlast(self._find_leaving)
        tally = RecoveryTally(self.policy.config.verify)
        tools = TurnTools(
            self._ports,
            self.locks,
            self.policy,
            known=plan.targets,
            only_targets=plan.targets if plan.is_restricted else (),
            avoided=leaving.difference(plan.bookie_ids),
            on_outage=self._on_outage,
            job=job,
        )
        run = LedgerRun(tools, plan.totals, tally.add, on_progress)
        seconds = await run.run(self._tasks(plan, run))
        return tally.report(plan.bookie_ids, seconds, plan.unreadable)

    async def _tasks(self, plan: RecoveryPlan, run: LedgerRun) -> AsyncIterator[LedgerTask]:
        """The ledgers in the order of work; those that wait for their writers come last, after the wait."""
        leaving, unreachable = frozenset(plan.bookie_ids), frozenset(plan.unreachable)
        waits = self.policy.gives_writers_time(is_drain=plan.is_drain)

        def task(ledger: LedgerPlan) -> LedgerTask:
            return LedgerTask(
                ledger_id=ledger.ledger_id,
                leaving=leaving,
                unreachable=unreachable,
                earlier_segment=None if ledger.open_segment is None else ledger.open_segment.segment,
                stored=plan.scanned_metadata.pop(ledger.ledger_id, None),
                bytes_to_copy=ledger.bytes_to_copy or 0,
                is_drain=plan.is_drain,
            )

        for ledger in plan.ledgers:
            if not (waits and ledger.may_have_writer):
                yield task(ledger)
        written = [ledger for ledger in plan.ledgers if waits and ledger.may_have_writer]
        await run.wait_for_writers(len(written), plan.scanned_at_ns + int(self.policy.config.open_ledger_wait_s * 1e9))
        for ledger in written:
            yield task(ledger)
