"""Entry ids changed in place: the log still agrees with its own map, and no scan tells that anything lacks."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bkctl.runtime.config import GarbageCollectionConfig
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.entry_log.compaction_scan import CHILD_MODULE, ScanEnd, ScanEntries, ScanMessage
from bkctl.storage.entry_log.log_lists import read_quarantine
from bkctl.storage.errors import EntryDamagedError
from bkctl.storage.filenames import QUARANTINE
from tests.runtime.bookie.conftest import MODES
from tests.runtime.bookie.open_logs import (
    SMALL_LOGS,
    OpenLogs,
    delete,
    fill,
    kill_compaction,
    leftovers,
    log_names,
    open_logs,
    require_stored,
    stored,
)
from tests.sim.children import InProcessChildren
from tests.storage.engines import open_engine
from tests.storage.traced_disk import TracedDisk

KEPT = [*((2, entry_id) for entry_id in range(5)), *((3, entry_id) for entry_id in range(8)), (2, 9)]
LOST = (2, 1)
"""The entry whose id is changed."""
NEW_IDS = pytest.mark.parametrize("new_entry_id", [77_777, 0, 4, 9], ids=["none", "one before", "one behind", "moved"])
"""Of no entry; of one in the same log; of one in another log."""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two logs: 0.log is to be compacted, and agrees with its own map; all in 1.log is in use."""
    root = tmp_path / "current"
    engine = open_engine(root, config=SMALL_LOGS)
    fill(engine, [2, 4], range(5))
    fill(engine, [3], range(8))
    fill(engine, [2], [9])
    delete(engine, [4])
    engine.close()
    assert log_names(root) == ["0.log", "1.log"]
    data = (root / "0.log").read_bytes()
    assert stored(*LOST) in data
    assert stored(2, 9) not in data
    return root


def change_entry_id(log: Path, new_entry_id: int) -> None:
    data = log.read_bytes()
    offset = data.index(stored(*LOST)) + 8
    with log.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack(">q", new_entry_id))


def require_map_agrees(root: Path) -> None:
    children = InProcessChildren(OsFileSystem(), open_plyvel)
    with children.pool(CHILD_MODULE, str(root), 1) as pool:
        messages = list(pool.stream(ScanEntries(directory=str(root), log_id=0), ScanMessage))
    assert messages[-1] == ScanEnd(is_complete=True)


def require_all(logs: OpenLogs) -> None:
    for ledger_id, entry_id in KEPT:
        require_stored(logs.engine, [ledger_id], [entry_id])


def require_all_but_the_lost(logs: OpenLogs) -> None:
    for ledger_id, entry_id in KEPT:
        if (ledger_id, entry_id) != LOST:
            require_stored(logs.engine, [ledger_id], [entry_id])


async def require_found_again(root: Path, whole: bytes) -> None:
    """Once the bytes are as they were, the entry is there, and the log may go."""
    (root / "0.log").write_bytes(whole)
    (root / QUARANTINE).unlink()
    async with open_logs(root) as logs:
        require_all(logs)
        assert await logs.round() == 0
        require_all(logs)
        assert logs.collector.quarantined_count == 0
        assert not (root / "0.log").exists()


@MODES
@NEW_IDS
async def test_a_log_in_which_an_entry_has_another_id_is_quarantined(
    directory: Path, config: GarbageCollectionConfig, new_entry_id: int
) -> None:
    log = directory / "0.log"
    whole = log.read_bytes()
    change_entry_id(log, new_entry_id)
    require_map_agrees(directory)
    damaged = log.read_bytes()
    for _ in range(2):
        async with open_logs(directory, config=config) as logs:
            await logs.round()
            assert log.read_bytes() == damaged
            assert logs.collector.quarantined_count == 1
            require_all_but_the_lost(logs)
            with pytest.raises(EntryDamagedError, match=f"found 2:{new_entry_id} instead"):
                logs.engine.stored.read(*LOST)
    assert "ledger 2 entry 1" in read_quarantine(TracedDisk(), str(directory))[0]
    await require_found_again(directory, whole)


@MODES
@NEW_IDS
async def test_it_is_kept_while_a_repair_is_due_too(
    directory: Path, config: GarbageCollectionConfig, new_entry_id: int
) -> None:
    change_entry_id(directory / "0.log", new_entry_id)
    async with open_logs(directory, config=config) as logs:
        await logs.round(is_repair_due=True)
        assert logs.collector.quarantined_count == 1
        assert (directory / "0.log").exists()
        require_all_but_the_lost(logs)


@MODES
async def test_it_matters_no_more_when_the_ledger_is_gone(directory: Path, config: GarbageCollectionConfig) -> None:
    change_entry_id(directory / "0.log", 77_777)
    async with open_logs(directory, config=config) as logs:
        delete(logs.engine, [LOST[0]])
        assert await logs.round() == 0
        assert logs.collector.quarantined_count == 0
        assert not (directory / "0.log").exists()
        require_stored(logs.engine, [3], range(8))


KILLED_BEFORE = {
    "the new log has a name": ("link", ".log", 0),
    "the index is changed": ("replace", ".seal", 0),
    "the compaction is forgotten": ("remove", ".compacted", 0),
    "the source is deleted": ("remove", ".log", 0),
}


@pytest.mark.parametrize("before", list(KILLED_BEFORE)[:3])
@NEW_IDS
async def test_a_compaction_that_is_resumed_does_not_delete_it_either(
    directory: Path, before: str, new_entry_id: int
) -> None:
    """Its copy lacks the entry, as the scan of the source did."""
    log = directory / "0.log"
    whole = log.read_bytes()
    change_entry_id(log, new_entry_id)
    await kill_compaction(directory, *KILLED_BEFORE[before])
    assert leftovers(directory)
    async with open_logs(directory) as logs:
        await logs.round()
        assert logs.collector.quarantined_count == 1
        assert log.exists()
        require_all_but_the_lost(logs)
    await require_found_again(directory, whole)


@pytest.mark.parametrize("before", KILLED_BEFORE)
@NEW_IDS
async def test_damage_of_the_source_after_the_copying_loses_nothing(
    directory: Path, before: str, new_entry_id: int
) -> None:
    await kill_compaction(directory, *KILLED_BEFORE[before])
    change_entry_id(directory / "0.log", new_entry_id)
    async with open_logs(directory) as logs:
        assert await logs.round() == 0
        assert logs.collector.quarantined_count == 0
        assert not (directory / "0.log").exists()
        require_all(logs)


@NEW_IDS
async def test_damage_of_the_copy_before_the_index_names_it_loses_nothing(directory: Path, new_entry_id: int) -> None:
    """Even where the wrong copy of an entry comes in another message than the right one."""
    await kill_compaction(directory, *KILLED_BEFORE["the new log has a name"])
    (finished,) = leftovers(directory)
    change_entry_id(directory / finished, new_entry_id)
    async with open_logs(directory, scan_rows_max=1) as logs:
        await logs.round()
        require_all(logs)
        await logs.round()
        require_all(logs)
