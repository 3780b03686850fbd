"""What ``bkctl decommission`` and ``bkctl bookie drain`` share: the way of bookies out of the cluster, step by step.

Check that the cluster can do without them, make them read-only, move their ledgers away while they serve, stop them,
scan all ledgers again, delete their cookies. Each step can be repeated after a stop at any moment.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import msgspec
import typer

from bkctl.commands.autorecovery.repair_marks import mark_repair
from bkctl.commands.bookie.leaving_report import (
    leaving_outcome,
    may_be_read_only,
    not_stopped,
    print_leaving,
    report_fields,
    stays_read_only,
)
from bkctl.commands.bookie.read_only import BookieSwitch
from bkctl.commands.bookie.read_only_reasons import with_reasons
from bkctl.commands.bookie.stop_command import host_of, run_stop_command
from bkctl.commands.context import CommandContext, CopyFlags
from bkctl.commands.errors import Outcome
from bkctl.commands.ledger.accepted_loss import given_up_record
from bkctl.commands.outages import WorkProgress, continuing_command, reporting_interruption
from bkctl.commands.progress import Progress
from bkctl.commands.recovery_job import (
    delete_finished_jobs,
    open_job,
    read_unfinished,
    start_of,
    with_recorded_rates,
    work_of,
)
from bkctl.commands.recovery_progress import recovery_progress
from bkctl.commands.recovery_rendering import LEAVING_PLAN_TABLE, plan_row, shortened
from bkctl.commands.rendering import time_of_day
from bkctl.commands.replication_access import (
    ReplicationAccess,
    find_shortage,
    note_end,
    policy_of,
    removed_of,
    replication_access,
    require_not_serving,
    returning_findings,
    waiting_sentence,
    with_idle,
)
from bkctl.commands.safety.gate import Change, mode_turn
from bkctl.commands.safety.plan import Plan, PlanFinding
from bkctl.commands.session import Session, open_session
from bkctl.runtime.admin.calls import AdminCredentials
from bkctl.runtime.errors import ConflictError, MetadataError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.replication.given_up_note import bookies_given_up
from bkctl.runtime.metadata.replication.maintenance import end_maintenance, list_maintenance
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import Node
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.close.given_up_record import GivenUpRecord
from bkctl.runtime.replication.config import OpenLedgers
from bkctl.runtime.replication.judge.drained_bookies import LEAVES_AT_RISK, LEAVES_CLUSTER
from bkctl.runtime.replication.judge.stop_verdict import StopVerdict
from bkctl.runtime.replication.run.decommission import Decommission, DecommissionPlan, DecommissionReport
from bkctl.runtime.replication.run.drain import DrainHooks, OpenLedger
from bkctl.runtime.replication.run.mark_repair import ClearOutcome
from bkctl.runtime.replication.survey.given_up import require_none_named
from bkctl.runtime.replication.survey.stop_scan import scan_for_stop
from bkctl.storage.words import SHOWN_MAX, counted, duration, listed, named

WAIT_DEFAULT = "10m"
_OPEN_SENTENCES = {
    OpenLedgers.SKIP: "are left alone",
    OpenLedgers.FENCE: "are fenced and closed, which stops their writers",
    OpenLedgers.WAIT: "wait for their writers to move on",
}

LeavingIds = Annotated[list[str], typer.Argument(metavar="ID...", help="IDs of the bookies")]
OpenLedgersOption = Annotated[
    OpenLedgers | None,
    typer.Option("--open-ledgers", metavar="MODE", help="wait for their writers, skip, or fence"),
]
WaitOption = Annotated[str, typer.Option("--wait", metavar="DURATION", help="For writers, and for you")]
LeavingTokenOption = Annotated[
    str | None, typer.Option("--token-file", metavar="FILE", help="Token of the admin interface")
]
RiskOption = Annotated[bool, typer.Option("--accept-risk", help="Even if the cluster may not cope")]


class LeavingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for. ``stop_words``: see ``run_stop_command``."""

    bookie_ids: tuple[str, ...]
    wait_s: float
    is_drain_only: bool = False
    is_absence_fine: bool = False
    open_ledgers: OpenLedgers | None = None
    stop_words: tuple[str, ...] = ()
    accepted: frozenset[int] = frozenset()
    accepted_from: str = ""
    is_risk_accepted: bool = False
    copying: CopyFlags = CopyFlags()
    credentials: AdminCredentials = AdminCredentials()


