"""What the notes of autorecovery say is wrong: nothing while all is well, one finding for each fault."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from bkctl.runtime.metadata.replication.election import Candidate
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import (
    DaemonNote,
    LaneStatus,
    LostBookieNote,
    LostLedgerNote,
    MaintenanceNote,
    WorkerStatus,
)
from bkctl.runtime.metadata.replication.recovery_status import NotedLosses, RecoveryStatus
from bkctl.runtime.replication.judge.cluster_facts import AutorecoveryStatus, ClusterFacts, MarkCount, RepairLocks
from bkctl.runtime.replication.judge.cluster_status import status_findings
from bkctl.runtime.replication.judge.daemon_findings import WaitingMarks, idle_seconds, recovery_findings
from bkctl.storage.severity import Severity

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
WORKER = WorkerStatus(held=(), finished_ms=NOW_MS - 60_000, ledgers_repaired=1, ledgers_failed=0, bytes_copied=5)
DAEMON = DaemonNote(
    bookie_id="host-1",
    host="host-1",
    pid=7,
    role="both",
    started_ms=NOW_MS - 9 * HOUR_MS,
    written_ms=NOW_MS - 5000,
    is_auditor=True,
    lanes=(LaneStatus(name="liveness", succeeded_ms=NOW_MS - 9000),),
    worker=WORKER,
)
AUDITOR = DaemonNote(**{**msgspec.structs.asdict(DAEMON), "role": "auditor", "worker": None})
GOOD = RecoveryStatus(auditor=Candidate("V_1", "host-1", 1, 1), daemons=(DAEMON,))
AWAY = LostBookieNote(lost_ms=NOW_MS - 60_000, due_ms=NOW_MS + 240_000)
LOSS = LostLedgerNote(found_ms=NOW_MS, missing_bookies=("b1:3181",), reason="no copy")
OLD = WaitingMarks(NOW_MS - 3 * HOUR_MS, has_locks=False)


def maintenance(end_ms: int) -> tuple[Maintenance, ...]:
    return (Maintenance("b1:3181", MaintenanceNote(start_ms=1, end_ms=end_ms, user="ann")),)


def daemon(**changes: Any) -> tuple[DaemonNote, ...]:
    return (msgspec.structs.replace(DAEMON, **changes),)


FAULTS: list[tuple[str, Severity, str, dict[str, Any]]] = [
    (
        "lost_entries",
        Severity.CRITICAL,
        "1 ledger has entries that no registered bookie has: 7",
        {"losses": NotedLosses(1, (("7", LOSS),))},
    ),
    (
        "too_many_gone",
        Severity.CRITICAL,
        "3 of 4 bookies are gone, more than 50.0 %: no ledger is marked",
        {"daemons": daemon(alarm="3 of 4 bookies are gone, more than 50.0 %: no ledger is marked until some are back")},
    ),
    ("lost_entries", Severity.CRITICAL, "20,000 ledgers have entries", {"losses": NotedLosses(20_000)}),
    (
        "maintenance_overdue",
        Severity.WARNING,
        "the maintenance of bookie b1:3181 is overdue by 60 s",
        {"maintenance": maintenance(NOW_MS - 60_000)},
    ),
    (
        "bookies_in_maintenance",
        Severity.INFORMATION,
        "until 22:14 UTC (by ann); it serves: once the work is done, bkctl autorecovery maintenance end b1:3181; until",
        {"maintenance": maintenance(NOW_MS + 60_000)},
    ),
    (
        "deadlines",
        Severity.INFORMATION,
        "bookie b1:3181 is gone; the auditor host-1 marks the ledgers at 22:17 UTC, in 4 min",
        {"deadlines": (("b1:3181", AWAY),)},
    ),
    (
        "daemon_silent",
        Severity.WARNING,
        "have not reported for up to 60 min and may hang: host-1 (process 7)",
        {"daemons": daemon(written_ms=NOW_MS - HOUR_MS)},
    ),
    (
        "auditor_task",
        Severity.WARNING,
        "its task audit fails: no progress for 120 s (never succeeded)",
        {"daemons": daemon(lanes=(LaneStatus(name="audit", error="no progress for 120 s", failures=2),))},
    ),
    (
        "daemon_refused",
        Severity.WARNING,
        "autorecovery on host-1 (process 7): bookie b1 refuses this daemon",
        {"daemons": daemon(refused_by=1, refusal="bookie b1 refuses this daemon")},
    ),
    (
        "daemon_refused",
        Severity.CRITICAL,
        "autorecovery on host-1 (process 7), host-1 (process 8): 2 bookies (b1, b2) refuse",
        {
            "daemons": tuple(
                each
                for pid in (7, 8)
                for each in daemon(pid=pid, refused_by=2, refusal="2 bookies (b1, b2) refuse this daemon")
            )
        },
    ),
    ("failed_repairs", Severity.INFORMATION, "3 marked ledgers", {"failures": 3}),
    ("failed_repairs", Severity.INFORMATION, "the repair of 1 marked ledger failed and will be", {"failures": 1}),
    (
        "failed_repairs",
        Severity.INFORMATION,
        "; the first: ledger 7: b1: it refuses the login",
        {"failures": 3, "failure_cause": "ledger 7: b1: it refuses the login"},
    ),
    ("unreadable_note", Severity.WARNING, "cannot be read", {"unreadable": ("node /x cannot be read",)}),
    (
        "no_progress",
        Severity.WARNING,
        "no worker has finished one for 2 h",
        {"daemons": daemon(worker=msgspec.structs.replace(WORKER, finished_ms=NOW_MS - 2 * HOUR_MS))},
    ),
    ("no_worker", Severity.WARNING, "no daemon is a worker: host-1 (role auditor)", {"daemons": (AUDITOR,)}),
]


def test_nothing_is_found_while_all_is_well() -> None:
    assert list(recovery_findings(GOOD, OLD, NOW_MS)) == []
    assert list(recovery_findings(RecoveryStatus(), OLD, NOW_MS)) == [], "a cluster without a daemon of bkctl"


@pytest.mark.parametrize(("part", "severity", "words", "changes"), FAULTS)
def test_each_fault_is_found(part: str, severity: Severity, words: str, changes: dict[str, Any]) -> None:
    (finding,) = recovery_findings(msgspec.structs.replace(GOOD, **changes), OLD, NOW_MS)
    assert (finding.part, finding.severity) == (part, severity)
    assert words in finding.sentence
    assert finding.command is not None
    assert finding.command.startswith("bkctl ")
    status = ClusterFacts(
        now_ms=NOW_MS,
        zookeeper_ms=2.0,
        marks=MarkCount(1, 1, OLD.oldest_ms),
        locks=RepairLocks(0, {}),
        recovery=msgspec.structs.replace(GOOD, **changes),
    )
    assert finding in status_findings(status)


def test_a_bookie_in_maintenance_is_not_awaited() -> None:
    status = msgspec.structs.replace(GOOD, deadlines=(("b1:3181", AWAY),), maintenance=maintenance(NOW_MS + 1))
    assert list(recovery_findings(status, None, NOW_MS, ["b1:3181"])) == []


def test_workers_are_idle_only_while_marks_wait() -> None:
    status = msgspec.structs.replace(GOOD, daemons=daemon(worker=msgspec.structs.replace(WORKER, finished_ms=None)))
    assert idle_seconds(status, None, NOW_MS) is None
    assert idle_seconds(status, OLD, NOW_MS) == 3 * 3600
    assert idle_seconds(status, WaitingMarks(NOW_MS - 1000, has_locks=True), NOW_MS) == 1
    assert idle_seconds(msgspec.structs.replace(GOOD, daemons=(AUDITOR,)), OLD, NOW_MS) is None


def test_workers_that_autorecovery_switches_off_are_not_blamed() -> None:
    (no_worker,) = recovery_findings(msgspec.structs.replace(GOOD, daemons=(AUDITOR,)), OLD, NOW_MS)
    status = ClusterFacts(
        now_ms=NOW_MS,
        zookeeper_ms=2.0,
        marks=MarkCount(1, 1, OLD.oldest_ms),
        autorecovery=AutorecoveryStatus(off_since_ms=1),
        recovery=msgspec.structs.replace(GOOD, daemons=(AUDITOR,)),
    )
    assert no_worker not in status_findings(status)
    locked = WaitingMarks(OLD.oldest_ms, has_locks=True)
    assert list(recovery_findings(msgspec.structs.replace(GOOD, daemons=(AUDITOR,)), locked, NOW_MS)) == []
