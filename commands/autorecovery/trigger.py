"""``bkctl autorecovery trigger``: have the auditor look for lost bookies now."""

from __future__ import annotations

import typer

from commands.autorecovery.access import change_setting, open_view
from commands.command import command
from commands.context import CommandContext


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl autorecovery``."""
    command(app, "trigger", planned_tier=1)(trigger)


async def trigger(context: CommandContext) -> None:
    """Have the auditor look for lost bookies at once, and mark what they held, whatever the recovery delay.

    It is refused while autorecovery is disabled or no auditor is elected. The auditor sends no answer: see bkctl
    autorecovery pending for the result.
    """
    from runtime.errors import ConflictError, RefusedError
    from runtime.metadata.auditor_election import read_auditor
    from runtime.metadata.paths import Paths

    async with open_view(context) as view:
        if not await view.switches.is_enabled():
            raise RefusedError("autorecovery is disabled, so no audit would run: bkctl autorecovery enable")
        auditor = await read_auditor(view.store, view.root, view.foreign)
        if auditor is None:
            raise RefusedError("no auditor is elected: start a process with autorecovery")
        delay = await view.switches.recovery_delay()
        path = Paths(view.root).lost_bookie_recovery_delay
        if delay is None:
            raise RefusedError(
                f"{path} is missing: a Java auditor hears nothing until it is restarted, which makes it audit anyway"
            )

        async def rewrite() -> bool:
            if await view.switches.rewrite_recovery_delay() is None:
                raise ConflictError(f"{path} was deleted meanwhile: restart the auditor")
            return True

        items: tuple[dict[str, object], ...] = (
            {"action": "set", "path": path, "expected_version": delay.version, "value": delay.seconds},
        )
        if await change_setting(context, view, "trigger", items, rewrite) is None:
            return
    if auditor.is_pulsar:
        context.console.warn(
            f"auditor {auditor.bookie_id} was elected by Pulsar's metadata driver, which misses the trigger before "
            "Pulsar 2.11.3: restart it there"
        )
    context.console.say("nothing to undo: the recovery delay is as it was")
    body: dict[str, object] = {"triggered": True, "auditor": auditor.bookie_id, "delay_s": delay.seconds}
    context.console.record("AuditTrigger", body, name="auditor")
