"""``bkctl autorecovery status`` and ``bkctl status`` show what daemons of bkctl noted, and warn of what is wrong."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import msgspec

from bkctl.runtime.ledger.changes import new_ledger, to_closed
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.ledger.metadata_format import encode_ledger_metadata
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.election import AuditorElection
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import (
    NO_COPY,
    DaemonNote,
    FailedLedgerNote,
    HeldLedger,
    LaneStatus,
    LostBookieNote,
    LostLedgerNote,
    MaintenanceNote,
    RecoveryNotes,
    WorkerStatus,
)
from bkctl.runtime.metadata.store import ANY_VERSION
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.processes import run_bkctl
from tests.until import wait_until

A, B, C = "10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181"
HOUR_MS = 3_600_000


def _daemon(now_ms: int) -> DaemonNote:
    worker = WorkerStatus(
        held=(HeldLedger(ledger_id=9, since_ms=now_ms, waits_for="space on bookies"),),
        finished_ms=now_ms - 2 * HOUR_MS,
        ledgers_repaired=40,
        ledgers_failed=2,
        bytes_copied=5000,
    )
    lanes = (
        LaneStatus(name="liveness", result="3 bookies are registered", succeeded_ms=now_ms, runs=7),
        LaneStatus(name="copies", error="no progress for 300 s", hangs=1, failures=1, runs=1),
        LaneStatus(name="replicas", result="8 ledgers", result_ms=now_ms - HOUR_MS, succeeded_ms=now_ms, runs=9),
    )
    return DaemonNote(
        bookie_id=A,
        host="host-a",
        pid=77,
        role="both",
        started_ms=now_ms - 3 * HOUR_MS,
        written_ms=now_ms,
        is_auditor=True,
        lanes=lanes,
        worker=worker,
        admin=None,
    )


async def _plant(store: ZooKeeperStore, root: str) -> None:
    """One of everything that is noted."""
    clock = LoopClock()
    now_ms = clock.now_ms()
    await AuditorElection(store, root, A, lambda _: None).campaign()
    notes = RecoveryNotes(store, root)
    await notes.daemons.put("77", _daemon(now_ms))
    await notes.deadlines.put(B, LostBookieNote(lost_ms=now_ms, due_ms=now_ms + HOUR_MS))
    await notes.deadlines.put(C, LostBookieNote(lost_ms=now_ms, due_ms=now_ms))
    over = MaintenanceNote(start_ms=now_ms - 2 * HOUR_MS, end_ms=now_ms - HOUR_MS, user="ann")
    await notes.maintenance.put(A, over)
    await notes.maintenance.put(C, msgspec.structs.replace(over, end_ms=now_ms + 2 * HOUR_MS))
    for key in ("4", "5"):  # no ledger 4: it was deleted, and the auditor has not seen that yet
        await notes.losses.put(key, LostLedgerNote(found_ms=now_ms, missing_bookies=(B,), reason="no copy is left"))
    metadata = to_closed(new_ledger((B,), 1, 1, DigestType.CRC32C, b"secret"), 9, 100)
    await store.create(f"{root}/00/0000/L0005", encode_ledger_metadata(metadata), make_parents=True)
    for key, missing in (("7", A), ("8", B)):  # A was replaced in ledger 7 since, B in ledger 8 was not
        note = LostLedgerNote(found_ms=now_ms, missing_bookies=(missing,), reason=NO_COPY)
        await notes.losses.put(key, note)
        await store.create(f"{root}/00/0000/L000{key}", encode_ledger_metadata(metadata))
    failed = FailedLedgerNote(
        worker="host-a", attempts=1, first_ms=1, last_ms=1, retry_ms=2, reason="NOT_ENOUGH_BOOKIES", detail="none"
    )
    await notes.failures.put("6", failed)
    marks = UnderReplicationMarks(store, root, clock)
    for ledger_id in (5, 6, 9):
        await marks.mark(ledger_id, [B])
    text = f'replica: "{B}"\nctime: {now_ms - 9 * HOUR_MS}\n'
    await store.set(Paths(root).mark(5), text.encode(), ANY_VERSION)
    assert await ReplicationLocks(store, root, "java-host").acquire(9) is not None


def _complete_overview(metadata_uri: str) -> dict[str, Any]:
    """``bkctl status``, again until it had time for all parts and marks: it waits two seconds at most."""

    def complete() -> dict[str, Any]:
        result = run_bkctl("status", BKCTL_METADATA_URI=metadata_uri)
        body: dict[str, Any] = result.json()
        if body["unknown"] or body["marks_at_least"] != 3:
            return {}
        assert result.exit_code == 14, result
        return body

    return wait_until(complete)


async def test_status_shows_what_the_daemons_noted(metadata_uri: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await store.create(f"{uri.root}/available/readonly", make_parents=True)
        for bookie_id in (A, C):
            await store.create(f"{uri.root}/cookies/{bookie_id}", make_parents=True)
        await store.create(f"{uri.root}/INSTANCEID", b"0b7e1a2c-1111-4222-8333-944455556666")
        await _plant(store, uri.root)
        result = await asyncio.to_thread(run_bkctl, "autorecovery", "status", BKCTL_METADATA_URI=metadata_uri)
        assert result.exit_code == 0, result
        body = result.json()
        assert (body["auditor"], body["auditor_kind"], body["pending"], body["running"]) == (A, "bkctl", 3, 1)
        assert (body["failed"], body["ledgers_with_losses"]) == (1, 2)
        assert 2 * 3600 <= body["idle_s"] < 2 * 3600 + 600
        assert [(each["task"], each["state"], each["hangs"]) for each in body["tasks"]] == [
            ("liveness", "waits", 0),
            ("copies", "fails", 1),
            ("replicas", "waits", 0),
        ]
        liveness, _, replicas = (each["succeeded_at"] for each in body["tasks"])
        age = datetime.fromisoformat(liveness) - datetime.fromisoformat(replicas)
        assert age == timedelta(hours=1)  # later runs had nothing to do
        (daemon,) = body["daemons"]
        assert (daemon["host"], daemon["repaired"], daemon["failed"]) == ("host-a", 40, 2)
        assert [(each["ledger_id"], each["waits_for"]) for each in daemon["holds"]] == [("9", "space on bookies")]
        assert [(each["holder"], each["first_ledger_ids"]) for each in body["holders"]] == [("java-host", ["9"])]
        gone = {each["bookie_id"]: each for each in body["bookies_gone"]}
        assert [(each, gone[each]["in_maintenance"]) for each in sorted(gone)] == [(B, False), (C, True)]
        assert [(each["bookie_id"], each["overdue"]) for each in body["maintenance"]] == [(A, True), (C, False)]
        ends = {each["bookie_id"]: each["until"] for each in body["maintenance"]}
        assert gone[B]["marked_at"] < gone[C]["marked_at"] == ends[C]
        assert [(each["ledger_id"], each["missing_bookies"]) for each in body["losses"]] == [("5", [B]), ("8", [B])]
        for words in (
            "2 ledgers have entries that no registered bookie has: 5, 8: bkctl ledger explain 5",
            f"the maintenance of bookie {A} is overdue by 60 min; start {A}: bkctl autorecovery maintenance list",
            "its task copies fails: no progress for 300 s (never succeeded)",
            "no worker has finished one for 2 h: bkctl autorecovery pending",
        ):
            assert f"{words}\n" in result.stderr, result.stderr

        table = await asyncio.to_thread(
            run_bkctl, "autorecovery", "status", "-o", "table", BKCTL_METADATA_URI=metadata_uri
        )
        assert "9 (space on bookies)" in table.stdout
        assert "Tasks of the auditor" in table.stdout

        body = await asyncio.to_thread(_complete_overview, metadata_uri)
        parts = {each["part"] for each in body["findings"]}
        assert parts >= {"lost_entries", "maintenance_overdue", "auditor_task", "no_progress", "deadlines"}
        assert (body["auditor_kind"], body["ledgers_with_losses"], body["bookies_awaited"]) == ("bkctl", 2, 1)

        note = msgspec.structs.replace(_daemon(LoopClock().now_ms()), is_auditor=False)
        await RecoveryNotes(store, uri.root).daemons.put("77", note)
        beside_java = await asyncio.to_thread(run_bkctl, "autorecovery", "status", BKCTL_METADATA_URI=metadata_uri)
        body = beside_java.json()
        assert (body["auditor_kind"], body["bookies_gone"]) == ("java", []), "the deadlines are from an earlier auditor"
