"""Appending entries to the entry logs of one ledger directory.

A lane calls it, one call at a time. Nothing is durable before ``sync``; the index may reference a location only after
that. Source: storage sections 4.1 to 4.5 and 5.8.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.entry_log.format import (
    HEADER_BYTES,
    HEADER_MAP_FIELDS_OFFSET,
    encode_header,
    encode_ledgers_map,
    encode_map_fields,
)
from bkctl.storage.errors import EntryLogError
from bkctl.storage.filenames import (
    ENTRY_LOG_ID_MAX,
    LAST_ID,
    entry_log_file_name,
    parse_claimed_entry_log_id,
    parse_entry_log_file_name,
)
from bkctl.storage.framing import LENGTH_BYTES, framed, framed_bytes
from bkctl.storage.ids import EntryLocation, EntryLogId, LedgerId, PackedLocation, pack_location, unpack_location
from bkctl.storage.ports import RESERVE_BYTES_MIN, Buffer, File, FileSystem

_BATCH_COUNT_MAX = 1024
_BATCH_BYTES_MAX = 1024 * 1024
"""Limits of one copy and write: the copy holds the interpreter lock, the write does not."""

_UNCOPIED_BYTES_MIN = 16 * 1024
"""Average size of entries from which on copying them together costs more than writing them one by one."""


class _OpenLog:
    """A log that is not synced yet, and the contents of its future map."""

    def __init__(self, log_id: EntryLogId, file: File) -> None:
        self.log_id = log_id
        self.file = file
        self.position = HEADER_BYTES
        self.synced_position = 0
        self.ledger_bytes: Counter[LedgerId] = Counter()


class EntryLogWriter:
    """Writes one sequence of entry logs, rolling at the size limit."""

    def __init__(self, fs: FileSystem, directory: str, config: EntryLogConfig, last_log_id: EntryLogId) -> None:
        self._fs = fs
        self._directory = directory
        self._config = config
        self._last_log_id = last_log_id
        self._active: _OpenLog | None = None
        self._next: _OpenLog | None = None
        """Prepared log, with a header and no entries."""
        self._is_overtaken = False
        """Whether another writer's log has a later id than the active log and the prepared one."""
        self._rolled: list[_OpenLog] = []
        self._unfinished_log_ids: set[EntryLogId] = set()
        """Changed before a log is created and after it is closed, so that other lanes may read it at any moment."""
        self._begun_since_sync: list[str] = []
        self._is_directory_synced = True
        self._failure: OSError | None = None
        self.discard_count = 0
        """Number of ``discard_unsynced`` calls: callers that appended before must not rely on a later ``sync``."""

    @classmethod
    def open(cls, fs: FileSystem, directory: str, config: EntryLogConfig) -> EntryLogWriter:
        """Continue the logs of ``directory``, the directory of the ``.log`` files (``current``).

        This determines only the next id; the first append creates the log. EntryLogError when the directory cannot be
        read.
        """
        try:
            last_log_id = _find_last_log_id(fs, directory)
        except OSError as error:
            raise EntryLogError(f"{directory}: cannot find the next entry log id: {error}") from error
        return cls(fs, directory, config, last_log_id)

    @property
    def unfinished_log_ids(self) -> frozenset[EntryLogId]:
        """Logs that are being written, prepared, or not synced yet."""
        return frozenset(self._unfinished_log_ids)

    def claim_log_id(self) -> EntryLogId:
        """Reserve the next id for a log that another writer writes; it is not assigned again. EntryLogError.

        Later appends go to logs after it, because an index rebuild uses the later of two copies.
        """
        try:
            log_id = self._claim_log_id()
        except OSError as error:
            raise EntryLogError(f"{self._directory}: cannot reserve an entry log id: {error}") from error
        self._is_overtaken = True
        return log_id

    def append(self, entries: Sequence[tuple[LedgerId, Buffer]]) -> list[EntryLocation]:
        """Write bodies in order, each with its ledger; returns their locations, to be used only after ``sync``.

        ValueError for a body that readers would refuse. EntryLogError when a write failed now or earlier: see
        ``discard_unsynced``.
        """
        ledger_ids, bodies = zip(*entries, strict=True) if entries else ((), ())
        return list(map(unpack_location, self.append_columns(ledger_ids, bodies)))

    def append_columns(self, ledger_ids: Sequence[LedgerId], bodies: Sequence[Buffer]) -> list[PackedLocation]:
        """``append`` for many bodies: takes the ledgers and the bodies as columns and returns packed locations, as in
        the index."""
        locations: list[PackedLocation] = []
        with self._failing_for_good():
            for first in range(0, len(bodies), _BATCH_COUNT_MAX):
                stop = first + _BATCH_COUNT_MAX
                locations += self._append_batch(ledger_ids[first:stop], bodies[first:stop])
        return locations

    def sync(self) -> None:
        """Make everything appended durable: rolled logs, the active one, and their names.

        EntryLogError when this failed now or earlier: see ``discard_unsynced``.
        """
        with self._failing_for_good():
            while self._rolled:
                self._rolled[0].file.sync()
                self._drop(self._rolled.pop(0))
            if self._active is not None:
                self._active.file.sync()
                self._active.synced_position = self._active.position
            if not self._is_directory_synced:
                self._fs.sync_directory(self._directory)
                self._is_directory_synced = True
            self._begun_since_sync.clear()

    def prepare_next(self) -> None:
        """Create the log after the active one, if configured and not done yet, so that a roll need not wait.

        Errors are ignored, because the roll tries again and reports them.
        """
        if self._config.is_next_log_prepared and self._active is not None and self._next is None:
            with contextlib.suppress(OSError):
                self._next = self._new_log()

    def roll(self) -> None:
        """Finish the active log with its map; the next entry starts a new log. Not durable before ``sync``."""
        with self._failing_for_good():
            self._roll()

    def discard_unsynced(self) -> None:
        """Give up what was not synced and continue with a new log; this also clears a failure.

        Rule: a failed sync is final, as the kernel may drop the pages and let a second sync succeed without them. So
        after a failure every call raises until the caller calls this method, and then appends all entries since the
        last successful ``sync`` again (hazard H2). Logs with entries synced earlier stay; those begun since then are
        removed, as otherwise each attempt on a full disk would use more of it.
        """
        self._close_begun()
        for path in self._begun_since_sync:
            with contextlib.suppress(OSError):
                self._fs.remove(path)
        self._begun_since_sync.clear()
        self._failure = None
        self.discard_count += 1

    def close(self) -> None:
        """Close all files without syncing; safe to repeat. The active log never gets a map, as in Java.

        A prepared log stays, for the collector: its id is not used again.
        """
        self._close_begun()
        if self._next is not None:
            self._drop(self._next)
            self._next = None

    def _drop(self, log: _OpenLog) -> None:
        log.file.close()
        self._unfinished_log_ids.discard(log.log_id)

    def _close_begun(self) -> None:
        for log in (*self._rolled, self._active):
            if log is not None:
                self._drop(log)
        self._rolled.clear()
        self._active = None

    def _append_batch(self, ledger_ids: Sequence[LedgerId], bodies: Sequence[Buffer]) -> list[PackedLocation]:
        lengths = list(map(len, bodies))
        if min(lengths) < ENTRY_HEADER_BYTES_MIN:
            raise ValueError(f"an entry of less than {ENTRY_HEADER_BYTES_MIN} bytes")
        # Frame i reaches from bounds[i] to bounds[i + 1]. This avoids bytecode per entry.
        bounds = list(itertools.accumulate(map(LENGTH_BYTES.__add__, lengths), initial=0))
        locations: list[PackedLocation] = []
        first = 0
        while first < len(bodies):
            log = self._log_with_room_for(bounds[first + 1] - bounds[first])
            room_bytes = min(_BATCH_BYTES_MAX, self._config.size_bytes_max - log.position)
            # At least one, because an entry may be larger than a batch, or even than a whole log.
            stop = max(first + 1, bisect.bisect_right(bounds, bounds[first] + room_bytes, lo=first) - 1)
            size_bytes = bounds[stop] - bounds[first]
            if size_bytes >= RESERVE_BYTES_MIN:
                log.file.reserve(size_bytes, log.position)
            if size_bytes < (stop - first) * _UNCOPIED_BYTES_MIN:
                log.file.pwrite(framed_bytes(bodies[first:stop]), log.position)
            else:
                log.file.pwritev(framed(bodies[first:stop]), log.position)
            first_location = pack_location(EntryLocation(log.log_id, log.position + LENGTH_BYTES))
            locations += map((first_location - bounds[first]).__add__, bounds[first:stop])
            start = first
            for ledger_id, run in itertools.groupby(ledger_ids[first:stop]):
                end = start + len(list(run))
                log.ledger_bytes[ledger_id] += bounds[end] - bounds[start]
                start = end
            log.position += size_bytes
            if 0 < self._config.unsynced_bytes_max <= log.position - log.synced_position:
                log.file.sync_data()
                log.synced_position = log.position
            first = stop
        return locations

    def _log_with_room_for(self, frame_bytes: int) -> _OpenLog:
        """The active log; rolls it first if the frame would exceed the limit (storage section 4.5)."""
        log = self._active
        has_room = log is not None and log.position + frame_bytes <= self._config.size_bytes_max
        if log is not None and has_room and not self._is_overtaken:
            return log
        self._roll()
        if self._is_overtaken:
            self._drop_next()
        return self._begin_log()

    def _drop_next(self) -> None:
        """Delete a prepared log whose id is now too low; it holds no entry."""
        if self._next is not None:
            self._next.file.close()
            self._fs.remove(self._next.file.path)
            self._unfinished_log_ids.discard(self._next.log_id)
            self._next = None
        self._is_overtaken = False

    def _claim_log_id(self) -> EntryLogId:
        log_id = _next_free_id(self._last_log_id, self._fs.list_directory(self._directory))
        # Write the hint first and durably: an id that the index has seen must not be assigned again, even if the
        # collector deletes the newest logs before the next boot.
        self._fs.write_file_atomically(os.path.join(self._directory, LAST_ID), b"%x\n" % log_id)
        self._last_log_id = log_id
        return log_id

    def _begin_log(self) -> _OpenLog:
        log, self._next = self._next or self._new_log(), None
        self._begun_since_sync.append(log.file.path)
        self._is_directory_synced = False
        self._active = log
        return log

    def _new_log(self) -> _OpenLog:
        log_id = self._claim_log_id()
        path = os.path.join(self._directory, entry_log_file_name(log_id))
        self._unfinished_log_ids.add(log_id)
        try:
            log = _OpenLog(log_id, self._fs.create(path))
        except OSError:
            self._unfinished_log_ids.discard(log_id)
            raise
        try:
            log.file.pwrite(encode_header(), 0)
        except OSError:
            with contextlib.suppress(OSError):
                self._fs.remove(path)
            self._drop(log)
            raise
        return log

    def _roll(self) -> None:
        log = self._active
        if log is None:
            return
        # The order guarantees nothing: until both are synced, readers check the map and can fall back to a scan
        # (storage section 4.7).
        log.file.pwrite(encode_ledgers_map(log.ledger_bytes), log.position)
        log.file.pwrite(encode_map_fields(log.position, len(log.ledger_bytes)), HEADER_MAP_FIELDS_OFFSET)
        self._rolled.append(log)
        self._active = None

    @contextlib.contextmanager
    def _failing_for_good(self) -> Iterator[None]:
        if self._failure is not None:
            raise EntryLogError(f"{self._directory}: an earlier write failed: {self._failure}") from self._failure
        try:
            yield
        except OSError as error:
            self._failure = error
            raise EntryLogError(f"{self._directory}: cannot write the entry log: {error}") from error


