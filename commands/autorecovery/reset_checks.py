"""``bkctl autorecovery reset-checks``: have the periodic checks run when an auditor starts next."""

from __future__ import annotations

import datetime
import enum
from typing import Annotated

import typer

from bkctl.commands.autorecovery.access import change_setting, readable
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.replication.switches import PeriodicCheck

_LONG_AGO_MS = 21 * 86400 * 1000
"""The same age as in Java's command."""

_TABLE = Table(
    "CheckTimes", Column("check", "CHECK"), Column("last_run", "LAST RUN"), Column("previous", "BEFORE"), name="check"
)


class Check(enum.StrEnum):
    """Periodic checks whose last run is stored."""

    ALL_LEDGERS = "all-ledgers"
    PLACEMENT = "placement"
    REPLICAS = "replicas"


@command("reset-checks", example="autorecovery reset-checks all-ledgers", effect=Effect.REVERSIBLE)
async def reset_checks(
    context: CommandContext,
    checks: Annotated[
        list[Check] | None, typer.Argument(metavar="[CHECK]...", help="all-ledgers, placement, replicas")
    ] = None,
    last_run: Annotated[
        str | None,
        typer.Option("--last-run", metavar="TIME", help="Store this time instead (RFC 3339), for example to undo"),
    ] = None,
) -> None:
    """Mark periodic checks (default: all) as overdue, so that the auditor runs them.

    Stores a last run 21 days ago. bkctl's auditor sees that within ten minutes, a Java auditor only when it starts:
    restart it (bkctl autorecovery auditor). A check whose interval is 0 in the auditor's settings never runs.
    """
    wanted = [PeriodicCheck[check.name] for check in dict.fromkeys(checks or list(Check))]
    async with open_session(context) as session:
        time_ms = session.now_ms - _LONG_AGO_MS if last_run is None else _parse_time_ms(last_run)
        before = {check: await readable(context, session.switches.check_time_ms(check)) for check in wanted}

        async def write() -> bool:
            for check in wanted:
                await session.switches.set_check_time_ms(check, time_ms)
            return True

        items = tuple({"action": "set", "path": f"{session.root}/underreplication/{check.value}"} for check in wanted)
        await change_setting(context, session, items, write, arguments={"last_run": last_run})
    _print_undo(context, before)
    rows: list[dict[str, object]] = [
        {"check": Check[check.name].value, "last_run": time_text(time_ms), "previous": time_text(before[check])}
        for check in wanted
    ]
    context.console.rows(_TABLE, rows)


def _print_undo(context: CommandContext, before: dict[PeriodicCheck, int | None]) -> None:
    for check, time_ms in before.items():
        name = Check[check.name].value
        if time_ms is None:
            context.console.say(f"{name} has never run: nothing to undo")
        else:
            context.console.say(f"to undo: bkctl autorecovery reset-checks {name} --last-run {time_text(time_ms)}")


def _parse_time_ms(text: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgumentError(f"'{text}' is not a time: use the form 2026-01-31T12:00:00Z")
    return round(moment.timestamp() * 1000)
