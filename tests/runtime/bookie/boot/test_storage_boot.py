"""A boot that is stopped leaves what a kill would, and closes its files only when the lane has ended."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from bkctl.runtime.bookie.boot.process import real_ports
from bkctl.runtime.bookie.boot.storage_boot import BOOT_LANE, StorageBoot
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EngineConfig, StorageConfig
from bkctl.storage.dirty_marks import DirtyMarks
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.ledger_storage import LedgerStorage, lock_directories
from bkctl.storage.journal.format import encode_ledger_key_record
from bkctl.storage.ports import IndexStore
from tests.storage.engines import KEY, NOW_MS, config_below, entry

COUNT = 100
PAYLOAD = bytes(100_000)
FILE_SYSTEM = OsFileSystem()


def journaled(directory: Path) -> StorageConfig:
    """Settings of a storage whose entries are in the journal alone."""
    config = config_below(directory, engine=EngineConfig(memtable_bytes_max=64 * 1024 * 1024))
    storage = LedgerStorage.open(FILE_SYSTEM, open_plyvel, config, NOW_MS)
    storage.replay()
    storage.journals[0].write_group([encode_ledger_key_record(1, KEY)])
    for entry_id in range(COUNT):
        storage.journals[0].write_group([entry(1, entry_id, PAYLOAD)])
    storage.close()
    return config


async def test_a_replay_that_is_cancelled_stops_between_two_batches_and_loses_nothing(tmp_path: Path) -> None:
    config = journaled(tmp_path)
    ports = real_ports()
    room = DiskRoom(FILE_SYSTEM, config.ledger_directories, 0)
    boot = StorageBoot(ports, config, DirtyMarks(False, False), room)
    storage = await boot.open(lock_directories(FILE_SYSTEM, config))
    engine = storage.engines[0]
    add_many = engine.add_many
    is_in_first_batch, gate = threading.Event(), threading.Event()

    def held_add_many(*arguments: Any) -> bool:
        is_in_first_batch.set()
        gate.wait()
        return add_many(*arguments)

    engine.add_many = held_add_many  # type: ignore[assignment, method-assign]
    replaying = asyncio.ensure_future(boot.replay(storage, lambda: None))
    await asyncio.to_thread(is_in_first_batch.wait)
    replaying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replaying
    gate.set()
    await ports.workers.run(BOOT_LANE, storage.close)  # as the server does: only when the lane has ended
    assert 0 < engine.memtable_bytes < COUNT * len(PAYLOAD) / 2, "it went no further than its batch"

    storage = await boot.open(lock_directories(FILE_SYSTEM, config))
    steps: list[int] = []
    await boot.replay(storage, lambda: steps.append(storage.engines[0].memtable_bytes))
    assert len(set(steps)) > 1, "a caller sees that the replay proceeds"
    assert [storage.engines[0].stored.read(1, entry_id) for entry_id in range(COUNT)] == [
        entry(1, entry_id, PAYLOAD) for entry_id in range(COUNT)
    ]
    storage.close()
    await ports.workers.close()


async def test_an_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    config = journaled(tmp_path)
    ports = real_ports()
    room = DiskRoom(FILE_SYSTEM, config.ledger_directories, 0)
    boot = StorageBoot(ports, config, DirtyMarks(False, False), room)
    is_opening, gate = threading.Event(), threading.Event()

    def held_open(path: str, *, create: bool, strict: bool) -> IndexStore:
        is_opening.set()
        gate.wait()
        return open_plyvel(path, create=create, strict=strict)

    held_boot = StorageBoot(dataclasses.replace(ports, open_index=held_open), config, DirtyMarks(False, False), room)
    opening = asyncio.ensure_future(held_boot.open(lock_directories(FILE_SYSTEM, config)))
    await asyncio.to_thread(is_opening.wait)
    opening.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    storage = await boot.open(lock_directories(FILE_SYSTEM, config))
    storage.close()
    await ports.workers.close()
