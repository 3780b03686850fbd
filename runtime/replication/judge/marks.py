"""Whether the mark of an under-replicated ledger is still needed, and what the ledger waits for. Pure.

A mark asks for a check of a ledger. It names bookies that lacked entries, or were down, when it was made; without any,
it asks for a repair of the ledger's placement. A registration proves that a bookie is up, never that it has its
entries: before it went down, it may have been frozen while the other bookies confirmed adds. So a mark that names a
bookie that should store entries of the ledger needs a check of that bookie's copies. Source: replication sections 1
and 8.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.ledger.write_set import negatives_needed
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.replication.marks import ListedMark
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, FailedLedgerNote
from bkctl.runtime.replication.judge.copies import LedgerCheck
from bkctl.runtime.replication.judge.fragments import format_ranges
from bkctl.runtime.replication.judge.verdict import (
    LedgerVerdict,
    ReplicationState,
    has_enough_answers,
    judge_metadata,
    live_copies,
    write_set_rows,
)
from bkctl.storage.words import listed


class MarkFinding(enum.Enum):
    """What a mark is worth. The values appear in reports."""

    LEDGER_DELETED = "ledger deleted"
    COMPLETE = "complete"
    PLACEMENT_KEPT = "placement rules hold"
    PLACEMENT_NOT_REPAIRED = "placement is not repaired"
    LOCKED = "worker is busy"
    WAITING = "waits for repair"
    COPIES_UNKNOWN = "copies not checked"
    PLACEMENT_BROKEN = "placement rules broken"
    PLACEMENT_UNKNOWN = "placement rules unknown"
    NO_LIVE_COPY = "no live copy"
    ENTRIES_LOST = "entries lost"
    NOT_ENOUGH_BOOKIES = "not enough bookies"
    NOT_CLOSABLE = "cannot be closed"
    METADATA_UNREADABLE = "metadata unreadable"


_NOT_NEEDED = frozenset(
    {MarkFinding.LEDGER_DELETED, MarkFinding.COMPLETE, MarkFinding.PLACEMENT_KEPT, MarkFinding.PLACEMENT_NOT_REPAIRED}
)

_HOPELESS = frozenset(
    {
        MarkFinding.NO_LIVE_COPY,
        MarkFinding.ENTRIES_LOST,
        MarkFinding.NOT_ENOUGH_BOOKIES,
        MarkFinding.NOT_CLOSABLE,
        MarkFinding.METADATA_UNREADABLE,
    }
)


class MarkVerdict(msgspec.Struct, frozen=True):
    """The state of a mark, and the reason in a sentence without subject."""

    state: MarkFinding
    detail: str

    @property
    def is_clearable(self) -> bool:
        """Whether the mark is not needed."""
        return self.state in _NOT_NEEDED

    @property
    def is_hopeless(self) -> bool:
        """Whether no worker can repair the ledger unless a bookie comes back or is added."""
        return self.state in _HOPELESS


class MarkedLedger(msgspec.Struct, frozen=True):
    """A marked ledger: its metadata, or why it cannot be read; both None: it was deleted. ``check``: of the
    copies of the bookies in question. ``broken_rules``: of placement, None: unknown."""

    metadata: LedgerMetadata | None = None
    problem: str | None = None
    check: LedgerCheck | None = None
    broken_rules: Sequence[str] | None = None
    is_placement_repaired: bool = True
    """Whether workers repair it."""
    is_locked: bool = False


def judge_mark(mark: ListedMark, ledger: MarkedLedger, registrations: Registrations) -> MarkVerdict:
    """Judge a mark by what is known about its ledger and the bookies."""
    if ledger.is_locked:
        return MarkVerdict(MarkFinding.LOCKED, "a worker holds the replication lock of the ledger")
    if ledger.problem is not None:
        return MarkVerdict(MarkFinding.METADATA_UNREADABLE, ledger.problem)
    if ledger.metadata is None or (ledger.check is not None and ledger.check.is_deleted):
        return MarkVerdict(MarkFinding.LEDGER_DELETED, "the ledger was deleted")
    verdict = judge_metadata(mark.ledger_id, ledger.metadata, registrations.live)
    return (
        _missing_copies(ledger.metadata, verdict, registrations)
        or _bad_copies(ledger.check)
        or _unknown_copies(mark, ledger.metadata, ledger.check)
        or _complete(mark, ledger)
    )


def bookies_in_question(mark: ListedMark, metadata: LedgerMetadata) -> list[str]:
    """The bookies that the mark is about and that should store entries, sorted; all of those if it cannot be read."""
    members = {bookie_id for row in write_set_rows(mark.ledger_id, metadata) for bookie_id in row.write_set}
    return sorted(members if mark.mark is None else members.intersection(mark.mark.missing_bookies))


def _missing_copies(
    metadata: LedgerMetadata, verdict: LedgerVerdict, registrations: Registrations
) -> MarkVerdict | None:
    """The verdict if some write set has a bookie that is not registered."""
    incomplete = [row for row in verdict.rows if row.missing_bookies]
    if not incomplete:
        return None
    missing = sorted({bookie_id for row in incomplete for bookie_id in row.missing_bookies})
    if verdict.replication is ReplicationState.UNAVAILABLE:
        return MarkVerdict(
            MarkFinding.NO_LIVE_COPY, f"all bookies that store some of its entries are down: {listed(missing)}"
        )
    quorums = metadata.write_quorum_size, metadata.ack_quorum_size
    last_first = metadata.last_segment.first_entry_id
    if not metadata.is_closed and not all(
        has_enough_answers(row.write_set.write_set, *quorums, registrations.live)
        for row in incomplete
        if row.write_set.segment_first_entry_id == last_first
    ):
        answers_min = negatives_needed(*quorums)
        return MarkVerdict(
            MarkFinding.NOT_CLOSABLE,
            f"closing it needs answers of {answers_min} bookies of each write set of its last segment; down: "
            f"{listed(missing)}",
        )
    for segment in metadata.segments:
        rows = [row for row in incomplete if row.write_set.segment_first_entry_id == segment.first_entry_id]
        needed = len({bookie_id for row in rows for bookie_id in row.missing_bookies})
        targets = len(set(registrations.writable).difference(segment.ensemble))
        if targets < needed:
            return MarkVerdict(
                MarkFinding.NOT_ENOUGH_BOOKIES,
                f"the segment from entry {segment.first_entry_id} needs {needed} writable bookies outside its "
                f"ensemble; there are {targets}",
            )
    return MarkVerdict(MarkFinding.WAITING, f"down: {listed(missing)}")


def _bad_copies(check: LedgerCheck | None) -> MarkVerdict | None:
    """The verdict if a check has found that copies are missing or bad, or could not finish."""
    if check is None or check.is_clean:
        return None
    if check.lost:
        return MarkVerdict(MarkFinding.ENTRIES_LOST, f"no bookie has entries {format_ranges(check.lost)}")
    if check.problem is not None:
        return MarkVerdict(MarkFinding.COPIES_UNKNOWN, check.problem)
    unread = {defect.bookie_id: defect.reason for defect in check.defects if defect.is_unknown}
    unknown = f"{check.copies_unreachable} of {check.copies_expected} copies are unknown"
    unknown += f": {listed([f'{bookie_id}: {unread[bookie_id]}' for bookie_id in sorted(unread)])}" if unread else ""
    bad = check.copies_expected - check.copies_good - check.copies_unreachable
    if not bad:
        return MarkVerdict(MarkFinding.COPIES_UNKNOWN, unknown)
    bookies = listed(sorted({defect.bookie_id for defect in check.defects if not defect.is_unknown}))
    detail = f"{bad} of {check.copies_expected} copies are missing or bad, on {bookies}"
    return MarkVerdict(MarkFinding.WAITING, f"{detail}; {unknown}" if unread else detail)


def _unknown_copies(mark: ListedMark, metadata: LedgerMetadata, check: LedgerCheck | None) -> MarkVerdict | None:
    """The verdict if the bookies in question are up, but may lack entries."""
    doubtful = bookies_in_question(mark, metadata) if check is None else []
    if not doubtful:
        return None
    unreadable = "the mark cannot be read, and " if mark.mark is None else ""
    return MarkVerdict(
        MarkFinding.COPIES_UNKNOWN,
        f"{unreadable}these bookies are up, but may lack entries: {listed(doubtful)}; --deep reads their copies",
    )


def _complete(mark: ListedMark, ledger: MarkedLedger) -> MarkVerdict:
    if mark.mark is None or mark.mark.missing_bookies:
        return MarkVerdict(
            MarkFinding.COMPLETE,
            "the bookies have all copies" if ledger.check else "none of the named bookies should store its entries",
        )
    if not ledger.is_placement_repaired:
        return MarkVerdict(MarkFinding.PLACEMENT_NOT_REPAIRED, "by the settings no worker repairs placement")
    if ledger.broken_rules is None:
        return MarkVerdict(
            MarkFinding.PLACEMENT_UNKNOWN,
            'it asks for a repair of placement, and no source of racks is set here: set one, or policy = "random" '
            "below [client.placement] if racks do not matter",
        )
    if ledger.broken_rules:
        return MarkVerdict(MarkFinding.PLACEMENT_BROKEN, "; ".join(ledger.broken_rules))
    return MarkVerdict(MarkFinding.PLACEMENT_KEPT, "the ledger is complete and keeps all placement rules")


class WaitReason(enum.StrEnum):
    """What a marked ledger waits for, if no repair has failed. The values appear in reports."""

    LOCKED = "locked"
    """A worker repairs it, or another command holds its lock."""
    DISABLED = "disabled"
    OPEN = "open"
    """Its writer gets time to replace the missing bookie."""
    LOST = "no copy"
    """Some entries have no copy on a registered bookie."""
    QUEUED = "queued"
    DELETED = "deleted"
    """The next worker clears the mark."""
    UNREADABLE = "unreadable"
    """The mark or the metadata of the ledger cannot be read."""


class PendingLedger(msgspec.Struct, frozen=True):
    """``copies``: live copies of the entries that have the fewest. ``bytes_missing`` None: unknown, for example while
    the ledger is open. ``is_writer_due``: a writer may still replace the missing bookie."""

    copies: int
    bytes_missing: int | None
    owner: str | None
    is_writer_due: bool


def pending_ledger(ledger_id: int, metadata: LedgerMetadata, live: Collection[str]) -> PendingLedger:
    """What the metadata says; ``live``: all registered bookies. Copies that only a bookie's disk lacks do not count."""
    rows = judge_metadata(ledger_id, metadata, live).rows
    shares = [row.write_set.payload_bytes for row in rows]
    bytes_missing = None
    if metadata.is_closed and None not in shares:
        pairs = zip(rows, shares, strict=True)
        bytes_missing = sum(len(row.missing_bookies) * share for row, share in pairs if share is not None)
    return PendingLedger(
        live_copies(ledger_id, metadata, live),
        bytes_missing,
        owner_of(dict(metadata.custom_metadata)),
        not metadata.is_closed and not set(metadata.last_segment.ensemble) <= set(live),
    )


def why_it_waits(
    ledger: PendingLedger | None, failure: FailedLedgerNote | None, *, is_locked: bool, is_enabled: bool
) -> str:
    """A ``WaitReason``, or the reason of the last failure. ``ledger`` None: it is deleted."""
    if is_locked:
        return WaitReason.LOCKED
    if ledger is None:
        return WaitReason.DELETED
    if failure is not None:
        return failure.reason.lower()
    if not is_enabled:
        return WaitReason.DISABLED
    if ledger.copies == 0:
        return WaitReason.LOST
    return WaitReason.OPEN if ledger.is_writer_due else WaitReason.QUEUED


def repair_pace(daemons: Iterable[DaemonNote], oldest_mark_ms: int) -> float | None:
    """Ledgers that the workers of bkctl repair in a second; None if unknown.

    Only workers that started after the oldest mark count: others had times without work that their notes do not show.
    """
    pace = 0.0
    for daemon in daemons:
        seconds = (daemon.written_ms - daemon.started_ms) / 1000
        if daemon.worker is not None and seconds > 0 and daemon.started_ms >= oldest_mark_ms:
            pace += daemon.worker.ledgers_repaired / seconds
    return pace or None
