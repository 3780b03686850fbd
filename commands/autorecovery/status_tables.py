"""The tables of ``bkctl autorecovery status``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bkctl.commands.rendering import Column, Row, Table, time_text
from bkctl.runtime.metadata.replication.lock import HeldLock
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, HeldLedger, LaneStatus
from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus
from bkctl.storage.words import SHOWN_MAX, UNKNOWN, listed, size


def _show_held(value: object) -> str:
    """Ledgers that a worker repairs, with what they wait for."""
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
        "holds": None if worker is None else [_held(each) for each in worker.held],
    }


def _held(held: HeldLedger) -> Row:
    return {
        "ledger_id": str(held.ledger_id),
        "since": time_text(held.since_ms),
        "waits_for": held.waits_for or None,
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
