"""``bkctl autorecovery delay``: how long an auditor waits before it acts on one lost bookie."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.autorecovery.access import change_setting, readable
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.switches import DELAY_S_MAX

_KIND = "RecoveryDelay"


@command("get", example="autorecovery delay get", has_tables=False)
async def get_delay(context: CommandContext) -> None:
    """Show the delay. Exits with 4 if no auditor ever ran and the delay was never set."""
    async with open_session(context) as session:
        delay = await session.switches.recovery_delay()
    if delay is None:
        raise NotFoundError("the recovery delay is not set: the first auditor stores the value of its settings")
    context.console.record(_KIND, {"seconds": delay.seconds}, name="seconds")


@command("set", example="autorecovery delay set 10m", effect=Effect.REVERSIBLE)
async def set_delay(
    context: CommandContext,
    seconds: Annotated[str, typer.Argument(metavar="SECONDS", help="Seconds, or a duration like 10m; 0: no delay")],
) -> None:
    """Set the delay for all auditors, now and in future. It overrides lostBookieRecoveryDelay.

    Setting 0 or the current value triggers an audit now; any other value restarts a pending delay. The delay applies to
    one lost bookie: if a second one is lost, the auditor acts immediately.
    """
    wanted_s = _parse_seconds(seconds)
    async with open_session(context) as session:
        before = await readable(context, session.switches.recovery_delay())
        previous_s = None if before is None else before.seconds

        async def write() -> bool:
            await session.switches.set_recovery_delay(wanted_s)
            return wanted_s != previous_s

        item: dict[str, object] = {
            "action": "create" if before is None else "set",
            "path": Paths(session.root).lost_bookie_recovery_delay,
            "expected_version": None if before is None else before.version,
            "value": wanted_s,
        }
        await change_setting(context, session, (item,), write)
    if wanted_s in {0, previous_s}:
        context.console.say("the auditor, if one is elected, starts an audit now")
    if previous_s is None:
        context.console.say("there was no readable delay before; to change it: bkctl autorecovery delay set")
    else:
        context.console.say(f"to undo: bkctl autorecovery delay set {previous_s}")
    context.console.record(_KIND, {"seconds": wanted_s, "previous_seconds": previous_s}, name="seconds")


def _parse_seconds(text: str) -> int:
    seconds = 0.0 if text.strip() == "0" else parse_duration_s(text)
    if seconds != int(seconds) or seconds > DELAY_S_MAX:
        raise InvalidArgumentError(f"'{text}' is not a delay: use whole seconds from 0 to {DELAY_S_MAX}")
    return int(seconds)
