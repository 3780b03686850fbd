"""The collector of a real bookie on a real ZooKeeper: what is deleted goes, what is in use stays readable."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from bkctl.runtime.bookie.collection.compaction import LogScanner
from bkctl.runtime.bookie.collection.long_work import CompactionKind
from bkctl.runtime.bookie.disks.rules import DiskState
from bkctl.runtime.bookie.integrity.preboot_check import set_integrity_flag
from bkctl.runtime.config import CompactionConfig, MajorCompactionConfig
from bkctl.runtime.errors import NoSuchEntryError, NoSuchLedgerError
from bkctl.runtime.metadata.store import ANY_VERSION
from bkctl.runtime.metadata.uri import parse_metadata_uri
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.protocol.status import Status
from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.entry_log.format import HEADER_MAP_FIELDS_OFFSET
from tests.processes import striking_children
from tests.runtime.bookie.collected_bookie import collected_bookie, with_settings
from tests.until import until


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_deleted_ledgers_vanish_and_their_space_comes_back(
    metadata_uri: str, tmp_path: Path, is_transactional: bool
) -> None:
    async with collected_bookie(metadata_uri, tmp_path, with_settings(is_transactional=is_transactional)) as bookie:
        await bookie.write(range(20))
        logs_before = bookie.log_names
        await bookie.delete_metadata(range(15))
        await bookie.require_readable(range(20))

        await bookie.collector.force()

        assert bookie.local_ids() == set(range(15, 20))
        await bookie.require_readable(range(15, 20))
        for ledger_id in range(15):
            with pytest.raises(NoSuchLedgerError):
                await bookie.peer.read(ledger_id, 0)
        assert len(logs_before) >= 4
        assert set(bookie.log_names).isdisjoint(logs_before[:-1])
        metrics = bookie.collector.metrics
        assert metrics.ledgers_deleted_count == 15
        assert metrics.reclaimed_bytes > 4 * 15 * 1000
        assert metrics.copied_entries_count <= 4 * 5
        assert metrics.rounds_failed_count == 0

    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        assert bookie.local_ids() == set(range(15, 20))
        await bookie.require_readable(range(15, 20))


async def test_rounds_come_by_themselves(metadata_uri: str, tmp_path: Path) -> None:
    config = with_settings(
        wait_s=0.05, minor=CompactionConfig(interval_s=0.1), major=MajorCompactionConfig(interval_s=0.2)
    )
    async with collected_bookie(metadata_uri, tmp_path, config) as bookie:
        await bookie.write(range(12))
        logs_before = set(bookie.log_names[:-1])
        await bookie.delete_metadata(range(10))
        await until(lambda: bookie.local_ids() == {10, 11} and logs_before.isdisjoint(bookie.log_names))
        await bookie.require_readable(range(10, 12))


async def test_every_directory_has_its_own_logs(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path, ledger_directories=3) as bookie:
        await bookie.write(range(30))
        await bookie.delete_metadata([*range(3, 30)])
        await bookie.collector.force()
        assert bookie.local_ids() == {0, 1, 2}
        await bookie.require_readable(range(3))


async def test_adds_and_reads_go_on_beside_it(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path, children=ChildProcesses()) as bookie:
        await bookie.write(range(20))
        await bookie.delete_metadata(range(16))
        is_over = False
        added: list[int] = []

        async def write_all_the_time() -> None:
            while not is_over:
                entry_id = 4 + len(added)
                await bookie.add(16, [entry_id])
                added.append(entry_id)
                await asyncio.sleep(0.005)

        async def read_all_the_time() -> None:
            while not is_over:
                await bookie.require_readable(range(16, 20))
                await asyncio.sleep(0.02)

        others = [asyncio.create_task(write_all_the_time()), asyncio.create_task(read_all_the_time())]
        for _ in range(3):
            await bookie.collector.force()
            await bookie.flush()
        is_over = True
        await asyncio.gather(*others)
        assert added
        await bookie.require_readable([16], added)
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        await bookie.require_readable([16], [*range(4), *added])
        await bookie.require_readable(range(17, 20))


async def test_a_ledger_that_is_created_again_after_its_deletion_is_a_new_one(
    metadata_uri: str, tmp_path: Path
) -> None:
    """H6: what is added behind the deletion is not deleted with it, nor by the checkpoint that makes it durable."""
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        await bookie.write([1, 2])
        await bookie.delete_metadata([1])
        await bookie.collector.force()
        await bookie.create(1)
        await bookie.add(1, [0], generation=5)  # the handle of the old one is forgotten, the key record comes again
        await bookie.collector.force()
        await bookie.require_readable([1], [0], generation=5)
        with pytest.raises(NoSuchEntryError):
            await bookie.peer.read(1, 1)
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        await bookie.require_readable([1], [0], generation=5)
        with pytest.raises(NoSuchEntryError):
            await bookie.peer.read(1, 1)


async def test_copies_that_the_metadata_does_not_name_are_looked_for_at_their_own_time(
    metadata_uri: str, tmp_path: Path
) -> None:
    async with collected_bookie(metadata_uri, tmp_path, with_settings(overreplicated_wait_s=1e-3)) as bookie:
        await bookie.write([1])
        await bookie.create(2, bookies=("elsewhere:3181",))
        await bookie.add(2)
        await bookie.flush()
        await bookie.collector.force()
        assert bookie.local_ids() == {1}
        assert bookie.collector.metrics.ledgers_overreplicated_count == 1
    async with collected_bookie(metadata_uri, tmp_path, with_settings(overreplicated_wait_s=0)) as bookie:
        assert await bookie.peer.add(2, 0) is Status.FENCED
        assert await bookie.peer.add(2, 0, recovery=True) is Status.OK
        await bookie.flush()
        await bookie.collector.force()
        assert bookie.local_ids() == {1, 2}


async def test_what_the_index_or_other_bookies_must_prove_stays_while_a_repair_is_due(
    metadata_uri: str, tmp_path: Path
) -> None:
    """What made this bookie lose entries may have made the others lose theirs, and its index may lack rows."""
    async with collected_bookie(metadata_uri, tmp_path, with_settings(overreplicated_wait_s=1e-3)) as bookie:
        await bookie.write([1, *range(10, 20)])
        await bookie.create(2, bookies=("elsewhere:3181",))
        await bookie.add(2)
        await bookie.flush()
        await bookie.delete_metadata(range(10, 20))
        log = tmp_path / "ledgers-0" / "current" / bookie.log_names[0]
        with log.open("r+b") as file:  # without its map only the index can say that nothing in it is used
            file.seek(HEADER_MAP_FIELDS_OFFSET)
            file.write(bytes(12))
        first = bookie.collector._directories[0]._engine
        set_integrity_flag(first, is_needed=True)
        await bookie.collector.force()
        assert bookie.local_ids() == {1, 2}  # what is gone from the metadata goes all the same
        assert log.exists()
        await bookie.require_readable([1, 2])
        set_integrity_flag(first, is_needed=False)
        await bookie.collector.force()
        assert bookie.local_ids() == {1}
        assert not log.exists()
        await bookie.require_readable([1])


async def test_nothing_runs_while_it_is_held_and_a_round_that_was_cut_off_is_made_up_for(
    metadata_uri: str, tmp_path: Path
) -> None:
    config = with_settings(copied_entries_per_s_max=2)  # a round that takes long
    async with collected_bookie(metadata_uri, tmp_path, config) as bookie:
        await bookie.write(range(20))
        await bookie.delete_metadata(range(15))
        forced = asyncio.create_task(bookie.collector.force())
        await until(lambda: bookie.collector.metrics.copied_entries_count > 0)
        async with bookie.collector.held(), bookie.collector.held():
            copied_count = bookie.collector.metrics.copied_entries_count
            logs = bookie.log_names
            await bookie.require_readable(range(15, 20))
            await asyncio.sleep(1.5)
            assert bookie.collector.metrics.copied_entries_count == copied_count
            assert bookie.log_names == logs
            assert not forced.done()
        bookie.copy_fast()
        await forced
        assert set(bookie.log_names).isdisjoint(logs[:-1])
        await bookie.require_readable(range(15, 20))


async def test_it_stops_in_the_middle_of_a_round(metadata_uri: str, tmp_path: Path) -> None:
    config = with_settings(copied_entries_per_s_max=1)
    async with collected_bookie(metadata_uri, tmp_path, config) as bookie:
        await bookie.write(range(20))
        await bookie.delete_metadata(range(15))
        forced = asyncio.create_task(bookie.collector.force())
        await until(lambda: bookie.collector.metrics.copied_entries_count > 0)
    with pytest.raises(asyncio.CancelledError):
        await forced
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        await bookie.require_readable(range(15, 20))
        await bookie.collector.force()
        await bookie.require_readable(range(15, 20))
        assert bookie.local_ids() == set(range(15, 20))


async def test_suspended_compaction_still_deletes_what_nobody_uses(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        await bookie.write(range(20))
        await bookie.delete_metadata(range(20))
        await bookie.write([50])
        await bookie.write(range(100, 120))
        await bookie.delete_metadata(range(100, 115))
        collector = bookie.collector
        collector.suspend(CompactionKind.MAJOR)
        collector.suspend(CompactionKind.MINOR)
        await collector.force()
        assert collector.metrics.logs_removed_count >= 3
        assert collector.metrics.copied_entries_count == 0
        assert collector.log_metrics[0].compaction_reclaimed_bytes == 0
        reclaimed_bytes = collector.log_metrics[0].deletion_reclaimed_bytes
        assert reclaimed_bytes == collector.metrics.reclaimed_bytes > 0
        collector.suspend(CompactionKind.MINOR, is_suspended=False)
        await collector.force()
        assert collector.log_metrics[0].minor_compactions_count == 1
        collector.suspend(CompactionKind.MAJOR, is_suspended=False)
        await collector.force()
        assert collector.log_metrics[0].major_compactions_count == 1
        assert collector.metrics.copied_entries_count > 0
        reclaimed_bytes += collector.log_metrics[0].compaction_reclaimed_bytes
        assert reclaimed_bytes + collector.metrics.copied_bytes == collector.metrics.reclaimed_bytes
        assert collector.log_metrics[0].compaction_reclaimed_bytes > 0
        await bookie.require_readable([50, *range(115, 120)])


async def test_a_full_disk_makes_a_round_come_at_once(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        collector = bookie.collector
        collector.note_disk_level(DiskState.ALMOST_FULL)
        await until(lambda: collector.metrics.rounds_count == 1)
        collector.note_disk_level(DiskState.ALMOST_FULL)
        await asyncio.sleep(0.2)
        assert collector.metrics.rounds_count == 1
        collector.note_disk_level(DiskState.FULL)
        await until(lambda: collector.metrics.rounds_count == 2)
        collector.note_disk_level(DiskState.WRITABLE)
        await asyncio.sleep(0.2)
        assert collector.metrics.rounds_count == 2
        assert collector.log_metrics[0].major_compactions_count == 0


async def test_a_round_that_fails_is_counted_and_the_bookie_serves_on(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        await bookie.write(range(3))
        await bookie.delete_metadata([0])
        uri = parse_metadata_uri(metadata_uri)
        right = (await bookie.store.get(f"{uri.root}/INSTANCEID")).data
        await bookie.store.set(f"{uri.root}/INSTANCEID", b"another cluster", ANY_VERSION)
        await bookie.collector.force()
        assert bookie.collector.metrics.rounds_failed_count == 1
        assert bookie.local_ids() == {0, 1, 2}
        await bookie.store.set(f"{uri.root}/INSTANCEID", right, ANY_VERSION)

        async def unexpected() -> None:
            raise ZeroDivisionError

        deleted = bookie.collector._passes.deleted
        step, deleted.collect = deleted.collect, unexpected  # type: ignore[method-assign, assignment]
        await bookie.collector.force()
        assert bookie.collector.metrics.rounds_failed_count == 2
        await bookie.add(1, [4])
        deleted.collect = step  # type: ignore[method-assign]
        await bookie.collector.force()
        assert bookie.local_ids() == {1, 2}


async def test_a_scan_that_is_killed_is_tried_again(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path, children=ChildProcesses()) as bookie:
        await bookie.write(range(20))
        await bookie.delete_metadata(range(15))
        with striking_children("bkctl.storage.entry_log.compaction_scan_child", signal.SIGKILL):
            await bookie.collector.force()
        assert bookie.collector.metrics.rounds_failed_count == 1
        assert bookie.collector.metrics.logs_removed_count == 0
        await bookie.collector.force()
        assert bookie.collector.metrics.logs_removed_count > 0
        await bookie.require_readable(range(15, 20))


async def test_a_scan_that_is_not_read_to_its_end_leaves_no_process(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(b"BKLO" + bytes(1020) + (bytes([0, 0, 0, 32]) + bytes(32)) * 100_000)
    workers = LaneWorkers()
    messages = LogScanner(ChildProcesses(), workers).entries(str(tmp_path), 0)
    await anext(messages)
    await messages.aclose()
    await workers.close()
    command = ["ps", "--ppid", str(os.getpid()), "-o", "args"]
    listed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert "compaction_scan" not in listed.stdout
