"""``bkctl cluster health-check``: whether clients may quarantine bookies that respond badly."""

from __future__ import annotations

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.cluster.root import is_health_check_enabled, switch_health_check
from bkctl.runtime.metadata.paths import Paths

_KIND = "HealthCheck"


@command("status", example="cluster health-check status", has_tables=False)
async def show_status(context: CommandContext) -> None:
    """Show whether the health check is enabled. Clients before 4.15 ignore this switch."""
    async with open_session(context, must_exist=False) as session:
        is_enabled = await is_health_check_enabled(session.store, session.root)
        context.console.record(_KIND, {"enabled": is_enabled}, name="enabled")


@command("enable", example="cluster health-check enable", effect=Effect.REVERSIBLE)
async def enable(context: CommandContext) -> None:
    """Allow clients that check the health of bookies to quarantine bad ones."""
    await _switch(context, is_enabled=True)


@command("disable", example="cluster health-check disable", effect=Effect.REVERSIBLE)
async def disable(context: CommandContext) -> None:
    """Release all quarantined bookies and disable quarantine on all clients."""
    await _switch(context, is_enabled=False)


async def _switch(context: CommandContext, *, is_enabled: bool) -> None:
    async with open_session(context) as session:
        verb, undo = ("enable", "disable") if is_enabled else ("disable", "enable")
        path = Paths(session.root).health_check_disabled
        item = {"action": "delete" if is_enabled else "create", "path": path}

        async def examine() -> tuple[Plan, None]:
            if await is_health_check_enabled(session.store, session.root) is is_enabled:
                return session.plan(summary=(f"the health check is already {verb}d",)), None
            return session.plan(items=(item,), summary=(f"will {verb} the health check of bookies",)), None

        async def apply(change: Change, _: None) -> bool:
            is_changed = await switch_health_check(session.store, session.root, is_enabled=is_enabled)
            change.details["changed"] = is_changed
            return is_changed

        _, is_changed = await make_change(context, examine, apply, session.store, is_locked=False)
        if is_changed:
            context.console.say(f"to undo: bkctl cluster health-check {undo}")
        context.console.record(_KIND, {"enabled": is_enabled, "changed": bool(is_changed)}, name="enabled")
