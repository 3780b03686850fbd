"""Reading whole entry logs for compaction, in a child process of the bookie. Changes nothing on disk.

A log of 1 GiB keeps an interpreter busy for a second or more, which would block the bookie.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry_log.compaction_scan import (
    ROW,
    MeasuredLog,
    MeasureLogs,
    ScanEnd,
    ScanEntries,
    ScanMessage,
    ScannedRows,
    UnreadableLog,
)
from bkctl.storage.entry_log.reader import EntryLogReader
from bkctl.storage.entry_log.scan import FoundEntries, LogScan
from bkctl.storage.errors import EntryLogError
from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.ids import EntryLogId, LedgerId
from bkctl.storage.ports import ChildContext, ChildHandlers, FileSystem

NICENESS: Final = 10
"""The scan yields to the bookie, because clients wait for the bookie but not for a scan."""


def measure_logs(task: MeasureLogs, context: ChildContext) -> Iterator[ScanMessage]:
    """The bytes of each ledger in each log."""
    fs, directory = context.file_system, task.directory
    for log_id in task.log_ids:
        try:
            ledger_bytes = _stored_map(fs, directory, log_id)
            if ledger_bytes is None:
                ledger_bytes = Counter()
                for found in LogScan(fs, directory, log_id):
                    _count(ledger_bytes, found)
            yield MeasuredLog(log_id, dict(ledger_bytes))
        except EntryLogError as error:
            yield UnreadableLog(log_id, str(error))


def scan_log(task: ScanEntries, context: ChildContext) -> Iterator[ScanMessage]:
    """Every entry of a log."""
    fs, directory, log_id = context.file_system, task.directory, task.log_id
    counted: Counter[LedgerId] = Counter()
    try:
        for found in LogScan(fs, directory, log_id):
            _count(counted, found)
            packed = np.stack(found, axis=1).astype("<i8").tobytes()
            part_bytes = task.rows_max * ROW.size
            for first in range(0, len(packed), part_bytes):
                yield ScannedRows(packed[first : first + part_bytes])
        ledgers_map = _stored_map(fs, directory, log_id)
    except EntryLogError as error:
        yield UnreadableLog(log_id, str(error))
        return
    yield ScanEnd(is_complete=ledgers_map is not None and ledgers_map == counted)


def _stored_map(fs: FileSystem, directory: str, log_id: EntryLogId) -> dict[LedgerId, int] | None:
    return EntryLogReader(fs, directory, EntryLogConfig()).stored_ledgers_map(log_id)


def _count(ledger_bytes: Counter[LedgerId], found: FoundEntries) -> None:
    ledger_ids, positions = np.unique(found.ledger_ids, return_inverse=True)
    sums = np.zeros(len(ledger_ids), np.int64)
    np.add.at(sums, positions, found.sizes_bytes + LENGTH_BYTES)
    for ledger_id, size_bytes in zip(ledger_ids.tolist(), sums.tolist(), strict=True):
        ledger_bytes[ledger_id] += size_bytes


HANDLERS: ChildHandlers = {MeasureLogs: measure_logs, ScanEntries: scan_log}
