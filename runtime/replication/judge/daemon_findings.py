"""What is wrong with autorecovery, from the notes of its daemons. Pure.

Java's auditor and workers write no notes, so most of this concerns daemons of bkctl.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from bkctl.runtime.metadata.replication.recovery_status import RecoveryStatus
from bkctl.runtime.replication.judge.advice import (
    AUTORECOVERY_START,
    AUTORECOVERY_STATUS,
    MAINTENANCE_LIST,
    Advice,
    age,
    causes_text,
    down_severity,
    in_maintenance,
    is_back,
    proven_loss,
    these_bookies,
    waits_for_auditor,
)
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, counted, duration, enumerated, listed

_CAUSE_CHARS_MAX: Final = 400
DAEMON_REFUSED: Final = "daemon_refused"
"""The part of this finding."""

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


def recovery_findings(
    recovery: RecoveryStatus,
    waiting: WaitingMarks | None,
    now_ms: int,
    down: Collection[str] = (),
    removed: Collection[str] = (),
) -> Iterator[Advice]:
    """What is wrong. ``waiting`` None: no ledger is marked, that is unknown, or autorecovery is disabled.

    ``down``: bookies that are not registered; ``removed``: those that are not, and have no cookie either.
    """
    if recovery.losses.count:
        yield proven_loss([key for key, _ in recovery.losses.first], recovery.losses.count, "bkctl audit")
    for bookie_id, ledger_ids in recovery.returned:
        yield is_back(bookie_id, ledger_ids)
    yield from _maintenance_findings(recovery, now_ms, down, removed)
    excused = {each.bookie_id for each in recovery.maintenance if not each.is_overdue(now_ms)}
    auditor = None if recovery.auditor is None else recovery.auditor.bookie_id
    if (waits := waits_for_auditor(recovery.deadlines, auditor, now_ms, excused)) is not None:
        yield waits
    yield from _daemon_findings(recovery, now_ms)
    yield from _worker_findings(recovery, waiting, now_ms)
    if recovery.failures:
        repairs = "the repair" if recovery.failures == 1 else "repairs"
        sentence = f"{repairs} of {counted(recovery.failures, 'marked ledger')} failed and will be tried again"
        if recovery.failure_cause:
            sentence += f"; the first: {textwrap.shorten(recovery.failure_cause, _CAUSE_CHARS_MAX, placeholder=' ...')}"
        yield Advice(Severity.INFORMATION, "failed_repairs", sentence, "bkctl autorecovery pending")
    for problem in recovery.unreadable:
        yield Advice(Severity.WARNING, "unreadable_note", problem, "bkctl metadata doctor")


def _maintenance_findings(
    recovery: RecoveryStatus, now_ms: int, down: Collection[str], removed: Collection[str]
) -> Iterator[Advice]:
    known = [each for each in recovery.maintenance if each.bookie_id not in removed]
    if left := [each.bookie_id for each in recovery.maintenance if each.bookie_id in removed]:
        sentence = f"{these_bookies(left, 'is', 'are')} in maintenance, but not in the cluster"
        command = f"bkctl autorecovery maintenance end {' '.join(left[:SHOWN_MAX])} --accept-risk"
        yield Advice(Severity.INFORMATION, "bookies_in_maintenance", sentence, command)
    serving = [each for each in known if each.bookie_id not in down and not each.is_overdue(now_ms)]
    if serving:
        each = in_maintenance(serving, now_ms)
        ids = " ".join(found.bookie_id for found in serving[:SHOWN_MAX])
        serves, its = ("it serves", "its") if len(serving) == 1 else ("they serve", "their")
        sentence = f"{each.sentence}; {serves}: once the work is done, bkctl autorecovery maintenance end {ids}; until "
        sentence += f"then {its} loss is not repaired"
        yield msgspec.structs.replace(each, sentence=sentence)
    ends_ms = {each.bookie_id: each.note.end_ms for each in known if each.note is not None and each.is_overdue(now_ms)}
    yield from maintenance_overdue(ends_ms, down, now_ms)


def maintenance_overdue(ends_ms: Mapping[str, int], down: Collection[str], now_ms: int) -> Iterator[Advice]:
    """Bookies whose maintenance should have ended; ``down``: bookies that do not serve."""
    if ends_ms:
        late = age(now_ms, min(ends_ms.values()))
        sentence = f"the maintenance of {these_bookies(list(ends_ms), 'is', 'is')} overdue by {late}"
        back = [each for each in ends_ms if each not in down]
        if away := [each for each in ends_ms if each in down]:
            sentence += f"; start {enumerated(away, shown_max=SHOWN_MAX)}"
        command = f"bkctl autorecovery maintenance end {' '.join(back[:SHOWN_MAX])}" if back else MAINTENANCE_LIST
        yield Advice(Severity.WARNING, "maintenance_overdue", sentence, command)


def _daemon_findings(recovery: RecoveryStatus, now_ms: int) -> Iterator[Advice]:
    silent = [each for each in recovery.daemons if now_ms - each.written_ms > SILENCE_WARNING_MS]
    if silent:
        names = listed([f"{each.host} (process {each.pid})" for each in silent])
        wait = age(now_ms, min(each.written_ms for each in silent))
        sentence = f"daemons have not reported for up to {wait} and may hang: {names}"
        yield Advice(Severity.WARNING, "daemon_silent", sentence, AUTORECOVERY_STATUS)
    yield from _refused_daemons(recovery)
    for daemon in recovery.daemons:
        if daemon.alarm is not None:
            sentence = f"{daemon.alarm} (as of {age(now_ms, daemon.written_ms)} ago)"
            yield Advice(Severity.CRITICAL, "too_many_gone", sentence, AUTORECOVERY_STATUS)
        for lane in daemon.lanes:
            if lane.error is None:
                continue
            ended = lane.succeeded_ms
            since = "never succeeded" if ended is None else f"succeeded {age(now_ms, ended)} ago"
            name = f"the auditor on {daemon.host} (process {daemon.pid})"
            sentence = f"{name} reports that its task {lane.name} fails: {lane.error} ({since})"
            yield Advice(Severity.WARNING, "auditor_task", sentence, AUTORECOVERY_STATUS)


def _refused_daemons(recovery: RecoveryStatus) -> Iterator[Advice]:
    """One finding for all that are refused alike."""
    refused: dict[tuple[int, str], list[str]] = {}
    for each in recovery.daemons:
        if each.refusal is not None:
            refused.setdefault((each.refused_by, each.refusal), []).append(f"{each.host} (process {each.pid})")
    for (count, refusal), names in refused.items():
        sentence = f"autorecovery on {listed(names)}: {refusal}"
        yield Advice(down_severity(count), DAEMON_REFUSED, sentence, AUTORECOVERY_STATUS)


def refused_daemon(refusals: Mapping[str, str]) -> str:
    """What a daemon says about the bookies that refuse it, each with its reason."""
    which = these_bookies(list(refusals), "refuses", "refuse")
    return f"{which} this daemon, which can neither check nor repair copies there: {causes_text(refusals)}"


def _worker_findings(recovery: RecoveryStatus, waiting: WaitingMarks | None, now_ms: int) -> Iterator[Advice]:
    if waiting is None or not recovery.daemons:
        return
    idle_s = idle_seconds(recovery, waiting, now_ms)
    if idle_s is None:
        if not waiting.has_locks and now_ms - waiting.oldest_ms > NO_WORKER_AGE_MS:
            sentence = "ledgers are marked, but no daemon is a worker: " + listed(
                [f"{each.host} (role {each.role})" for each in recovery.daemons]
            )
            yield Advice(Severity.WARNING, "no_worker", sentence, f"{AUTORECOVERY_START} --role worker")
    elif idle_s > NO_PROGRESS_WARNING_S:
        sentence = f"ledgers are marked, but no worker has finished one for {duration(idle_s)}"
        yield Advice(Severity.WARNING, "no_progress", sentence, "bkctl autorecovery pending")
