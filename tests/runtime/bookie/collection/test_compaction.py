"""Compaction of real logs: what is in use stays readable at every moment, what is not gives its space back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.config import GarbageCollectionConfig
from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.engine.replay import checkpoint_now
from bkctl.storage.entry_log.reader import EntryLogScan, list_entry_logs
from bkctl.storage.filenames import current_directory, entry_log_file_name
from tests.runtime.bookie.conftest import MODES
from tests.runtime.bookie.open_logs import (
    ENTRIES,
    FAST,
    GONE,
    KEPT,
    SMALL_LOGS,
    add,
    delete,
    fill,
    kill_compaction,
    leftovers,
    log_names,
    open_logs,
    require_stored,
    stored,
)
from tests.storage.engines import PhotographedDisk, open_engine
from tests.storage.golden_bookies import IMAGES, adopt, ledger_directories


@MODES
async def test_only_what_is_in_use_is_left(mixed: Path, config: GarbageCollectionConfig) -> None:
    before = log_names(mixed)
    async with open_logs(mixed, config=config, children=ChildProcesses()) as logs:
        assert await logs.round() == 0
        require_stored(logs.engine, KEPT, ENTRIES)
        for ledger_id in GONE:
            assert logs.engine.stored.read(ledger_id, 0) is None
        assert logs.metrics.copied_entries_count == len(KEPT) * len(ENTRIES)
        assert logs.metrics.reclaimed_bytes > 3 * logs.metrics.copied_bytes
        assert set(before).isdisjoint(log_names(mixed))
    assert leftovers(mixed) == []
    engine = open_engine(mixed, config=SMALL_LOGS)
    require_stored(engine, KEPT, ENTRIES)
    engine.close()


@MODES
async def test_nothing_is_copied_for_a_log_without_ledgers(mixed: Path, config: GarbageCollectionConfig) -> None:
    async with open_logs(mixed, config=config) as logs:
        delete(logs.engine, KEPT)
        assert await logs.round(None) == 0
        assert logs.metrics.copied_entries_count == 0
        assert log_names(mixed) == []


@MODES
async def test_a_copy_that_the_index_does_not_name_is_left_behind(
    tmp_path: Path, config: GarbageCollectionConfig
) -> None:
    """Storage section 7.3: in Java a stale copy takes the place of the newer one."""
    async with open_logs(tmp_path / "current", config=config) as logs:
        fill(logs.engine, range(1, 15), range(1))
        fill(logs.engine, [20], range(40))  # so that the logs with the first copies are finished
        for ledger_id in (1, 2):
            add(logs.engine, ledger_id, [0], generation=1)
        checkpoint_now(logs.engine)
        delete(logs.engine, range(3, 15))
        held = held_by(tmp_path / "current")
        await logs.round()
        require_stored(logs.engine, [1, 2], [0], generation=1)
        assert "0.log" not in log_names(tmp_path / "current")
        in_use = [key for name in set(held).difference(log_names(tmp_path / "current")) for key in held[name]]
        assert {(1, 0), (2, 0)} < set(in_use)
        assert logs.metrics.copied_entries_count == sum(ledger_id == 20 for ledger_id, _ in in_use)


@MODES
async def test_of_two_copies_in_one_log_the_newer_is_copied(tmp_path: Path, config: GarbageCollectionConfig) -> None:
    async with open_logs(tmp_path / "current", config=config) as logs:
        add(logs.engine, 1, [0])
        checkpoint_now(logs.engine)
        add(logs.engine, 1, [0], generation=1)
        checkpoint_now(logs.engine)
        fill(logs.engine, [2], range(20))  # so that the log with both is finished
        assert held_by(tmp_path / "current")["0.log"][:2] == [(1, 0), (1, 0)]
        delete(logs.engine, [2])
        await logs.round()
        require_stored(logs.engine, [1], [0], generation=1)
        assert "0.log" not in log_names(tmp_path / "current")
        assert logs.metrics.copied_entries_count == 1


@MODES
async def test_a_newer_copy_at_the_same_offset_of_another_log_is_another_one(
    tmp_path: Path, config: GarbageCollectionConfig
) -> None:
    directory = tmp_path / "current"
    for generation in range(2):  # each process begins a log
        async with open_logs(directory, config=config) as logs:
            add(logs.engine, 1, [0], generation=generation)
            checkpoint_now(logs.engine)
            add(logs.engine, 2, [generation])
            checkpoint_now(logs.engine)
    async with open_logs(directory, config=config) as logs:
        assert held_by(directory) == {"0.log": [(1, 0), (2, 0)], "1.log": [(1, 0), (2, 1)]}
        delete(logs.engine, [2])
        await logs.round()
        require_stored(logs.engine, [1], [0], generation=1)
        assert logs.metrics.copied_entries_count == 1


def held_by(directory: Path) -> dict[str, list[tuple[int, int]]]:
    """Keys of the entries in each log that has any, in file order."""
    names = {log_id: entry_log_file_name(log_id) for log_id in list_entry_logs(OsFileSystem(), str(directory))}
    return {
        name: [(each.ledger_id, each.entry_id) for each in EntryLogScan(OsFileSystem(), str(directory), log_id)]
        for log_id, name in names.items()
    }


@MODES
async def test_an_entry_that_is_added_again_while_it_is_copied_stays_the_newer_one(
    mixed: Path, config: GarbageCollectionConfig
) -> None:
    async with open_logs(mixed, config=config) as logs:
        selected = asyncio.Event()
        workers_run = logs.workers.run

        def run(lane, function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
            if lane == COMPACTION_LANE and function.__name__ in {"read_bodies", "_copy"} and not selected.is_set():
                selected.set()
                # The comparison with the index is over; the copy is not made yet.
                add(logs.engine, 1, [0], generation=7)
                checkpoint_now(logs.engine)
            return workers_run(lane, function, *arguments, **keywords)

        logs.compactor._workers.run = run  # type: ignore[method-assign]
        await logs.round()
        assert selected.is_set()
        require_stored(logs.engine, [1], [0], generation=7)
        require_stored(logs.engine, [1], ENTRIES[1:])
        require_stored(logs.engine, [2, 3], ENTRIES)


@MODES
async def test_a_ledger_that_is_deleted_while_it_is_copied_does_not_come_back(
    mixed: Path, config: GarbageCollectionConfig
) -> None:
    async with open_logs(mixed, config=config) as logs:
        workers_run = logs.workers.run

        def run(lane, function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
            if function.__name__ == "relocate" and logs.engine.rows.find(1) is not None:
                delete(logs.engine, [1])
            return workers_run(lane, function, *arguments, **keywords)

        logs.compactor._workers.run = run  # type: ignore[method-assign]
        await logs.round()
        assert [logs.engine.stored.read(1, entry_id) for entry_id in ENTRIES] == [None] * len(ENTRIES)
        require_stored(logs.engine, [2, 3], ENTRIES)


@MODES
async def test_reads_beside_compaction_never_fail(mixed: Path, config: GarbageCollectionConfig) -> None:
    async with open_logs(mixed, config=config, children=ChildProcesses()) as logs:
        keys = [(ledger_id, entry_id) for ledger_id in KEPT for entry_id in ENTRIES]
        is_over = False
        reads_count = 0

        async def read_all_the_time() -> None:
            nonlocal reads_count
            while not is_over:
                for ledger_id, entry_id in keys:
                    body = await logs.workers.run("reads", logs.engine.stored.read, ledger_id, entry_id)
                    assert body == stored(ledger_id, entry_id)
                    reads_count += 1
                await asyncio.sleep(0.005)

        reader = asyncio.create_task(read_all_the_time())
        await logs.round()
        await logs.round()
        is_over = True
        await reader
        assert logs.metrics.logs_compacted_count >= 3
        assert reads_count > len(keys)


async def test_few_entries_outstanding_are_as_good_as_many(mixed: Path) -> None:
    config = GarbageCollectionConfig(copied_entries_per_s_max=1e6, outstanding_entries_max=1)
    async with open_logs(mixed, config=config) as logs:
        assert await logs.round() == 0
        require_stored(logs.engine, KEPT, ENTRIES)


async def test_a_log_that_is_in_full_use_is_not_touched(tmp_path: Path) -> None:
    async with open_logs(tmp_path / "current") as logs:
        fill(logs.engine, range(3), range(20))
        before = log_names(tmp_path / "current")
        await logs.round()
        assert log_names(tmp_path / "current") == before


async def test_the_active_log_is_never_taken(tmp_path: Path) -> None:
    async with open_logs(tmp_path / "current") as logs:
        fill(logs.engine, range(2), range(2))
        delete(logs.engine, [0])
        await logs.round()
        assert log_names(tmp_path / "current") == ["0.log"]
        require_stored(logs.engine, [1], range(2))


@MODES
async def test_a_crash_at_any_moment_loses_nothing_and_the_next_round_ends_it(
    tmp_path: Path, config: GarbageCollectionConfig
) -> None:
    """A copy of the directory before every change of it is what a crash there leaves."""
    root = tmp_path / "current"
    disk = PhotographedDisk(root)
    async with open_logs(root, disk=disk, config=config) as logs:
        fill(logs.engine, [*KEPT, *GONE], range(2))
        delete(logs.engine, GONE)
        sources = set(log_names(root)[:-1])
        assert sources
        disk.photograph_into = tmp_path / "photographs"
        await logs.round()
        disk.photograph_into = None
    operations = {moment.split()[1] for moment, _ in disk.photographs}
    assert operations >= ({"create", "write", "sync", "link", "remove"} if config.is_transactional else {"remove"})
    for moment, photograph in disk.photographs:
        # The setting was switched off meanwhile: what is there is finished all the same.
        async with open_logs(photograph, config=FAST) as logs:
            require_stored(logs.engine, KEPT, range(2))
            assert await logs.round() == 0, moment
            require_stored(logs.engine, KEPT, range(2))
            assert leftovers(photograph) == [], moment
            assert sources.isdisjoint(log_names(photograph)), moment


STEPS = {
    "1 copying": ("write", ".log.compacting", 2),
    "2 finished, not synced": ("sync", ".log.compacting", 0),
    "3 not linked": ("link", ".compacted", 0),
    "3 temporary file still there": ("remove", ".log.compacting", 0),
    "4 not published": ("link", ".log", 0),
    "5 published, index not changed": ("replace", ".seal", 0),
    "6 index changed": ("remove", ".compacted", 0),
    "6 source still there": ("remove", ".log", 0),
}


@pytest.mark.parametrize("step", STEPS)
async def test_kill_9_at_each_transactional_step(mixed: Path, step: str) -> None:
    """H7: the finished log is found again under its hexadecimal name, whatever its id."""
    await kill_compaction(mixed, *STEPS[step])
    async with open_logs(mixed) as logs:
        require_stored(logs.engine, KEPT, ENTRIES)
        assert await logs.round() == 0
        require_stored(logs.engine, KEPT, ENTRIES)
        assert [logs.engine.stored.read(ledger_id, 0) for ledger_id in GONE] == [None] * len(GONE)
    assert leftovers(mixed) == []


@MODES
@pytest.mark.parametrize("image", [image for image in IMAGES if len(ledger_directories(image)) == 1])
async def test_logs_that_java_wrote_are_compacted(tmp_path: Path, image: str, config: GarbageCollectionConfig) -> None:
    """Of every storage class, direct-I/O included: half of the ledgers go, entries of the others stay as they are."""
    root = Path(current_directory(adopt(image, tmp_path).ledger_directories[0]))
    engine = open_engine(root)
    ledger_ids = sorted(engine.ledger_ids())
    kept = ledger_ids[::2]
    bodies = {
        (each, entry_id): engine.stored.read(each, entry_id)
        for each in kept
        for entry_id in engine.stored.list_entries(each)
    }
    engine.close()
    before = log_names(root)
    async with open_logs(root, config=config) as logs:
        delete(logs.engine, ledger_ids[1::2])
        assert await logs.round() == 0
        assert {key: logs.engine.stored.read(*key) for key in bodies} == bodies
        assert logs.collector.quarantined_count == 0
    assert not ledger_ids[1::2] or log_names(root) != before
