"""``bkctl autorecovery maintenance``: bookies that are expected to be away for a while."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.autorecovery.access import readable
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, NotFoundError
from bkctl.commands.parse import parse_bookie_id, parse_duration_s
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.gate import Change, mode_turn
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan, PlanFinding
from bkctl.commands.safety.state_directory import user_name
from bkctl.commands.session import Session, open_session
from bkctl.runtime.errors import BookieNotFoundError, ConflictError, RefusedError
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import list_candidates, read_auditor
from bkctl.runtime.metadata.replication.maintenance import (
    DelayAtEnd,
    Maintenance,
    delay_at_end,
    delay_to_set,
    end_maintenance,
    list_maintenance,
    start_maintenance,
)
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote, RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import AuditorKind, kind_of_auditor, read_daemons
from bkctl.runtime.metadata.replication.switches import RecoveryDelay
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.advice import these_bookies
from bkctl.runtime.replication.judge.stop_verdict import StopVerdict
from bkctl.runtime.replication.survey.stop_scan import scan_for_stop
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, decimal

AwayRiskOption = Annotated[bool, typer.Option("--accept-risk", help="Even if the cluster may not cope")]
_TABLE = Table(
    "MaintenanceList",
    Column("bookie_id", "ID"),
    Column("state", "STATE"),
    Column("until", "UNTIL"),
    Column("overdue", "OVERDUE"),
    Column("user", "BY"),
    Column("rack", "RACK", is_wide=True),
    Column("since", "SINCE", is_wide=True),
    Column("delay_before_s", "DELAY BEFORE", is_wide=True),
    Column("delay_set_s", "DELAY SET", is_wide=True),
    Column("problem", "PROBLEM"),
    name="bookie_id",
)


class _Start(NamedTuple):
    """What a maintenance is to do. ``delay_set_s`` None: the recovery delay stays."""

    bookie_ids: tuple[str, ...]
    duration_s: float
    rack: str | None
    auditor: AuditorKind | None
    delay: RecoveryDelay | None
    delay_set_s: int | None

    @property
    def names(self) -> str:
        """The bookies, for sentences."""
        return ", ".join(self.bookie_ids)

    def note_now(self) -> MaintenanceNote:
        """The note of a maintenance that starts now."""
        now_ms = LoopClock().now_ms()
        return MaintenanceNote(
            start_ms=now_ms,
            end_ms=now_ms + round(self.duration_s * 1000),
            user=user_name(),
            rack=self.rack,
            stored_delay_s=None if self.delay is None or self.delay_set_s is None else self.delay.seconds,
            set_delay_s=self.delay_set_s,
        )


@command("start", example="autorecovery maintenance start b1.example.com:3181 --for 30m", effect=Effect.REVERSIBLE)
async def start(
    context: CommandContext,
    duration: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long they may be away")],
    bookie_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Bookies that will be away")] = None,
    rack: Annotated[str | None, typer.Option("--rack", metavar="RACK", help="All bookies of this rack")] = None,
    is_risk_accepted: AwayRiskOption = False,
) -> None:
    """Expect bookies to be away for a while, and do not mark their ledgers.

    Run it before you stop a bookie, and maintenance end when it is back. Checks first what bookie restart-check checks,
    and refuses a second bookie while one is away. An auditor of bkctl leaves exactly these bookies out. For Java's the
    recovery delay is raised; it holds for a single bookie. An auditor of Java that is elected meanwhile ignores both.
    """
    if bool(bookie_ids) == (rack is not None):
        raise InvalidArgumentError("name the bookies, or give --rack")
    duration_s = parse_duration_s(duration)
    async with open_session(context) as session:
        notes = RecoveryNotes(session.store, session.root)

        async def examine() -> tuple[Plan, _Start]:
            chosen = tuple(dict.fromkeys(map(parse_bookie_id, bookie_ids or await _bookies_of(session, rack))))
            wanted = await _decide(context, session, notes, chosen, duration_s, rack)
            others = await _others(notes, chosen)
            objections = [f"bookie {each} is in maintenance already" for each in others]
            objections += await _check_heirs(context, session, notes, chosen)
            verdict = await _check_stop(context, session, chosen)
            objections += map(str, verdict.reasons)
            refusal = None if is_risk_accepted else _refusal(wanted.names, "should not be away now", objections)
            risks = [PlanFinding(Severity.CRITICAL, each) for each in objections]
            risks += [PlanFinding(each.severity, str(each)) for each in verdict.warnings]
            return _start_plan(session, notes, wanted, others, risks, refusal), wanted

        async def apply(change: Change, wanted: _Start) -> MaintenanceNote:
            note = wanted.note_now()
            await start_maintenance(notes, session.switches, wanted.bookie_ids, note, wanted.delay)
            change.details["until"] = time_text(note.end_ms)
            return note

        turn = partial(mode_turn, context, session.store, session.root)
        wanted, note = await make_change(context, examine, apply, session.store, turn=turn, is_locked=False)
        assert note is not None
        context.console.say(f"when it is back: bkctl autorecovery maintenance end {' '.join(wanted.bookie_ids)}")
        body = {
            "bookie_ids": list(wanted.bookie_ids),
            "until": time_text(note.end_ms),
            "rack": rack,
            "auditor": None if wanted.auditor is None else wanted.auditor.value,
            "delay_set_s": note.set_delay_s,
            "delay_before_s": None if wanted.delay is None else wanted.delay.seconds,
        }
        context.console.record("MaintenanceStart", body, name="until")


@command("end", example="autorecovery maintenance end b1.example.com:3181", effect=Effect.REVERSIBLE)
async def end(
    context: CommandContext,
    bookie_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Bookies (default: all)")] = None,
    is_risk_accepted: Annotated[
        bool, typer.Option("--accept-risk", help="Even for a bookie that is not registered")
    ] = False,
) -> None:
    """End the maintenance of bookies that are back. A recovery delay that was raised for them is restored.

    Refused for a bookie that is not registered: its ledgers would be marked. Repairs what an interrupted maintenance
    start or end left. A delay that was set by others in the meantime stays.
    """
    async with open_session(context) as session:
        notes = RecoveryNotes(session.store, session.root)

        async def examine() -> tuple[Plan, list[Maintenance]]:
            ending = await _find(notes, bookie_ids)
            live = (await session.registrations.snapshot()).live
            away = [each.bookie_id for each in ending if each.bookie_id not in live]
            objections = [f"bookie {', '.join(away)} is not registered: start it first"] if away else []
            refusal = None if is_risk_accepted else _refusal(", ".join(away), "is not back", objections, but="ends it")
            items = await _end_items(context, session, notes, ending)
            summary = _end_summary(away) if ending else ["no bookie is in maintenance"]
            risks = [PlanFinding(Severity.CRITICAL, each) for each in objections]
            return session.plan(items=items, summary=summary, findings=risks, refusal=refusal), ending

        async def apply(_: Change, ending: list[Maintenance]) -> list[dict[str, object]]:
            return [
                {
                    "bookie_id": each.bookie_id,
                    "delay": (await end_maintenance(notes, session.switches, each)).value,
                }
                for each in ending
            ]

        turn = partial(mode_turn, context, session.store, session.root)
        _, ended = await make_change(context, examine, apply, session.store, turn=turn, is_locked=False)
        rows = ended or []
        context.console.record("MaintenanceEnd", {"ended": len(rows)}, name="ended", details={"bookies": rows})
        context.console.table(_ENDED, rows)


@command("list", example="autorecovery maintenance list", is_listing=True)
async def list_all(context: CommandContext) -> None:
    """List the bookies in maintenance."""
    async with open_session(context) as session:
        found = await list_maintenance(RecoveryNotes(session.store, session.root))
        registrations = await session.registrations.snapshot()
        cookies = await session.cookies.ids() if found else []
        context.console.rows(_TABLE, [_row(session, each, registrations, cookies) for each in found])


_ENDED = Table("Bookies", Column("bookie_id", "ID"), Column("delay", "RECOVERY DELAY"))


def _row(
    session: Session, found: Maintenance, registrations: Registrations, cookies: Collection[str]
) -> dict[str, object]:
    note = found.note
    is_read_only = found.bookie_id in registrations.read_only
    away = "down" if found.bookie_id in cookies else "removed"
    state = "read-only" if is_read_only else "writable" if found.bookie_id in registrations.writable else away
    return {
        "bookie_id": found.bookie_id,
        "state": state,
        "until": None if note is None else time_text(note.end_ms),
        "overdue": found.is_overdue(session.now_ms),
        "user": None if note is None else note.user,
        "rack": None if note is None else note.rack,
        "since": None if note is None else time_text(note.start_ms),
        "delay_before_s": None if note is None else note.stored_delay_s,
        "delay_set_s": None if note is None else note.set_delay_s,
        "problem": found.problem,
    }


# --- start ---------------------------------------------------------------------------------------------------------


async def _bookies_of(session: Session, rack: str | None) -> list[str]:
    """Registered bookies of a rack, as the sources of placement know it."""
    live = (await session.registrations.snapshot()).live
    survey = await (await session.client()).ports.placement.survey(sorted(live))
    found = sorted(each for each in live if survey.rack_of(each) == rack)
    if not found:
        origin = f" ({survey.origin})" if survey.origin else ": no source of racks is configured"
        raise NotFoundError(f"no registered bookie is known to be in rack {rack}{origin}")
    return found


async def _decide(
    context: CommandContext,
    session: Session,
    notes: RecoveryNotes,
    bookie_ids: tuple[str, ...],
    duration_s: float,
    rack: str | None,
) -> _Start:
    """What the auditor in office needs; RefusedError where Java's cannot do it."""
    auditor = await read_auditor(session.store, session.root, session.foreign)
    kind = kind_of_auditor(auditor, await read_daemons(notes))
    delay = await readable(context, session.switches.recovery_delay())
    if kind is AuditorKind.OURS:
        return _Start(bookie_ids, duration_s, rack, kind, delay, None)
    if kind is None:
        context.console.warn("no auditor is elected: only one of bkctl will know about the maintenance of a bookie")
    if len(bookie_ids) > 1:
        raise RefusedError(
            "nothing was changed: without an auditor of bkctl one bookie at a time can be in maintenance, because "
            "Java's ignores the recovery delay when a second one is away"
        )
    if kind is not None and delay is None:
        path = Paths(session.root).lost_bookie_recovery_delay
        raise RefusedError(f"nothing was changed: {path} is missing or unreadable: bkctl autorecovery delay set 0")
    if kind is AuditorKind.PULSAR:
        context.console.warn("the auditor of Pulsar's metadata driver ignores a changed delay before Pulsar 2.11.3")
    return _Start(bookie_ids, duration_s, rack, kind, delay, delay_to_set(delay, duration_s))


