"""``bkctl recover``: re-replicate failed bookies."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from functools import partial
from typing import Annotated

import msgspec
import typer

from bkctl.commands.bookie.read_only_reasons import with_reasons
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, CopyFlags, Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.likely_names import require_no_mistyped_command
from bkctl.commands.outages import WorkProgress, continuing_command, reporting_interruption
from bkctl.commands.parse import all_ledger_ids, parse_bookie_id
from bkctl.commands.recovery_job import (
    delete_finished_jobs,
    open_job,
    read_unfinished,
    start_of,
    with_recorded_rates,
    work_of,
)
from bkctl.commands.recovery_progress import recovery_progress
from bkctl.commands.recovery_rendering import PLAN_TABLE, plan_body, report_body
from bkctl.commands.replication_access import (
    ReplicationAccess,
    find_shortage,
    note_end,
    plan_outcome,
    policy_of,
    removed_of,
    replication_access,
    require_not_serving,
    returning_findings,
    waiting_sentence,
    with_accepted_now,
    with_idle,
)
from bkctl.commands.safety.gate import nothing_to_change
from bkctl.commands.session import Session, open_session
from bkctl.commands.shared_options import takes_copy_options
from bkctl.commands.work_end import print_recovery
from bkctl.runtime.errors import MetadataError
from bkctl.runtime.replication.config import OpenLedgers
from bkctl.runtime.replication.judge.advice import GivenUpLedger
from bkctl.runtime.replication.judge.ledger_result import FailureReason, are_refusals
from bkctl.runtime.replication.judge.left_ledgers import Left, Shortage, situation_of
from bkctl.runtime.replication.plan.recovery_plan import RecoveryPlan
from bkctl.runtime.replication.plan.store import UnfinishedJob
from bkctl.runtime.replication.run.recovery import BookieRecovery, RecoveryReport
from bkctl.runtime.replication.survey.given_up import require_none_named

FAILED_BOOKIE = "failed-bookie"


_TO = typer.Option("--to", metavar="ID", help="Copy only to this bookie; repeatable")
_LEDGER = typer.Option("--ledger", metavar="LEDGER", help="Recover only this ledger; repeatable")
_OPEN_LEDGERS = typer.Option("--open-ledgers", metavar="MODE", help="wait (default), skip or fence", show_default=False)


@command(
    FAILED_BOOKIE,
    example="recover failed-bookie b1.example.com:3181 --dry-run",
    effect=Effect.HARMFUL,
)
@takes_copy_options
async def failed_bookie(
    context: CommandContext,
    bookie_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="IDs of permanently failed bookies")],
    to: Annotated[list[str] | None, _TO] = None,
    ledger: Annotated[list[str] | None, _LEDGER] = None,
    open_ledgers: Annotated[OpenLedgers | None, _OPEN_LEDGERS] = None,
    *,
    flags: CopyFlags,
) -> Outcome:
    """Copy the entries of failed bookies to others, and replace the failed ones. Short form: bkctl recover ID..."""
    for bookie_id in [*bookie_ids, *(to or ())]:
        parse_bookie_id(bookie_id)
    ledger_ids = all_ledger_ids(ledger) if ledger else None
    if flags.resume is not None and (to or ledger):
        raise InvalidArgumentError("--resume takes targets and ledgers from the job file: leave out --to and --ledger")
    policy = policy_of(context.settings.replication, flags, open_ledgers)
    async with open_session(context) as session:
        await require_no_mistyped_command(session.registrations, bookie_ids)
        unfinished = None
        if flags.resume is not None:
            unfinished = read_unfinished(flags.resume, bookie_ids, session)
            recorded = with_recorded_rates(flags, context.console)
            policy = policy_of(context.settings.replication, recorded, open_ledgers, unfinished.start)
        access = await replication_access(context, session, policy)
        access = access._replace(returning=await returning_findings(access, bookie_ids))
        recovery = access.recovery
        await _require_down(context, session, recovery, bookie_ids)
        found = await _plan(access, bookie_ids, ledger_ids, to or (), unfinished)
        # not all ledgers were scanned for an unfinished job, or for chosen ledgers
        scanned_for = bookie_ids if unfinished is None and ledger_ids is None else ()
        plan = (await with_idle(access, found, partial(with_reasons, context))).change_plan(found)
        job_file: str | None = None
        if not found.ledgers:
            nothing_to_change(context, plan, table=PLAN_TABLE, totals=plan_body(found), shown=plan_outcome(found))
            report = await recovery.run(found)
        else:
            async with (
                reporting_interruption(context, WorkProgress(len(found.ledgers))) as work,
                access.open_change(context, plan, found) as change,
            ):
                work.is_begun = True
                await recovery.require_down(bookie_ids)
                start = start_of(context, session, policy, change.operation_id, found)
                async with (
                    open_job(context, change, flags, start, work_of(found)) as opened,
                    recovery_progress(context.console, "recovering") as progress,
                ):
                    work.show, work.file = progress.show, opened.path
                    report = await recovery.run(found, work.note, job=opened.job)
                    access = await with_accepted_now(access)
                    opened.is_finished = is_done(report, access.accepted)
                    job_file = opened.kept_file
                note_end(change, report_body(report), outcome_of(report, access.accepted))
        if is_done(report, access.accepted):
            await delete_finished_jobs(context, session, scanned_for, flags.resume)
        back, short = await _bookies_now(context, access, found, report)
    again = partial(_again, context, report, job_file, short)
    print_recovery(context.console, report, access.accepted, again, back, short)
    return outcome_of(report, access.accepted)


async def _plan(
    access: ReplicationAccess,
    bookie_ids: list[str],
    ledger_ids: list[int] | None,
    targets: Collection[str],
    unfinished: UnfinishedJob | None,
) -> RecoveryPlan:
    if unfinished is not None:
        return await access.recovery.plan_unfinished(unfinished)
    require_none_named(await removed_of(access, bookie_ids))
    return await access.recovery.plan(bookie_ids, ledger_ids, only_targets=targets)


async def _bookies_now(
    context: CommandContext, access: ReplicationAccess, plan: RecoveryPlan, report: RecoveryReport
) -> tuple[list[str], Shortage]:
    """The bookies of a recovery with ledgers left that serve again, and whether others are missing, as far as it is
    known."""
    back: list[str] = []
    shortage = Shortage()
    if report.failures:
        with contextlib.suppress(MetadataError):
            registered = await access.recovery.registered(report.bookie_ids)
            back = [each for each in registered if await access.recovery.error_of(each) is None]
            shortage = await find_shortage(access.session, report.failures, partial(with_reasons, context))
    return back, msgspec.structs.replace(shortage, only_to=plan.targets if plan.is_restricted else ())


def _again(
    context: CommandContext,
    report: RecoveryReport,
    job_file: str | None,
    shortage: Shortage,
    without: Collection[str],
) -> str:
    """The command that moves what is left; other bookies or targets, or unplanned ledgers, need a new job."""
    is_unplanned = any(failure.reason is FailureReason.NOT_PLANNED for failure in report.failures)
    lacks_targets = bool(shortage.only_to) and any(situation_of(each) is Left.NO_TARGET for each in report.failures)
    if is_unplanned or without or lacks_targets:
        words = tuple(each for each in context.settings.command_line if each not in without)
        return continuing_command(words, dropped=frozenset({"--resume", *(["--to"] if lacks_targets else ())}))
    return continuing_command(context.settings.command_line, job_file)


async def _require_down(
    context: CommandContext, session: Session, recovery: BookieRecovery, bookie_ids: list[str]
) -> None:
    """RefusedError for a bookie that serves. A rehearsal does not wait for the session of one that does not answer."""

    def note_silent(bookie_id: str) -> None:
        if context.settings.is_rehearsal:
            advice = _others_advice(bookie_ids, bookie_id)
            context.console.warn(
                f"bookie {bookie_id} is registered; it must be down before it can be recovered{advice}"
            )
        else:
            context.console.say(waiting_sentence(bookie_id))

    is_waiting = not context.settings.is_rehearsal
    await recovery.require_down(bookie_ids, note_silent, partial(_serving_advice, bookie_ids), is_waiting=is_waiting)
    await require_not_serving(session, bookie_ids)


def _serving_advice(bookie_ids: list[str], bookie_id: str) -> str:
    return f"to move its ledgers: bkctl bookie drain {bookie_id}{_others_advice(bookie_ids, bookie_id)}"


def _others_advice(bookie_ids: list[str], bookie_id: str) -> str:
    """The commands for the other bookies. One that is not the first may be meant as the one to copy to, as in Java's
    `recover`."""
    others = [each for each in bookie_ids if each != bookie_id]
    if not others:
        return ""
    command = f"bkctl recover failed-bookie {' '.join(others)}"
    to_it = "" if bookie_id == bookie_ids[0] else f"; to copy to it: {command} --to {bookie_id}"
    return f"; to recover only the others: {command}{to_it}"


def is_done(report: RecoveryReport, accepted: Mapping[int, GivenUpLedger]) -> bool:
    """Whether nothing is left but entries whose loss was accepted."""
    return all(situation_of(each, accepted) is Left.ACCEPTED for each in report.failures)


def outcome_of(report: RecoveryReport, accepted: Mapping[int, GivenUpLedger]) -> Outcome:
    """Complete, or some or all ledgers left: an interrupted run ends with an error instead."""
    if are_refusals(report.failures):
        return Outcome.UNAUTHORIZED
    if is_done(report, accepted):
        return Outcome.OK
    return Outcome.PARTIAL if report.has_progress else Outcome.FAILED