def _find_last_log_id(fs: FileSystem, directory: str) -> EntryLogId:
    """Last assigned id, at boot (storage section 4.1): the hint, or the id before the largest gap; -1 for none."""
    names = fs.list_directory(directory)
    log_ids = {log_id for name in names if (log_id := parse_entry_log_file_name(name)) is not None}
    claimed = sorted({log_id for name in names if (log_id := parse_claimed_entry_log_id(name)) is not None})
    # Ids wrap around, so the largest may be old; the longest free range is where the sequence continues.
    bounds = [-1, *claimed, ENTRY_LOG_ID_MAX + 1]
    gaps = ((right - left, left + 1) for left, right in itertools.pairwise(bounds))
    _, left_edge = max(gaps, key=lambda gap: gap[0])
    hint = _read_last_id(fs, directory)
    return max(hint if hint > 0 else max(log_ids, default=-1), left_edge - 1)


def _next_free_id(log_id: EntryLogId, names: Sequence[str]) -> EntryLogId:
    """First id after ``log_id`` that no file has; 0 follows the largest."""
    claimed = set(map(parse_claimed_entry_log_id, names))
    while True:
        log_id = 0 if log_id >= ENTRY_LOG_ID_MAX else log_id + 1
        if log_id not in claimed:
            return log_id


def _read_last_id(fs: FileSystem, directory: str) -> EntryLogId:
    """The hint, or -1 if it is missing or invalid, which is not an error."""
    try:
        log_id = int(fs.read_file(os.path.join(directory, LAST_ID)).strip(), 16)
    except (FileNotFoundError, ValueError):
        return -1
    return log_id if 0 <= log_id <= ENTRY_LOG_ID_MAX else -1
