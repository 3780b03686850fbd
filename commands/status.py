"""``bkctl status``: the state of a cluster on one screen, for the person who was just paged."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from typing import NamedTuple

import msgspec

from bkctl.commands.bookie.read_only_reasons import with_reasons
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.likely_names import with_likely_names
from bkctl.commands.rendering import Column, Lines, Table, time_text
from bkctl.commands.session import open_session, require_metadata_uri
from bkctl.commands.watch import IntervalOption, WatchOption, keep_looking, parse_watch
from bkctl.runtime.errors import ClusterNotFoundError, MetadataUnavailableError
from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.cluster_facts import ClusterFacts, first_counted, seconds_left
from bkctl.runtime.replication.judge.cluster_status import down_bookies, status_findings
from bkctl.runtime.replication.judge.daemon_findings import DAEMON_REFUSED
from bkctl.runtime.replication.survey.status import StatusLimits, StatusSurvey, read_drained
from bkctl.storage.severity import Severity, word, worst
from bkctl.storage.words import counted, duration, percent, size

_TIMEOUT_S = 1.5
"""Longest wait for a session with ZooKeeper, and for the answer of a bookie."""
_CLOSE_TIMEOUT_S = 0.5

_FINDINGS = Table(
    "Findings",
    Column("severity", "SEVERITY"),
    Column("part", "PART", is_wide=True),
    Column("finding", "FINDING"),
    Column("command", "COMMAND"),
    name="part",
)


class _WatchedStatus(NamedTuple):
    """The status of the cluster, and the time until it is repaired, as far as it is known."""

    status: ClusterFacts
    seconds_left: float | None = None


@command("status", example="status --watch", is_cut=True)
async def show_status(
    context: CommandContext,
    watch: WatchOption = False,
    interval: IntervalOption = None,
) -> Outcome:
    """Show what is down, at risk or in repair, and what to do.

    Reads registrations, disks, marks, locks and switches, and ends within seconds also if ZooKeeper or a bookie does
    not answer. While a bookie is down or drained, it reads ledger metadata for up to four seconds, to know whether a
    ledger references the bookie; while few bookies are writable, or not all, for half a second, to know whether new
    ledgers find enough. What was not measured is "unknown". --watch also estimates how long repairs will take. Exits
    with 10 if there is a warning, with 14 if a finding is critical, with 6 if ZooKeeper does not answer, and with 11
    if no bookie that answers accepts this client, or ZooKeeper does not let this user read all.
    """
    interval_s = parse_watch(context, interval, is_watching=watch)
    require_metadata_uri(context)
    if watch:
        await _watch(context, interval_s)
    return _print(context, _WatchedStatus(await _read_status(context)))


async def _watch(context: CommandContext, interval_s: float) -> None:
    """Until the command is interrupted."""
    first: ClusterFacts | None = None

    async def look() -> None:
        nonlocal first
        status = await _read_status(context)
        first = first_counted(first, status)
        _print(context, _WatchedStatus(status, seconds_left(first, status)))

    await keep_looking(context, interval_s, look)


async def _read_status(context: CommandContext) -> ClusterFacts:
    """The status, on a session of its own: what fails becomes part of the status. ClusterNotFoundError."""
    zookeeper = context.settings.zookeeper
    timeout_s = min(zookeeper.operation_timeout_s, _TIMEOUT_S)
    hurried = context.with_settings(zookeeper=msgspec.structs.replace(zookeeper, operation_timeout_s=timeout_s))
    clock = LoopClock()
    at_end = AsyncExitStack()
    try:
        session = await at_end.enter_async_context(open_session(hurried, must_exist=False, warns_of_restore=False))
        bookies = session.bookies(timeout_max_s=timeout_s)
        limits = StatusLimits(bookie_s=timeout_s)
        survey = StatusSurvey(session.store, session.root, session.ledgers, bookies, clock, limits)
        facts = await survey.read()
        if facts.bookies is None:
            return facts
        known = await with_reasons(context, session, facts.bookies, _TIMEOUT_S)
        read_only = [each for each in known if each.is_writable is False]
        drained = {each.bookie_id for each in read_only if each.is_drained or each.bookie_id in facts.recovering}
        left = await read_drained(session.store, session.root, session.ledgers, drained, limits.ledgers_s)
        return msgspec.structs.replace(facts, bookies=known, drained=left)
    except ClusterNotFoundError as error:
        raise await with_likely_names(session.store, session.registrations, error) from error
    except MetadataUnavailableError as error:
        return ClusterFacts(now_ms=clock.now_ms(), unknown={"zookeeper": str(error)})
    finally:
        with suppress(TimeoutError):  # the session has no nodes, so its end need not be awaited
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await at_end.aclose()


def _print(context: CommandContext, watched: _WatchedStatus) -> Outcome:
    console = context.console
    findings = status_findings(watched.status)
    severity = worst(each.severity for each in findings)
    rows: list[dict[str, object]] = [
        {"severity": each.severity.value, "part": each.part, "finding": each.sentence, "command": each.command}
        for each in findings
    ]
    if console.is_for_people:
        console.verdict(severity, findings[0].sentence if findings else "nothing is wrong")
        screen = _screen(context, watched)
        console.record("ClusterStatus", screen, show=dict.fromkeys(screen, str))
        console.table(_FINDINGS, rows)
    else:
        body = _body(context, watched, severity)
        details = console.cut({"findings": rows, "bookies": _bookie_rows(watched.status)})
        console.record("ClusterStatus", body, name="severity", details=details, lines=Lines(_FINDINGS, rows))
    return _outcome(watched.status, severity)


def _outcome(status: ClusterFacts, severity: Severity | None) -> Outcome:
    if status.zookeeper_ms is None:
        return Outcome.METADATA_UNAVAILABLE
    if _refuses_client(status) or (status.refused and severity is not Severity.CRITICAL):
        return Outcome.UNAUTHORIZED
    if severity is Severity.CRITICAL:
        return Outcome.CRITICAL
    return Outcome.FINDINGS if severity is Severity.WARNING else Outcome.OK


def _refuses_client(status: ClusterFacts) -> bool:
    """Whether all bookies that answered refuse this client, and nothing else is critical."""
    answered = [each for each in status.bookies or () if each.is_refusing or each.total_bytes is not None]
    critical = [each for each in status_findings(status) if each.severity is Severity.CRITICAL]
    return (
        bool(answered)
        and all(each.is_client_refused for each in answered)
        and all(each.part in {"bookies_refusing", DAEMON_REFUSED} for each in critical)
    )


# --- structured formats --------------------------------------------------------------------------------------------


def _body(context: CommandContext, watched: _WatchedStatus, severity: Severity | None) -> dict[str, object]:
    """Stable fields; None: unknown."""
    status = watched.status
    root, marks, locks, switches = status.root, status.marks, status.locks, status.autorecovery
    return {
        "severity": word(severity),
        "metadata_uri": context.settings.metadata_uri,
        "instance_id": None if root is None else root.instance_id,
        "zookeeper_reachable": status.zookeeper_ms is not None,
        "zookeeper_latency_ms": None if status.zookeeper_ms is None else round(status.zookeeper_ms, 3),
        **_bookie_counts(status),
        "bookies_unreferenced": None if status.references is None else status.unreferenced,
        "references_unknown": None if status.references is None else status.references.why_unknown,
        "marks_at_least": None if marks is None else marks.at_least,
        "marks_at_most": None if marks is None else marks.at_most,
        "oldest_mark_read_at": None if marks is None else time_text(marks.oldest_ms),
        "ledgers_with_one_copy": None,
        "repairs": None if locks is None else locks.count,
        "repair_holders": None if locks is None else [f"{name} {count}" for name, count in locks.holders.items()],
        "oldest_repair_since": None if locks is None else time_text(locks.oldest_ms),
        "operations": None if root is None else list(root.operations),
        "seconds_left": None if watched.seconds_left is None else round(watched.seconds_left),
        "auditor_elected": None if status.auditor is None else status.auditor.is_elected,
        "auditor": None if status.auditor is None else status.auditor.bookie_id,
        **_note_counts(status),
        "autorecovery_enabled": None if switches is None else switches.off_since_ms is None,
        "lost_bookie_recovery_delay_s": None if switches is None else switches.delay_s,
        "last_full_check": None if switches is None else time_text(switches.full_check_ms),
        "changes_forbidden": None if root is None else root.migration is not None,
        "unknown": [f"{part}: {reason}" for part, reason in status.unknown.items()],
    }


def _note_counts(status: ClusterFacts) -> dict[str, object]:
    recovery = status.recovery
    if recovery is None:
        keys = ("auditor_kind", "autorecovery_daemons", "ledgers_with_losses", "repairs_failed", "bookies_awaited")
        return dict.fromkeys((*keys, "bookies_in_maintenance"))
    kind = recovery.auditor_kind
    return {
        "auditor_kind": None if kind is None else kind.value,
        "autorecovery_daemons": len(recovery.daemons),
        "ledgers_with_losses": recovery.losses.count,
        "repairs_failed": recovery.failures,
        "bookies_awaited": sum(note.due_ms > status.now_ms for _, note in recovery.deadlines),
        "bookies_in_maintenance": len(recovery.maintenance),
    }


def _bookie_counts(status: ClusterFacts) -> dict[str, object]:
    if status.bookies is None:
        return dict.fromkeys(
            ("bookies_writable", "bookies_read_only", "bookies_down", "bookies_silent", "total_bytes", "free_bytes")
        )
    return {
        "bookies_writable": sum(each.is_writable is True for each in status.bookies),
        "bookies_read_only": sum(each.is_writable is False for each in status.bookies),
        "bookies_down": sum(not each.is_registered for each in status.bookies),
        "bookies_silent": sum(each.problem is not None and not each.is_refusing for each in status.bookies),
        "total_bytes": sum(each.total_bytes or 0 for each in status.bookies),
        "free_bytes": sum(each.free_bytes or 0 for each in status.bookies),
    }


def _bookie_rows(status: ClusterFacts) -> list[dict[str, object]]:
    return [
        {
            "id": each.bookie_id,
            "state": {True: "writable", False: "read-only", None: "down"}[each.is_writable],
            "has_cookie": each.has_cookie,
            "total_bytes": each.total_bytes,
            "free_bytes": each.free_bytes,
            "problem": each.problem,
        }
        for each in status.bookies or ()
    ]


# --- the screen ----------------------------------------------------------------------------------------------------


def _screen(context: CommandContext, watched: _WatchedStatus) -> dict[str, object]:
    """One line of text for each question, in the order in which a person asks them."""
    status = watched.status
    answer = "does not answer" if status.zookeeper_ms is None else f"answers in {status.zookeeper_ms:.0f} ms"
    lines: dict[str, object] = {
        "cluster": context.settings.metadata_uri,
        "zookeeper": answer,
    }
    if status.zookeeper_ms is None:
        return lines
    return lines | {
        "bookies": _bookies_text(status),
        "at risk": _marks_text(status),
        "in repair": _repairs_text(status),
        "time left": _time_left_text(watched),
        "disks": _disks_text(status),
        "autorecovery": _autorecovery_text(status),
    }


def _bookies_text(status: ClusterFacts) -> str:
    if status.bookies is None:
        return "unknown"
    counts = _bookie_counts(status)
    words = {"writable": "bookies_writable", "read-only": "bookies_read_only", "down": "bookies_down"}
    text = ", ".join(f"{counts[key]} {word}" for word, key in words.items())
    refusing = sum(each.is_refusing for each in status.bookies)
    text += f"; {refusing} answered with an error" if refusing else ""
    return text + (f"; {counts['bookies_silent']} did not answer" if counts["bookies_silent"] else "")


def _why_unknown(status: ClusterFacts) -> str | None:
    """Why marks do not say what is at risk: an auditor may not have marked the ledgers of a bookie that is down."""
    down = down_bookies(status)
    return None if down is None else f"unknown ({down} down; bkctl audit counts)"


def _marks_text(status: ClusterFacts) -> str:
    marks, why_unknown, unread = status.marks, _why_unknown(status), status.no_live_copy
    if marks is None:
        return "unknown"
    if (unread.ledgers or not unread.is_exact) and why_unknown is not None:
        at_least = "" if unread.is_exact else "at least "
        without = f"{at_least}{counted(unread.ledgers, 'ledger')} without a live copy"
        without = without if unread.ledgers else "without a live copy: not known yet"
        why_unknown = f"{without}; with fewer copies: {why_unknown}"
    if not marks.at_least and not marks.at_most:
        if why_unknown is not None:
            return why_unknown
        if marks.at_most is None:
            return "unknown (the marks were not read in time; bkctl autorecovery pending --count)"
        return "no ledger is marked as under-replicated (bkctl audit counts copies)"
    age = "" if marks.oldest_ms is None else f", oldest mark {_age(status, marks.oldest_ms)}"
    if why_unknown is not None:
        return f"{marks.ledgers} marked{age}; others: {why_unknown}"
    return f"{marks.ledgers} marked{age}; with one copy left: unknown (bkctl audit)"


def _repairs_text(status: ClusterFacts) -> str:
    parts = []
    if status.locks is None:
        parts.append("unknown")
    elif not status.locks.count:
        parts.append("no ledger is locked")
    else:
        holders = ", ".join(f"{name} {count}" for name, count in list(status.locks.holders.items())[:3])
        oldest = "" if status.locks.oldest_ms is None else f", longest {_age(status, status.locks.oldest_ms)}"
        parts.append(f"{counted(status.locks.count, 'ledger')} locked ({holders}{oldest})")
    parts += status.root.operations if status.root is not None else ()
    return "; ".join(parts)


def _time_left_text(watched: _WatchedStatus) -> str:
    why_unknown = _why_unknown(watched.status)
    if watched.seconds_left is not None:
        others = "" if why_unknown is None else f"; ledgers that are not marked: {why_unknown}"
        return f"about {duration(watched.seconds_left)} at the pace of this watch{others}"
    if watched.status.waiting_for_stop and watched.status.recovering.issubset(watched.status.waiting_for_stop):
        return "nothing to move; a decommission waits for the stop of a bookie"
    if watched.status.recovering:
        return "unknown (the command that moves the ledgers shows it)"
    if why_unknown is not None:
        return why_unknown
    if watched.status.marks is not None and watched.status.marks.at_most == 0:
        return "nothing to repair"
    return "unknown (--watch measures it)"


def _disks_text(status: ClusterFacts) -> str:
    used = {each.bookie_id: each.used_fraction for each in status.bookies or () if each.used_fraction is not None}
    if not used:
        return "unknown"
    counts = _bookie_counts(status)
    fullest = max(used, key=lambda bookie_id: used[bookie_id] or 0.0)
    free, total = size(counts["free_bytes"]), size(counts["total_bytes"])
    return f"{free} of {total} free; fullest: {fullest}, {percent(used[fullest])} used"


def _autorecovery_text(status: ClusterFacts) -> str:
    switches, auditor = status.autorecovery, status.auditor
    if auditor is None:
        text = "auditor unknown"
    else:
        text = f"auditor {auditor.bookie_id or 'unknown'}" if auditor.is_elected else "no auditor"
    if switches is None:
        return text
    state = "enabled" if switches.off_since_ms is None else f"disabled for {_age(status, switches.off_since_ms)}"
    checked = "never" if switches.full_check_ms is None else f"{_age(status, switches.full_check_ms)} ago"
    delay = "not set" if switches.delay_s is None else f"{switches.delay_s}s"
    return f"{state}, {text}{_kind_text(status.recovery)}, delay {delay}, last full check {checked}"


def _kind_text(recovery: RecoveryStatus | None) -> str:
    kind = None if recovery is None else recovery.auditor_kind
    return "" if kind is None else f" ({kind.value})"


def _age(status: ClusterFacts, since_ms: int) -> str:
    return duration(max(0, status.now_ms - since_ms) / 1000)
