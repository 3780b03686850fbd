"""Offline tools and scans on a disk in memory: none of their paths exists on the disk of this machine."""

from __future__ import annotations

import os

import pytest

from bkctl.storage.config import EngineConfig, EntryLogConfig, JournalConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.entry_log.compaction_scan import (
    CHILD_MODULE,
    MeasuredLog,
    MeasureLogs,
    ScanEnd,
    ScanEntries,
    ScanMessage,
)
from bkctl.storage.entry_log.reader import list_entry_logs
from bkctl.storage.filenames import current_directory, entry_log_file_name
from bkctl.storage.offline.storage_check import StorageCheck, StorageFinding
from tests.crash.model_disk import Mode
from tests.sim.children import InProcessChildren
from tests.sim.disk import MemoryDisk
from tests.sim.index_store import opening_on
from tests.storage.engines import KEY, NOW_MS, entry

CONFIG = StorageConfig(
    journal_directories=("/simulated/journal",),
    ledger_directories=("/simulated/ledgers",),
    journal=JournalConfig(preallocation_bytes=16 * 1024),
    engine=EngineConfig(memtable_bytes_max=256 * 1024, entry_log=EntryLogConfig(is_next_log_prepared=False)),
)
DIRECTORY = current_directory(CONFIG.ledger_directories[0])
COUNT = 30


@pytest.fixture
def disk() -> MemoryDisk:
    """Of a stopped bookie with entries of two ledgers, in two logs."""
    disk = MemoryDisk(Mode.ORDERED)
    storage = LedgerStorage.open(disk, opening_on(disk), CONFIG, NOW_MS)
    storage.replay()
    [engine] = storage.engines
    for ledger_id in (1, 2):
        engine.rows.set_master_key(ledger_id, KEY)
        for entry_id in range(COUNT):
            engine.add(ledger_id, entry_id, entry(ledger_id, entry_id))
        checkpoint_now(engine)
    storage.close()
    return disk


def check(disk: MemoryDisk) -> tuple[list[StorageFinding], StorageCheck]:
    open_index = opening_on(disk)
    deep = StorageCheck(disk, open_index, CONFIG, lambda _: None, InProcessChildren(disk, open_index))
    return list(deep.findings()), deep


def test_a_deep_check_looks_up_every_location(disk: MemoryDisk) -> None:
    found, deep = check(disk)
    assert (found, deep.counts.ledger_count, deep.counts.location_count) == ([], 2, 2 * COUNT)


def test_a_deep_check_finds_a_location_without_its_entry(disk: MemoryDisk) -> None:
    log_id = list_entry_logs(disk, DIRECTORY)[0]
    file = disk.open(os.path.join(DIRECTORY, entry_log_file_name(log_id)), writable=True)
    file.pwrite(bytes(8), 1028)
    file.close()
    found, _ = check(disk)
    assert [(each.ledger_id, each.entry_id) for each in found if each.check == "locations"] == [(1, 0)]


def test_a_storage_check_reads_everything(disk: MemoryDisk) -> None:
    storage_check = StorageCheck(disk, opening_on(disk), CONFIG, lambda _: None)
    assert list(storage_check.findings()) == []
    assert storage_check.counts.entry_count == 2 * COUNT


def test_scans_read_all_logs(disk: MemoryDisk) -> None:
    children = InProcessChildren(disk, opening_on(disk))
    log_ids = list_entry_logs(disk, DIRECTORY)
    with children.pool(CHILD_MODULE, DIRECTORY, 1) as pool:
        measured = list(pool.stream(MeasureLogs(directory=DIRECTORY, log_ids=log_ids), ScanMessage))
        scanned = [list(pool.stream(ScanEntries(directory=DIRECTORY, log_id=each), ScanMessage)) for each in log_ids]
    assert [type(each) for each in measured] == [MeasuredLog] * len(log_ids)
    assert {ledger_id for each in measured for ledger_id in each.ledger_bytes} == {1, 2}
    assert all(isinstance(messages[-1], ScanEnd) for messages in scanned)
