"""The state of a cluster as an operator needs it first, and what is wrong with it. Pure.

``cluster_facts.py`` has what it follows from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_status import NotedLosses
from bkctl.runtime.replication.judge.advice import (
    AUTORECOVERY_START,
    AUTORECOVERY_STATUS,
    Advice,
    accept_loss,
    age,
    disk_findings,
    down_severity,
    explain_command,
    in_maintenance,
    ledgers_moving,
    loss_accepted,
    not_answering,
    not_referenced,
    not_repairing,
    recover_command,
    serves_unregistered,
    show_command,
    start_first,
    these_bookies,
    troubled,
    without_cookie,
    worst_first,
)
from bkctl.runtime.replication.judge.cluster_facts import (
    AutorecoveryStatus,
    BookieFacts,
    ClusterFacts,
    RootStatus,
    total_marks,
)
from bkctl.runtime.replication.judge.daemon_findings import WaitingMarks, recovery_findings
from bkctl.runtime.replication.judge.drained_bookies import leaving_bookies_of, leaving_findings
from bkctl.runtime.replication.judge.needed_bookies import Idle, WritableBookies, more_targets, writers_stop
from bkctl.storage.severity import Severity
from bkctl.storage.words import counted, duration, listed

LATENCY_WARNING_MS = 250.0
DELAY_WARNING_S = 3600
"""A longer delay leaves the ledgers of a dead bookie without their copies for more than an hour."""
MARK_AGE_WARNING_MS = 3_600_000
LOCK_AGE_WARNING_MS = 6 * 3_600_000
FULL_CHECK_AGE_MS = 15 * 86_400_000
"""Java's auditor checks all ledgers every week by default: after this, at least one check is missing."""
_PERMISSION = "bkctl help exit-codes"
_UNKNOWN = {
    "root": ("a part of the state is", "bkctl cluster info"),
    "ledgers": ("the ledgers of bookies that are down are", "bkctl ledger list"),
    "bookies": ("the bookies are", "bkctl bookie list"),
    "marks": ("the marks of ledgers are", "bkctl autorecovery pending --count"),
    "locks": ("running repairs are", "bkctl autorecovery running"),
    "auditor": ("the notes of autorecovery are", AUTORECOVERY_STATUS),
    "autorecovery": ("the switches of autorecovery are", AUTORECOVERY_STATUS),
}
"""What is unknown if a part did not answer, and the command that asks for it."""


def status_findings(status: ClusterFacts) -> list[Advice]:
    """What is wrong, most urgent first."""
    if status.zookeeper_ms is None:
        reason = status.unknown.get("zookeeper", "no answer")
        sentence = f"{reason}; restart no bookie before ZooKeeper is repaired: it could not register"
        return [Advice(Severity.CRITICAL, "zookeeper", sentence, "bkctl config show --with-origin --changed")]
    found = [
        *_root_findings(status.root),
        *_down_findings(status),
        *_bookie_findings(status),
        *_collection_findings(status),
        *_replication_findings(status),
        *_mark_findings(status),
        *_note_findings(status),
    ]
    if status.given_up.ledgers:
        found.append(loss_accepted(status.given_up))
    if status.zookeeper_ms >= LATENCY_WARNING_MS:
        sentence = f"ZooKeeper took {status.zookeeper_ms:.0f} ms to answer"
        found.append(Advice(Severity.WARNING, "zookeeper", sentence, "bkctl cluster info"))
    found += unknown_findings(status.unknown)
    is_some_movable = status.references is not None and bool(status.references.referenced)
    return worst_first([readable(each, status.refused, is_some_movable=is_some_movable) for each in found])


def _root_findings(root: RootStatus | None) -> Iterator[Advice]:
    if root is None:
        return
    if root.is_restore_unfinished:
        sentence = "a restore is unfinished, so only a part of the metadata is there: run it again with its file"
        yield Advice(Severity.CRITICAL, "restore", sentence)
    if root.migration is not None:
        yield Advice(Severity.WARNING, "migration", root.migration, "bkctl metadata doctor")


def down_bookies(status: ClusterFacts) -> str | None:
    """Which bookies are down, in words, like "bookie b1:3181 is"; None if no such one may be named."""
    return these_bookies(status.down, "is", "are") if status.down else None


