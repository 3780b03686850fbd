"""Opening the storage of a bookie and replaying its journals.

Two decisions are made here: what an unclean shutdown means with these settings, and whether a repair is due. Order of
the steps: storage section 10; rules of the loss: storage section 9.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence

from bkctl.runtime.bookie.collection.forward_proof import is_older_copy
from bkctl.runtime.bookie.cookies.directories import record_places
from bkctl.runtime.bookie.integrity.preboot_check import needs_preboot_check, note_open_ledgers, read_integrity_flag
from bkctl.runtime.bookie.ports import BookiePorts
from bkctl.runtime.bookie.serving.checkpoints import CHECKPOINT_LANE
from bkctl.runtime.errors import MetadataAuthError, MetadataFormatError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import MetadataStore
from bkctl.storage.config import StorageConfig
from bkctl.storage.dirty_marks import DirtyMarks, forget_marks_of_lost_journals
from bkctl.storage.disk_room import DiskRoom
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.filenames import current_directory
from bkctl.storage.index.java_index import block_java
from bkctl.storage.metadata_seen import read_copies
from bkctl.storage.ports import DirectoryLock

logger = logging.getLogger(__name__)


class ReplayStoppedError(Exception):
    """The boot was cancelled; stops the replay."""


BOOT_LANE = CHECKPOINT_LANE
"""Boot work runs in the lane of the checkpoints, so that each index has one writer from the start."""


class StorageBoot:
    """The boot of one storage. ``marks``: left by the previous process in the directories, which are now locked."""

    def __init__(self, ports: BookiePorts, config: StorageConfig, marks: DirtyMarks, room: DiskRoom) -> None:
        self._ports = ports
        self._config = config
        self._marks = marks
        self._room = room

    async def open(self, locks: Sequence[DirectoryLock]) -> LedgerStorage:
        """Open everything; call ``replay`` next. The caller closes the storage, then releases the locks.

        StorageError, OSError: nothing is open then.
        """
        if self._marks.is_unclean:
            logger.warning("Unclean shutdown detected; replaying the journal")
        ports = self._ports
        open_all = functools.partial(LedgerStorage.open, ports.file_system, ports.open_index, self._config)
        now_ms, now_ns = ports.clock.now_ms(), ports.clock.monotonic_ns
        opening = asyncio.ensure_future(ports.workers.run(BOOT_LANE, open_all, now_ms, locks, now_ns=now_ns))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait([opening])  # the lane cannot be cancelled and finishes opening it
            if opening.exception() is None:
                opening.result().close()
            raise

    async def replay(self, storage: LedgerStorage, on_step: Callable[[], None]) -> None:
        """Replay the journals and log the result. StorageError, OSError.

        Calls ``on_step`` in the lane now and then.
        If this is cancelled, the lane stops soon afterwards and leaves the files as a kill would.
        """
        record_places(self._ports.file_system, self._config)
        try:
            block_java(self._ports.file_system, map(current_directory, self._config.journal_directories))
        except OSError as error:  # a disk may be full, which is no reason not to start
            logger.warning("cannot keep Java bookies from starting on these directories: %s", error)
        if self._marks.are_entries_at_risk:
            forget_marks_of_lost_journals(self._ports.file_system, self._config)
        began_ns = self._ports.clock.monotonic_ns()
        is_stopping = False

        def require_going() -> None:
            if is_stopping:
                raise ReplayStoppedError
            on_step()

        replay = functools.partial(storage.replay, room=self._room, require_going=require_going)
        try:
            report = await self._ports.workers.run(BOOT_LANE, replay)
        except asyncio.CancelledError:
            is_stopping = True
            raise
        logger.info(
            "replayed %d entries, %d keys and %d fences from %d journal files in %.1f s",
            report.entry_count,
            report.ledger_key_count,
            report.fence_count,
            report.file_count,
            (self._ports.clock.monotonic_ns() - began_ns) / 1e9,
        )
        if report.unflushed_bytes:
            logger.warning(
                "not enough disk space to flush %d bytes of replayed entries; they stay in the journals",
                report.unflushed_bytes,
            )
        for tail in report.dropped_tails:
            logger.warning(
                "%s: dropped %d bytes from offset %d on, which were never synced (%s)",
                tail.path,
                tail.dropped_bytes,
                tail.offset,
                tail.reason,
            )

    async def note_losses(
        self,
        storage: LedgerStorage,
        bookie_id: str,
        flush: Callable[[], Awaitable[None]],
        store: MetadataStore,
        ledgers: LedgerStore,
    ) -> bool:
        """Whether a repair is due: from an earlier boot, or because entries of previous processes may be lost.

        Records the affected ledgers first if that has not been done, so that this is complete before the bookie is
        registered (hazard H11). MetadataError, StorageError, OSError.
        """
        first = storage.engines[0]
        is_due = await self._ports.workers.run(BOOT_LANE, read_integrity_flag, first)
        is_unnoted = await self._ports.workers.run(BOOT_LANE, needs_preboot_check, first)
        is_journal_short = self._marks.is_unclean and not self._config.journal.is_data_written
        is_older = await self._has_older_copy(bookie_id, store, ledgers.root)
        if is_unnoted or self._marks.are_entries_at_risk or is_journal_short or is_older:
            await note_open_ledgers(storage, bookie_id, store, ledgers, self._ports.workers, flush)
            is_due = True
        return is_due

    async def _has_older_copy(self, bookie_id: str, store: MetadataStore, root: str) -> bool:
        """Whether a ledger or index directory was restored from an older copy."""
        directories = self._config.store_directories
        await store.sync(root)
        try:
            copies = await self._ports.workers.run(BOOT_LANE, read_copies, self._ports.file_system, directories)
            found = await RecoveryNotes(store, root).collection.find(bookie_id)
        except (CorruptFileError, MetadataAuthError, MetadataFormatError, OSError):
            return False  # the garbage collection reports it
        note = None if found is None else found.value
        older = [directory for directory, seen in copies.items() if is_older_copy(seen, note, bookie_id)]
        if older:
            logger.warning(
                "%s: an older copy, because bookie %s has served since; entries stored since then are missing, and "
                "are restored from other bookies",
                ", ".join(older),
                bookie_id,
            )
        return bool(older)
