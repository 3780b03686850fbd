"""Shared by the commands that recover and decommission bookies: their parts, plans and reports."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from bkctl.commands.context import CommandContext, CopyFlags
from bkctl.commands.errors import Outcome
from bkctl.commands.outages import report_outage
from bkctl.commands.parse import parse_duration_s, parse_rate_limit
from bkctl.commands.recovery_rendering import PLAN_TABLE, PlanItems, plan_body, plan_findings, plan_row, plan_summary
from bkctl.commands.rendering import Table
from bkctl.commands.safety.gate import Change, open_change
from bkctl.commands.safety.plan import Plan, PlanFinding
from bkctl.commands.session import ANSWER_TIMEOUT_S, Session
from bkctl.runtime.client.access import require_access
from bkctl.runtime.errors import MetadataError, RefusedError
from bkctl.runtime.metadata.cluster.operation_lock import leaving_bookies
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import list_maintenance
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import find_away, find_returned, read_given_up
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.config import CopyPace, OpenLedgers, Policy, ReplicationConfig
from bkctl.runtime.replication.judge.advice import (
    GivenUpLedger,
    causes_text,
    in_maintenance,
    is_back,
    may_give_back,
    serves_unregistered,
    these_bookies,
)
from bkctl.runtime.replication.judge.cluster_facts import BookieFacts, ClusterFacts
from bkctl.runtime.replication.judge.cluster_status import idle_bookies, status_findings
from bkctl.runtime.replication.judge.ledger_result import LedgerFailure
from bkctl.runtime.replication.judge.left_ledgers import Left, Shortage, situation_of
from bkctl.runtime.replication.judge.needed_bookies import Idle
from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, RecoveryPlan
from bkctl.runtime.replication.plan.store import JobStart
from bkctl.runtime.replication.run.recovery import BookieRecovery
from bkctl.runtime.replication.survey.given_up import find_removed, judge_given_up
from bkctl.runtime.replication.survey.status import StatusLimits, StatusSurvey
from bkctl.storage.adapters.sqlite import temporary_database
from bkctl.storage.severity import Severity

_SHORT_OF_BOOKIES = {"bookies_down", "no_writable_bookie", "writers_stop"}
"""Parts of the status."""


class ReplicationAccess(NamedTuple):
    """Recovery of the bookies of one cluster."""

    recovery: BookieRecovery
    session: Session
    ledgers: LedgerStore
    policy: Policy = Policy()
    drain_wait_s: float = 0.0
    """How long writers get to leave bookies that serve."""
    returning: tuple[PlanFinding, ...] = ()
    """About those of the bookies that may come back."""
    refusing: Mapping[str, str] = {}
    """Registered bookies that refuse this client, each with a sentence: nothing can be copied to or from them."""
    given_up: Mapping[int, GivenUpNote] = {}
    """What an operator gave up, by ledger."""
    accepted: Mapping[int, GivenUpLedger] = {}
    """Losses that an operator accepted."""
    idle: Mapping[str, Idle] = {}
    """See ``more_targets``."""

    def change_plan(
        self,
        found: RecoveryPlan,
        *,
        first_summary: Sequence[str] = (),
        more_summary: Sequence[str] = (),
        more_items: Sequence[dict[str, Any]] = (),
        risks: Sequence[PlanFinding] = (),
        refusal: str | None = None,
    ) -> Plan:
        """A recovery as a plan that can be shown, saved, compared and confirmed like that of any other command."""
        policy, shown = self.policy, self._shown(found)
        left = plan_findings(found, policy, self.accepted, self.idle)

        def item_of(ledger: LedgerPlan) -> dict[str, Any]:
            row = plan_row(ledger, policy, is_drain=found.is_drain)
            return {"action": "recover", "path": self.ledgers.path(ledger.ledger_id), **row}

        return self.session.plan(
            subject=", ".join(found.bookie_ids),
            summary=(*first_summary, *plan_summary(shown, policy, self.drain_wait_s), *more_summary),
            findings=_worst_first((*risks, *self.returning, *self._refusals(), *left)),
            items=PlanItems(found.ledgers, item_of, more_items),
            arguments={
                "bookie_ids": list(found.bookie_ids),
                "placement": policy.config.placement.value,
                "open_ledgers": policy.open_ledgers.value,
                **({"to": list(found.targets)} if found.is_restricted else {}),
            },
            refusal=refusal,
        )

    def open_change(
        self, context: CommandContext, plan: Plan, found: RecoveryPlan, table: Table = PLAN_TABLE
    ) -> AbstractAsyncContextManager[Change]:
        """The gate for a plan about these bookies: locks only them, and waits out an outage."""
        return open_change(
            context,
            plan,
            self.session.store,
            bookie_ids=found.bookie_ids,
            table=table,
            totals=plan_body(self._shown(found), self.policy),
            outlast=self.recovery.outage.outlast,
            shown=plan_outcome(found),
        )

    def _shown(self, found: RecoveryPlan) -> RecoveryPlan:
        """The plan with only those bookies to copy to that accept this client now."""
        return msgspec.structs.replace(
            found, targets=tuple(each for each in found.targets if each not in self.refusing)
        )

    def _refusals(self) -> Iterator[PlanFinding]:
        if self.refusing:
            bookies = these_bookies(list(self.refusing), "refuses", "refuse")
            sentence = f"{bookies} this client, so nothing can be copied to or from there: {causes_text(self.refusing)}"
            yield PlanFinding(Severity.WARNING, sentence)


def plan_outcome(found: RecoveryPlan) -> Outcome:
    """How a command ends that only shows the plan: ledgers that could not be read may have to be moved, too."""
    return Outcome.FINDINGS if found.unreadable else Outcome.OK


def policy_of(
    config: ReplicationConfig,
    flags: CopyFlags,
    open_ledgers: OpenLedgers | None = None,
    recorded: JobStart | None = None,
) -> Policy:
    """The choices of a run, by its flags, or else by the job that it continues (``recorded``), or else by the settings;
    InvalidArgumentError."""
    if flags.outage_max is not None:
        config = msgspec.structs.replace(config, metadata_outage_max_s=parse_duration_s(flags.outage_max))
    if recorded is not None:
        config = msgspec.structs.replace(config, placement=recorded.placement, verify=recorded.verify)
        open_ledgers = open_ledgers or recorded.open_ledgers
    if flags.placement is not None:
        config = msgspec.structs.replace(config, placement=flags.placement)
    if flags.verify is not None:
        config = msgspec.structs.replace(config, verify=flags.verify)
    pace = CopyPace(
        bytes_per_s=parse_rate_limit(flags.copy_rate),
        bytes_per_s_per_bookie=parse_rate_limit(flags.copy_rate_per_bookie),
    )
    return Policy(config=config, open_ledgers=open_ledgers or OpenLedgers.WAIT, pace=pace)


def _worst_first(findings: Iterable[PlanFinding]) -> tuple[PlanFinding, ...]:
    return tuple(sorted(findings, key=lambda each: each.severity, reverse=True))


async def returning_findings(access: ReplicationAccess, bookie_ids: Collection[str]) -> tuple[PlanFinding, ...]:
    """Warnings of bookies in maintenance, which may come back with their ledgers, and of those that were given up, and
    are back or may have their disks."""
    session = access.session
    notes = await list_maintenance(RecoveryNotes(session.store, session.root))
    away = [each for each in notes if each.bookie_id in bookie_ids and not each.is_overdue(session.now_ms)]
    back = await find_returned(session.registrations, access.given_up, session.ledgers)
    found = [is_back(each, ledger_ids) for each, ledger_ids in back if each in bookie_ids]
    warnings = [f"{each.sentence}: {each.command}" for each in found]
    gone = await find_away(session.registrations, access.given_up, session.ledgers)
    warnings += [may_give_back({each: ledger_ids}) for each, ledger_ids in gone if each in bookie_ids]
    warnings += [in_maintenance(away, session.now_ms).sentence] if away else []
    return tuple(PlanFinding(Severity.WARNING, each) for each in warnings)


async def require_not_serving(session: Session, bookie_ids: Collection[str]) -> None:
    """RefusedError if one of the bookies, which are in the cluster, serves without a registration: it still has its
    entries. One that must leave can be stopped."""
    down = set(bookie_ids) - (await session.registrations.snapshot()).live
    for each in serves_unregistered(await session.find_serving(down)):
        raise RefusedError(f"{each.sentence} (one that must leave is stopped first): {each.command}")


class WithReasons(Protocol):
    """Lets read-only bookies say why they are, as far as they answer in the time."""

    async def __call__(
        self, session: Session, bookies: Sequence[BookieFacts], timeout_s: float, /
    ) -> tuple[BookieFacts, ...]:
        """The same bookies."""


async def find_shortage(
    session: Session, failures: Iterable[LedgerFailure], with_reasons: WithReasons, lost: Collection[str] = ()
) -> Shortage:
    """What helps the ledgers of these that have too few targets, and how bad the status calls that; MetadataError.

    ``lost``: bookies that an operator gave up."""
    if not any(situation_of(each) in {Left.NO_TARGET, Left.PLACEMENT} for each in failures):
        return Shortage()
    status = await _read_status(session, with_reasons, StatusLimits())
    severities = [each.severity for each in status_findings(status) if each.part in _SHORT_OF_BOOKIES]
    return Shortage(_without(lost, idle_bookies(status)), max([Severity.WARNING, *severities]))


async def with_idle(
    access: ReplicationAccess, found: RecoveryPlan, with_reasons: WithReasons, lost: Collection[str] = ()
) -> ReplicationAccess:
    """With what helps if too few bookies are writable for this plan. ``lost``: bookies that an operator gave up."""
    if not found.totals.ledgers_without_target:
        return access
    status = await _read_status(access.session, with_reasons, StatusLimits(ledgers_s=0, copies_s=0, sample_s=0))
    return access._replace(idle=_without(lost, idle_bookies(status)))


def _without(lost: Collection[str], idle: Mapping[str, Idle]) -> dict[str, Idle]:
    return {each: why for each, why in idle.items() if each not in lost}


async def _read_status(session: Session, with_reasons: WithReasons, limits: StatusLimits) -> ClusterFacts:
    bookies = session.bookies(timeout_max_s=ANSWER_TIMEOUT_S)
    found = await StatusSurvey(session.store, session.root, session.ledgers, bookies, LoopClock(), limits).read()
    if found.bookies is None:
        return found
    return msgspec.structs.replace(found, bookies=await with_reasons(session, found.bookies, limits.bookie_s))


async def removed_of(access: ReplicationAccess, bookie_ids: Collection[str]) -> dict[str, int]:
    """Those of the bookies that have left the cluster, with the number of ledgers that name each."""
    session = access.session
    ports = (await session.client()).ports
    find = partial(find_removed, ports, session.store, bookie_ids)
    return await access.recovery.outage.outlast(find)


async def replication_access(
    context: CommandContext, session: Session, policy: Policy, sources: Collection[str] = ()
) -> ReplicationAccess:
    """Parts for one run. ClusterNotFoundError; AuthenticationRequiredError if no bookie accepts this client, or one of
    ``sources`` does not."""
    ports = (await session.client()).ports
    refusing = await require_access(ports, sources, waits_for_all=True)
    given_up, accepted = await _accepted_losses(session)
    recovery = BookieRecovery(
        ports,
        session.cookies,
        await session.locks(),
        policy,
        partial(report_outage, context.console),
        partial(leaving_bookies, session.store, session.root),
        open_database=temporary_database,
    )
    parts = recovery, session, ports.ledgers, policy
    return ReplicationAccess(*parts, refusing=refusing, given_up=given_up, accepted=accepted)


async def _accepted_losses(session: Session) -> tuple[dict[int, GivenUpNote], dict[int, GivenUpLedger]]:
    given_up = await read_given_up(RecoveryNotes(session.store, session.root))
    if not given_up:
        return {}, {}
    live = (await session.registrations.snapshot()).live
    return given_up, await judge_given_up(await session.ledgers(), given_up, live)


async def with_accepted_now(access: ReplicationAccess) -> ReplicationAccess:
    """With the losses that were accepted before the work and still are; with none if that is not known."""
    if not access.accepted:
        return access
    try:
        return access._replace(accepted=(await _accepted_losses(access.session))[1])
    except MetadataError:
        return access._replace(accepted={})


def note_end(change: Change, body: dict[str, object], outcome: Outcome) -> None:
    """Record the result in the audit trail."""
    change.details |= body
    change.result = {Outcome.OK: "done", Outcome.PARTIAL: "partial"}.get(outcome, "failed")


def waiting_sentence(bookie_id: str) -> str:
    """Explain the wait while the session of a killed bookie lasts."""
    return f"bookie {bookie_id} does not respond but is still registered: waiting for its session to end"