async def drain_or_decommission(context: CommandContext, request: LeavingRequest) -> Outcome:
    """Carry out the request and print its end; RefusedError, WaitTimeoutError and the errors of the gate."""
    report, job_file = await _carry_out(context, request)
    again = continuing_command(context.settings.command_line, job_file)
    print_leaving(context, report, again, is_drain_only=request.is_drain_only)
    return leaving_outcome(report)


async def _carry_out(context: CommandContext, request: LeavingRequest) -> tuple[DecommissionReport, str | None]:
    """The report, and the job file if a later run can continue with it."""
    policy = policy_of(context.settings.replication, request.copying, request.open_ledgers)
    async with open_session(context) as session:
        if request.copying.resume is not None:
            left = read_unfinished(request.copying.resume, request.bookie_ids, session)
            copying = with_recorded_rates(request.copying, context.console)
            policy = policy_of(context.settings.replication, copying, request.open_ledgers, left.start)
        access = await replication_access(context, session, policy, request.bookie_ids)
        access = access._replace(returning=await returning_findings(access, request.bookie_ids))
        ports = (await session.client()).ports
        operation = Decommission(access.recovery, session.cookies, ports)
        removed = await removed_of(access, request.bookie_ids)
        if not request.is_absence_fine:
            require_none_named(removed)
        ids = tuple(each for each in request.bookie_ids if each not in removed or not request.is_absence_fine)
        if not ids:
            if not context.settings.is_rehearsal:
                await delete_finished_jobs(context, session, request.bookie_ids, request.copying.resume)
            ids = request.bookie_ids
            return DecommissionReport(bookie_ids=ids, recoveries=(), ledgers_scanned=0, remaining=()), None
        await require_not_serving(session, ids)
        noted = {each for each, note in access.given_up.items() if not bookies_given_up(note).isdisjoint(ids)}
        found = await operation.plan(
            ids,
            lambda each: context.console.say(waiting_sentence(each)),
            request.accepted,
            request.accepted_from,
            noted_losses=noted,
            is_rehearsal=context.settings.is_rehearsal,
        )
        verdict = await _check_cluster(session, access, found) if found.live else None
        lost, reasons = request.bookie_ids if request.accepted else (), partial(with_reasons, context)
        access = (await with_idle(access, found.recovery, reasons, lost))._replace(drain_wait_s=request.wait_s)
        plan = _change_plan(access, found, request, verdict)
        rest = "" if request.is_drain_only else "; the cookie is deleted last"
        async with (
            reporting_interruption(context, WorkProgress(len(found.recovery.ledgers), rest)) as work,
            access.open_change(context, plan, found.recovery, LEAVING_PLAN_TABLE) as change,
        ):
            work.is_begun = True
            run = _Run(context, session, access, operation, request, found, change, work)
            report = await run.run()
            note_end(change, report_fields(report), leaving_outcome(report))
        if report.remaining:
            with contextlib.suppress(MetadataError):
                failures = [each for recovery in report.recoveries for each in recovery.failures]
                report = msgspec.structs.replace(report, shortage=await find_shortage(session, failures, reasons, lost))
    return report, work.file


