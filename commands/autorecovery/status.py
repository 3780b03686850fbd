"""``bkctl autorecovery status``: switch, auditor, workers, and what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

from bkctl.commands.autorecovery.access import readable, warn_of_second_auditor
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import Column, Row, Table, time_text
from bkctl.commands.session import Session, open_session
from bkctl.runtime.metadata.replication.election import read_pulsar_auditor
from bkctl.runtime.metadata.replication.lock import HeldLock, list_held_locks, list_locked_ids
from bkctl.runtime.metadata.replication.marks import list_marks
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, LaneStatus
from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus, read_recovery_status
from bkctl.runtime.metadata.replication.switches import PeriodicCheck, SwitchNote, decode_note
from bkctl.runtime.replication.judge.advice import AUTORECOVERY_STATUS, Advice, no_auditor, worst_first
from bkctl.runtime.replication.judge.daemon_findings import (
    WaitingMarks,
    idle_seconds,
    recovery_findings,
)
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, UNKNOWN, listed, size

_PENDING_COUNTED_MAX = 1000
_LOCKS_READ_MAX = 1000


class _Pending(NamedTuple):
    """Marks, counted up to a bound, and when the oldest of those was made."""

    marks: int
    is_truncated: bool
    oldest_ms: int | None


@command("status", example="autorecovery status", is_cut=True)
async def show_status(context: CommandContext) -> None:
    """Show the switch, the auditor and its tasks, the workers, and what waits for them.

    At most 1000 marks are counted; bkctl autorecovery pending --count counts all. Auditors and workers of bkctl say
    what they do. Those of Java show only in the election and in the locks of the ledgers that they repair.
    """
    async with open_session(context) as session:
        registrations, off, recovery, pending, locked, body = await asyncio.gather(
            session.registrations.snapshot(),
            session.switches.switched_off(),
            read_recovery_status(session.store, session.root, session.foreign, session.ledgers),
            _count_pending(session),
            list_locked_ids(session.store, session.root, session.foreign),
            _settings(context, session),
        )
        locks = await _read_locks(session)
        note = SwitchNote() if off is None else decode_note(off.note)
        waiting = None
        if pending.oldest_ms is not None and off is None:
            waiting = WaitingMarks(pending.oldest_ms, has_locks=bool(locked))
        cookies = await session.cookies.ids() if recovery.maintenance else []
        kind = recovery.auditor_kind
        body = {
            "enabled": off is None,
            "disabled_since": None if off is None else time_text(off.since_ms),
            "disabled_by": note.by,
            "disabled_reason": note.reason,
            "disabled_until": note.until,
            "overdue": note.is_overdue(session.now_ms),
            "auditor": None if recovery.auditor is None else recovery.auditor.bookie_id,
            "auditor_kind": None if kind is None else kind.value,
            "auditor_since": None if recovery.auditor is None else time_text(recovery.auditor.since_ms),
            **body,
            "pending": pending.marks,
            "pending_truncated": pending.is_truncated,
            "oldest_pending_at": time_text(pending.oldest_ms),
            "running": len(locked),
            "idle_s": idle_seconds(recovery, waiting, session.now_ms),
            "failed": recovery.failures,
            "ledgers_with_losses": recovery.losses.count,
        }
        if recovery.auditor is not None and not recovery.auditor.is_pulsar:
            warn_of_second_auditor(context, await read_pulsar_auditor(session.store, session.root))
    tables = status_tables(recovery, locks, session.now_ms)
    rows = {key: rows for key, (_, rows) in tables.items()}
    context.console.record("AutorecoveryStatus", body, name="auditor", details=context.console.cut(rows))
    for table, table_rows in tables.values():
        context.console.table(table, table_rows)
    away = [each.bookie_id for each in recovery.maintenance if each.bookie_id not in registrations.live]
    removed = set(away).difference(cookies)
    found = recovery_findings(recovery, waiting, session.now_ms, away, removed)
    _warn(context, recovery, None if off is None else note, found, session.now_ms)


def _warn(
    context: CommandContext, recovery: RecoveryStatus, off: SwitchNote | None, found: Iterable[Advice], now_ms: int
) -> None:
    """Everything that is wrong. ``off``: the note of the switch while autorecovery is disabled."""
    if recovery.auditor is not None and recovery.auditor.problem is not None:
        context.console.warn(str(recovery.auditor.problem))
    if off is not None and off.is_overdue(now_ms):
        context.console.warn(f"autorecovery was to be disabled only until {off.until}: run bkctl autorecovery enable")
    shown = [each for each in found if each.severity > Severity.INFORMATION]
    if off is None and recovery.auditor is None:
        shown.append(no_auditor())
    for each in worst_first(shown):
        more = "" if each.command in {None, AUTORECOVERY_STATUS} else f": {each.command}"
        context.console.report(each.severity, f"{each.sentence}{more}")


async def _settings(context: CommandContext, session: Session) -> dict[str, object]:
    delay = await readable(context, session.switches.recovery_delay())
    checks = {
        check.name.lower(): time_text(await readable(context, session.switches.check_time_ms(check)))
        for check in PeriodicCheck
    }
    return {"lost_bookie_recovery_delay_s": None if delay is None else delay.seconds, "last_checks": checks}


async def _count_pending(session: Session) -> _Pending:
    count, oldest_ms = 0, None
    async with aclosing(list_marks(session.store, session.root, session.foreign)) as marks:
        async for mark in marks:
            if count == _PENDING_COUNTED_MAX:
                return _Pending(count, True, oldest_ms)
            count += 1
            oldest_ms = mark.marked_ms if oldest_ms is None else min(oldest_ms, mark.marked_ms)
    return _Pending(count, False, oldest_ms)


async def _read_locks(session: Session) -> list[HeldLock]:
    found: list[HeldLock] = []
    async with aclosing(list_held_locks(session.store, session.root, session.foreign)) as locks:
        async for lock in locks:
            found.append(lock)
            if len(found) == _LOCKS_READ_MAX:
                break
    return found


def _show_held(value: object) -> str:
    held = value if isinstance(value, list) else []
    texts = [f"{each['ledger_id']} ({each['waits_for']})" if each["waits_for"] else each["ledger_id"] for each in held]
    return listed(texts) or UNKNOWN


_TASKS = Table(
    "Tasks of the auditor",
    Column("task", "TASK"),
    Column("state", "STATE"),
    Column("succeeded_at", "LAST SUCCESS"),
    Column("result", "RESULT"),
    Column("error", "ERROR"),
    Column("started_at", "STARTED", is_wide=True),
    Column("ended_at", "ENDED", is_wide=True),
    Column("runs", "RUNS", is_right=True, is_wide=True),
    Column("failures", "FAILURES", is_right=True, is_wide=True),
    Column("hangs", "HANGS", is_right=True, is_wide=True),
)
_DAEMONS = Table(
    "Daemons of bkctl",
    Column("host", "HOST"),
    Column("pid", "PID", is_right=True),
    Column("role", "ROLE"),
    Column("auditor", "AUDITOR"),
    Column("repaired", "REPAIRED", is_right=True),
    Column("failed", "FAILED", is_right=True),
    Column("copied_bytes", "COPIED", size, is_right=True),
    Column("copies_breaking_placement", "MISPLACED", is_right=True, priority=1),
    Column("finished_at", "LAST FINISHED"),
    Column("holds", "HOLDS", _show_held),
    Column("reported_at", "REPORTED", is_wide=True),
    Column("started_at", "STARTED", is_wide=True),
    Column("admin", "ADMIN", is_wide=True),
)
_HOLDERS = Table(
    "Replication locks",
    Column("holder", "HOLDER"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("since", "OLDEST SINCE"),
    Column("first_ledger_ids", "FIRST"),
)
_AWAITED = Table(
    "Bookies that are gone",
    Column("bookie_id", "ID"),
    Column("gone_since", "GONE SINCE"),
    Column("marked_at", "LEDGERS MARKED AT"),
    Column("in_maintenance", "MAINTENANCE"),
)
_MAINTENANCE = Table(
    "Bookies in maintenance",
    Column("bookie_id", "ID"),
    Column("until", "UNTIL"),
    Column("overdue", "OVERDUE"),
    Column("user", "BY"),
)
_LOSSES = Table(
    "First ledgers with lost entries",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("found_at", "FOUND"),
    Column("missing_bookies", "MISSING"),
    Column("reason", "REASON"),
)


def status_tables(
    recovery: RecoveryStatus, locks: Sequence[HeldLock], now_ms: int
) -> Mapping[str, tuple[Table, Sequence[Row]]]:
    """The tables, by their keys in structured formats."""
    auditor = recovery.auditor_daemon
    return {
        "tasks": (_TASKS, [_task(each) for each in auditor.lanes] if auditor is not None else []),
        "daemons": (_DAEMONS, [_daemon(each) for each in recovery.daemons]),
        "holders": (_HOLDERS, _holders(locks)),
        "bookies_gone": (_AWAITED, _awaited(recovery)),
        "maintenance": (_MAINTENANCE, _maintenance(recovery, now_ms)),
        "losses": (_LOSSES, _losses(recovery)),
    }


def _task(lane: LaneStatus) -> Row:
    state = "runs" if lane.is_running else "fails" if lane.error is not None else "waits"
    return {
        "task": lane.name,
        "state": state,
        "started_at": time_text(lane.started_ms),
        "ended_at": time_text(lane.ended_ms),
        "succeeded_at": time_text(lane.succeeded_ms if lane.result_ms is None else lane.result_ms),
        "result": lane.result or None,
        "error": lane.error,
        "runs": lane.runs,
        "failures": lane.failures,
        "hangs": lane.hangs,
    }


def _daemon(daemon: DaemonNote) -> Row:
    worker = daemon.worker
    return {
        "host": daemon.host,
        "pid": daemon.pid,
        "role": daemon.role,
        "auditor": daemon.is_auditor,
        "started_at": time_text(daemon.started_ms),
        "reported_at": time_text(daemon.written_ms),
        "admin": daemon.admin,
        "repaired": None if worker is None else worker.ledgers_repaired,
        "failed": None if worker is None else worker.ledgers_failed,
        "copied_bytes": None if worker is None else worker.bytes_copied,
        "copies_breaking_placement": None if worker is None else worker.copies_breaking_placement,
        "finished_at": None if worker is None else time_text(worker.finished_ms),
        "holds": None
        if worker is None
        else [
            {"ledger_id": str(each.ledger_id), "since": time_text(each.since_ms), "waits_for": each.waits_for or None}
            for each in worker.held
        ],
    }


def _holders(locks: Sequence[HeldLock]) -> list[Row]:
    """One row for each holder, the one with the most locks first."""
    of_holder: dict[str, list[HeldLock]] = {}
    for lock in locks:
        of_holder.setdefault(lock.holder or "unknown", []).append(lock)
    return [
        {
            "holder": holder,
            "ledgers": len(held),
            "since": time_text(min(lock.since_ms for lock in held)),
            "first_ledger_ids": [str(lock.ledger_id) for lock in held[:SHOWN_MAX]],
        }
        for holder, held in sorted(of_holder.items(), key=lambda each: -len(each[1]))
    ]


def _awaited(recovery: RecoveryStatus) -> list[Row]:
    ends_ms = {each.bookie_id: 0 if each.note is None else each.note.end_ms for each in recovery.maintenance}
    return [
        {
            "bookie_id": bookie_id,
            "gone_since": time_text(note.lost_ms),
            "marked_at": time_text(max(note.due_ms, ends_ms.get(bookie_id, 0))),
            "in_maintenance": bookie_id in ends_ms,
        }
        for bookie_id, note in recovery.deadlines
    ]


def _maintenance(recovery: RecoveryStatus, now_ms: int) -> list[Row]:
    return [
        {
            "bookie_id": each.bookie_id,
            "until": None if each.note is None else time_text(each.note.end_ms),
            "overdue": each.is_overdue(now_ms),
            "user": None if each.note is None else each.note.user,
        }
        for each in recovery.maintenance
    ]


def _losses(recovery: RecoveryStatus) -> list[Row]:
    return [
        {
            "ledger_id": key,
            "found_at": time_text(note.found_ms),
            "missing_bookies": list(note.missing_bookies),
            "reason": note.reason,
        }
        for key, note in recovery.losses.first
    ]
