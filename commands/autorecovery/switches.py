"""``bkctl autorecovery enable``, ``disable``, ``delay``, ``trigger``, ``reset-checks``: nodes that all daemons obey."""

from __future__ import annotations

import datetime
import enum
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
import typer

from bkctl.commands.autorecovery.access import readable
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.state_directory import user_name
from bkctl.commands.session import Session, open_session
from bkctl.runtime.errors import ConflictError, RefusedError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import read_auditor
from bkctl.runtime.metadata.replication.switches import DELAY_S_MAX, AuditRequest, PeriodicCheck, SwitchNote

_KIND = "AutorecoverySwitch"


@command("enable", example="autorecovery enable", effect=Effect.REVERSIBLE)
async def enable(context: CommandContext) -> None:
    """Enable automatic replication for the whole cluster.

    A waiting Java auditor starts an audit within a tenth of a second, and the workers continue.
    """
    async with open_session(context) as session:
        items: tuple[dict[str, object], ...] = ({"action": "delete", "path": Paths(session.root).replication_disabled},)
        nothing_to_do = "autorecovery is already enabled" if await session.switches.is_enabled() else None
        is_changed = await _change(context, session, items, session.switches.enable, nothing_to_do=nothing_to_do)
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
        is_changed = await _change(
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


_DELAY_KIND = "RecoveryDelay"


@command("get", example="autorecovery delay get", has_tables=False)
async def get_delay(context: CommandContext) -> None:
    """Show the delay. Exits with 4 if no auditor ever ran and the delay was never set."""
    async with open_session(context) as session:
        delay = await session.switches.recovery_delay()
    if delay is None:
        raise NotFoundError("the recovery delay is not set: the first auditor stores the value of its settings")
    context.console.record(_DELAY_KIND, {"seconds": delay.seconds}, name="seconds")


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
        await _change(context, session, (item,), write)
    if wanted_s in {0, previous_s}:
        context.console.say("the auditor, if one is elected, starts an audit now")
    if previous_s is None:
        context.console.say("there was no readable delay before; to change it: bkctl autorecovery delay set")
    else:
        context.console.say(f"to undo: bkctl autorecovery delay set {previous_s}")
    context.console.record(_DELAY_KIND, {"seconds": wanted_s, "previous_seconds": previous_s}, name="seconds")


def _parse_seconds(text: str) -> int:
    seconds = 0.0 if text.strip() == "0" else parse_duration_s(text)
    if seconds != int(seconds) or seconds > DELAY_S_MAX:
        raise InvalidArgumentError(f"'{text}' is not a delay: use whole seconds from 0 to {DELAY_S_MAX}")
    return int(seconds)


@command("trigger", example="autorecovery trigger", effect=Effect.REVERSIBLE)
async def trigger(context: CommandContext) -> None:
    """Let the auditor look for lost bookies now and mark their ledgers, regardless of the recovery delay.

    Refused while autorecovery is disabled or no auditor is elected. The auditor sends no answer: see bkctl autorecovery
    pending for the result.
    """
    async with open_session(context) as session:
        if not await session.switches.is_enabled():
            raise RefusedError("autorecovery is disabled, so no audit would run: use bkctl autorecovery enable")
        auditor = await read_auditor(session.store, session.root, session.foreign)
        if auditor is None:
            raise RefusedError("no auditor is elected: bkctl autorecovery start runs one")
        delay = await session.switches.recovery_delay()
        path = Paths(session.root).lost_bookie_recovery_delay
        request = AuditRequest(session.store, session.root)
        if delay is None and not await request.is_understood():
            raise RefusedError(f"{path} is missing: restart the auditor, which then starts an audit")

        async def ask() -> bool:
            if delay is None:
                await request.send()
            elif await session.switches.rewrite_recovery_delay() is None:
                raise ConflictError(f"{path} was deleted during this command: restart the auditor")
            return True

        item: dict[str, object] = {"action": "set", "path": request.path}
        if delay is not None:
            item = {"action": "set", "path": path, "expected_version": delay.version, "value": delay.seconds}
        await _change(context, session, (item,), ask)
    if auditor.is_pulsar:
        context.console.warn(
            f"auditor {auditor.bookie_id} was elected by Pulsar's metadata driver, which ignores the trigger before "
            "Pulsar 2.11.3: restart it"
        )
    context.console.say("the recovery delay has not changed; marked ledgers: bkctl autorecovery pending")
    body: dict[str, object] = {
        "triggered": True,
        "auditor": auditor.bookie_id,
        "delay_s": None if delay is None else delay.seconds,
    }
    context.console.record("AuditTrigger", body, name="auditor")


_LONG_AGO_MS = 21 * 86400 * 1000
"""The same age as in Java's command."""

_CHECK_TABLE = Table(
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
        await _change(context, session, items, write, arguments={"last_run": last_run})
    _print_undo(context, before)
    rows: list[dict[str, object]] = [
        {"check": Check[check.name].value, "last_run": time_text(time_ms), "previous": time_text(before[check])}
        for check in wanted
    ]
    context.console.rows(_CHECK_TABLE, rows)


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


async def _change(
    context: CommandContext,
    session: Session,
    items: tuple[dict[str, Any], ...],
    carry_out: Callable[[], Awaitable[bool]],
    *,
    summary: tuple[str, ...] = (),
    arguments: dict[str, Any] | None = None,
    nothing_to_do: str | None = None,
) -> bool:
    """Whether it changed anything.

    ``nothing_to_do``: why the plan is empty, if the setting has this value already.
    """
    if nothing_to_do is not None:
        summary, items = (nothing_to_do,), ()
    plan = session.plan(summary=summary, items=items, arguments=arguments)
    if nothing_to_do is not None:
        nothing_to_change(context, plan)
        return False
    async with open_change(context, plan, session.store, is_locked=False) as change:
        is_changed = await carry_out()
        change.details["changed"] = is_changed
    return is_changed