@dataclasses.dataclass
class _Run:
    context: CommandContext
    session: Session
    access: ReplicationAccess
    operation: Decommission
    request: LeavingRequest
    found: DecommissionPlan
    change: Change
    work: WorkProgress
    said_open: frozenset[int] = frozenset()

    @property
    def hooks(self) -> DrainHooks:
        """The calls of the operation."""
        return DrainHooks(
            on_progress=self.work.note,
            on_open=self._say_open_ledgers,
            before_scan=self.change.renew_lock,
            clear_marks=self._clear_marks,
            keep_cookie=self._keep_cookie,
            losses=self._losses,
        )

    async def run(self) -> DecommissionReport:
        found, request, operation = self.found, self.request, self.operation
        dead = sorted(set(found.bookie_ids) - found.live)
        await self.access.recovery.require_down(dead)
        copying = request.copying
        start = start_of(self.context, self.session, self.access.policy, self.change.operation_id, found.recovery)
        async with open_job(self.context, self.change, copying, start, work_of(found.recovery)) as opened:
            opened.is_finished = copying.resume is None  # before the first copy a new job has nothing to continue
            await self._make_read_only()
            opened.is_finished = False
            async with recovery_progress(self.context.console, "moving ledgers") as progress:
                self.work.show, self.work.file = progress.show, opened.path
                hooks = msgspec.structs.replace(self.hooks, job=opened.job)
                moved = await operation.move(found, request.wait_s, hooks)
                drained = await operation.report(found, moved, is_drain_only=request.is_drain_only)
                is_all_done = all(recovery.is_complete for recovery in moved.recoveries)
                opened.is_finished = is_all_done or not drained.remaining
                self.work.file = opened.kept_file
        if not drained.remaining:
            await delete_finished_jobs(self.context, self.session, found.bookie_ids)
        if request.is_drain_only or not drained.is_complete:
            return drained
        refusal = await self._stop()
        if refusal is not None:
            return msgspec.structs.replace(drained, refusal=refusal)
        self.work.state = ()
        report = await operation.finish(found, moved, self.hooks)
        if report.is_complete:
            await self._await_nothing()
        return report

    async def _await_nothing(self) -> None:
        """Remove the notes of bookies that were expected to be back."""
        notes = RecoveryNotes(self.session.store, self.session.root)
        for bookie_id in self.found.bookie_ids:
            await notes.deadlines.remove(bookie_id)
        for each in await list_maintenance(notes):
            if each.bookie_id in self.found.bookie_ids:
                with contextlib.suppress(ConflictError, MetadataFormatError):  # the status says how to end it
                    await end_maintenance(notes, self.session.switches, each)

    async def _make_read_only(self) -> None:
        """Check again what may have changed since the plan, now that no other command makes bookies read-only."""
        live = sorted(self.found.live)
        if not live:
            return
        context, session, request, watch = self.context, self.session, self.request, self.operation.watch
        switch = BookieSwitch(context, session, watch, request.credentials)
        async with mode_turn(context, session.store, session.root, self.change) as lock:
            if (await watch.read(live)).writable and not request.is_risk_accepted:
                require_accepted(context, await _check_cluster(session, self.access, self.found), request)
            lock.require_held()
            reason = LEAVES_AT_RISK if request.is_risk_accepted else LEAVES_CLUSTER
            await switch.make_read_only(live, request.wait_s, reason, self._note_asked)
            self.work.state = (stays_read_only(live),)

    def _note_asked(self, bookie_ids: Sequence[str]) -> None:
        self.work.state = (may_be_read_only(bookie_ids),) if bookie_ids else ()

    async def _stop(self) -> str | None:
        live = sorted(self.found.live)
        if not live:
            return None
        self.work.state = (not_stopped(live), stays_read_only(live))
        with self.context.console.progress("waiting for the stop") as progress:
            for number, bookie_id in enumerate(live if self.request.stop_words else ()):
                progress.update(number, len(live), self._until(f"the stop command of {bookie_id}"))
                host = await host_of(self.session.registrations, bookie_id)
                failure = await run_stop_command(self.request.stop_words, bookie_id, host, self.request.wait_s)
                if failure is not None:
                    return f"bookie {bookie_id} is drained, but {failure}: stop it and run the command again"
            left = await self._wait_until_gone(live, progress)
        if not left:
            return None
        return f"{not_stopped(left)} within {self.request.wait_s:g} s: stop it and run the command again"

    async def _wait_until_gone(self, live: Sequence[str], progress: Progress) -> Sequence[str]:
        until = self._until("")

        def say_waiting(left: Sequence[str]) -> None:
            how = "" if self.request.stop_words else f" stop it now, on its host: bkctl bookie stop {' '.join(left)};"
            is_drained, has_left = ("is drained", "it has") if len(left) == 1 else ("are drained", "they have")
            self.context.console.say(
                f"{named('bookie', left)} {is_drained}:{how} waiting up to {self.request.wait_s:g} s until {has_left} "
                "left the cluster (Ctrl-C ends that, --wait sets the time)"
            )

        def show(left: Sequence[str]) -> None:
            progress.update(len(live) - len(left), len(live), f"{until}{', '.join(left)} to leave the cluster")

        watch = self.operation.watch
        return await watch.wait_until_none(lambda found: found.serving, live, self.request.wait_s, say_waiting, show)

    def _until(self, what: str) -> str:
        ends_ms = LoopClock().now_ms() + self.request.wait_s * 1000
        return f"waits until {time_of_day(ends_ms)} at most for {what}"

    def _keep_cookie(self, bookie_id: str, node: Node) -> None:
        self.change.require_lock()
        self.work.rest = "; cookies may be deleted already"
        self.change.trash.keep("delete", self.session.cookies.path(bookie_id), node)

    def _losses(self) -> GivenUpRecord:
        self.change.require_lock()
        return given_up_record(self.session)

    async def _clear_marks(self) -> None:
        """Clear the marks that name the bookies and no other member, of ledgers that are complete without them."""

        def keep(nodes: Sequence[tuple[str, Node]]) -> None:
            self.change.require_lock()
            self.change.trash.keep_all("delete", nodes)

        outcomes: dict[int, ClearOutcome] = {}
        repair = await mark_repair(self.context, self.session)
        left: set[int] = set()
        for bookie_id in self.found.bookie_ids:
            judged = await repair.examine(self.session.foreign, missing=bookie_id)
            await repair.clear([each for each in judged if each.verdict.is_clearable], keep, outcomes.__setitem__)
            left.update(each.ledger_id for each in judged if each.mark.mark is not None)
        cleared = {ledger_id for ledger_id, outcome in outcomes.items() if outcome.is_cleared}
        if cleared:
            self.context.console.say(f"cleared {counted(len(cleared), 'mark')} of ledgers that are complete")
        if left - cleared:
            self.context.console.warn(
                f"{counted(len(left - cleared), 'mark still names', 'marks still name')} bookie "
                f"{', '.join(self.found.bookie_ids)}: "
                f"{shortened(sorted(left - cleared))}; bkctl autorecovery repair-marks --deep checks them"
            )

    def _say_open_ledgers(self, still_open: Sequence[OpenLedger]) -> None:
        ids = frozenset(each.ledger_id for each in still_open)
        if ids != self.said_open:
            self.said_open = ids
            self.context.console.say(
                f"waiting for the writers of {counted(len(ids), 'open ledger')}: "
                + open_names(still_open, self.session.age_s)
            )