def _is_nothing_repaired(status: ClusterFacts) -> bool:
    """Whether autorecovery is disabled, or no ledger is marked and none will be, because no auditor is elected."""
    has_no_auditor = status.auditor is not None and not status.auditor.is_elected
    is_off = status.autorecovery is not None and status.autorecovery.off_since_ms is not None
    return is_off or (has_no_auditor and total_marks(status.marks) == 0)


def _down_findings(status: ClusterFacts) -> Iterator[Advice]:
    """Start the bookies with the only copies first, then recover the others."""
    resting = _resting(status)
    down = [*status.down, *(each for each in status.unreferenced if each in resting)]
    moved = [each for each in down if each in status.recovering]
    serving, lost = status.serving, status.no_live_copy
    left = [each for each in down if each not in resting and each not in moved and each not in serving]
    is_repaired, total = not _is_nothing_repaired(status), _down_total(status, down)
    serve = [
        *serves_unregistered(
            serving.difference(resting),
            total,
            is_repaired=is_repaired,
            has_live_copies=not lost.ledgers,
            stops_writers=_writers_stop(status) is not None,
        )
    ]
    if not left:
        yield from serve
    if lost.ledgers:
        yield start_first(lost, serving)
    elif not lost.is_exact and status.references is not None and "ledgers" not in status.refused:
        sentence = "it is not known yet whether ledgers have no live copy: only "
        sentence += f"{counted(status.references.ledgers, 'ledger was', 'ledgers were')} read"
        severity = Severity.WARNING if left else Severity.INFORMATION
        yield Advice(severity, "no_live_copy_unknown", sentence, "bkctl audit")
    if left:
        yield from serve
        yield _recover_left(status, down, left)
    if moved:
        yield ledgers_moving(moved)
    silent = _silent(status.bookies or ())
    if away := [resting[each] for each in (*down, *silent) if each in resting and each not in moved]:
        yield in_maintenance(away, status.now_ms)
    to_leave = [] if _writers_stop(status) else [each for each in status.unreferenced if each not in resting]
    to_leave = [each for each in to_leave if each not in serving]
    if to_leave and status.references is not None:
        given_up = {} if status.recovery is None else dict(status.recovery.away)
        yield not_referenced(to_leave, status.references.ledgers, given_up)


def _resting(status: ClusterFacts) -> dict[str, Maintenance]:
    """Bookies that are expected to be away, by id."""
    return {each.bookie_id: each for each in status.maintenance if not each.is_overdue(status.now_ms)}


def _recover_left(status: ClusterFacts, down: list[str], left: list[str]) -> Advice:
    """What helps the bookies that are ``left``, which no operator awaits and no command moves."""
    references, lost, is_repaired = status.references, status.no_live_copy, not _is_nothing_repaired(status)
    sentence = f"{these_bookies(left, 'is', 'are')} not registered"
    if not is_repaired:
        why_unknown = None if references is None else references.why_unknown
        is_doubted = references is not None and not references.referenced.issuperset(left)
        doubt = f" (whether any does is unknown: {why_unknown})" if is_doubted and why_unknown is not None else ""
        sentence += f"; nothing repairs ledgers that still reference {listed(left)}{doubt}"
    severity = down_severity(_down_total(status, down), is_repaired=is_repaired, has_live_copies=not lost.ledgers)
    if references is not None and not references.has_source and lost.first_ids:
        if set(left).issuperset(chain.from_iterable(lost.to_start)):
            return accept_loss(left, lost.open_ids)
        return Advice(severity, "bookies_down", sentence, explain_command(lost.first_ids))  # others will be back
    if references is not None and references.referenced and not references.has_source:
        sentence += (
            "; no registered bookie has what its ledgers lack"
            if len(left) == 1
            else ("; no registered bookie has what their ledgers lack")
        )
        return Advice(Severity.CRITICAL, "bookies_down", sentence, show_command(left))
    if references is not None and not references.can_move:
        remedy, command = more_targets(idle_bookies(status))
        sentence += f"; too few other bookies are writable to take the copies: {remedy}"
        return Advice(severity, "bookies_down", sentence, command)
    if references is not None and references.lacks_targets:
        remedy, _ = more_targets(idle_bookies(status))
        sentence += f"; too few other bookies are writable to take the copies of some ledgers: {remedy}"
    return Advice(severity, "bookies_down", sentence, recover_command(left))


