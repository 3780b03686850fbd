"""``bkctl cluster health-check``: whether clients may put bookies that answer badly into quarantine."""

from __future__ import annotations

from commands.cluster_access import open_store
from commands.command import command, group
from commands.context import CommandContext

app = group("Whether clients may put bookies that answer badly into quarantine.")
_KIND = "HealthCheck"


@command(app, "status")
async def show_status(context: CommandContext) -> None:
    """Show whether the switch is on. Clients of releases before 4.15 do not know it."""
    from runtime.metadata.cluster import is_health_check_enabled

    async with open_store(context) as (store, uri):
        context.console.record(_KIND, {"enabled": await is_health_check_enabled(store, uri.root)}, name="enabled")


@command(app, "enable", planned_tier=1)
async def enable(context: CommandContext) -> None:
    """Let clients that check the health of bookies keep bad ones in quarantine."""
    await _switch(context, is_enabled=True)


@command(app, "disable", planned_tier=1)
async def disable(context: CommandContext) -> None:
    """Make all clients take all bookies out of quarantine, and keep none there."""
    await _switch(context, is_enabled=False)


async def _switch(context: CommandContext, *, is_enabled: bool) -> None:
    from commands.safety.change import open_change
    from commands.safety.confirmation import settle_plan
    from commands.safety.plan import Plan
    from runtime.metadata.cluster import is_health_check_enabled, read_cluster_info, switch_health_check
    from runtime.metadata.paths import Paths

    async with open_store(context) as (store, uri):
        info = await read_cluster_info(store, uri.root, context.settings.zookeeper.layout)
        verb, undo = ("enable", "disable") if is_enabled else ("disable", "enable")
        is_due = await is_health_check_enabled(store, uri.root) is not is_enabled
        path = Paths(uri.root).health_check_disabled
        plan = Plan(
            command=f"cluster health-check {verb}",
            tier=1,
            root=uri.root,
            instance_id=info.instance_id,
            subject="",
            summary=() if is_due else (f"the health check is already {verb}d",),
            items=({"action": "delete" if is_enabled else "create", "path": path},) if is_due else (),
        )
        if not await settle_plan(context, plan):
            return
        async with open_change(context, store, plan, has_lock=False) as change:
            is_changed = await switch_health_check(store, uri.root, is_enabled=is_enabled)
            change.details["changed"] = is_changed
        if is_changed:
            context.console.say(f"to undo: bkctl cluster health-check {undo}")
        context.console.record(_KIND, {"enabled": is_enabled, "changed": is_changed}, name="enabled")
