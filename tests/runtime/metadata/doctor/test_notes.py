"""The metadata doctor on autorecovery's notes, which are outside of the ledgers root."""

from __future__ import annotations

from bkctl.runtime.metadata.doctor.doctor import examine_cluster
from bkctl.runtime.metadata.replication.recovery_notes import (
    CollectionNote,
    DaemonNote,
    FailedLedgerNote,
    LostBookieNote,
    LostLedgerNote,
    MaintenanceNote,
    RecoveryNotes,
    notes_path,
)
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.judge.needed_bookies import NeededBookies
from tests.runtime.metadata.bad_nodes import BOOKIES, put, sound_cluster

GONE_BOOKIE = "gone.example.com:3181"
GONE_LEDGER = "77"
LEDGER = "1"
FAILED = FailedLedgerNote(worker="h", attempts=1, first_ms=1, last_ms=1, retry_ms=2, reason="r", detail="d")
DAEMON = DaemonNote(bookie_id="b", host="h", pid=7, role="both", started_ms=1, written_ms=2, is_auditor=True)
LATER_MS = 1 << 50


class EarlyClock(LoopClock):
    """At this time no node has been there for long that is made in a test."""

    def now_ms(self) -> int:
        return 1000


async def found_in(store: ZooKeeperStore, root: str) -> dict[str, set[str]]:
    """Paths below the notes by rule."""
    report = await examine_cluster(store, root, None, EarlyClock(), NeededBookies(()), settle_s=0.01)
    found: dict[str, set[str]] = {}
    for each in report.findings:
        found.setdefault(each.rule.id, set()).add(each.path.removeprefix(f"{notes_path(root)}/"))
    return found


async def test_sound_notes(store: ZooKeeperStore, root: str) -> None:
    await put(store, root, sound_cluster())
    notes = RecoveryNotes(store, root)
    await notes.losses.put(LEDGER, LostLedgerNote(found_ms=1, missing_bookies=(), reason="r"))
    await notes.failures.put(LEDGER, FAILED)
    await notes.deadlines.put(BOOKIES[0], LostBookieNote(lost_ms=1, due_ms=2))
    await notes.maintenance.put(BOOKIES[0], MaintenanceNote(start_ms=1, end_ms=LATER_MS, user="ann"))
    await notes.daemons.put("1", DAEMON)
    await notes.collection.put(BOOKIES[0], CollectionNote(step=4))
    await notes.collection.put(GONE_BOOKIE, CollectionNote(step=4, stopped="why", stopped_ms=1))
    assert await found_in(store, root) == {}


async def test_bad_notes(store: ZooKeeperStore, root: str) -> None:
    await put(store, root, sound_cluster())
    notes = RecoveryNotes(store, root)
    await notes.losses.put(GONE_LEDGER, LostLedgerNote(found_ms=1, missing_bookies=(), reason="r"))
    await notes.failures.put(GONE_LEDGER, FAILED)
    await notes.deadlines.put(GONE_BOOKIE, LostBookieNote(lost_ms=1, due_ms=2))
    await notes.maintenance.put(BOOKIES[0], MaintenanceNote(start_ms=1, end_ms=999, user="ann"))
    await notes.collection.put(BOOKIES[0], CollectionNote(step=4, stopped="why", stopped_ms=1))
    top = notes_path(root)
    for path in (f"losses/{LEDGER}", "failures/00x", "failures/9223372036854775808", "deadlines/no%20id"):
        await store.create(f"{top}/{path}", b"junk", make_parents=True)
    await store.create(f"{top}/maintenance/{BOOKIES[1].replace(':', '%3A')}", b"junk")
    await store.create(f"{top}/daemons/9", b"{}", make_parents=True)
    assert await found_in(store, root) == {
        "note-without-ledger": {f"losses/{GONE_LEDGER}", f"failures/{GONE_LEDGER}"},
        "note-without-bookie": {"deadlines/gone.example.com%3A3181"},
        "maintenance-overdue": {f"maintenance/{BOOKIES[0].replace(':', '%3A')}"},
        "unreadable-note": {f"losses/{LEDGER}", f"maintenance/{BOOKIES[1].replace(':', '%3A')}"},
        "stray-node": {"failures/00x", "failures/9223372036854775808", "deadlines/no%20id"},
        "session-node-without-session": {"daemons/9"},
        "deletion-stopped": {f"collection/{BOOKIES[0].replace(':', '%3A')}"},
    }
