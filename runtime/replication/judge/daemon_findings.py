"""What is wrong with autorecovery, from the notes of its daemons. Pure.

Java's auditor and workers write no notes, so most of this concerns daemons of bkctl.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus
from bkctl.runtime.replication.judge.advice import Advice, age, these_bookies
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, duration, listed

STATUS_COMMAND = "bkctl autorecovery status"
NO_PROGRESS_WARNING_S = 3600
"""Large ledgers take time, but workers repair several at once."""
NO_WORKER_AGE_MS = 300_000
SILENCE_WARNING_MS = 300_000
"""A daemon writes its note at least every minute; clocks of machines may differ a little."""


class WaitingMarks(msgspec.Struct, frozen=True):
    """Marks that wait for a repair: when the oldest known one was made, and whether any replication lock is held."""

    oldest_ms: int
    has_locks: bool


def idle_seconds(recovery: RecoveryStatus, waiting: WaitingMarks | None, now_ms: int) -> int | None:
    """How long no worker of bkctl has finished a ledger while marks wait; None if none wait, or no worker runs."""
    workers = [each for each in recovery.daemons if each.worker is not None]
    if waiting is None or not workers:
        return None
    finished = [each.worker.finished_ms or each.started_ms for each in workers if each.worker is not None]
    return max(0, now_ms - max(waiting.oldest_ms, *finished)) // 1000


def recovery_findings(recovery: RecoveryStatus, waiting: WaitingMarks | None, now_ms: int) -> Iterator[Advice]:
    """What is wrong. ``waiting`` None: no ledger is marked, that is unknown, or autorecovery is disabled."""
    yield from _loss_findings(recovery)
    yield from _return_findings(recovery)
    yield from _maintenance_findings(recovery, now_ms)
    yield from _deadline_findings(recovery, now_ms)
    yield from _daemon_findings(recovery, now_ms)
    yield from _worker_findings(recovery, waiting, now_ms)
    if recovery.failures:
        sentence = f"repairs of {recovery.failures:,} marked ledgers failed and will be tried again"
        yield Advice(Severity.INFORMATION, "failed_repairs", sentence, "bkctl autorecovery pending")
    for problem in recovery.unreadable:
        yield Advice(Severity.WARNING, "unreadable_note", problem, "bkctl metadata doctor")


def _loss_findings(recovery: RecoveryStatus) -> Iterator[Advice]:
    count = recovery.losses.count
    if not count:
        return
    first = [key for key, _ in recovery.losses.first]
    names = f": {listed(first, total=count)}" if first else ""
    sentence = f"{counted(count, 'ledger has', 'ledgers have')} entries that no registered bookie has{names}"
    command = f"bkctl ledger explain {first[0]}" if len(first) == 1 else STATUS_COMMAND
    yield Advice(Severity.CRITICAL, "lost_entries", sentence, command)


def _return_findings(recovery: RecoveryStatus) -> Iterator[Advice]:
    for bookie_id, ledger_ids in recovery.returned:
        ledgers = "ledger" if len(ledger_ids) == 1 else f"{counted(len(ledger_ids), 'ledger')}:"
        sentence = (
            f"bookie {bookie_id} is back, which was given up when {ledgers} {listed(ledger_ids)} "
            f"{'was' if len(ledger_ids) == 1 else 'were'} closed: it may have entries that the others do not have"
        )
        yield Advice(
            Severity.WARNING,
            "given_up_bookie",
            sentence,
            f"bkctl ledger read {ledger_ids[0]} --from-bookie {bookie_id}",
        )


def _maintenance_findings(recovery: RecoveryStatus, now_ms: int) -> Iterator[Advice]:
    overdue = [each for each in recovery.maintenance if each.note is not None and each.is_overdue(now_ms)]
    if overdue:
        names = [each.bookie_id for each in overdue]
        since_ms = min(each.note.end_ms for each in overdue if each.note is not None)
        sentence = f"the maintenance of {these_bookies(names, 'is', 'are')} overdue by {age(now_ms, since_ms)}"
        command = f"bkctl autorecovery maintenance end {names[0]}" if len(names) == 1 else _MAINTENANCE_COMMAND
        yield Advice(Severity.WARNING, "maintenance_overdue", sentence, command)


_MAINTENANCE_COMMAND = "bkctl autorecovery maintenance list"


def _deadline_findings(recovery: RecoveryStatus, now_ms: int) -> Iterator[Advice]:
    excused = {each.bookie_id for each in recovery.maintenance if not each.is_overdue(now_ms)}
    pending = [(bookie_id, note) for bookie_id, note in recovery.deadlines if note.due_ms > now_ms]
    names = [bookie_id for bookie_id, _ in pending if bookie_id not in excused]
    if names:
        wait = duration(min(note.due_ms - now_ms for bookie_id, note in pending if bookie_id in names) / 1000)
        sentence = f"{these_bookies(names, 'is', 'are')} gone; the ledgers will be marked in {wait}"
        yield Advice(Severity.INFORMATION, "deadlines", sentence, STATUS_COMMAND)


def _daemon_findings(recovery: RecoveryStatus, now_ms: int) -> Iterator[Advice]:
    silent = [each for each in recovery.daemons if now_ms - each.written_ms > SILENCE_WARNING_MS]
    if silent:
        names = listed([f"{each.host} (process {each.pid})" for each in silent])
        wait = age(now_ms, min(each.written_ms for each in silent))
        sentence = f"daemons have not reported for up to {wait} and may hang: {names}"
        yield Advice(Severity.WARNING, "daemon_silent", sentence, STATUS_COMMAND)
    for daemon in recovery.daemons:
        if daemon.alarm is not None:
            yield Advice(Severity.CRITICAL, "too_many_gone", daemon.alarm, STATUS_COMMAND)
        for lane in daemon.lanes:
            if lane.error is None:
                continue
            ended = lane.succeeded_ms
            since = "never succeeded" if ended is None else f"succeeded {age(now_ms, ended)} ago"
            name = f"the auditor on {daemon.host} (process {daemon.pid})"
            sentence = f"{name} reports that its task {lane.name} fails: {lane.error} ({since})"
            yield Advice(Severity.WARNING, "auditor_task", sentence, STATUS_COMMAND)


def _worker_findings(recovery: RecoveryStatus, waiting: WaitingMarks | None, now_ms: int) -> Iterator[Advice]:
    if waiting is None or not recovery.daemons:
        return
    idle_s = idle_seconds(recovery, waiting, now_ms)
    if idle_s is None:
        if not waiting.has_locks and now_ms - waiting.oldest_ms > NO_WORKER_AGE_MS:
            sentence = "ledgers are marked, but no daemon is a worker: " + listed(
                [f"{each.host} (role {each.role})" for each in recovery.daemons]
            )
            yield Advice(Severity.WARNING, "no_worker", sentence, STATUS_COMMAND)
    elif idle_s > NO_PROGRESS_WARNING_S:
        sentence = f"ledgers are marked, but no worker has finished one for {duration(idle_s)}"
        yield Advice(Severity.WARNING, "no_progress", sentence, "bkctl autorecovery pending")
