"""Group commit over a real journal and a real lane: who is told what, after which system call."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.bookie.disks.modes import BookieModes, ReadOnlyReason
from bkctl.runtime.bookie.serving.adds import AddPath
from bkctl.runtime.bookie.serving.ledger_handles import LedgerHandles
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.protocol.messages import AddRun
from bkctl.runtime.protocol.status import Status
from bkctl.storage.config import EngineConfig, JournalConfig
from bkctl.storage.errors import JournalFailedError, JournalFullError, NoWritableDiskError
from bkctl.storage.journal.format import encode_fence_record
from tests.runtime.bookie.committing import add_run, committing
from tests.storage.engines import config_below, open_storage
from tests.until import until


async def test_an_add_is_acknowledged_behind_its_sync(tmp_path: Path) -> None:
    async with committing(tmp_path) as running:
        gate = running.disk.close_gate("sync")
        running.add(0)
        await until(lambda: ("sync", "1.txn") in running.disk.calls)
        running.add(1)
        running.add(2)
        assert running.answers.entry_ids == []
        gate.set()
        await until(lambda: running.answers.entry_ids == [0, 1, 2])
        assert running.disk.take_calls() == [("write", "1.txn"), ("sync", "1.txn")] * 2, "1 and 2 share a sync"


async def test_nothing_waits_for_company_by_default(tmp_path: Path) -> None:
    async with committing(tmp_path) as running:
        running.add(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await until(lambda: bool(running.disk.calls))
        assert JournalConfig().group_wait_s == 0


async def test_a_group_waits_as_long_as_the_settings_say(tmp_path: Path) -> None:
    async with committing(tmp_path, group_wait_s=60.0, group_record_count_max=3, group_bytes_max=5000) as running:
        running.add(0)
        running.add(1)
        await asyncio.sleep(0.02)
        assert running.disk.calls == []
        running.add(2)
        await until(lambda: running.answers.entry_ids == [0, 1, 2])
        running.add(3)
        running.add(4, 6000)
        await until(lambda: running.answers.entry_ids == [0, 1, 2, 3, 4])
        running.add(5)
        await asyncio.sleep(0.02)
        assert len(running.answers.entry_ids) == 5
    assert running.answers.entry_ids == [0, 1, 2, 3, 4, 5], "stopping waits for nobody"
    assert running.journaled() == [0, 1, 2, 3, 4, 5]


async def test_groups_that_became_complete_during_a_sync_share_the_next_one(tmp_path: Path) -> None:
    async with committing(tmp_path, group_record_count_max=1) as running:
        gate = running.disk.close_gate("sync")
        running.add(0)
        await until(lambda: ("sync", "1.txn") in running.disk.calls)
        for entry_id in range(1, 5):
            running.add(entry_id)
        assert running.journal.complete_groups_count == 5
        gate.set()
        await until(lambda: running.answers.entry_ids == [0, 1, 2, 3, 4])
        assert running.disk.take_calls() == [("write", "1.txn"), ("sync", "1.txn")] * 2
    assert running.journaled() == [0, 1, 2, 3, 4]


async def test_a_wait_ends(tmp_path: Path) -> None:
    async with committing(tmp_path, group_wait_s=0.01) as running:
        running.add(0)
        await until(lambda: running.answers.entry_ids == [0])


async def test_an_empty_queue_ends_the_wait_where_the_settings_say_so(tmp_path: Path) -> None:
    async with committing(tmp_path, group_wait_s=60.0, is_flushed_when_queue_empty=True) as running:
        running.add(0)
        await until(lambda: running.answers.entry_ids == [0])


async def test_without_synced_data_adds_are_acknowledged_behind_the_write(tmp_path: Path) -> None:
    async with committing(tmp_path, is_data_synced=False, sync_interval_s=3600.0) as running:
        for entry_id in range(3):
            running.add(entry_id)
            await until(lambda: len(running.answers.entry_ids) > entry_id)  # noqa: B023  called at once
        assert running.disk.take_calls() == [("write", "1.txn")] * 3
        assert running.writer.durable_position.offset == 512, "the checkpoint token is what is synced, and no more"
        assert running.writer.has_unsynced
        await running.journal.append_and_wait(encode_fence_record(1))
        assert running.disk.take_calls() == [("write", "1.txn"), ("sync", "1.txn")]
        running.add(3)
        await running.journal.barrier()
        assert running.disk.take_calls() == [("write", "1.txn"), ("sync", "1.txn")]
        assert running.writer.sync() == running.writer.durable_position, "nothing is left to sync"
        running.add(4)
        await until(lambda: len(running.answers.entry_ids) == 5)
        await running.journal.barrier()
        assert running.disk.take_calls() == [("write", "1.txn"), ("sync", "1.txn")]
        running.add(5)
        await until(lambda: len(running.answers.entry_ids) == 6)
    assert running.disk.take_calls()[-1] == ("sync", "1.txn"), "stopping syncs"


async def test_without_synced_data_the_page_cache_is_flushed_at_intervals(tmp_path: Path) -> None:
    async with committing(tmp_path, is_data_synced=False, sync_interval_s=0.02) as running:
        running.add(0)
        await until(lambda: ("sync", "1.txn") in running.disk.calls)
        await until(lambda: not running.writer.has_unsynced)
        assert running.writer.durable_position.offset == 1024


async def test_without_written_data_adds_need_no_journal(tmp_path: Path) -> None:
    async with committing(tmp_path, is_data_written=False) as running:
        running.add(0)
        assert running.answers.entry_ids == [0]
        await running.journal.append_and_wait(encode_fence_record(1))
    assert running.journaled() == []
    assert running.writer.durable_position.offset == 1024, "the fence is journaled"


async def test_a_failed_sync_is_final(tmp_path: Path) -> None:
    async with committing(tmp_path) as running:
        running.disk.fail_on = "sync"
        running.add(0)
        fence = running.journal.append_and_wait(encode_fence_record(1))
        with pytest.raises(JournalFailedError):
            await fence
        await asyncio.wait([running.task], timeout=30)
        assert isinstance(running.task.exception(), JournalFailedError), "the journal does not go on"
        running.disk.fail_on = None
        with pytest.raises(JournalFailedError):
            await running.journal.barrier()
    assert running.answers.entry_ids == []


async def test_a_full_disk_stops_the_journal_until_there_is_room(tmp_path: Path) -> None:
    """Writers need not wait for space: the adds that it has queued are refused. Their records stay."""
    async with committing(tmp_path) as running:
        gate = running.disk.close_gate("write")
        running.disk.is_full = True
        running.add(0)
        await until(lambda: running.journal.complete_groups_count == 1)
        running.add(1)
        fence = running.journal.append_and_wait(encode_fence_record(1))
        gate.set()
        await until(lambda: len(running.room) > 2)
        assert running.answers.statuses == [Status.READ_ONLY] * 2
        assert all(isinstance(error, JournalFullError) for error in running.room)
        assert not fence.done()
        running.disk.is_full = False
        await fence
        running.add(2)
        await until(lambda: running.answers.entry_ids == [2])
        assert running.room[-1] is None
    assert running.answers.statuses == [Status.READ_ONLY] * 2 + [Status.OK]
    assert running.journaled() == [0, 1, 2]


async def test_a_journal_that_stops_on_a_full_disk_acknowledges_nothing(tmp_path: Path) -> None:
    """And whoever waits is told: a stop that waits for them would not end."""
    async with committing(tmp_path) as running:
        running.disk.is_full = True
        running.add(0)
        fence = running.journal.append_and_wait(encode_fence_record(1))
        await until(lambda: bool(running.room))
        running.journal.give_up_room()
        with pytest.raises(JournalFailedError, match="had no space for"):
            await fence
        with pytest.raises(JournalFailedError, match="had no space for"):
            await running.task
    assert running.answers.entry_ids == []


async def test_where_read_only_is_forbidden_a_full_disk_ends_the_bookie(tmp_path: Path) -> None:
    def refuse(_error: JournalFullError | None) -> None:
        raise NoWritableDiskError("read-only mode is disabled")

    async with committing(tmp_path, refuse) as running:
        running.disk.is_full = True
        fence = running.journal.append_and_wait(encode_fence_record(1))
        with pytest.raises(JournalFailedError, match="read-only mode is disabled"):
            await fence
        with pytest.raises(NoWritableDiskError):
            await running.task
        running.task = asyncio.get_running_loop().create_task(asyncio.sleep(0))


def test_a_full_journal_makes_the_bookie_read_only_while_it_lasts() -> None:
    modes = BookieModes(is_forced_read_only=False)
    refused: list[bool] = []
    modes.on_no_room(lambda: refused.append(True))
    for index in (0, 1, 0):
        modes.note_journal(index, JournalFullError("full"))
    assert modes.reasons == (ReadOnlyReason.JOURNAL_FULL,)
    assert not modes.allows_add(1, is_high_priority=True)
    assert len(refused) == 2
    modes.note_journal(0, None)
    assert not modes.allows_add(1, is_high_priority=False), "journal 1 still has none"
    modes.note_journal(1, None)
    assert modes.allows_add(1, is_high_priority=False)


async def test_the_limit_of_the_queue_holds_for_runs(tmp_path: Path) -> None:
    async with committing(tmp_path, group_record_count_max=3, queue_record_count_max=12) as running:
        gate = running.disk.close_gate("sync")
        running.journal.append(running.answers, add_run(1, *range(10)))
        assert running.journal.has_room_for(add_run(1, 10, 11))
        assert not running.journal.has_room_for(add_run(1, 10, 11, 12))
        gate.set()
        await until(lambda: len(running.answers.entry_ids) == 10)
        assert running.disk.take_calls() == [("write", "1.txn"), ("sync", "1.txn")]
    assert running.answers.entry_ids == list(range(10))


@pytest.mark.parametrize("limit", [{"queue_record_count_max": 5}, {"queue_bytes_max": 64 * 1024}])
async def test_a_long_queue_makes_adds_wait_and_loses_none(tmp_path: Path, limit: dict[str, Any]) -> None:
    """Back-pressure: nothing is stored or journaled for an add that the queue has no room for."""
    storage = open_storage(config_below(tmp_path, engine=EngineConfig()))
    storage.replay()
    directory = tmp_path / "other"
    directory.mkdir()
    async with committing(directory, **limit) as running:
        gate = running.disk.close_gate("sync")
        handles = LedgerHandles(storage, [running.journal], LoopClock())
        adds = AddPath(handles, LoopClock(), 60, lambda: None)
        running.journal.on_room(adds.retry_waiting)
        for entry_id in range(60):
            adds.add(running.answers, add_run(1, entry_id, payload=bytes(2000)))
        stored = [entry_id for entry_id in range(60) if storage.engine_of(1).find_cached(1, entry_id)]
        assert stored == list(range(len(stored)))
        assert 0 < len(stored) < 40
        assert not running.journal.has_room
        gate.set()
        await until(lambda: len(running.answers.entry_ids) == 60)
    assert running.answers.entry_ids == list(range(60)), "in the order of their arrival"
    assert running.journaled() == list(range(60))
    storage.close()


async def test_the_measures_say_why_groups_were_complete(tmp_path: Path) -> None:
    async with committing(tmp_path, group_record_count_max=2, is_flushed_when_queue_empty=True) as running:
        running.journal.append(running.answers, add_run(1, *range(6)))
        await until(lambda: len(running.answers.entry_ids) == 6)
        measures = running.journal.measures
        assert (measures.groups_by_size_count, measures.groups_by_empty_queue_count) == (1, 0)
        assert (measures.commits.succeeded.count, measures.group_records.succeeded.count) == (6, 1)
        assert measures.written_bytes > measures.group_bytes.succeeded.total > 0
    async with committing(tmp_path, group_wait_s=0.001, is_flushed_when_queue_empty=False) as running:
        running.add(1)
        await until(lambda: bool(running.answers.entry_ids))
        measures = running.journal.measures
        assert (measures.groups_by_wait_count, measures.groups_by_empty_queue_count) == (1, 0)


async def test_adds_with_deferred_sync_are_answered_between_write_and_sync(tmp_path: Path) -> None:
    """The other adds of the group, and a force of the ledger, are answered after it. The next group is written then."""
    async with committing(tmp_path) as running:
        gate = running.disk.close_gate("sync")
        running.add(0)
        running.journal.append(running.answers, deferred_run(1, 1))
        forced = running.journal.barrier()
        running.journal.append(running.answers, deferred_run(1, 2, is_recovery=True))
        await until(lambda: running.answers.entry_ids == [1])
        await asyncio.sleep(0.05)
        assert running.answers.entry_ids == [1]
        assert not forced.done()
        gate.set()
        await forced
        await until(lambda: running.answers.entry_ids == [1, 0, 2])
        running.journal.append(running.answers, deferred_run(1, 3))
        await until(lambda: running.answers.entry_ids == [1, 0, 2, 3])
        await running.journal.barrier()
        assert running.writer.durable_position == running.writer.sync()
        assert running.disk.take_calls() == [("write", "1.txn"), ("sync", "1.txn")] * 2
    assert running.journaled() == [0, 1, 2, 3]


async def test_a_failed_sync_reaches_who_waits_for_it_behind_deferred_adds(tmp_path: Path) -> None:
    async with committing(tmp_path) as running:
        running.disk.fail_on = "sync"
        running.journal.append(running.answers, deferred_run(1, 0))
        running.add(1)
        with pytest.raises(JournalFailedError):
            await running.journal.barrier()
        await asyncio.wait([running.task], timeout=30)
        assert isinstance(running.task.exception(), JournalFailedError)
    assert running.answers.entry_ids == [0]


async def test_a_full_disk_refuses_deferred_adds_and_a_force_waits_for_its_sync(tmp_path: Path) -> None:
    async with committing(tmp_path) as running:
        running.disk.is_full = True
        running.add(0)
        running.journal.append(running.answers, deferred_run(1, 1))
        forced = running.journal.barrier()
        await until(lambda: len(running.room) > 2)
        assert running.answers.statuses == [Status.READ_ONLY] * 2
        assert not forced.done()
        running.disk.is_full = False
        await forced
        assert running.disk.calls[-2:] == [("write", "1.txn"), ("sync", "1.txn")]
        running.disk.fail_on = "write"
        running.journal.append(running.answers, deferred_run(1, 2))
        with pytest.raises(JournalFailedError):
            await running.journal.barrier()
    assert running.answers.entry_ids == []
    assert running.journaled() == [0, 1]


def deferred_run(ledger_id: int, entry_id: int, *, is_recovery: bool = False) -> AddRun:
    run = add_run(ledger_id, entry_id)
    run.is_deferred_sync, run.is_recovery_add = True, is_recovery
    return run