def idle_bookies(status: ClusterFacts) -> dict[str, Idle]:
    """Why bookies take no copies; without those that an operator awaits, and those that cannot start: no cookie."""
    resting = _resting(status)
    return {
        each.bookie_id: each.why_idle(status.recovering)
        for each in status.bookies or ()
        if not each.is_writable and each.bookie_id not in resting and (each.is_registered or each.has_cookie)
    }


def _down_total(status: ClusterFacts, down: Collection[str]) -> int:
    return len(down) + len(_silent(status.bookies or ()))


def _silent(bookies: Sequence[BookieFacts]) -> list[str]:
    return [each.bookie_id for each in bookies if each.is_registered and each.problem is not None]


def _bookie_findings(status: ClusterFacts) -> Iterator[Advice]:
    bookies = status.bookies
    if bookies is None:
        return
    foreign = [each.bookie_id for each in bookies if each.is_registered and not each.has_cookie]
    if (stop := _writers_stop(status)) is not None:
        yield stop
    refusals = {each.bookie_id: each.problem for each in bookies if each.is_refusing and each.problem is not None}
    silent = [each for each in _silent(bookies) if each not in refusals and each not in _resting(status)]
    yield from not_answering(silent, refusals, len(status.down))
    yield from troubled({each.bookie_id: each.trouble for each in bookies if each.trouble}, len(status.down))
    yield from _read_only_findings(status)
    yield from without_cookie(foreign)
    full = {each.bookie_id: each.out_of_space for each in bookies if each.out_of_space is not None}
    yield from disk_findings({each.bookie_id: each.used_fraction for each in bookies}, full)


def _writers_stop(status: ClusterFacts) -> Advice | None:
    """Whether too few bookies are writable; None: they are enough, or unknown."""
    if status.bookies is None:
        return None
    idle = {each.bookie_id: each.why_idle(status.recovering) for each in status.bookies if not each.is_writable}
    writable = WritableBookies(len(status.bookies) - len(idle), idle, status.usual_size)
    return None if writable.are_enough else writers_stop(writable)


def _read_only_findings(status: ClusterFacts) -> Iterator[Advice]:
    bookies = [each for each in status.bookies or () if each.is_writable is False and each.out_of_space is None]
    leaving = {each.bookie_id: each.order for each in bookies if each.leaves(status.recovering)}
    others = [each.bookie_id for each in bookies if each.bookie_id not in leaving]
    of_leaving = leaving_bookies_of(leaving, status.drained, status.recovering, status.removing)
    is_marked = status.marks is not None and status.marks.at_least > 0
    is_at_risk = is_marked or _down_total(status, status.down) > 0
    yield from leaving_findings(of_leaving, is_short=_writers_stop(status) is not None, is_at_risk=is_at_risk)
    if others:
        said = f"{these_bookies(others, 'is', 'are')} read-only"
        yield Advice(Severity.INFORMATION, "bookies_read_only", said, f"bkctl bookie state {others[0]}")


def _collection_findings(status: ClusterFacts) -> Iterator[Advice]:
    """A bookie that was removed may have left its note."""
    known = {each.bookie_id for each in status.bookies or ()}
    stopped = () if status.recovery is None else status.recovery.stopped
    found = {bookie_id: note for bookie_id, note in stopped if status.bookies is None or bookie_id in known}
    if found:
        first = next(iter(found))
        which = these_bookies(list(found), "deletes", "delete")
        sentence = f"{which} no ledgers, because the metadata is older than it was: {found[first].stopped}"
        yield Advice(Severity.CRITICAL, "deletion_stopped", sentence, f"bkctl bookie gc status {first}")


def _replication_findings(status: ClusterFacts) -> Iterator[Advice]:
    switches = status.autorecovery
    known, is_elected = switches or AutorecoveryStatus(), None if status.auditor is None else status.auditor.is_elected
    yield from not_repairing(known.off_since_ms, known.note, is_elected, status.now_ms)
    if switches is None:
        return
    if switches.delay_s is not None and switches.delay_s > DELAY_WARNING_S:
        yield _delay_finding(status, switches.delay_s)
    checked_ms = switches.full_check_ms
    if checked_ms is not None and status.now_ms - checked_ms > FULL_CHECK_AGE_MS:
        sentence = f"the last check of all ledgers ended {age(status.now_ms, checked_ms)} ago"
        yield Advice(Severity.INFORMATION, "full_check", sentence, "bkctl autorecovery reset-checks all-ledgers")


