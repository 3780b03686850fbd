"""From a plan to leave to carry it out: shown, saved, compared with a saved one, confirmed.

Tier 1 asks nothing. Tier 2 wants y, or --yes. Tier 3 wants its subject typed, or --confirm NAME; --yes is not enough.
End of input means no. Source: cli-parity section 11.
"""

from __future__ import annotations

import sys

from commands.context import CommandContext
from commands.rendering import Column, Lines, Row
from commands.safety.plan import Plan, load_plan, require_same_plan, save_plan
from runtime.errors import RefusedError

PLAN_COLUMNS = (
    Column("action", "ACTION"),
    Column("path", "PATH"),
    Column("expected_version", "VERSION", is_right=True, priority=1),
)
TIER_SERVICE_IMPACT = 2
TIER_DESTROYS = 3


async def settle_plan(
    context: CommandContext, plan: Plan, *, columns: tuple[Column, ...] = PLAN_COLUMNS, totals: Row | None = None
) -> bool:
    """Whether to go ahead: True after a confirmation, False when the plan was only to be shown or saved.

    With --dry-run or --plan-out the plan is the command's result. With --apply the fresh ``plan`` must equal the saved
    one, else ConflictError. RefusedError when the answer is no. Call it before anything is changed. ``totals`` are
    shown with the plan, but are not part of it.
    """
    _require_fit(context, plan)
    if _rehearse(context, plan, columns, totals):
        return False
    for sentence in plan.summary:
        context.console.say(sentence)
    await confirm_plan(context, plan)
    return True


def settle_empty_plan(
    context: CommandContext, plan: Plan, *, columns: tuple[Column, ...] = PLAN_COLUMNS, totals: Row | None = None
) -> bool:
    """The same for a ``plan`` of no changes, whose summary says that there is nothing to do: nothing is asked.

    A plan saved with changes does not fit any more: whoever applies it hears that they were made, or are not due.
    False when the plan was only to be shown or saved; True: the caller prints a result, that of nothing done.
    """
    _require_fit(context, plan)
    if _rehearse(context, plan, columns, totals):
        return False
    for sentence in plan.summary:
        context.console.say(sentence)
    return True


def _require_fit(context: CommandContext, plan: Plan) -> None:
    """RefusedError, ConflictError unless it is for the cluster that is meant, and is the plan that was saved."""
    require_pinned_instance(context, plan.instance_id)
    if context.settings.apply_path is not None:
        require_same_plan(load_plan(context.settings.apply_path), plan)


def _rehearse(context: CommandContext, plan: Plan, columns: tuple[Column, ...], totals: Row | None) -> bool:
    """Whether the plan was only to be shown or saved; it is then."""
    settings = context.settings
    if not settings.is_rehearsal:
        return False
    if settings.plan_out_path is not None:
        save_plan(plan, settings.plan_out_path)
        next_step = ": go ahead with --apply" if plan.items else ""
        context.console.say(f"plan saved in {settings.plan_out_path}{next_step}")
    print_plan(context, plan, columns, totals)
    return True


def print_plan(
    context: CommandContext,
    plan: Plan,
    columns: tuple[Column, ...] = PLAN_COLUMNS,
    totals: Row | None = None,
) -> None:
    """The plan as the command's result; people read its sentences below it."""
    body = plan.body() | dict(totals or {})
    sentences = body.pop("summary")
    details = {"summary": sentences, "items": list(plan.items)}
    lines = Lines(columns, plan.items, is_cut=False)
    context.console.record("Plan", body, name="plan_hash", details=details, lines=lines)
    context.console.table("Changes", columns, plan.items, is_cut=False)
    if context.console.is_for_people:
        for sentence in sentences:
            context.console.say(sentence)


async def confirm_plan(context: CommandContext, plan: Plan) -> None:
    """Return once the plan is confirmed as its tier demands; RefusedError otherwise."""
    if plan.tier >= TIER_DESTROYS:
        await _confirm_typed(context, plan.subject)
    elif plan.tier == TIER_SERVICE_IMPACT:
        await context.console.confirm("Go ahead?")


def require_pinned_instance(context: CommandContext, instance_id: str | None) -> None:
    """RefusedError when the named cluster's settings pin another instance id than this cluster has."""
    pinned = context.settings.pinned_instance_id
    if pinned is not None and pinned != instance_id:
        raise RefusedError(
            f"nothing was changed: context {context.settings.context_name} is pinned to instance id {pinned}, "
            + (f"but this cluster's is {instance_id}" if instance_id else "but this cluster has none")
        )


async def _confirm_typed(context: CommandContext, subject: str) -> None:
    given = context.settings.confirmed_name
    if given is None:
        if not sys.stdin.isatty():
            raise RefusedError(
                f"nothing was changed: there is no terminal to ask on; give --confirm {subject} to go ahead"
            )
        from commands.prompt import read_line

        context.console.warn(f"this cannot be taken back. Type {subject} to go ahead:")
        given = (await read_line(sys.stdin)).strip()
    if given != subject:
        raise RefusedError(f"nothing was changed: the confirmation is '{given}', not '{subject}'")
