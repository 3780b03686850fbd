"""Child process of the deep index check: reads 20 bytes of the log to verify each location row."""

from __future__ import annotations

import os

import msgspec
import numpy as np

from bkctl.storage.entry_log.format import BODY_OFFSET_MIN, ENTRY_BYTES_MIN, FRAME_START_BYTES
from bkctl.storage.entry_log.scan import Int64Array
from bkctl.storage.filenames import entry_log_file_name
from bkctl.storage.framing import LENGTH_BYTES
from bkctl.storage.ids import EntryId, LedgerId
from bkctl.storage.index.rows import STORED_ROW
from bkctl.storage.ports import ChildContext, ChildHandlers, File, FileSystem

PROBLEM_COUNT_MAX = 1000
"""Maximum problems reported per task; further ones are only counted."""

_WINDOW_BYTES = 1024 * 1024
_DENSE_ROW_COUNT = 8
_DENSE_BYTES = _WINDOW_BYTES // 8


class ProbeRows(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Task: probe location rows (24 bytes each, concatenated)."""

    directory: str
    rows: bytes
    entry_bytes_max: int


class LocationProblem(msgspec.Struct, frozen=True):
    """A location at which the entry cannot be read."""

    ledger_id: LedgerId
    entry_id: EntryId
    log: str
    offset: int
    reason: str


class Probed(msgspec.Struct, frozen=True):
    """Result of a ``ProbeRows`` task."""

    problems: list[LocationProblem]
    problem_count: int


def probe_rows(task: ProbeRows, context: ChildContext) -> Probed:
    """Look up every location in its log."""
    rows = np.frombuffer(task.rows, STORED_ROW)
    problems: list[LocationProblem] = []
    count = 0
    for log_id in np.unique(rows["log_id"]).tolist():
        chosen = rows[rows["log_id"] == log_id]
        chosen = chosen[np.argsort(chosen["offset"], kind="stable")]
        name = entry_log_file_name(log_id) if log_id >= 0 else f"log {log_id}"
        for position, reason in _probe_log(context.file_system, task, name, chosen):
            count += 1
            if len(problems) < PROBLEM_COUNT_MAX:
                row = chosen[position]
                problems.append(
                    LocationProblem(int(row["ledger_id"]), int(row["entry_id"]), name, int(row["offset"]), reason)
                )
    context.report(len(rows))
    return Probed(problems, count)


def _probe_log(
    fs: FileSystem, task: ProbeRows, name: str, rows: np.ndarray[tuple[int], np.dtype[np.void]]
) -> list[tuple[int, str]]:
    """Positions of rows (of one log, sorted by offset) that do not point at their entry, with the reason."""
    try:
        file = fs.open(os.path.join(task.directory, name))
    except OSError as error:
        return [(position, f"cannot open the log ({error.strerror})") for position in range(len(rows))]
    try:
        frames, reasons = _read_frames(file, rows["offset"].astype(np.int64))
        size_bytes = file.size()
    finally:
        file.close()
    sizes = frames[:, :4].copy().view(">i4").ravel().astype(np.int64)
    ids = frames[:, 4:].copy().view(">i8").astype(np.int64)
    is_same = (ids[:, 0] == rows["ledger_id"]) & (ids[:, 1] == rows["entry_id"])
    is_whole = rows["offset"].astype(np.int64) + sizes <= size_bytes
    is_sized = (sizes >= ENTRY_BYTES_MIN) & (sizes <= task.entry_bytes_max)
    found: list[tuple[int, str]] = []
    for position in np.flatnonzero(~(is_same & is_whole & is_sized)).tolist():
        reason = reasons.get(position)
        if reason is None and not is_same[position]:
            reason = f"found {ids[position, 0]}:{ids[position, 1]} instead"
        elif reason is None and not is_sized[position]:
            reason = f"its size word is {sizes[position]}"
        found.append((position, reason or "the log has only a part of it"))
    return found


def _read_frames(
    file: File, offsets: Int64Array
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.uint8]], dict[int, str]]:
    """The first 20 bytes of each frame. Unreadable frames are zeros, with a reason by position."""
    frames = np.zeros((len(offsets), FRAME_START_BYTES), np.uint8)
    reasons: dict[int, str] = {}
    first = 0
    while first < len(offsets):
        start = int(offsets[first]) - LENGTH_BYTES
        ahead = first + _DENSE_ROW_COUNT
        is_dense = ahead < len(offsets) and int(offsets[ahead]) - start < _DENSE_BYTES
        try:
            is_possible = start + LENGTH_BYTES >= BODY_OFFSET_MIN
            data = file.pread(_WINDOW_BYTES if is_dense else FRAME_START_BYTES, start) if is_possible else b""
        except OSError as error:
            reasons[first] = f"cannot read the log ({error.strerror})"
            data = b""
        last_start = start + len(data) - FRAME_START_BYTES
        behind = int(np.searchsorted(offsets, last_start + LENGTH_BYTES, "right"))
        if behind <= first:
            reasons.setdefault(first, "no entry can be there")
            first += 1
            continue
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), FRAME_START_BYTES)
        frames[first:behind] = windows[offsets[first:behind] - LENGTH_BYTES - start]
        first = behind
    return frames, reasons


HANDLERS: ChildHandlers = {ProbeRows: probe_rows}
