"""What a marked ledger waits for, and how much is to be copied."""

from __future__ import annotations

import msgspec
import pytest

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, FailedLedgerNote, WorkerStatus
from bkctl.runtime.replication.judge.marks import PendingLedger, pending_ledger, repair_pace, why_it_waits

A, B, C = "a:3181", "b:3181", "c:3181"
OPEN = LedgerMetadata(3, 2, 2, (Segment(0, (A, B, C)),), custom_metadata=(("application", b"test"),))
CLOSED = msgspec.structs.replace(OPEN, state=LedgerState.CLOSED, last_entry_id=5, length=600)
FAILED = FailedLedgerNote(
    worker="host", attempts=2, first_ms=1, last_ms=2, retry_ms=3, reason="NOT_ENOUGH_BOOKIES", detail="no bookie"
)
QUEUED = PendingLedger(1, 10, None, is_writer_due=False)


def test_bytes_are_those_of_copies_on_bookies_that_are_gone() -> None:
    assert pending_ledger(7, CLOSED, {A, B, C}) == PendingLedger(2, 0, "application test", is_writer_due=False)
    assert pending_ledger(7, CLOSED, {A, B}) == PendingLedger(1, 400, "application test", is_writer_due=False)
    assert pending_ledger(7, CLOSED, {A}) == PendingLedger(0, 800, "application test", is_writer_due=False)


def test_an_open_ledger_has_no_known_size_and_waits_for_its_writer() -> None:
    assert pending_ledger(7, OPEN, {A, B}) == PendingLedger(1, None, "application test", is_writer_due=True)
    assert not pending_ledger(7, OPEN, {A, B, C}).is_writer_due


@pytest.mark.parametrize(
    ("ledger", "failure", "is_locked", "is_enabled", "reason"),
    [
        (QUEUED, None, False, True, "queued"),
        (QUEUED, FAILED, True, False, "locked"),
        (QUEUED, FAILED, False, False, "not_enough_bookies"),
        (QUEUED, None, False, False, "disabled"),
        (None, None, False, False, "deleted"),
        (PendingLedger(0, 10, None, is_writer_due=True), None, False, True, "no copy"),
        (PendingLedger(1, None, None, is_writer_due=True), None, False, True, "open"),
    ],
)
def test_the_reason(
    ledger: PendingLedger | None, failure: FailedLedgerNote | None, is_locked: bool, is_enabled: bool, reason: str
) -> None:
    assert why_it_waits(ledger, failure, is_locked=is_locked, is_enabled=is_enabled) == reason


def test_the_pace_is_that_of_workers_that_never_lacked_work() -> None:
    worker = WorkerStatus(held=(), finished_ms=1, ledgers_repaired=50, ledgers_failed=0, bytes_copied=1)
    note = DaemonNote(
        bookie_id="h",
        host="h",
        pid=1,
        role="worker",
        started_ms=10_000,
        written_ms=20_000,
        is_auditor=False,
        worker=worker,
    )
    assert repair_pace([note, note], 10_000) == 10
    assert repair_pace([note], 10_001) is None, "it may have been idle before"
    assert repair_pace([msgspec.structs.replace(note, worker=None)], 0) is None
