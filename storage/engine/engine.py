"""One ledger directory: write cache, entry logs and the two indexes, which the checkpoint ties together.

The loop side changes caches, memtables and ledger rows and never touches the disk. The lane side gets arguments that no
longer change: ``write_checkpoint`` runs in one lane, ``stored`` is read in another, ``relocation`` moves entries.

    loop: job = begin_checkpoint()      freeze the memtable, take the changed rows
    lane: done = write_checkpoint(job)  the order of storage section 5.8
    loop: end_checkpoint(job, done)     the frozen memtable only answers reads now; or, when the lane raised,
          abort_checkpoint(job)         keep it: the next begin_checkpoint returns the same job again (H2)
"""

from __future__ import annotations

import functools
import itertools
import struct
from collections.abc import Callable, Mapping, Sequence

from bkctl.storage.config import EngineConfig
from bkctl.storage.engine.checkpoint import CheckpointDone, CheckpointWriter, DirectoryCheckpoint, go_on
from bkctl.storage.engine.directory_files import DirectoryFiles
from bkctl.storage.engine.measures import EngineMeasures
from bkctl.storage.engine.memtable import Memtable, body_bytes_max, find_newest, too_large
from bkctl.storage.engine.read_cache import ReadCache
from bkctl.storage.engine.relocation import EntryRelocation
from bkctl.storage.engine.stored_entries import StoredEntries
from bkctl.storage.errors import MemtableFullError
from bkctl.storage.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from bkctl.storage.index.ledger_index import EXPLICIT_LAC_BYTES_MIN, explicit_lac_of
from bkctl.storage.index.seal import SealedIndex
from bkctl.storage.measures import NowNs, no_clock
from bkctl.storage.ports import FileSystem, OpenIndexStore
from bkctl.storage.step_sizes import USUAL_STEPS, StepSizes

_READ_AHEAD_BYTES_MAX = 4 * 1024 * 1024
"""Most that one job of the reads lane reads ahead, whatever the settings say: other reads wait for it."""

_LAST_ADD_CONFIRMED = struct.Struct(">16xq")


