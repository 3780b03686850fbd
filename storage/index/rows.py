"""Location rows as arrays: sorting them, keeping them in files, and cutting them into ranges. For child processes.

A *run* is a file of rows in key order, each key once. It holds three columns of i64 one after the other: ledger ids,
entry ids and locations, in the machine's byte order, as it never leaves the machine. Runs are numbered from the oldest
entry log to the newest, so of two rows with the same key the one in the later run is valid.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from bkctl.storage.entry_log.scan import Int64Array
from bkctl.storage.ports import File, FileSystem

SAMPLE_ROW_COUNT: Final = 16_384
"""Distance of the keys sampled from a run, which are used to cut all runs into ranges of similar size."""

STORED_ROW: Final = np.dtype([("ledger_id", ">i8"), ("entry_id", ">i8"), ("log_id", ">i4"), ("offset", ">i4")])
"""A row as in the database: key, then value."""

_COLUMN_COUNT = 3
_ITEM_BYTES = 8
_PACKED_KEY_COUNT_MAX = 2**63

Key = tuple[int, int]


class Rows(NamedTuple):
    """Location rows: three arrays of the same length."""

    ledger_ids: Int64Array
    entry_ids: Int64Array
    locations: Int64Array

    def take(self, selection: Any) -> Rows:
        """Some of the rows: a slice, a mask, or positions."""
        return Rows(self.ledger_ids[selection], self.entry_ids[selection], self.locations[selection])

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.ledger_ids)


class Run(msgspec.Struct, frozen=True):
    """A file of rows in key order."""

    name: str
    row_count: int
    samples: tuple[Key, ...]
    """Keys of the rows 0, ``SAMPLE_ROW_COUNT``, ..."""
    last: Key


def concatenate(parts: Sequence[Rows]) -> Rows:
    """All rows, in the order of the parts."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*parts, strict=True) if parts else [[np.empty(0, np.int64)]] * _COLUMN_COUNT
    return Rows(*(np.concatenate(column) for column in columns))


def newest_rows(rows: Rows) -> Rows:
    """The rows in key order, only the last one of each key."""
    if rows.row_count < 2 or _is_ascending(rows):
        return rows
    rows = rows.take(_order(rows))
    is_last = np.ones(rows.row_count, bool)
    is_last[:-1] = (rows.ledger_ids[:-1] != rows.ledger_ids[1:]) | (rows.entry_ids[:-1] != rows.entry_ids[1:])
    return rows.take(is_last)


def write_run(fs: FileSystem, path: str, rows: Rows) -> Run:
    """Write rows from ``newest_rows``, at least one; not synced. OSError."""
    with contextlib.closing(fs.create(path)) as file:
        file.pwritev([np.ascontiguousarray(column).data.cast("B") for column in rows], 0)
    sampled = rows.take(slice(None, None, SAMPLE_ROW_COUNT))
    samples = tuple(zip(sampled.ledger_ids.tolist(), sampled.entry_ids.tolist(), strict=True))
    last = (int(rows.ledger_ids[-1]), int(rows.entry_ids[-1]))
    return Run(os.path.basename(path), rows.row_count, samples, last)


def read_run(fs: FileSystem, directory: str, run: Run, lower: Key | None, upper: Key | None) -> Rows:
    """Rows of a run from ``lower`` (included; None: the first) to ``upper`` (excluded; None: the end). OSError."""
    with contextlib.closing(fs.open(os.path.join(directory, run.name))) as file:
        start = 0 if lower is None else _position(file, run, lower)
        stop = run.row_count if upper is None else _position(file, run, upper)
        return Rows(*(_read_column(file, run, column, start, stop) for column in range(_COLUMN_COUNT)))


def cut_into_ranges(runs: Sequence[Run], row_count: int) -> Iterator[tuple[Key | None, Key | None]]:
    """Ranges of keys, ascending and without gaps, with about ``row_count`` rows each over all runs."""
    samples = sorted(sample for run in runs for sample in run.samples)
    lower = None
    for upper in samples[:: max(1, row_count // SAMPLE_ROW_COUNT)][1:]:
        if upper != lower:
            yield lower, upper
            lower = upper
    yield lower, None


def _is_ascending(rows: Rows) -> bool:
    ledger_steps = np.diff(rows.ledger_ids)
    if (ledger_steps < 0).any():
        return False
    return bool(((ledger_steps > 0) | (np.diff(rows.entry_ids) > 0)).all())


def _order(rows: Rows) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Positions of the rows in key order; rows with the same key keep their order."""
    ledger_first, entry_first = int(rows.ledger_ids.min()), int(rows.entry_ids.min())
    ledger_span = int(rows.ledger_ids.max()) - ledger_first + 1
    entry_span = int(rows.entry_ids.max()) - entry_first + 1
    if ledger_span * entry_span >= _PACKED_KEY_COUNT_MAX:
        return np.lexsort((rows.entry_ids, rows.ledger_ids))
    # One number per key: a log is a few sorted sequences, which a stable sort of numbers only has to merge.
    packed = (rows.ledger_ids - ledger_first) * entry_span + (rows.entry_ids - entry_first)
    return np.argsort(packed, kind="stable")


def _position(file: File, run: Run, key: Key) -> int:
    """Number of rows of a run below ``key``."""
    start = max(0, bisect.bisect_left(run.samples, key) - 1) * SAMPLE_ROW_COUNT
    stop = min(start + SAMPLE_ROW_COUNT, run.row_count)
    ledger_ids, entry_ids = (_read_column(file, run, column, start, stop) for column in range(2))
    first = int(np.searchsorted(ledger_ids, key[0], "left"))
    behind = int(np.searchsorted(ledger_ids, key[0], "right"))
    return start + first + int(np.searchsorted(entry_ids[first:behind], key[1], "left"))


def _read_column(file: File, run: Run, column: int, start: int, stop: int) -> Int64Array:
    data = file.pread((stop - start) * _ITEM_BYTES, (column * run.row_count + start) * _ITEM_BYTES)
    return np.frombuffer(data, np.int64)
