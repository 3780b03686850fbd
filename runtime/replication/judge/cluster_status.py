"""The state of a cluster as an operator needs it first, and what is wrong with it. Pure.

``ClusterFacts`` has only what was measured: a part that did not answer is None, and ``unknown`` has the reason.
Only while bookies are down, it has what a short scan of the ledgers' metadata found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_status import NotedLosses, RecoveryStatus
from bkctl.runtime.metadata.replication.switch_note import SwitchNote
from bkctl.runtime.replication.judge.accepted_losses import AcceptedLosses, loss_accepted
from bkctl.runtime.replication.judge.advice import (
    AUTORECOVERY_START,
    AUTORECOVERY_STATUS,
    LEAVES_CLUSTER,
    Advice,
    DownBookies,
    advise_down,
    age,
    bookies_leaving,
    disk_findings,
    not_answering,
    not_referenced,
    not_repairing,
    these_bookies,
    troubled,
    used_fraction,
    why_out_of_space,
    worst_first,
)
from bkctl.runtime.replication.judge.daemon_findings import WaitingMarks, recovery_findings
from bkctl.runtime.replication.judge.no_live_copy import NoLiveCopy, noted_without_copy
from bkctl.runtime.replication.judge.writable_bookies import Idle, WritableBookies, writers_stop
from bkctl.storage.severity import Severity
from bkctl.storage.words import duration

LATENCY_WARNING_MS = 250.0
DELAY_WARNING_S = 3600
"""A longer delay leaves the ledgers of a dead bookie without their copies for more than an hour."""
MARK_AGE_WARNING_MS = 3_600_000
LOCK_AGE_WARNING_MS = 6 * 3_600_000
FULL_CHECK_AGE_MS = 15 * 86_400_000
"""Java's auditor checks all ledgers every week by default: after this, at least one check is missing."""


class BookieFacts(msgspec.Struct, frozen=True):
    """A bookie. ``is_writable`` None: not registered. ``problem``: why a registered one did not report its disks.

    ``is_refusing``: the problem is what it answered; ``is_client_refused``: it is about this client. ``order``: the
    operator's reason. ``read_only_reasons``: why it is read-only, a stable word and a text for each. ``trouble``: what
    its registration says is wrong with it.
    """

    bookie_id: str
    is_writable: bool | None
    has_cookie: bool
    total_bytes: int | None = None
    free_bytes: int | None = None
    problem: str | None = None
    is_refusing: bool = False
    is_client_refused: bool = False
    read_only_reasons: Mapping[str, str] = {}
    order: str = ""
    trouble: str = ""

    @property
    def is_registered(self) -> bool:
        """Whether the bookie has a registration."""
        return self.is_writable is not None

    @property
    def used_fraction(self) -> float | None:
        """Used part of its disks; None if unknown."""
        return used_fraction(self.total_bytes, self.free_bytes)

    @property
    def is_drained(self) -> bool:
        """Whether a drain has made it read-only, as far as it says why."""
        return self.is_writable is False and self.order.startswith(f"{LEAVES_CLUSTER} (")

    @property
    def out_of_space(self) -> str | None:
        """Why it is read-only, if it has no space left."""
        return why_out_of_space(self.read_only_reasons)

    def why_idle(self, recovering: Collection[str]) -> Idle:
        """Why it takes no entries. ``recovering``: bookies whose ledgers a command moves."""
        if self.bookie_id in recovering:
            return Idle.LEAVING
        if not self.is_registered:
            return Idle.DOWN
        if self.out_of_space is not None:
            return Idle.SPACE
        if "manual" in self.read_only_reasons:
            return Idle.DRAIN if self.is_drained else Idle.OPERATOR
        return Idle.OTHER