async def _check_heirs(
    context: CommandContext, session: Session, notes: RecoveryNotes, bookie_ids: tuple[str, ...]
) -> list[str]:
    """Warn of Java's auditors that may be elected meanwhile: at its start, one audits whatever the delay.

    Returns an objection if one certainly will be, because the auditor stops with one of these bookies.
    """
    ours = {each.bookie_id for each in await read_daemons(notes)}
    candidates = await list_candidates(session.store, session.root, session.foreign)
    heirs = [each for each in candidates[1:] if each.bookie_id not in bookie_ids]
    java = [each for each in heirs if each.bookie_id not in ours]
    if not java:
        return []
    auditor = candidates[0].bookie_id
    if auditor in bookie_ids and java[0] is heirs[0]:
        return [
            f"bookie {auditor} is the auditor: when it stops, Java's auditor of {java[0].bookie_id} takes over, and "
            "marks the ledgers of bookies that are away at once: bkctl autorecovery disable prevents that"
        ]
    context.console.warn(
        f"if Java's auditor of {java[0].bookie_id} is elected meanwhile, it marks the ledgers of bookies that are away "
        "at once, whatever the delay: stop Java's auditors first, or run bkctl autorecovery disable instead"
    )
    return []


async def _others(notes: RecoveryNotes, bookie_ids: Collection[str]) -> list[str]:
    """Other bookies in maintenance; ConflictError if one of ``bookie_ids`` is already."""
    keys = await notes.maintenance.keys()
    if again := sorted(set(keys).intersection(bookie_ids)):
        raise ConflictError(
            f"nothing was changed: bookie {', '.join(again)} is in maintenance already: bkctl autorecovery maintenance "
            "list shows it, and maintenance end ends it"
        )
    return sorted(keys)


