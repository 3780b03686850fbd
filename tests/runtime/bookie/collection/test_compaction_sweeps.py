"""When originals go: a sweep of the index answers for many logs, but none waits for it longer than room allows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.config import GarbageCollectionConfig
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.ports import DiskSpace
from tests.runtime.bookie.conftest import MODES
from tests.runtime.bookie.open_logs import ENTRIES, KEPT, OpenLogs, log_names, open_logs, require_stored
from tests.storage.traced_disk import TracedDisk


def note_sweeps(logs: OpenLogs) -> list[tuple[list[int], list[int] | None]]:
    """Logs and ledgers of each sweep from now on; None: all ledgers."""
    sweeps: list[tuple[list[int], list[int] | None]] = []
    workers_run = logs.workers.run

    def run(lane, function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
        if function.__name__ == "rows_naming":
            log_ids, ledger_ids, _ = arguments
            sweeps.append((sorted(log_ids), ledger_ids))
        return workers_run(lane, function, *arguments, **keywords)

    logs.workers.run = run  # type: ignore[method-assign]
    return sweeps


@MODES
async def test_one_sweep_of_the_ledgers_concerned_does_for_all_logs(
    mixed: Path, config: GarbageCollectionConfig
) -> None:
    async with open_logs(mixed, config=config) as logs:
        sweeps = note_sweeps(logs)
        assert await logs.round() == 0
        assert sweeps == [([0, 1, 2, 3], list(KEPT)), ([4], None)]  # 4.log was active when the bookie stopped: no map
        require_stored(logs.engine, KEPT, ENTRIES)


@MODES
async def test_originals_do_not_pile_up_beside_their_copies(mixed: Path, config: GarbageCollectionConfig) -> None:
    async with open_logs(mixed, config=msgspec.structs.replace(config, originals_bytes_max=3000)) as logs:
        sweeps = note_sweeps(logs)
        assert await logs.round() == 0
        assert [log_ids for log_ids, _ in sweeps] == [[0, 3], [1, 2], [4]]
        require_stored(logs.engine, KEPT, ENTRIES)


class NarrowDisk(TracedDisk):
    """Has room for so many bytes of entry logs."""

    def __init__(self, root: Path, size_bytes: int) -> None:
        super().__init__()
        self._root = root
        self._size_bytes = size_bytes

    def space(self, path: str) -> DiskSpace:
        return DiskSpace(10**9, max(0, self._size_bytes - logs_bytes(self._root)), 1)


def logs_bytes(root: Path) -> int:
    return sum((root / name).stat().st_size for name in log_names(root))


@MODES
async def test_originals_go_first_when_there_is_no_room_for_more_copies(
    mixed: Path, config: GarbageCollectionConfig
) -> None:
    disk = NarrowDisk(mixed, logs_bytes(mixed) + 2500)  # more than the survivors of one log
    async with open_logs(mixed, disk=disk, config=config, room=DiskRoom(disk, [str(mixed)], 0)) as logs:
        sweeps = note_sweeps(logs)
        assert await logs.round() == 0
        assert len(sweeps) > 2
        assert set(log_names(mixed)).isdisjoint({"0.log", "1.log", "2.log", "3.log", "4.log"})
        require_stored(logs.engine, KEPT, ENTRIES)


@MODES
async def test_an_index_that_cannot_be_read_proves_nothing(mixed: Path, config: GarbageCollectionConfig) -> None:
    async with open_logs(mixed, config=config) as logs:
        workers_run = logs.workers.run
        is_damaged = True

        def run(lane, function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
            if function.__name__ == "rows_naming" and is_damaged:
                raise IndexDamagedError("as if a block of the index were damaged")
            return workers_run(lane, function, *arguments, **keywords)

        logs.workers.run = run  # type: ignore[method-assign]
        before = log_names(mixed)
        with pytest.raises(IndexDamagedError):
            await logs.round()
        assert set(before) < set(log_names(mixed))
        is_damaged = False
        assert await logs.round() == 0
        assert set(before).isdisjoint(log_names(mixed))
        require_stored(logs.engine, KEPT, ENTRIES)
