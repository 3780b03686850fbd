"""A marked ledger as an operator sees it: copies left, bytes to copy, owner, and what it waits for. Pure."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, FailedLedgerNote
from bkctl.runtime.replication.judge.verdict import judge_metadata, live_copies


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
