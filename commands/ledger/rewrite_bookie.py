"""``bkctl ledger rewrite-bookie``: replace a bookie id by another in all ledgers; the data stays where it is."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import BookieFlags, CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.ledger.changing import FAILURE_TABLE, Tally, change_ledgers, outcome_of
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.runtime.bookie.identity import resolve_identity
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.net.host import OsHost
from bkctl.runtime.replication.run.ensemble_rewrite import EnsembleRewrite, RewriteSurvey
from bkctl.storage.words import counted, listed

PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("from", "FROM"),
    Column("to", "TO"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("segments", "SEGMENTS", is_right=True, priority=2),
    Column("ends_left", "OPEN SEGMENTS LEFT", is_right=True, priority=1),
)


class Flip(enum.StrEnum):
    """Kind of the new id, as in Java's updateledgers."""

    HOSTNAME = "hostname"
    IP = "ip"


@command(
    "rewrite-bookie",
    example="ledger rewrite-bookie --from 10.0.0.7:3181 --to b7.local:3181 --dry-run",
    effect=Effect.DESTROYS,
    is_cut=True,
    is_configured_by_files=True,
)
async def rewrite(
    context: CommandContext,
    source: Annotated[
        str | None, typer.Option("--from", metavar="ID", help="Old bookie ID; it must not be registered")
    ] = None,
    destination: Annotated[
        str | None, typer.Option("--to", metavar="ID", help="New ID of the same bookie, which must be running")
    ] = None,
    flip: Annotated[
        Flip | None,
        typer.Option("--flip", help="Instead of --from and --to: change this host's IDs to this kind"),
    ] = None,
    include_open: Annotated[
        bool,
        typer.Option("--include-open", help="Also open last segments, if no client uses them"),
    ] = False,
    changes_rate: Annotated[
        float | None, typer.Option("--max-per-second", metavar="N", min=0, help="At most so many ledgers")
    ] = None,
) -> Outcome:
    """Replace a bookie's ID in all ledgers after it has changed. No entry is moved.

    Without --confirm or --apply, only the plan is shown. The new ID must be the same bookie: it must answer for entries
    sampled from ledgers of the old one, and its cookie must match. The former metadata is first saved in an undo file
    for bkctl ledger import --if-version next. Safe to interrupt and to run again; --limit stops after that many changed
    ledgers. Type the new ID, or use --confirm.
    """
    source, destination = _ids(context, source, destination, flip)
    async with open_session(context) as session:
        client = await session.client()
        operation = EnsembleRewrite(
            client.ports,
            client.store,
            source,
            destination,
            config=context.settings.replication,
            has_open_ends=include_open,
        )
        await operation.require_roles()
        survey = await _survey(context, operation, "searching for the old ID")
        _require_no_obstacle(survey)
        evidence = await operation.verify_identity(survey) if survey.ledgers else "nothing to rewrite"
        plan = _plan(session, survey, source, destination, evidence, is_open_included=include_open)
        settings = context.settings
        if settings.confirmed_name is None and settings.apply_path is None and not settings.assume_yes:
            if not settings.is_rehearsal:
                context.console.say(f"nothing was changed: to carry out this plan, use --confirm {plan.subject}")
            context = context.with_settings(is_dry_run=True)
        if not survey.ledgers:
            nothing_to_change(context, plan, table=PLAN_TABLE)
            return _report(context, Tally(), survey, None)
        return await _run(context, client, operation, plan, survey, changes_rate)


def _ids(context: CommandContext, source: str | None, destination: str | None, flip: Flip | None) -> tuple[str, str]:
    """The old id and the new one, from the command line or from the settings of this host's bookie."""
    if flip is None and source is not None and destination is not None:
        return source, destination
    if flip is None or source is not None or destination is not None:
        raise InvalidArgumentError("specify --from ID --to ID, or --flip hostname on the bookie's host")
    config = context.load_bookie_settings(BookieFlags()).config
    if config.bookie_id is not None or config.advertised_address is not None:
        raise RefusedError(
            "nothing was changed: the settings define the id or address of this bookie: use --from and --to"
        )
    machine = OsHost()
    by_address, by_name = (
        resolve_identity(msgspec.structs.replace(config, is_host_name_id=is_name), machine).bookie_id(config.port)
        for is_name in (False, True)
    )
    return (by_address, by_name) if flip is Flip.HOSTNAME else (by_name, by_address)


