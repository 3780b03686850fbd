"""Compaction that takes very long, in a real bookie: what else is collected meanwhile, and what stops it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bkctl.runtime.bookie.collection.logs import find_rows_naming
from bkctl.runtime.bookie.collection.long_work import CompactionKind
from bkctl.runtime.bookie.disks.rules import DiskState
from bkctl.runtime.config import CompactionConfig, GarbageCollectionConfig, MajorCompactionConfig
from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.engine.engine import LedgerDirectoryEngine
from bkctl.storage.entry_log.format import HEADER_MAP_FIELDS_OFFSET
from bkctl.storage.ports import Children
from tests.runtime.bookie.collected_bookie import CollectedBookie, collected_bookie, with_settings
from tests.until import until

DIRECTORIES = 3
"""Ledger n is in directory n modulo this."""
LEDGERS = range(36)
KEPT = (0, 3)
"""Of directory 0; with the others deleted its logs are worth a compaction."""
GONE = tuple(ledger_id for ledger_id in LEDGERS if ledger_id % DIRECTORIES == 0 and ledger_id not in KEPT)
OTHERS = tuple(ledger_id for ledger_id in LEDGERS if ledger_id % DIRECTORIES)


def slowly(*, is_transactional: bool = False) -> GarbageCollectionConfig:
    """Rounds that follow one another closely, and compactions that copy an entry in an hour."""
    return with_settings(
        wait_s=0.05,
        minor=CompactionConfig(interval_s=1e5),
        major=MajorCompactionConfig(interval_s=2e5),
        copied_entries_per_s_max=1 / 3600,
        is_transactional=is_transactional,
        compaction_batch_bytes_max=1,  # every entry waits its turn
    )


def finished_logs(root: Path, directory: int) -> set[str]:
    """Logs with entries in them, without the one that is written to."""
    names = []
    for entry in os.scandir(root / f"ledgers-{directory}" / "current"):
        with contextlib.suppress(FileNotFoundError):  # it has just been deleted
            if entry.name.endswith(".log") and entry.stat().st_size > 1024:
                names.append(entry.name)
    return set(sorted(names, key=lambda name: int(name[:-4], 16))[:-1])


def let_it_copy(bookie: CollectedBookie) -> None:
    for directory in bookie.collector._directories:
        throttle = directory._compactor._throttle
        throttle._per_s_max = 1e6
        throttle._limit.spend(throttle._limit.balance())  # the debt is given back
        throttle.interrupt()


async def rounds(bookie: CollectedBookie, count: int) -> None:
    """That many more rounds have run."""
    wanted = bookie.collector.metrics.rounds_count + count
    await until(lambda: bookie.collector.metrics.rounds_count >= wanted)


@contextlib.asynccontextmanager
async def compacting(
    metadata_uri: str, directory: Path, config: GarbageCollectionConfig, children: Children | None = None
) -> AsyncIterator[tuple[CollectedBookie, asyncio.Task[None]]]:
    """A bookie that is in the middle of the first log of directory 0, and the task that has forced it."""
    running = collected_bookie(metadata_uri, directory, config, ledger_directories=DIRECTORIES, children=children)
    async with running as bookie:
        await bookie.write(LEDGERS)
        await bookie.delete_metadata(GONE)
        await until(lambda: bookie.local_ids().isdisjoint(GONE))
        forced = asyncio.create_task(bookie.collector.force())
        await until(lambda: bookie.collector.metrics.copied_entries_count > 0)
        yield bookie, forced


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_compaction_of_one_directory_holds_nothing_up(
    metadata_uri: str, tmp_path: Path, is_transactional: bool
) -> None:
    config = slowly(is_transactional=is_transactional)
    async with compacting(metadata_uri, tmp_path, config) as (bookie, forced):
        before = [finished_logs(tmp_path, directory) for directory in range(DIRECTORIES)]
        assert all(before)
        await bookie.delete_metadata(OTHERS)
        for directory in (1, 2):
            await until(lambda each=directory: before[each].isdisjoint(finished_logs(tmp_path, each)))  # type: ignore[misc]
        metrics = bookie.collector.metrics
        assert (metrics.copied_entries_count, metrics.compactions_running) == (1, 1)
        assert not forced.done()

        await rounds(bookie, 2)  # none of them may touch what the compaction is making
        let_it_copy(bookie)
        await forced
        assert before[0].isdisjoint(finished_logs(tmp_path, 0))
        assert bookie.local_ids() == set(KEPT)
        assert metrics.rounds_failed_count == metrics.compactions_failed_count == 0
        await bookie.require_readable(KEPT)
    async with collected_bookie(metadata_uri, tmp_path, ledger_directories=DIRECTORIES) as bookie:
        await bookie.require_readable(KEPT)


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_logs_that_die_beside_the_one_being_compacted_go_and_so_does_that_one(
    metadata_uri: str, tmp_path: Path, is_transactional: bool
) -> None:
    config = slowly(is_transactional=is_transactional)
    async with compacting(metadata_uri, tmp_path, config) as (bookie, forced):
        before = finished_logs(tmp_path, 0)
        assert len(before) >= 2
        await bookie.delete_metadata(KEPT)
        await until(lambda: before.isdisjoint(finished_logs(tmp_path, 0)))
        await forced  # nothing is left that would have to wait
        metrics = bookie.collector.metrics
        assert metrics.copied_entries_count == 1
        assert metrics.rounds_failed_count == metrics.compactions_failed_count == 0
        await bookie.require_readable(OTHERS)


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_a_compaction_that_is_suspended_stops_at_once_and_goes_on_later(
    metadata_uri: str, tmp_path: Path, is_transactional: bool
) -> None:
    config = slowly(is_transactional=is_transactional)
    async with compacting(metadata_uri, tmp_path, config) as (bookie, forced):
        before = finished_logs(tmp_path, 0)
        metrics = bookie.collector.metrics
        bookie.collector.suspend(CompactionKind.MINOR)
        await rounds(bookie, 1)
        assert metrics.compactions_running == 1  # it is a major one
        bookie.collector.suspend(CompactionKind.MAJOR)
        await forced
        assert (metrics.compactions_running, metrics.compactions_stopped_count) == (0, 1)
        let_it_copy(bookie)
        await rounds(bookie, 2)
        assert metrics.copied_entries_count == 1
        await bookie.require_readable([*KEPT, *OTHERS])
        bookie.collector.suspend(CompactionKind.MAJOR, is_suspended=False)
        await bookie.collector.force()
        assert before.isdisjoint(finished_logs(tmp_path, 0))
        await bookie.require_readable([*KEPT, *OTHERS])


async def test_a_minor_compaction_goes_on_on_an_almost_full_disk_and_not_on_a_full_one(
    metadata_uri: str, tmp_path: Path
) -> None:
    config = slowly()
    async with compacting(metadata_uri, tmp_path, config) as (bookie, forced):
        collector, metrics = bookie.collector, bookie.collector.metrics
        before = [finished_logs(tmp_path, directory) for directory in range(DIRECTORIES)]
        collector.note_disk_level(DiskState.ALMOST_FULL)
        await forced
        assert (metrics.compactions_running, metrics.compactions_stopped_count) == (0, 1)
        minor = asyncio.create_task(collector.force())
        await until(lambda: metrics.compactions_running == 1)
        await rounds(bookie, 1)
        assert metrics.compactions_running == 1
        await bookie.delete_metadata(OTHERS)
        collector.note_disk_level(DiskState.FULL)
        await minor
        assert (metrics.compactions_running, metrics.compactions_stopped_count) == (0, 2)
        for directory in (1, 2):
            await until(lambda each=directory: before[each].isdisjoint(finished_logs(tmp_path, each)))  # type: ignore[misc]
        assert metrics.compactions_running == 0
        let_it_copy(bookie)
        collector.note_disk_level(DiskState.WRITABLE)
        await collector.force()
        assert before[0].isdisjoint(finished_logs(tmp_path, 0))
        await bookie.require_readable(KEPT)


async def test_a_round_that_is_forced_does_not_wait_for_a_compaction(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(
        metadata_uri, tmp_path, msgspec.structs.replace(slowly(), wait_s=3600), ledger_directories=DIRECTORIES
    ) as bookie:
        collector, metrics = bookie.collector, bookie.collector.metrics
        await bookie.write(LEDGERS)
        await bookie.delete_metadata(GONE)
        collector.suspend(CompactionKind.MAJOR)
        forced = [asyncio.create_task(collector.force())]
        await until(lambda: metrics.copied_entries_count == 1)
        before = [finished_logs(tmp_path, directory) for directory in range(DIRECTORIES)]
        await bookie.delete_metadata(OTHERS)
        forced.append(asyncio.create_task(collector.force()))
        await until(lambda: metrics.rounds_count == 2)
        for directory in (1, 2):
            assert before[directory].isdisjoint(finished_logs(tmp_path, directory))
        await until(lambda: metrics.compactions_running == 1)  # those of the other directories end after the round
        assert metrics.copied_entries_count == 1

        collector.suspend(CompactionKind.MAJOR, is_suspended=False)
        forced.append(asyncio.create_task(collector.force()))  # the minor one gives way
        await until(lambda: metrics.rounds_count == 3)
        await until(lambda: metrics.compactions_running == 1)
        let_it_copy(bookie)
        await asyncio.gather(*forced)
        assert sum(each.major_compactions_count for each in collector.log_metrics) == 3
        assert sum(each.minor_compactions_count for each in collector.log_metrics) == 4
        await bookie.require_readable(KEPT)


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_it_stops_in_the_middle_of_a_compaction(
    metadata_uri: str, tmp_path: Path, is_transactional: bool
) -> None:
    config = slowly(is_transactional=is_transactional)
    async with compacting(metadata_uri, tmp_path, config, ChildProcesses()) as (bookie, forced):
        before = finished_logs(tmp_path, 0)
    with pytest.raises(asyncio.CancelledError):
        await forced
    async with collected_bookie(metadata_uri, tmp_path, ledger_directories=DIRECTORIES) as bookie:
        await bookie.require_readable([*KEPT, *OTHERS])
        await bookie.collector.force()
        assert before.isdisjoint(finished_logs(tmp_path, 0))
        await bookie.require_readable([*KEPT, *OTHERS])


async def test_a_search_of_one_index_holds_nothing_up(
    metadata_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()
    searched: list[str] = []

    async def very_long(engine: LedgerDirectoryEngine, *rest: Any) -> Any:
        searched.append(engine.ledger_directory)
        await may_end.wait()
        return await find_rows_naming(engine, *rest)

    monkeypatch.setattr("bkctl.runtime.bookie.collection.logs.find_rows_naming", very_long)
    async with collected_bookie(metadata_uri, tmp_path, slowly(), ledger_directories=DIRECTORIES) as bookie:
        await bookie.write(LEDGERS)
        before = [finished_logs(tmp_path, directory) for directory in range(DIRECTORIES)]
        unproven = tmp_path / "ledgers-0" / "current" / min(before[0])
        with unproven.open("r+b") as file:
            file.seek(HEADER_MAP_FIELDS_OFFSET)
            file.write(bytes(12))
        await bookie.delete_metadata([*KEPT, *GONE])
        await until(lambda: bool(searched))
        await until(lambda: before[0] & finished_logs(tmp_path, 0) == {unproven.name})
        await bookie.delete_metadata(OTHERS)
        for directory in (1, 2):
            await until(lambda each=directory: before[each].isdisjoint(finished_logs(tmp_path, each)))  # type: ignore[misc]
        await rounds(bookie, 2)
        assert len(searched) == 1
        assert unproven.exists()
        async with bookie.collector.held():
            pass  # the search is begun anew
        await until(lambda: len(searched) == 2)
        may_end.set()
        await until(lambda: not unproven.exists())
        assert bookie.collector.metrics.rounds_failed_count == 0
