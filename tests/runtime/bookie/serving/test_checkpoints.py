"""When a checkpoint counts, and what ends the bookie; real storage on a disk that fails once."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.serving.checkpoints import IDLE_S, CheckpointPace, CheckpointService, RetryDelays
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import DiskUnusableError
from bkctl.storage.ports import DiskSpace
from bkctl.storage.step_sizes import StepSizes
from tests.storage.engines import KEY, config_below, entry, open_storage
from tests.storage.traced_disk import TracedDisk
from tests.until import until

RESERVE_BYTES = 1000


class FailingDisk(TracedDisk):
    """Fails every write to an entry log with ``number``, while that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.number: int | None = None
        self.failure_count = 0
        self.usable_bytes = 2**29
        self.is_filled_beside = False
        """Whether somebody else fills the disk when an entry log is written."""

    def note(self, operation: str, path: str) -> None:
        super().note(operation, path)
        if self.number is not None and operation == "write" and path.endswith(".log"):
            self.failure_count += 1
            raise OSError(self.number, os.strerror(self.number), path)
        if self.is_filled_beside and operation == "write" and path.endswith(".log"):
            self.usable_bytes = RESERVE_BYTES // 2 - 1

    def space(self, path: str) -> DiskSpace:
        """In which nothing takes room but what a test says."""
        return DiskSpace(2**30, self.usable_bytes, filesystem_id=1)


class OpenEngine:
    def __init__(self, root: Path, workers: LaneWorkers) -> None:
        self.disk = FailingDisk()
        config = config_below(root)
        steps = StepSizes(deleted_row_count_max=6)
        self.storage: LedgerStorage = open_storage(config, filesystem=self.disk, steps=steps)
        self.storage.replay()
        self.engine = self.storage.engines[0]
        self.engine.rows.set_master_key(1, KEY)
        room = DiskRoom(self.disk, config.ledger_directories, reserve_bytes=RESERVE_BYTES)
        pace = CheckpointPace(time.thread_time, time.sleep)
        self.modes = BookieModes(is_forced_read_only=False)
        self.service = CheckpointService(self.storage, workers, 3600, room, self.modes, pace, RetryDelays(0.01, 0.01))
        self.run = asyncio.get_running_loop().create_task(self.service.run())


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[OpenEngine]:
    workers = LaneWorkers()
    opened = OpenEngine(tmp_path, workers)
    yield opened
    opened.service.stop()
    await asyncio.wait([opened.run])
    await workers.close()
    opened.storage.close()


async def test_who_waits_for_a_checkpoint_is_told_when_it_is_durable(opened: OpenEngine) -> None:
    opened.engine.add(1, 0, entry(1, 0))
    async with asyncio.timeout(30):
        await opened.service.settle()
    assert opened.engine.stored.read(1, 0) == entry(1, 0)


async def test_a_checkpoint_that_failed_tells_nobody(opened: OpenEngine) -> None:
    """The retry writes what the failed one was to write, and nothing newer: who came meanwhile waits for the next."""
    opened.disk.number = errno.EACCES
    opened.engine.add(1, 0, entry(1, 0))
    first = asyncio.ensure_future(opened.service.settle())
    await until(lambda: opened.disk.failure_count)
    opened.engine.add(1, 1, entry(1, 1))
    second = asyncio.ensure_future(opened.service.settle())
    await asyncio.sleep(0.1)
    assert not first.done()
    assert not second.done()
    opened.disk.number = None
    async with asyncio.timeout(30):
        await asyncio.gather(first, second)
    for entry_id in (0, 1):
        assert opened.engine.stored.read(1, entry_id) == entry(1, entry_id)


async def test_a_half_full_write_cache_is_flushed_when_adds_pause(opened: OpenEngine) -> None:
    """Neither before it is half full, nor while adds come or wait for the journal."""
    is_idle = True
    opened.service.idle_when(lambda: is_idle)
    entry_ids = itertools.count()

    def add() -> None:
        entry_id = next(entry_ids)
        opened.engine.add(1, entry_id, entry(1, entry_id, bytes(5000)))
        opened.service.note_adds()

    add()
    await asyncio.sleep(4 * IDLE_S)
    assert opened.engine.stored.read(1, 0) is None
    while not opened.engine.is_filling_up:
        add()
    is_idle = False
    await asyncio.sleep(4 * IDLE_S)
    assert opened.engine.stored.read(1, 0) is None
    is_idle = True
    await until(lambda: opened.engine.stored.read(1, 0) is not None)


async def test_a_large_deletion_is_ended_by_the_checkpoints_that_follow_at_once(opened: OpenEngine) -> None:
    for entry_id in range(20):
        opened.engine.add(1, entry_id, entry(1, entry_id))
    async with asyncio.timeout(30):
        await opened.service.settle()
        opened.engine.delete_ledger(1)
        await opened.service.settle()
        assert opened.engine.is_deletion_pending(1)
        await until(lambda: not opened.engine.is_deletion_pending(1))


async def test_what_takes_the_room_during_a_checkpoint_stops_it_before_the_index(opened: OpenEngine) -> None:
    """LevelDB without room ends the process; a checkpoint is tried again when there is some."""
    opened.disk.is_filled_beside = True
    opened.engine.add(1, 0, entry(1, 0))
    settled = asyncio.ensure_future(opened.service.settle())
    await until(lambda: opened.modes.is_disk_full)
    assert not settled.done()
    assert opened.engine.stored.read(1, 0) is None, "the index knows nothing of it"
    assert opened.engine.find_cached(1, 0) == entry(1, 0)
    opened.disk.is_filled_beside = False
    opened.disk.usable_bytes = 2**29
    async with asyncio.timeout(30):
        await settled
    assert not opened.modes.reasons
    assert opened.engine.stored.read(1, 0) == entry(1, 0)
    assert os.listdir(opened.engine.ledger_directory).count("0.log") == 0, "what was written of it took room"


async def test_the_last_checkpoint_takes_what_room_there_is(opened: OpenEngine) -> None:
    opened.disk.usable_bytes = RESERVE_BYTES // 2 - 1
    opened.engine.add(1, 0, entry(1, 0))
    opened.service.stop()
    await asyncio.wait([opened.run])
    await opened.service.flush()
    assert opened.engine.stored.read(1, 0) == entry(1, 0)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
async def test_a_disk_that_fails_ends_the_bookie_with_a_sentence(opened: OpenEngine, number: int) -> None:
    opened.disk.number = number
    opened.engine.add(1, 0, entry(1, 0))
    opened.service.request()
    with pytest.raises(DiskUnusableError, match=r"a disk failed: .*ledgers-0/current/.*log"):
        async with asyncio.timeout(30):
            await asyncio.shield(opened.run)
