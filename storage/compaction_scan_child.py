"""Reading whole entry logs for compaction, in a process of its own: ``python -P -m storage.compaction_scan_child``.

A log of 1 GiB keeps an interpreter busy for a second or more, which a bookie does not have. Two jobs, and what they
write to standard output, in the form of ``storage.compaction_scan``:

    measure DIRECTORY LOG...    one MeasuredLog or UnreadableLog for each log
    entries DIRECTORY LOG       any number of ScannedRows, then a ScanEnd; or an UnreadableLog

Logs are given by id, in hexadecimal. Nothing is changed on disk.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final

import msgspec
import numpy as np

from storage.child_pool import forget_output
from storage.compaction_scan import LENGTH, ROW, MeasuredLog, ScanEnd, ScanMessage, ScannedRows, UnreadableLog
from storage.config import EntryLogConfig
from storage.entry_log_reader import EntryLogReader
from storage.errors import EntryLogError
from storage.filesystem import OsFileSystem
from storage.framing import LENGTH_BYTES
from storage.ids import EntryLogId, LedgerId
from storage.log_scan import FoundEntries, LogScan
from storage.ports import FileSystem

_ROWS_MAX: Final = 2048
_NICENESS: Final = 10
"""Clients wait for the bookie; nobody waits for a scan."""


def measure_logs(fs: FileSystem, directory: str, log_ids: Sequence[EntryLogId]) -> Iterator[ScanMessage]:
    """What each log holds."""
    for log_id in log_ids:
        try:
            ledger_bytes = _stored_map(fs, directory, log_id)
            if ledger_bytes is None:
                ledger_bytes = Counter()
                for found in LogScan(fs, directory, log_id):
                    _count(ledger_bytes, found)
            yield MeasuredLog(log_id, dict(ledger_bytes))
        except EntryLogError as error:
            yield UnreadableLog(log_id, str(error))


def scan_log(fs: FileSystem, directory: str, log_id: EntryLogId) -> Iterator[ScanMessage]:
    """Every entry of a log."""
    counted: Counter[LedgerId] = Counter()
    try:
        for found in LogScan(fs, directory, log_id):
            _count(counted, found)
            packed = np.stack(found, axis=1).astype("<i8").tobytes()
            for first in range(0, len(packed), _ROWS_MAX * ROW.size):
                yield ScannedRows(packed[first : first + _ROWS_MAX * ROW.size])
        ledgers_map = _stored_map(fs, directory, log_id)
    except EntryLogError as error:
        yield UnreadableLog(log_id, str(error))
        return
    yield ScanEnd(is_complete=ledgers_map is not None and ledgers_map == counted)


def main(arguments: Sequence[str], output: BinaryIO) -> None:
    """Run the job that the arguments name."""
    job, directory, *logs = arguments
    log_ids = [int(log, 16) for log in logs]
    fs = OsFileSystem()
    messages = measure_logs(fs, directory, log_ids) if job == "measure" else scan_log(fs, directory, log_ids[0])
    encoder = msgspec.msgpack.Encoder()
    for message in messages:
        encoded = encoder.encode(message)
        output.write(LENGTH.pack(len(encoded)) + encoded)
        output.flush()


def _stored_map(fs: FileSystem, directory: str, log_id: EntryLogId) -> dict[LedgerId, int] | None:
    return EntryLogReader(fs, directory, EntryLogConfig()).stored_ledgers_map(log_id)


def _count(ledger_bytes: Counter[LedgerId], found: FoundEntries) -> None:
    ledger_ids, positions = np.unique(found.ledger_ids, return_inverse=True)
    sums = np.zeros(len(ledger_ids), np.int64)
    np.add.at(sums, positions, found.sizes_bytes + LENGTH_BYTES)
    for ledger_id, size_bytes in zip(ledger_ids.tolist(), sums.tolist(), strict=True):
        ledger_bytes[ledger_id] += size_bytes


if __name__ == "__main__":
    os.nice(_NICENESS)
    try:
        main(sys.argv[1:], sys.stdout.buffer)
    except BrokenPipeError:
        forget_output()  # the bookie has ended