class LedgerDirectoryEngine:
    """The entries and rows of the ledgers of one ledger directory."""

    def __init__(self, files: DirectoryFiles, config: EngineConfig, steps: StepSizes, now_ns: NowNs) -> None:
        self.measures = EngineMeasures(now_ns)
        self._files = files
        self.rows = ledgers = files.ledgers
        self._half_bytes = config.memtable_bytes_max // 2
        self.body_bytes_max = body_bytes_max(config)
        self._active = Memtable(self._half_bytes)
        self._flushed = Memtable(0)
        """What the last checkpoint wrote. Its memory is not needed until the next one, and clients read what is new."""
        self._job: DirectoryCheckpoint | None = None
        self._is_job_running = self._was_full = False
        self.read_cache = ReadCache(config.read_cache_bytes_max)
        self._read_generation = 0
        self.write_cache_generation = 0
        """If this is unchanged since it was read, only ``delete_ledger`` has removed entries from the write caches, and
        only it and adds have changed ``memtable_bytes``."""
        self._deletions_replayable: dict[LedgerId, int] = dict.fromkeys(ledgers.half_deleted, 0)
        """Deleted ledgers of which a journal may still hold records, each with ``delete_count`` at its deletion."""
        self.delete_count = 0
        """Ledgers deleted by this process."""
        asked_bytes = config.read_ahead_bytes_max or _READ_AHEAD_BYTES_MAX
        self.read_ahead_bytes_max = min(asked_bytes, config.read_cache_bytes_max // 2, _READ_AHEAD_BYTES_MAX)
        """Bytes that one turn of the reads lane may read ahead, in addition to what was requested."""
        self.read_ahead_count_max = config.read_ahead_count_max
        """Entries that one read may read ahead."""
        self._last_add_confirmed: dict[LedgerId, EntryId] = {}
        self._stored_end_seen: set[LedgerId] = set()
        """Ledgers whose LAC in ``_last_add_confirmed`` also covers what an earlier process stored on disk."""
        self._deleted: set[LedgerId] = set()
        """Ledgers deleted since the last checkpoint began."""
        self._deletions: Mapping[LedgerId, EntryId] = dict.fromkeys(sorted(ledgers.half_deleted), 0)
        """Deletions that the last checkpoint, maybe of an earlier process, began durably and did not finish."""
        self._hidden_ledgers: set[LedgerId] = set(ledgers.half_deleted)
        """Deleted ledgers that the index may still hold. The lanes only test membership."""
        ledgers.on_dropped = functools.partial(_forget, self._last_add_confirmed, self._stored_end_seen)
        self.negatives_are_unknown = False
        """While True, an absent entry proves nothing, for instance during an index rebuild. The bookie then answers
        "unknown" wherever it would answer "no such entry" (storage section 9.2)."""
        self.ledger_directory = files.ledger_directory
        self.collected = files.collected
        """Existing ledgers whose local copy was collected: fenced, with or without a row."""
        self.stored = StoredEntries(files, self._hidden_ledgers)
        """For the reads lane."""
        self.relocation = EntryRelocation(files, self._hidden_ledgers)
        """For compaction."""
        self._checkpoints = CheckpointWriter(files, steps, self.measures)

    @classmethod
    def open(
        cls,
        filesystem: FileSystem,
        open_index: OpenIndexStore,
        ledger_directory: str,
        index_directory: str,
        config: EngineConfig,
        steps: StepSizes = USUAL_STEPS,
        now_ns: NowNs = no_clock,
    ) -> LedgerDirectoryEngine:
        """Open the files of a ledger directory and its index directory (both the ``current`` directories).

        Raises IndexMissingError when an index is missing although something was stored, IndexDamagedError when one lost
        or damaged a sealed batch: starting with less would turn lost entries into "no such entry" (H15).
        """
        files = DirectoryFiles.open(filesystem, open_index, ledger_directory, index_directory, config)
        return cls(files, config, steps, now_ns)

    # Loop side: ledgers

    def ledger_ids(self) -> list[LedgerId]:
        """Ids of all ledgers that have a row, unordered."""
        return list(self.rows)

    @property
    def ledger_count(self) -> int:
        """Number of ledgers that have a row."""
        return len(self.rows)

    def find_misplaced_ledger(self, position: int, directory_count: int) -> LedgerId | None:
        """A ledger, or the fence of a collected one, that does not belong in the directory at this position."""
        known = itertools.chain(self.rows, self.collected.ids())
        return next((ledger_id for ledger_id in known if ledger_id % directory_count != position), None)

    def set_limbo(self, ledger_id: LedgerId) -> bool:
        """Put a ledger in limbo: nothing of it is denied. Returns whether that is new; False for an unknown ledger."""
        return self.rows.set_limbo(ledger_id, is_limbo=True)

    def clear_limbo(self, ledger_id: LedgerId) -> bool:
        """End a ledger's limbo; returns whether it was in one."""
        return self.rows.set_limbo(ledger_id, is_limbo=False)

    def set_explicit_lac(self, ledger_id: LedgerId, body: bytes) -> bool:
        """Store the body of an explicit-LAC request (16 bytes or more); returns False if the ledger is unknown.

        Its LAC raises the value of ``last_add_confirmed``.
        """
        if not self.rows.set_explicit_lac(ledger_id, body):
            return False
        self._raise_last_add_confirmed(ledger_id, explicit_lac_of(body))
        return True

    def last_add_confirmed(self, ledger_id: LedgerId) -> EntryId | None:
        """Highest known LAC of a ledger, or None: read the last stored entry first (H8).

        An add carries the LAC of its own time, and re-replication adds old entries, so entries stored by an earlier
        process may have a higher one.
        """
        return self._last_add_confirmed.get(ledger_id) if ledger_id in self._stored_end_seen else None

    def note_last_stored(
        self, ledger_id: LedgerId, last_entry: tuple[EntryId, bytes] | None, read_generation: int
    ) -> EntryId:
        """Take the result of ``find_last`` into account; returns the highest LAC known. StorageError as ``rows.find``.

        If ``read_generation``, of the request for ``find_last``, has changed, the result may be of a deleted ledger.
        """
        lasts = filter(None, (last_entry, self.last_cached(ledger_id)))  # a dropped row took the LAC of adds along
        stored: EntryId = max([-1, *(_LAST_ADD_CONFIRMED.unpack_from(body)[0] for _, body in lasts)])
        row = self.rows.find(ledger_id)
        if row is None or read_generation != self._read_generation:
            return max(stored, self._last_add_confirmed.get(ledger_id, INVALID_ENTRY_ID))
        if row.explicit_lac is not None and len(row.explicit_lac) >= EXPLICIT_LAC_BYTES_MIN:
            stored = max(stored, explicit_lac_of(row.explicit_lac))
        self._raise_last_add_confirmed(ledger_id, stored)
        self._stored_end_seen.add(ledger_id)
        highest = self._last_add_confirmed[ledger_id]
        if not self.rows.is_kept(ledger_id):
            self.rows.on_dropped(ledger_id)
        return highest

    def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Forget a ledger and its entries. Later adds belong to a new ledger and are kept (H6).

        Not journaled: after a crash before the marks pass this point the ledger reappears, whole or in part, and its
        owner must delete it again.
        """
        self._active.delete_ledger(ledger_id)
        if self._job is not None and not self._is_job_running:
            self._job.memtable.delete_ledger(ledger_id)
        self._flushed.delete_ledger(ledger_id)
        self.read_cache.drop_ledger(ledger_id)
        self.rows.on_dropped(ledger_id)
        self._read_generation += 1
        self.delete_count += 1
        self._deletions_replayable[ledger_id] = self.delete_count
        self.rows.delete(ledger_id)
        self._deleted.add(ledger_id)
        self._hidden_ledgers.add(ledger_id)

    def is_deletion_pending(self, ledger_id: LedgerId) -> bool:
        """Whether a replay would restore the deleted ledger, or the index still has rows of it.

        Until then no client may use the id again: the journal would hold records and master keys of two ledgers with
        one id, and nothing between them that marks the deletion. Rows are deleted in small steps, or all together if
        the id is used again.
        """
        return ledger_id in self._deletions_replayable or ledger_id in self._hidden_ledgers

    def note_marks_published(self, delete_count: int) -> None:
        """Note that the marks have passed everything journaled before the deletion with the number ``delete_count``."""
        if self._deletions_replayable:
            self._deletions_replayable = {
                ledger_id: count for ledger_id, count in self._deletions_replayable.items() if count > delete_count
            }

    @property
    def is_deletion_unflushed(self) -> bool:
        """Whether a deleted ledger would reappear after a crash now."""
        return bool(self._deleted) or (self._job is not None and bool(self._job.deleted_ledgers))

    # Loop side: entries

    def add(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        """Add an entry to the write cache; the last one of an id wins. The ledger's row must exist.

        Raises MemtableFullError (a checkpoint is due; try again after it began), EntryTooLargeError (never fits). In
        both cases nothing is stored and the caller must not journal anything.
        """
        assert entry_id >= 0, "the caller refuses negative ids (H19)"
        assert ledger_id in self.rows, "the caller sets the key first"
        last_add_confirmed: EntryId = _LAST_ADD_CONFIRMED.unpack_from(body)[0]
        if len(body) > self.body_bytes_max or not self._active.put(ledger_id, entry_id, body):
            self._refuse(ledger_id, entry_id, body)
        self._raise_last_add_confirmed(ledger_id, last_add_confirmed)
        if self.read_cache.used_bytes:
            self.read_cache.drop(ledger_id, (entry_id,))  # An older copy must not outlive this one (H18).

    def add_many(
        self, ledger_id: LedgerId, entry_ids: Sequence[EntryId], bodies: Sequence[bytes], last_add_confirmed: EntryId
    ) -> bool:
        """Add entries of one ledger and their highest LAC, like ``add``. Returns False, adding none, unless all fit."""
        if max(map(len, bodies)) > self.body_bytes_max or not self._active.put_many(ledger_id, entry_ids, bodies):
            return False
        self._raise_last_add_confirmed(ledger_id, last_add_confirmed)
        if self.read_cache.used_bytes:
            self.read_cache.drop(ledger_id, entry_ids)  # An older copy must not outlive this one (H18).
        return True

    def _raise_last_add_confirmed(self, ledger_id: LedgerId, last_add_confirmed: EntryId) -> None:
        """Raise a ledger's LAC to that of a stored entry or of a request."""
        if last_add_confirmed > self._last_add_confirmed.get(ledger_id, INVALID_ENTRY_ID - 1):
            self._last_add_confirmed[ledger_id] = last_add_confirmed

    def find_cached(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Body of an entry in a cache; None says nothing about the disk."""
        return self.find_many_cached(ledger_id, (entry_id,))[0]

    def find_many_cached(self, ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> list[bytes | None]:
        """Like ``find_cached`` for each, at a fraction of the cost."""
        found = find_newest((self._active, self._frozen(ledger_id), self._flushed), ledger_id, entry_ids)
        if missing_count := found.count(None):
            self.read_cache.fill_in(ledger_id, entry_ids, found)
            self.measures.read_cache_hits += missing_count - found.count(None)
        self.measures.write_cache_hits += len(found) - missing_count
        return found

    def last_cached(self, ledger_id: LedgerId) -> tuple[EntryId, bytes] | None:
        """Highest entry of a ledger in the write caches. The disk may hold a higher one (H8)."""
        last = self._active.find_last(ledger_id)
        frozen = self._frozen(ledger_id)
        last_frozen = None if frozen is None else frozen.find_last(ledger_id)
        if last is None or last_frozen is None:
            return last or last_frozen
        return last if last[0] >= last_frozen[0] else last_frozen

    def list_cached_entries(self, ledger_id: LedgerId) -> list[EntryId]:
        """Ids of a ledger's entries in the write caches, unordered; an id that is in both occurs twice."""
        frozen = self._frozen(ledger_id)
        return self._active.list_entries(ledger_id) + (frozen.list_entries(ledger_id) if frozen else [])

    @property
    def read_generation(self) -> int:
        """Changes when a checkpoint ends or a ledger is deleted; earlier results of the reads lane are then stale."""
        return self._read_generation

    def is_sequential_read(self, ledger_id: LedgerId, entry_id: EntryId) -> bool:
        """Whether a client seems to read the ledger in order: the entry before was read lately, or there is none.

        Other reads, like single lookups, must not pay for entries that are never requested.
        """
        return entry_id == 0 or (ledger_id, entry_id - 1) in self.read_cache

    def remember_read(self, ledger_id: LedgerId, first: EntryId, bodies: Sequence[bytes], read_generation: int) -> None:
        """Cache the bodies of consecutive entries that were read, unless a newer one may be stored now (H18).

        ``read_generation`` is the value from when the read was requested. An entry added since then is still in a write
        cache, or a checkpoint has ended.
        """
        if read_generation == self._read_generation and ledger_id not in self._hidden_ledgers:
            entry_ids = range(first, first + len(bodies))
            newer = find_newest((self._active, self._frozen(ledger_id)), ledger_id, entry_ids)
            kept = {each: body for each, body, other in zip(entry_ids, bodies, newer, strict=True) if other is None}
            self.read_cache.put(ledger_id, kept)

    # Loop side: checkpoints

    @property
    def memtable_bytes(self) -> int:
        """Bytes in the write caches, overhead included."""
        return self._active.used_bytes + (0 if self._job is None else self._job.memtable.used_bytes)

    @property
    def memtable_entry_count(self) -> int:
        """Entries in the write caches (``Memtable.entry_count``)."""
        return self._active.entry_count + (0 if self._job is None else self._job.memtable.entry_count)

    @property
    def stored_entry_count(self) -> int:
        """About how many entries the index has (``LocationIndex.row_count``)."""
        return self._files.locations.row_count

    @property
    def checkpoint_bytes(self) -> int:
        """Disk space needed to flush the write caches, in addition to the disk's reserve."""
        return self.memtable_bytes + self.rows.opening_bytes + self._files.locations.opening_bytes

    @property
    def is_filling_up(self) -> bool:
        """Whether the write cache or the changed rows need a checkpoint, or the cache has refused an entry (H17)."""
        return self._was_full or 2 * self._active.used_bytes >= self._half_bytes or self.rows.is_filling_up

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether no checkpoint is running, and the cache is filling up or the last one left deletions unfinished."""
        return not self._is_job_running and (self.is_filling_up or bool(self._deletions))

    @property
    def is_checkpoint_pending(self) -> bool:
        """Whether a checkpoint was begun but is neither written nor running: it comes before newer data (H2)."""
        return self._job is not None and not self._is_job_running

    def postpone_checkpoint(self) -> None:
        """Freeze what the next checkpoint writes, as if one had failed; frees the other half of the write cache."""
        self.abort_checkpoint(self.begin_checkpoint())

    def begin_checkpoint(self) -> DirectoryCheckpoint:
        """Freeze what the checkpoint writes.

        After a failed checkpoint this returns the same job and nothing newer (H2), but without ledgers deleted since
        then: a disk that is too full for deleted data would otherwise stay full forever.
        """
        assert not self._is_job_running, "one checkpoint at a time"
        self._is_job_running = True
        deleted, self._deleted = tuple(sorted(self._deleted)), set()
        if self._job is None:
            deletions = {**self._deletions, **dict.fromkeys(deleted, 0)}
            tables, self._active, self._flushed = (self._active, self._flushed), Memtable(self._half_bytes), Memtable(0)
            self._job = DirectoryCheckpoint(*tables, self.rows.take_changes(), deleted, deletions)
            self._was_full = False
        elif deleted:
            self._job = self._job.without(deleted)
        return self._job

    def end_checkpoint(self, job: DirectoryCheckpoint, done: CheckpointDone) -> None:
        """Drop what ``write_checkpoint`` made durable, according to its result."""
        assert job is self._job, "a checkpoint of its own"
        assert self._is_job_running, "begin_checkpoint comes first"
        self._job, self._flushed = None, job.memtable
        for ledger_id in self._deleted:
            self._flushed.delete_ledger(ledger_id)
        self._is_job_running = False
        self.rows.note_written()
        self._deletions = done.deletions_left
        self._hidden_ledgers.difference_update(job.deletions.keys() - done.deletions_left.keys() - self._deleted)
        self._read_generation += 1
        self.write_cache_generation += 1

    def abort_checkpoint(self, job: DirectoryCheckpoint) -> None:
        """Keep what ``write_checkpoint`` could not make durable for the next attempt."""
        assert job is self._job, "a checkpoint of its own"
        assert self._is_job_running, "begin_checkpoint comes first"
        self._is_job_running = False
        for ledger_id in self._deleted:
            job.memtable.delete_ledger(ledger_id)
            self.write_cache_generation += 1

    # Lane side

    def write_checkpoint(self, job: DirectoryCheckpoint, pause: Callable[[], None] = go_on) -> CheckpointDone:
        """Make a job durable (rules: ``CheckpointWriter.write``)."""
        job.former.release()
        return self._checkpoints.write(job, pause)

    @property
    def is_index_lost(self) -> bool:
        """Whether an exchange failed: the bookie must restart, and must deny nothing until then."""
        return self._files.locations.is_lost

    def exchange_locations(self, open_rows: Callable[[], SealedIndex]) -> None:
        """Switch to another locations database. For a lane, while all others are idle.

        IndexFailedError when it cannot be opened: the old one is closed by then, and the bookie must stop.
        """
        self._files.locations.exchange(open_rows)

    def close(self) -> None:
        """Close all files; safe to repeat. The journal keeps what no checkpoint has written."""
        self._files.close()

    def _frozen(self, ledger_id: LedgerId) -> Memtable | None:
        """The memtable under checkpoint, unless its entries of this ledger were deleted since it was frozen."""
        if self._job is None or ledger_id in self._deleted:
            return None
        return self._job.memtable

    def _refuse(self, ledger_id: LedgerId, entry_id: EntryId, body: bytes) -> None:
        if len(body) > self.body_bytes_max:
            raise too_large(ledger_id, entry_id, body, self.body_bytes_max)
        self._was_full = True
        raise MemtableFullError(
            f"the write cache has no space for the {len(body)} bytes of entry {ledger_id}:{entry_id}"
        )


def _forget(confirmed: dict[LedgerId, EntryId], seen: set[LedgerId], ledger_id: LedgerId) -> None:
    """Forget a ledger's LAC: it is read again when it is needed, like after a restart."""
    confirmed.pop(ledger_id, None)
    seen.discard(ledger_id)
