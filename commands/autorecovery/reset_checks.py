"""``bkctl autorecovery reset-checks``: have the periodic checks run when an auditor starts next."""

from __future__ import annotations

import datetime
import enum
from typing import TYPE_CHECKING, Annotated

import typer

from commands.autorecovery.access import change_setting, open_view, readable
from commands.command import command
from commands.context import CommandContext
from commands.errors import InvalidArgumentError
from commands.rendering import Column, time_text

if TYPE_CHECKING:
    from runtime.metadata.replication_switches import PeriodicCheck

_LONG_AGO_MS = 21 * 86400 * 1000
"""As long ago as Java's own command says."""

_COLUMNS = (Column("check", "CHECK"), Column("last_run", "LAST RUN"), Column("previous", "BEFORE"))


class Check(enum.StrEnum):
    """Periodic checks whose last run is stored."""

    ALL_LEDGERS = "all-ledgers"
    PLACEMENT = "placement"
    REPLICAS = "replicas"


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl autorecovery``."""
    command(app, "reset-checks", planned_tier=1)(reset_checks)


async def reset_checks(
    context: CommandContext,
    checks: Annotated[
        list[Check] | None, typer.Argument(metavar="[CHECK]...", help="all-ledgers, placement, replicas.")
    ] = None,
    last_run: Annotated[
        str | None, typer.Option("--last-run", metavar="TIME", help="Store this time (RFC 3339), as an undo does.")
    ] = None,
) -> None:
    """Say that the given checks, or all three, last ran 21 days ago, so that the next auditor runs them at its start.

    The auditor reads these times only when it starts: restart the current one (bkctl autorecovery auditor). A check
    whose interval is 0 in the auditor's settings does not run however old its time is.
    """
    from runtime.metadata.replication_switches import PeriodicCheck

    wanted = [PeriodicCheck[check.name] for check in dict.fromkeys(checks or list(Check))]
    async with open_view(context) as view:
        time_ms = view.now_ms - _LONG_AGO_MS if last_run is None else _parse_time_ms(last_run)
        before = {check: await readable(context, view.switches.check_time_ms(check)) for check in wanted}

        async def write() -> bool:
            for check in wanted:
                await view.switches.set_check_time_ms(check, time_ms)
            return True

        items = tuple({"action": "set", "path": f"{view.root}/underreplication/{check.value}"} for check in wanted)
        if await change_setting(context, view, "reset-checks", items, write, arguments={"last_run": last_run}) is None:
            return
    _tell_undo(context, before)
    rows: list[dict[str, object]] = [
        {"check": Check[check.name].value, "last_run": time_text(time_ms), "previous": time_text(before[check])}
        for check in wanted
    ]
    context.console.rows("CheckTimes", _COLUMNS, rows, name="check")


def _tell_undo(context: CommandContext, before: dict[PeriodicCheck, int | None]) -> None:
    for check, time_ms in before.items():
        name = Check[check.name].value
        if time_ms is None:
            context.console.say(f"{name} had never run: there is nothing to undo")
        else:
            context.console.say(f"to undo: bkctl autorecovery reset-checks {name} --last-run {time_text(time_ms)}")


def _parse_time_ms(text: str) -> int:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidArgumentError(f"'{text}' is not a time: give it as 2026-01-31T12:00:00Z")
    return round(moment.timestamp() * 1000)
