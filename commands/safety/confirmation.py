"""A plan in dialogue with the operator: shown, saved, compared with a saved one, confirmed.

A reversible plan needs no confirmation. A harmful one asks for y, or ``--yes``. A destructive one asks for its subject
to be typed, or ``--confirm NAME``; ``--yes`` alone is not enough. End of input means no.
"""

from __future__ import annotations

import shlex
import sys

from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import Outcome, PlanShown
from bkctl.commands.rendering import Column, Lines, Row, Table
from bkctl.commands.safety.plan import Plan, load_plan, require_same_plan, save_plan
from bkctl.commands.typed_line import read_line
from bkctl.runtime.errors import RefusedError
from bkctl.storage.words import size

PLAN_TABLE = Table(
    "Changes",
    Column("action", "ACTION"),
    Column("path", "PATH"),
    Column("expected_version", "VERSION", is_right=True, priority=1),
)

_IDENTITY = ("root", "instance_id", "plan_hash")
"""Fields that identify a plan."""


def show_plan(
    context: CommandContext, plan: Plan, table: Table, totals: Row | None, outcome: Outcome = Outcome.OK
) -> None:
    """Print the sentences of a plan and return if it is to be carried out.

    PlanShown when the plan itself is the command's result, because of --dry-run or --plan-out. RefusedError when it is
    for another cluster than the pinned one, or has a ``refusal`` (it is not saved, and --dry-run shows it);
    ConflictError when it differs from the plan of --apply. ``totals`` are shown with the plan, but are no part of it.
    ``outcome``: see ``PlanShown``.
    """
    settings = context.settings
    require_pinned_instance(context, plan.instance_id)
    if settings.apply_path is not None:
        require_same_plan(load_plan(settings.apply_path), plan)
    if settings.plan_out_path is not None and plan.refusal is None:
        save_plan(plan, settings.plan_out_path)
        path = settings.plan_out_path
        next_step = f": repeat the command with --apply {path} in place of --plan-out" if plan.items else ""
        context.console.say(f"plan saved in {path}{next_step}")
    if settings.is_rehearsal:
        _print_plan(context, plan, table, totals)
        if plan.refusal is None:
            raise PlanShown(f"'{plan.command}' was only planned", outcome)
    else:
        _say(context, plan)
    if plan.refusal is not None:
        raise RefusedError(plan.refusal)


def _print_plan(context: CommandContext, plan: Plan, table: Table, totals: Row | None) -> None:
    """Print the plan as the command's result. In table format: what it does, the changes, then what identifies it."""
    console, body = context.console, plan.body() | dict(totals or {})
    details = {"summary": body.pop("summary"), "findings": body.pop("findings"), "items": plan.items}
    lines = Lines(table, plan.items, is_cut=False)
    if console.is_for_people:
        console.sentences(*plan.summary)
        for each in plan.findings:
            console.verdict(each.severity, each.finding)
        console.table(table, plan.items, is_cut=False)
        if not plan.root and console.form is OutputForm.TABLE:
            return  # for files of this machine: there is no cluster to name
        console.sentences("")
    if console.form is OutputForm.TABLE:
        body = {key: body[key] for key in _IDENTITY}
    console.record("Plan", body, name="plan_hash", show={"bytes": size}, details=details, lines=lines)


def _say(context: CommandContext, plan: Plan) -> None:
    for sentence in plan.summary if plan.refusal is None else ():
        context.console.say(sentence)
    for each in plan.findings:
        context.console.report(each.severity, each.finding)


async def confirm_plan(context: CommandContext, plan: Plan) -> None:
    """Return once the plan is confirmed as its effect requires; RefusedError otherwise."""
    if plan.tier == Effect.DESTROYS.tier:
        await _confirm_typed(context, plan)
    elif plan.tier == Effect.HARMFUL.tier:
        await context.console.confirm(f"{plan.command} {plan.subject or plan.root}: continue?")


def require_pinned_instance(context: CommandContext, instance_id: str | None) -> None:
    """RefusedError when the settings of the selected context pin another instance id than this cluster has."""
    pinned = context.settings.pinned_instance_id
    if pinned is not None and pinned != instance_id:
        raise RefusedError(
            f"nothing was changed: context {context.settings.context_name} is pinned to instance id {pinned}, "
            + (f"but this cluster's is {instance_id}" if instance_id else "but this cluster has none")
        )


async def _confirm_typed(context: CommandContext, plan: Plan) -> None:
    subject = plan.subject
    given = context.settings.confirmed_name
    if given is None:
        if context.settings.assume_yes or not sys.stdin.isatty():
            why = "and --yes is not enough" if context.settings.assume_yes else "but stdin is not a terminal"
            raise RefusedError(
                f"nothing was changed: confirmation required, {why}: use --confirm {shlex.quote(subject)}"
            )
        context.console.warn(f"'{plan.command} {subject}' cannot be undone. Type {subject} to continue:")
        with context.console.asking():
            given = (await read_line(sys.stdin)).strip()
    if given != subject:
        raise RefusedError(f"nothing was changed: the confirmation is '{given}', not '{subject}'")
