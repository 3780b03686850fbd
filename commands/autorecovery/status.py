"""``bkctl autorecovery status``: switch, auditor, workers, and what waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import NamedTuple

from bkctl.commands.autorecovery.access import readable, warn_of_second_auditor
from bkctl.commands.autorecovery.status_tables import status_tables
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import time_text
from bkctl.commands.session import Session, open_session
from bkctl.runtime.metadata.replication.election import read_pulsar_auditor
from bkctl.runtime.metadata.replication.lock import HeldLock, list_held_locks, list_locked_ids
from bkctl.runtime.metadata.replication.marks import list_marks
from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus, read_recovery_status
from bkctl.runtime.metadata.replication.switch_note import SwitchNote, decode_note
from bkctl.runtime.metadata.replication.switches import PeriodicCheck
from bkctl.runtime.replication.judge.advice import AUTORECOVERY_STATUS, Advice, no_auditor, worst_first
from bkctl.runtime.replication.judge.daemon_findings import (
    WaitingMarks,
    idle_seconds,
    recovery_findings,
)
from bkctl.storage.severity import Severity

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
    """The first held locks."""
    found: list[HeldLock] = []
    async with aclosing(list_held_locks(session.store, session.root, session.foreign)) as locks:
        async for lock in locks:
            found.append(lock)
            if len(found) == _LOCKS_READ_MAX:
                break
    return found