def open_names(still_open: Sequence[OpenLedger], age_s: Callable[[int], int]) -> str:
    """The first ledgers with their owners and ages, and the number of others."""
    names = []
    for each in still_open[:SHOWN_MAX]:
        age = "of unknown age" if each.created_ms is None else f"{duration(age_s(each.created_ms))} old"
        names.append(f"{each.ledger_id} ({each.owner or 'no known owner'}, {age})")
    return listed(names, total=len(still_open))


async def _check_cluster(session: Session, access: ReplicationAccess, found: DecommissionPlan) -> StopVerdict:
    ports = (await session.client()).ports
    return await scan_for_stop(
        ports,
        session.store,
        found.bookie_ids,
        foreign=session.foreign,
        placement=access.policy.config.placement,
        is_removal=True,
    )


def risks_of(verdict: StopVerdict) -> list[PlanFinding]:
    """What objects, for the plan."""
    objections = (*verdict.reasons, *verdict.warnings)
    return [PlanFinding(each.severity, str(each)) for each in objections]


def refusal_of(verdict: StopVerdict, request: LeavingRequest) -> str | None:
    """Why the bookies should not leave, as a sentence; None if nothing objects, or the risk is accepted."""
    if verdict.is_yes or request.is_risk_accepted:
        return None
    first, which = verdict.reasons[0], named("bookie", verdict.bookie_ids)
    return f"nothing was changed: {which} should not leave now: {first}; --accept-risk continues all the same"


