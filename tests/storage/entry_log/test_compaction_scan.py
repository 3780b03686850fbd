"""The scanning child: the messages about logs that the bookie reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.child_protocol import frame
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry_log.compaction_scan import (
    CHILD_MODULE,
    MeasuredLog,
    MeasureLogs,
    ScanEnd,
    ScanEntries,
    ScanMessage,
    ScannedRows,
    UnreadableLog,
    unpack_rows,
)
from bkctl.storage.entry_log.writer import EntryLogWriter
from bkctl.storage.ports import Children
from tests.processes import bkctl_environment
from tests.sim.children import InProcessChildren
from tests.storage.engines import entry


def write_log(root: Path, count: int, *, is_rolled: bool = True) -> None:
    """Log 0: entries of ledgers 0 to 2 in turn."""
    writer = EntryLogWriter.open(OsFileSystem(), str(root), EntryLogConfig(is_next_log_prepared=False))
    writer.append([(number % 3, entry(number % 3, number)) for number in range(count)])
    if is_rolled:
        writer.roll()
    writer.sync()
    writer.close()


def told(task: MeasureLogs | ScanEntries, children: Children | None = None) -> list[ScanMessage]:
    children = children or InProcessChildren(OsFileSystem(), open_plyvel)
    with children.pool(CHILD_MODULE, task.directory, 1) as pool:
        return list(pool.stream(task, ScanMessage))


def entries_of(root: Path) -> list[ScanMessage]:
    return told(ScanEntries(directory=str(root), log_id=0))


@pytest.mark.parametrize("count", [0, 1, 2047, 2048, 2049, 5000])
def test_every_entry_in_file_order(tmp_path: Path, count: int) -> None:
    write_log(tmp_path, max(count, 1))
    if not count:
        (tmp_path / "0.log").write_bytes(b"")
    *rows, end = entries_of(tmp_path)
    found = [row for message in rows if isinstance(message, ScannedRows) for row in unpack_rows(message)]
    size_bytes = len(entry(0, 0))
    offsets = [1028 + number * (size_bytes + 4) for number in range(count)]
    assert found == [(number % 3, number, offset, size_bytes) for number, offset in enumerate(offsets)]
    assert end == ScanEnd(is_complete=count > 0)


def test_a_log_without_a_map_may_hide_something(tmp_path: Path) -> None:
    write_log(tmp_path, 5, is_rolled=False)
    assert entries_of(tmp_path)[-1] == ScanEnd(is_complete=False)


@pytest.mark.parametrize("offset", range(1024, 1048))
def test_a_scan_that_contradicts_the_map_is_not_complete(tmp_path: Path, offset: int) -> None:
    """Any flipped bit in what tells a frame: but for the entry id, of which the map knows nothing."""
    write_log(tmp_path, 5)
    path = tmp_path / "0.log"
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x80
    path.write_bytes(data)
    end = entries_of(tmp_path)[-1]
    is_entry_id = 1036 < offset < 1044
    is_payload = offset >= 1044
    assert end == ScanEnd(is_complete=is_entry_id or is_payload)


def test_measures_by_map_and_by_scan(tmp_path: Path) -> None:
    write_log(tmp_path, 5)
    frame_bytes = len(entry(0, 0)) + 4
    expected = {0: 2 * frame_bytes, 1: 2 * frame_bytes, 2: frame_bytes}
    os.rename(tmp_path / "0.log", tmp_path / "1f.log")
    write_log(tmp_path, 5, is_rolled=False)
    (other,) = [name for name in os.listdir(tmp_path) if name.endswith(".log") and name != "1f.log"]
    (tmp_path / "0.log").write_bytes(b"")
    log_ids = [0x1F, int(other.removesuffix(".log"), 16), 0, 0x77]
    found = told(MeasureLogs(directory=str(tmp_path), log_ids=log_ids))
    assert found[:3] == [MeasuredLog(0x1F, expected), MeasuredLog(int(other[:-4], 16), expected), MeasuredLog(0, {})]
    assert isinstance(found[3], UnreadableLog)
    assert "77.log" in found[3].reason


def test_as_a_process(tmp_path: Path) -> None:
    write_log(tmp_path, 3)
    task = ScanEntries(directory=str(tmp_path), log_id=0)
    assert told(task, ChildProcesses()) == told(task)


def test_a_process_whose_reader_is_gone_ends_quietly(tmp_path: Path) -> None:
    write_log(tmp_path, 60_000)  # more than a pipe holds
    command = [sys.executable, "-P", "-m", "bkctl.storage.adapters.child_main", CHILD_MODULE]
    with subprocess.Popen(
        command,
        env=bkctl_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(frame(ScanEntries(directory=str(tmp_path), log_id=0)))
        process.stdin.flush()
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