class MarkCount(msgspec.Struct, frozen=True):
    """Marks of under-replicated ledgers: ``at_least`` were read; there are not more than ``at_most`` (None: unknown).

    ``oldest_ms``: when the oldest of those read was made.
    """

    at_least: int
    at_most: int | None
    oldest_ms: int | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all marks were read."""
        return self.at_least == self.at_most

    @property
    def ledgers(self) -> str:
        """The number with its noun and verb, like "2 ledgers are"."""
        return "1 ledger is" if self.at_least == self.at_most == 1 else f"{self} ledgers are"

    def __str__(self) -> str:
        if self.is_exact:
            return f"{self.at_least:,}"
        if self.at_most is None:
            return f"at least {self.at_least:,}"
        return f"{self.at_least:,} to {self.at_most:,}"


class RepairLocks(msgspec.Struct, frozen=True):
    """Held replication locks: how many, how many of each holder (of those read), since when the oldest is held."""

    count: int
    holders: Mapping[str, int]
    oldest_ms: int | None = None


class AuditorStatus(msgspec.Struct, frozen=True):
    """The auditor; ``is_elected`` False: there is none. ``bookie_id`` is None if its vote cannot be read."""

    is_elected: bool
    bookie_id: str | None = None


class AutorecoveryStatus(msgspec.Struct, frozen=True):
    """Switches of autorecovery. ``off_since_ms`` None: enabled. ``delay_s`` None: never set."""

    off_since_ms: int | None = None
    note: SwitchNote = SwitchNote()
    delay_s: int | None = None
    full_check_ms: int | None = None
    """When the last check of all ledgers ended; None: never."""


class RootStatus(msgspec.Struct, frozen=True):
    """The root: identity, unfinished work, and why changes are forbidden (None: they are not)."""

    instance_id: str | None = None
    is_restore_unfinished: bool = False
    migration: str | None = None
    operations: tuple[str, ...] = ()
    """Commands that are changing the cluster or one of its bookies."""
    recovering: frozenset[str] = frozenset()
    """Bookies whose ledgers one of them moves to others."""


class DownReferences(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the bookies that are down, ``bookie_ids``, the metadata of the ``ledgers`` that were read names.

    ``why_unknown``: why not all could be read; None: all were, or all bookies are in ``referenced``: the others are not
    referenced.
    """

    bookie_ids: frozenset[str]
    referenced: frozenset[str]
    ledgers: int
    why_unknown: str | None = None
    no_live_copy: NoLiveCopy = NoLiveCopy()
    can_move: bool = True
    """Whether one of them has a segment with a live copy of each entry, and enough writable bookies for its copies."""
    has_source: bool = True
    """Whether one has a segment with copies to be made and a live copy of each entry."""

    @property
    def unreferenced(self) -> frozenset[str]:
        """Bookies that no ledger names: proven, not only not found."""
        return frozenset() if self.why_unknown is not None else self.bookie_ids - self.referenced


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a cluster now; a part is None if it is unknown, and ``unknown`` has the reasons."""

    now_ms: int
    zookeeper_ms: float | None = None
    """How long ZooKeeper took to answer; None: it did not."""
    root: RootStatus | None = None
    bookies: tuple[BookieFacts, ...] | None = None
    marks: MarkCount | None = None
    locks: RepairLocks | None = None
    auditor: AuditorStatus | None = None
    recovery: RecoveryStatus | None = None
    """The notes of autorecovery."""
    autorecovery: AutorecoveryStatus | None = None
    references: DownReferences | None = None
    """None: no bookie is down, or a command moves the ledgers of those that are."""
    usual_size: int = 0
    """How many bookies a new ledger usually needs, by the ledgers that were read; 0: none was."""
    given_up: AcceptedLosses = AcceptedLosses()
    """Ledgers with losses that an operator accepted."""
    drained: Mapping[str, bool] = {}
    """Whether ledgers reference drained bookies that no command moves now, as far as it is known."""
    unknown: Mapping[str, str] = {}
    is_refused: bool = False
    """Whether a part is unknown because this user may not read it in ZooKeeper."""

    @property
    def down(self) -> list[str]:
        """Bookies that are not registered, but for those that no ledger names."""
        gone = [each.bookie_id for each in self.bookies or () if not each.is_registered]
        return [each for each in gone if each not in self.unreferenced]

    @property
    def unreferenced(self) -> list[str]:
        """Bookies with a cookie that are not registered, and that no ledger names."""
        unreferenced = frozenset[str]() if self.references is None else self.references.unreferenced
        return [each.bookie_id for each in self.bookies or () if each.bookie_id in unreferenced]

    @property
    def removed(self) -> frozenset[str]:
        """Bookies in maintenance that are neither registered nor have a cookie."""
        known = {each.bookie_id for each in self.bookies or ()}
        return frozenset(each.bookie_id for each in self.maintenance if self.bookies and each.bookie_id not in known)

    @property
    def no_live_copy(self) -> NoLiveCopy:
        """Ledgers that the start of a bookie would bring back: those that were read, else those in the notes."""
        if self.references is not None and self.references.no_live_copy.ledgers:
            return self.references.no_live_copy
        losses = NotedLosses() if self.recovery is None else self.recovery.losses
        return noted_without_copy(losses, frozenset(self.down))

    @property
    def recovering(self) -> frozenset[str]:
        """Bookies whose ledgers a command moves."""
        return frozenset() if self.root is None else self.root.recovering

    @property
    def maintenance(self) -> tuple[Maintenance, ...]:
        """Bookies in maintenance."""
        return () if self.recovery is None else self.recovery.maintenance


def status_findings(status: ClusterFacts) -> list[Advice]:
    """What is wrong, most urgent first."""
    if status.zookeeper_ms is None:
        reason = status.unknown.get("zookeeper", "no answer")
        return [Advice(Severity.CRITICAL, "zookeeper", reason, "bkctl config show --with-origin --changed")]
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
    for part, reason in status.unknown.items():
        subject, command = _UNKNOWN.get(part, ("a part of the state is", "bkctl cluster info"))
        found.append(Advice(Severity.WARNING, part, f"{subject} unknown: {reason}", command))
    return worst_first(found)


def total_marks(marks: MarkCount | None) -> int | None:
    """How many ledgers are marked; None: not all marks were counted."""
    return None if marks is None else marks.at_most


_UNKNOWN = {
    "bookies": ("the bookies are", "bkctl bookie list"),
    "marks": ("the marks of ledgers are", "bkctl autorecovery pending --count"),
    "locks": ("running repairs are", "bkctl autorecovery running"),
    "auditor": ("the notes of autorecovery are", AUTORECOVERY_STATUS),
    "autorecovery": ("the switches of autorecovery are", AUTORECOVERY_STATUS),
}
"""What is unknown if a part did not answer, and the command that asks for it."""


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
    references = status.references
    why_unknown = None if references is None else references.why_unknown
    doubted = [] if references is None or why_unknown is None else set(status.down) - references.referenced
    awaited = {each.bookie_id for each in status.maintenance if not each.is_overdue(status.now_ms)}
    to_leave = [each for each in status.unreferenced if each not in awaited]
    yield from advise_down(
        DownBookies(
            bookie_ids=(*status.down, *(each for each in status.unreferenced if each in awaited)),
            maintenance=status.maintenance,
            moved=status.recovering,
            is_repaired=not _is_nothing_repaired(status),
            others_silent=len(_silent(status.bookies or ())),
            no_live_copy=status.no_live_copy,
            doubt=dict.fromkeys(doubted, why_unknown or ""),
            can_move=references is None or references.can_move,
            has_source=references is None or references.has_source,
        ),
        status.now_ms,
    )
    if to_leave and references is not None:
        yield not_referenced(to_leave, references.ledgers)


def _silent(bookies: Sequence[BookieFacts]) -> list[str]:
    return [each.bookie_id for each in bookies if each.is_registered and each.problem is not None]


def _bookie_findings(status: ClusterFacts) -> Iterator[Advice]:
    bookies = status.bookies
    if bookies is None:
        return
    foreign = [each.bookie_id for each in bookies if each.is_registered and not each.has_cookie]
    idle = {each.bookie_id: each.why_idle(status.recovering) for each in bookies if not each.is_writable}
    writable = WritableBookies(len(bookies) - len(idle), idle, status.usual_size)
    if not writable.are_enough:
        yield writers_stop(writable)
    refusals = {each.bookie_id: each.problem for each in bookies if each.is_refusing and each.problem is not None}
    silent = [each for each in _silent(bookies) if each not in refusals]
    yield from not_answering(silent, refusals, len(status.down))
    yield from troubled({each.bookie_id: each.trouble for each in bookies if each.trouble}, len(status.down))
    yield from _read_only_findings(status)
    if foreign:
        sentence = f"{these_bookies(foreign, 'is', 'are')} registered without a cookie"
        yield Advice(Severity.WARNING, "bookies_without_cookie", sentence, "bkctl metadata doctor")
    full = {each.bookie_id: each.out_of_space for each in bookies if each.out_of_space is not None}
    yield from disk_findings({each.bookie_id: each.used_fraction for each in bookies}, full)


def _read_only_findings(status: ClusterFacts) -> Iterator[Advice]:
    recovering = status.recovering
    bookies = [each for each in status.bookies or () if each.is_writable is False and each.out_of_space is None]
    leaving = [each.bookie_id for each in bookies if each.is_drained or each.bookie_id in recovering]
    others = [each.bookie_id for each in bookies if each.bookie_id not in leaving]
    yield from bookies_leaving(leaving, recovering, status.drained)
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
    may_return = all(not set(note.missing_bookies).isdisjoint(status.down) for _, note in losses.first)
    if may_return and losses.count <= status.no_live_copy.ledgers:
        losses = NotedLosses()  # these may come back: whether some are left shows once the bookies are started
    recovery = msgspec.structs.replace(status.recovery, deadlines=deadlines, losses=losses)
    down = {*status.down, *status.unreferenced}
    yield from recovery_findings(recovery, waiting, status.now_ms, down, status.removed)