async def _survey(context: CommandContext, operation: EnsembleRewrite, description: str) -> RewriteSurvey:
    with context.console.progress(description) as progress:
        return await operation.survey(progress.update)


def _require_no_obstacle(survey: RewriteSurvey) -> None:
    if not survey.obstacles_count:
        return
    named = listed(survey.obstacles, separator="; ", total=survey.obstacles_count)
    raise RefusedError(f"nothing was changed: {named}: the two IDs are different bookies")


def _plan(
    session: Session,
    survey: RewriteSurvey,
    source: str,
    destination: str,
    evidence: str,
    *,
    is_open_included: bool,
) -> Plan:
    summary = [
        f"will rename {source} to {destination} in {counted(survey.segments, 'segment')} of "
        f"{counted(survey.ledgers, 'ledger')} ({survey.scanned} scanned)",
        evidence,
    ]
    if survey.ends_left:
        summary.append(
            f"will not change the last segments of {counted(survey.ends_left, 'ledger')}: they are not closed"
        )
    if survey.unreadable:
        summary.append(f"will skip {counted(survey.unreadable, 'unreadable ledger')}, which may reference {source}")
    item = {
        "action": "rewrite",
        "path": session.root,
        "from": source,
        "to": destination,
        "ledgers": survey.ledgers,
        "segments": survey.segments,
        "ends_left": survey.ends_left,
        "digest": survey.digest,
    }
    return session.plan(
        subject=destination,
        summary=summary,
        items=[item],
        arguments={"include_open": is_open_included},
    )


async def _run(
    context: CommandContext,
    client: LedgerClient,
    operation: EnsembleRewrite,
    plan: Plan,
    survey: RewriteSurvey,
    rate: float | None,
) -> Outcome:
    async with open_change(context, plan, client.store, table=PLAN_TABLE) as change:
        tally = await change_ledgers(
            context,
            client,
            change,
            operation.decide,
            client.ports.ledgers.list_ids(),
            description="rewriting",
            total=survey.scanned,
            rate=rate,
            changes_max=context.settings.limit,
            before_batch=operation.require_roles,
        )
        after = await _survey(context, operation, "verifying")
        change.details |= {"remaining": after.ledgers, "ends_left": after.ends_left}
        return _report(context, tally, after, change.trash.path, limit=context.settings.limit)


def _report(
    context: CommandContext, tally: Tally, after: RewriteSurvey, undo_file: str | None, *, limit: int | None = None
) -> Outcome:
    body = {
        "changed": tally.changed,
        "failed": tally.failed,
        "remaining": after.ledgers,
        "ends_left": after.ends_left,
        "unreadable": after.unreadable,
        "undo_file": undo_file,
    }
    context.console.record("LedgerRewriteBookie", body, name="changed", details={"failures": tally.failures})
    context.console.table(FAILURE_TABLE.titled("Not rewritten"), tally.failures, is_cut=False)
    is_limit_reached = limit is not None and tally.changed >= limit
    if after.ledgers:
        context.console.warn(f"the old ID is still in {counted(after.ledgers, 'ledger')}: run the command again")
    if after.ends_left:
        context.console.warn(
            f"the old ID is still in the open last segments of {counted(after.ends_left, 'ledger')}: "
            "close them and run the command again"
        )
    if after.unreadable:
        context.console.warn(f"skipped because they are unreadable: {counted(after.unreadable, 'ledger')}")
    if tally.failed or after.obstacles_count:
        return outcome_of(tally, "rewritten") if tally.failed else Outcome.PARTIAL
    is_rest_left = bool(after.ends_left or after.unreadable or (after.ledgers and not is_limit_reached))
    return Outcome.PARTIAL if is_rest_left else Outcome.OK