def require_accepted(context: CommandContext, verdict: StopVerdict, request: LeavingRequest) -> None:
    """Judged again after the plan was shown: prints everything that objects; RefusedError."""
    if (refusal := refusal_of(verdict, request)) is None:
        return
    for risk in risks_of(verdict):
        context.console.report(risk.severity, risk.finding)
    raise RefusedError(refusal)


def _change_plan(
    access: ReplicationAccess,
    found: DecommissionPlan,
    request: LeavingRequest,
    verdict: StopVerdict | None = None,
) -> Plan:
    """Read-only mode, the recovery, the ledgers whose loss is accepted, then the deletion of the cookies."""
    items = [
        {"action": "accept loss", "path": access.ledgers.path(ledger.ledger_id), **plan_row(ledger)}
        for ledger in found.accepted
    ]
    first: list[str] = []
    summary: list[str] = []
    live = sorted(found.live)
    if live:
        first.append(
            f"will make {named('bookie', live)} read-only and move {'its' if len(live) == 1 else 'their'} ledgers away "
            f"while {'it serves' if len(live) == 1 else 'they serve'}; open ledgers "
            + _OPEN_SENTENCES[access.policy.open_ledgers]
        )
        items += [
            {"action": "set-mode", "path": each, "mode": "read-only", "bookie_id": each, "expected_version": None}
            for each in live
        ]
    if found.accepted:
        ledgers, copies = counted(len(found.accepted), "ledger"), sum(each.entries for each in found.accepted)
        they = "it stays as it is" if len(found.accepted) == 1 else "they stay as they are"
        first.append(
            f"will give up what only {found.names} had of {ledgers}, {counted(copies, 'copy', 'copies')} of entries "
            f"that are proven lost; {they}, and will still reference {found.names}"
        )
    if not request.is_drain_only:
        if live:
            by = "by the stop command" if request.stop_words else "by you"
            summary.append(f"{named('bookie', live)} must then be stopped {by}")
        cookies = {each: cookie.version for each, cookie in found.cookies.items() if cookie is not None}
        items += [
            {
                "action": "delete cookie",
                "path": access.session.cookies.path(each),
                "bookie_id": each,
                "expected_version": version,
            }
            for each, version in cookies.items()
        ]
        if cookies:
            summary.append(_cookie_sentence(found, tuple(cookies)))
    return access.change_plan(
        found.recovery,
        first_summary=first,
        more_summary=summary,
        more_items=items,
        risks=() if verdict is None else risks_of(verdict),
        refusal=None if verdict is None else refusal_of(verdict, request),
    )


def _cookie_sentence(found: DecommissionPlan, cookies: tuple[str, ...]) -> str:
    one, several = (
        ("cookie of bookie", "the bookie", "a new one", "it"),
        ("cookies of bookies", "they", "new ones", "them"),
    )
    which, who, new, referenced = one if len(cookies) == 1 else several
    afterwards = f"can only start as {new}, with empty directories"
    if found.accepted:
        afterwards = f"cannot start while an accepted ledger references {referenced}, and later {afterwards}"
    return (
        f"will delete the {which} {', '.join(cookies)} if no other ledger references {referenced}; afterwards {who} "
        f"{afterwards}"
    )