async def _check_stop(context: CommandContext, session: Session, bookie_ids: tuple[str, ...]) -> StopVerdict:
    ports = (await session.client()).ports
    with context.console.progress("reading ledgers") as progress:
        return await scan_for_stop(
            ports,
            session.store,
            bookie_ids,
            foreign=session.foreign,
            on_progress=lambda done: progress.update(done, None),
        )


def _refusal(names: str, why: str, objections: Sequence[str], *, but: str = "continues all the same") -> str | None:
    """The sentence with which a change is refused; None if nothing objects."""
    if not objections:
        return None
    return f"nothing was changed: bookie {names} {why}: {objections[0]}; --accept-risk {but}"


def _start_plan(
    session: Session,
    notes: RecoveryNotes,
    wanted: _Start,
    others: list[str],
    risks: Sequence[PlanFinding],
    refusal: str | None,
) -> Plan:
    """The notes and the delay. ``others``: bookies that are in maintenance already, which must stay the same."""
    items: list[dict[str, object]] = [
        {"action": "create", "path": notes.maintenance.path_of(each), "expected_version": None}
        for each in wanted.bookie_ids
    ]
    summary = [f"the ledgers of bookie {wanted.names} will not be marked for {decimal(wanted.duration_s)} s"]
    if wanted.delay_set_s is not None and wanted.delay is not None:
        path = Paths(session.root).lost_bookie_recovery_delay
        item = {"action": "set", "path": path, "expected_version": wanted.delay.version, "value": wanted.delay_set_s}
        items.append(item)
        summary.append(f"the recovery delay will be {wanted.delay_set_s} s instead of {wanted.delay.seconds} s")
    arguments: dict[str, object] = {"for_s": wanted.duration_s, "rack": wanted.rack}
    arguments |= {"others": others} if others else {}
    return session.plan(summary=summary, findings=risks, items=items, arguments=arguments, refusal=refusal)