def _delay_finding(status: ClusterFacts, delay_s: int) -> Advice:
    sentence = f"ledgers of a lost bookie are replicated only after {duration(delay_s)}"
    cause = next((each for each in status.maintenance if each.note and each.note.set_delay_s == delay_s), None)
    if cause is None:
        return Advice(Severity.WARNING, "recovery_delay", sentence, "bkctl autorecovery delay set 0")
    sentence += f", as the maintenance of bookie {cause.bookie_id} has set; its end restores the delay"
    if cause.is_overdue(status.now_ms) and cause.bookie_id not in status.down:
        fix = f"bkctl autorecovery maintenance end {cause.bookie_id}"
        return Advice(Severity.WARNING, "recovery_delay", sentence, fix)
    return Advice(Severity.INFORMATION, "recovery_delay", sentence, "bkctl autorecovery maintenance list")


def _mark_findings(status: ClusterFacts) -> Iterator[Advice]:
    marks, locks = status.marks, status.locks
    if marks is not None and (marks.at_least or marks.at_most):
        is_old = marks.oldest_ms is not None and status.now_ms - marks.oldest_ms > MARK_AGE_WARNING_MS
        oldest = "" if marks.oldest_ms is None else f"; the oldest mark is {age(status.now_ms, marks.oldest_ms)} old"
        sentence = f"{marks.ledgers} marked as under-replicated{oldest}"
        yield Advice(Severity.WARNING, "marks", sentence, "bkctl autorecovery pending")
        has_notes = status.recovery is not None and status.recovery.daemons  # they show more than locks
        if is_old and locks is not None and not locks.count and not has_notes:
            sentence = "no ledger is being repaired: no replication lock is held"
            yield Advice(Severity.WARNING, "no_repair", sentence, AUTORECOVERY_START)
    if locks is not None and locks.oldest_ms is not None and status.now_ms - locks.oldest_ms > LOCK_AGE_WARNING_MS:
        sentence = f"a ledger has been locked for repair for {age(status.now_ms, locks.oldest_ms)}"
        yield Advice(Severity.INFORMATION, "old_lock", sentence, "bkctl autorecovery running")


def _note_findings(status: ClusterFacts) -> Iterator[Advice]:
    if status.recovery is None:
        return
    marks, is_off = status.marks, status.autorecovery is not None and status.autorecovery.off_since_ms is not None
    waiting = None
    if marks is not None and marks.oldest_ms is not None and not is_off:
        waiting = WaitingMarks(marks.oldest_ms, status.locks is None or status.locks.count > 0)
    unreferenced = frozenset[str]() if status.references is None else status.references.unreferenced
    deadlines = tuple(each for each in status.recovery.deadlines if each[0] not in unreferenced)
    losses = status.recovery.losses
    may_return = all(not status.may_return.isdisjoint(note.missing_bookies) for _, note in losses.first)
    if may_return and losses.count <= status.no_live_copy.ledgers:
        losses = NotedLosses()  # these may come back: whether some are left shows once the bookies are started
    recovery = msgspec.structs.replace(status.recovery, deadlines=deadlines, losses=losses)
    down = {*status.down, *status.unreferenced, *_silent(status.bookies or ())}
    yield from recovery_findings(recovery, waiting, status.now_ms, down, status.removed)


def unknown_findings(unknown: Mapping[str, str]) -> Iterator[Advice]:
    """One for each part, with the reason."""
    for part, reason in unknown.items():
        subject, command = _UNKNOWN.get(part, ("a part of the state is", "bkctl cluster info"))
        yield Advice(Severity.WARNING, part, f"{subject} unknown: {reason}", command)


def readable(advice: Advice, refused: Collection[str], *, is_some_movable: bool = False) -> Advice:
    """With a command that does not read what ZooKeeper refuses. ``refused``: parts that this user may not read.
    ``is_some_movable``: a recovery moves some ledgers that can be read, and leaves those that cannot."""
    if advice.part in refused:
        sentence = f"{advice.sentence}, or let this user in (zkCli: getAcl, setAcl)"
        return msgspec.structs.replace(advice, sentence=sentence, command=_PERMISSION)
    is_recovery = (advice.command or "").startswith("bkctl recover ")
    needed = {"ledgers"} if is_recovery and not is_some_movable else set[str]()
    if advice.command == AUTORECOVERY_STATUS:
        needed = _UNKNOWN.keys() - {"ledgers"}
    return advice if needed.isdisjoint(refused) else msgspec.structs.replace(advice, command=_PERMISSION)
