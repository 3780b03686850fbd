"""``bkctl autorecovery enable`` and ``disable``: the switch that all auditors and workers of a cluster obey."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from bkctl.commands.autorecovery.access import change_setting
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.rendering import time_text
from bkctl.commands.safety.audit_trail import user_name
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.switch_note import SwitchNote

_KIND = "AutorecoverySwitch"


@command("enable", example="autorecovery enable", effect=Effect.REVERSIBLE)
async def enable(context: CommandContext) -> None:
    """Enable automatic replication for the whole cluster.

    A waiting Java auditor starts an audit within a tenth of a second, and the workers continue.
    """
    async with open_session(context) as session:
        items: tuple[dict[str, object], ...] = ({"action": "delete", "path": Paths(session.root).replication_disabled},)
        nothing_to_do = "autorecovery is already enabled" if await session.switches.is_enabled() else None
        is_changed = await change_setting(context, session, items, session.switches.enable, nothing_to_do=nothing_to_do)
        if is_changed:
            context.console.say("to undo: bkctl autorecovery disable")
        context.console.record(_KIND, {"enabled": True, "changed": is_changed}, name="enabled")


@command("disable", example="autorecovery disable --for 2h --reason 'kernel update'", effect=Effect.HARMFUL)
async def disable(
    context: CommandContext,
    duration: Annotated[
        str | None,
        typer.Option("--for", metavar="DURATION", help="Intended duration; status warns when it is over"),
    ] = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="The reason, which status shows")
    ] = None,
) -> None:
    """Disable automatic replication in the whole cluster.

    Repairs of ledgers that have started are finished; no others start. Lost bookies are not detected and periodic
    checks do not run. Replication is not re-enabled automatically, not even after --for, which is informational.
    """
    seconds = None if duration is None else parse_duration_s(duration)
    async with open_session(context) as session:
        until = None if seconds is None else time_text(session.now_ms + round(seconds * 1000))
        note = b"" if reason is None and until is None else msgspec.json.encode(SwitchNote(user_name(), reason, until))
        is_changed = await change_setting(
            context,
            session,
            ({"action": "create", "path": Paths(session.root).replication_disabled, "expected_version": None},),
            lambda: session.switches.disable(note),
            summary=(
                "until autorecovery is re-enabled, lost bookies will go undetected, ledgers will not be repaired and "
                "checks will not run",
            ),
            arguments={"for_s": seconds, "reason": reason},
            nothing_to_do=None if await session.switches.is_enabled() else "autorecovery is already disabled",
        )
        if is_changed:
            context.console.say("to undo: bkctl autorecovery enable")
        context.console.record(_KIND, {"enabled": False, "changed": is_changed}, name="enabled")
