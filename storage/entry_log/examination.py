"""What a complete scan of an entry log shows: how many bytes each ledger has in it, and whether any are lost.

For child processes and offline commands only, because a bookie does not load numpy.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from bkctl.storage.entry_log.damage import LogDamage, LogFindings, judge_log
from bkctl.storage.entry_log.format import HEADER_BYTES, decode_header
from bkctl.storage.entry_log.reader import read_ledgers_map
from bkctl.storage.entry_log.scan import FoundEntries, LogScan
from bkctl.storage.errors import EntryLogError
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.framing import LENGTH_BYTES, ReadWindow
from bkctl.storage.ids import EntryLogId, LedgerId
from bkctl.storage.ports import FileSystem


class ExaminedLog(msgspec.Struct, frozen=True):
    """A log that was read completely."""

    entry_count: int
    dropped_bytes: int
    """As in ``EntryLogScan``."""
    damage: LogDamage | None
    ledger_ids: frozenset[LedgerId]


def examine_log(
    fs: FileSystem, directory: str, log_id: EntryLogId, entry_bytes_max: int, on_progress: Callable[[], None]
) -> ExaminedLog:
    """Read a log of a ``current`` directory; calls ``on_progress`` every few MiB. Unreadable means damaged."""
    scan = LogScan(fs, directory, log_id)
    found_bytes: Counter[LedgerId] = Counter()
    entry_count = 0
    try:
        for found in scan:
            entry_count += len(found.offsets)
            count_bytes(found_bytes, found)
            on_progress()
        damage = judge_scan(fs, directory, log_id, scan, found_bytes, entry_bytes_max)
    except (EntryLogError, OSError) as error:
        damage = LogDamage(str(error), None)
    return ExaminedLog(entry_count, scan.dropped_bytes, damage, frozenset(found_bytes))


def judge_scan(
    fs: FileSystem,
    directory: str,
    log_id: EntryLogId,
    scan: LogScan,
    found_bytes: Counter[LedgerId],
    entry_bytes_max: int,
) -> LogDamage | None:
    """The damage of a log after its scan, or None; OSError."""
    file = fs.open(os.path.join(directory, entry_log_file_name(log_id)))
    try:
        window = ReadWindow(file)
        header = decode_header(window.read(HEADER_BYTES, 0))
        ledgers_map = read_ledgers_map(window)
    finally:
        file.close()
    return judge_log(
        LogFindings(
            scan=scan, found_bytes=found_bytes, header=header, ledgers_map=ledgers_map, entry_bytes_max=entry_bytes_max
        )
    )


def count_bytes(found_bytes: Counter[LedgerId], found: FoundEntries) -> None:
    """Add the frames of some entries to the bytes of their ledgers."""
    ledger_ids, frame_bytes = found.ledger_ids, found.sizes_bytes + LENGTH_BYTES
    starts = np.flatnonzero(np.diff(ledger_ids, prepend=-1))
    sums = np.add.reduceat(frame_bytes, starts)
    for ledger_id, size_bytes in zip(ledger_ids[starts].tolist(), sums.tolist(), strict=True):
        found_bytes[ledger_id] += size_bytes