# --- end -----------------------------------------------------------------------------------------------------------


async def _find(notes: RecoveryNotes, bookie_ids: list[str] | None) -> list[Maintenance]:
    """The notes to delete; BookieNotFoundError for a bookie that has none."""
    found = await list_maintenance(notes)
    if not bookie_ids:
        return found
    chosen = [each for each in found if each.bookie_id in bookie_ids]
    if missing := sorted(set(bookie_ids).difference(each.bookie_id for each in chosen)):
        raise BookieNotFoundError(f"{these_bookies(missing, 'is', 'are')} not in maintenance", missing[0])
    return chosen


async def _end_items(
    context: CommandContext, session: Session, notes: RecoveryNotes, ending: Sequence[Maintenance]
) -> list[dict[str, object]]:
    items: list[dict[str, object]] = []
    delay = await readable(context, session.switches.recovery_delay())
    for each in ending:
        if each.note is None:
            context.console.warn(f"{each.problem}; it is deleted, and the recovery delay stays")
        fate = delay_at_end(each.note, delay)
        if fate is DelayAtEnd.RESTORED and each.note is not None and delay is not None:
            path = Paths(session.root).lost_bookie_recovery_delay
            value = each.note.stored_delay_s
            items.append({"action": "set", "path": path, "expected_version": delay.version, "value": value})
        elif fate is DelayAtEnd.CHANGED_SINCE and each.note is not None and delay is not None:
            context.console.warn(
                f"the recovery delay stays {delay.seconds} s, because it was changed during the maintenance of bookie "
                f"{each.bookie_id}; it was {each.note.stored_delay_s} s before"
            )
        path = notes.maintenance.path_of(each.bookie_id)
        items.append({"action": "delete", "path": path, "expected_version": each.version})
    return items


def _end_summary(away: Sequence[str]) -> list[str]:
    if not away:
        return []
    return [f"{counted(len(away), 'bookie')} not registered ({', '.join(away)}): the auditor will mark their ledgers"]
