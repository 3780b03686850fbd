"""``bkctl autorecovery pending``: copies left, bytes to copy, and what each marked ledger waits for."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bkctl.commands.rendering import time_text
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.metadata.ledgers.layout import LedgerTree
from bkctl.runtime.metadata.ledgers.ledgers import open_ledger_store
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.marks import UnderReplicationMarks
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote, RecoveryNotes
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.loop import LoopClock
from tests.processes import TerminalSession, run_bkctl

A, B, C = "10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181"
TOPIC = (("application", b"pulsar"), ("pulsar/managed-ledger", b"t/ns/persistent/orders"))

RETRY_MS = 1_700_000_000_000
FAILED = FailedLedgerNote(
    worker="host-a",
    attempts=3,
    first_ms=1,
    last_ms=RETRY_MS - 40_000,
    retry_ms=RETRY_MS,
    reason="NOT_ENOUGH_BOOKIES",
    detail="entries 0-9: 1 writable bookie",
)


def _closed(*bookie_ids: str) -> LedgerMetadata:
    count = len(bookie_ids)
    return LedgerMetadata(
        count,
        count,
        count,
        (Segment(0, bookie_ids),),
        state=LedgerState.CLOSED,
        last_entry_id=9,
        length=1000,
        custom_metadata=TOPIC,
    )


async def _plant(store: ZooKeeperStore, root: str, tree: LedgerTree | None) -> None:
    """Ledgers 1 to 5 on A, B and C, of which only A is registered: failed, open, locked, lost, queued."""
    await store.create(f"{root}/available/readonly", make_parents=True)
    await store.create(f"{root}/available/{A}", is_ephemeral=True)
    await store.create(f"{root}/cookies")
    await store.create(f"{root}/INSTANCEID", b"0b7e1a2c-1111-4222-8333-944455556666")
    ledgers = await open_ledger_store(store, root, tree)
    planted = {
        1: _closed(A, B),
        2: LedgerMetadata(2, 2, 2, (Segment(0, (A, B)),)),
        3: _closed(A, B),
        4: _closed(B, C),
        5: _closed(A, B, C),
    }
    marks = UnderReplicationMarks(store, root, LoopClock())
    for ledger_id, metadata in planted.items():
        await ledgers.create(metadata, ledger_id=ledger_id)
        await marks.mark(ledger_id, [B])
    await RecoveryNotes(store, root).failures.put("1", FAILED)
    assert await ReplicationLocks(store, root, "host-b").acquire(3) is not None


@pytest.mark.parametrize(("pause_max_s", "hours"), [("300", 1), ("600", 2)])
async def test_a_time_that_no_worker_believes_is_not_shown(metadata_uri: str, pause_max_s: str, hours: int) -> None:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await _plant(store, uri.root, uri.tree)
        week_ms = 7 * 86_400_000  # of a host whose clock was wrong when it wrote the note
        wrong = msgspec.structs.replace(FAILED, last_ms=RETRY_MS, retry_ms=RETRY_MS + week_ms)
        await RecoveryNotes(store, uri.root).failures.put("1", wrong)
        result = await asyncio.to_thread(
            run_bkctl,
            *("autorecovery", "pending"),
            BKCTL_METADATA_URI=metadata_uri,
            BKCTL_AUTORECOVERY_FAILED_LEDGER_PAUSE_MAX_S=pause_max_s,
        )
        assert result.exit_code == 0, result
        (item,) = [each for each in result.json()["items"] if each["ledger_id"] == "1"]
        assert item["retry_at"] == time_text(RETRY_MS + hours * 3_600_000)


async def test_each_ledger_says_why_it_waits(metadata_uri: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await _plant(store, uri.root, uri.tree)
        result = await asyncio.to_thread(run_bkctl, "autorecovery", "pending", BKCTL_METADATA_URI=metadata_uri)
        assert result.exit_code == 0, result
        items = {each["ledger_id"]: each for each in result.json()["items"]}
        assert {ledger_id: each["reason"] for ledger_id, each in items.items()} == {
            "1": "not_enough_bookies",
            "2": "open",
            "3": "locked",
            "4": "no copy",
            "5": "queued",
        }
        assert {ledger_id: each["copies_left"] for ledger_id, each in items.items()} == {
            "1": 1,
            "2": 1,
            "3": 1,
            "4": 0,
            "5": 1,
        }
        assert [items[each]["bytes"] for each in "12345"] == [1000, None, 1000, 2000, 2000]
        assert (items["3"]["worker"], items["5"]["owner"]) == ("host-b", "topic persistent://t/ns/orders")
        assert (items["1"]["attempts"], items["1"]["retry_at"]) == (3, "2023-11-14T22:13:20.000Z")
        assert items["1"]["detail"] == "entries 0-9: 1 writable bookie"

        table = await asyncio.to_thread(
            run_bkctl, "autorecovery", "pending", "--limit", "4", "-o", "table", BKCTL_METADATA_URI=metadata_uri
        )
        summary = "5 ledgers marked; of those listed: about 3.9 KiB to copy, 1 failed repair; time left: unknown"
        assert summary in table.stderr
        for wrong in (("--watch", "--count"), ("--interval", "1s"), ("--watch", "-o", "json")):
            refused = await asyncio.to_thread(
                run_bkctl, "autorecovery", "pending", *wrong, BKCTL_METADATA_URI=metadata_uri
            )
            assert refused.exit_code == 2, refused


async def test_watching_measures_the_time_left(metadata_uri: str) -> None:
    uri = parse_metadata_uri(metadata_uri)
    async with await ZooKeeperStore.connect(uri.servers) as store:
        await _plant(store, uri.root, uri.tree)
        with TerminalSession(
            "autorecovery", "pending", "-w", "--interval", "50ms", BKCTL_METADATA_URI=metadata_uri
        ) as session:
            await asyncio.to_thread(session.wait_for, "5 ledgers marked")
            assert await UnderReplicationMarks(store, uri.root, LoopClock()).clear(5, 0)
            await asyncio.to_thread(session.wait_for, "time left: about")
            session.type("\x03")
            assert await asyncio.to_thread(session.exit_code) == 130
