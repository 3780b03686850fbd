"""``bkctl autorecovery status``: switch, auditor, pending ledgers."""

from __future__ import annotations

from commands.autorecovery.access import readable, warn_of_second_auditor
from commands.command import command
from commands.context import CommandContext
from commands.rendering import time_text
from commands.session import Session, open_session

_PENDING_COUNTED_MAX = 1000


@command("status", example="autorecovery status")
async def show_status(context: CommandContext) -> None:
    """Show the switch, the auditor, its settings, and the number of pending and running ledgers.

    At most 1000 marks are counted; bkctl autorecovery pending --count counts all.
    """
    from runtime.metadata.replication.election import read_auditor, read_pulsar_auditor
    from runtime.metadata.replication.lock import list_locked_ids
    from runtime.metadata.replication.switch_note import SwitchNote, decode_note
    from runtime.metadata.replication.switches import PeriodicCheck

    async with open_session(context) as session:
        off = await session.switches.switched_off()
        note = SwitchNote() if off is None else decode_note(off.note)
        is_overdue = note.is_overdue(session.now_ms)
        auditor = await read_auditor(session.store, session.root, session.foreign)
        if auditor is not None and not auditor.is_pulsar:
            warn_of_second_auditor(context, await read_pulsar_auditor(session.store, session.root))
        delay = await readable(context, session.switches.recovery_delay())
        pending, is_truncated = await _count_pending(session)
        checks = {
            check.name.lower(): time_text(await readable(context, session.switches.check_time_ms(check)))
            for check in PeriodicCheck
        }
        body: dict[str, object] = {
            "enabled": off is None,
            "disabled_since": None if off is None else time_text(off.since_ms),
            "disabled_by": note.by,
            "disabled_reason": note.reason,
            "disabled_until": note.until,
            "overdue": is_overdue,
            "auditor": None if auditor is None else auditor.bookie_id,
            "lost_bookie_recovery_delay_s": None if delay is None else delay.seconds,
            "last_checks": checks,
            "pending": pending,
            "pending_truncated": is_truncated,
            "running": len(await list_locked_ids(session.store, session.root, session.foreign)),
        }
    context.console.record("AutorecoveryStatus", body, name="enabled")
    if auditor is not None and auditor.problem is not None:
        context.console.warn(str(auditor.problem))
    if is_overdue:
        context.console.warn(f"autorecovery was to be disabled only until {note.until}: run bkctl autorecovery enable")
    elif off is None and auditor is None:
        context.console.warn("no auditor is elected: lost bookies will not be detected")


async def _count_pending(session: Session) -> tuple[int, bool]:
    from contextlib import aclosing

    from runtime.metadata.replication.marks import list_marks

    count = 0
    async with aclosing(list_marks(session.store, session.root, session.foreign)) as marks:
        async for _ in marks:
            if count == _PENDING_COUNTED_MAX:
                return count, True
            count += 1
    return count, False
