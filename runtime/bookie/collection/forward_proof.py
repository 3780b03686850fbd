"""Proof that the metadata store only goes forward: older metadata does not name the ledgers that were created since.

If ZooKeeper is set back to an older copy of its data, root, instance id and cookie are as before, but newer ledgers are
missing. So before each deletion a bookie compares the store with what it remembers in ``bkctl.metadata``:

- its own note in the store, whose number grows with each round (``CollectionNote``)
- the highest transaction id (zxid) that it has seen
- the ids of ledgers here that are missing from the metadata: if the cluster's counter has not given such an id yet, it
  is older than the ledger. Clients may choose ids, so this does not count in a round whose listing has a ledger above
  the counter, for ids up to the highest one ever listed so, and for ledgers that the bookie had at a confirmation

A zxid alone is not enough: each election of a leader increases its upper half, also the one after all servers were set
back. If the store is older than what is remembered, no ledger is deleted until an operator confirms it, or the newer
metadata is back; after a ledger whose id was not given, only the operator ends it. Source: decision 24.

The other way round, the note shows at a start that a directory was restored from an older copy (``is_older_copy``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from bkctl.runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from bkctl.runtime.bookie.collection.metrics import GarbageCollectionMetrics
from bkctl.runtime.errors import LedgerNotFoundError, MetadataAuthError, MetadataError, MetadataFormatError
from bkctl.runtime.metadata.ledgers.ids import read_next_id
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.replication.recovery_notes import CollectionNote, RecoveryNotes
from bkctl.runtime.metadata.store import MetadataStore, Versioned
from bkctl.runtime.ports import Clock, Workers
from bkctl.storage.advice import with_path
from bkctl.storage.errors import BkctlError, CorruptFileError
from bkctl.storage.ids import LedgerId
from bkctl.storage.metadata_seen import MetadataSeen, newest, read_copies, write_metadata_seen
from bkctl.storage.ports import FileSystem

logger = logging.getLogger(__name__)

_END_S_MAX: Final = 2.0
"""How long the end of a bookie waits for its last look. Without it, only changes since the last round go unnoticed."""


class StoppedDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """Why and since when no ledger is deleted."""

    reason: str
    since_ms: int


def find_older(seen: MetadataSeen | None, note: CollectionNote | None, own_id: str, zxid: int) -> str | None:
    """Why the metadata is older than it was, as far as this shows it; None: it is not. Pure.

    ``seen`` None: the bookie remembers nothing. ``note`` None: it has no note in the store.
    """
    if note is not None and note.restored:
        return f"the metadata was restored from the backup of {note.restored}, and newer ledgers are missing from it"
    if seen is None:
        return None
    if seen.suspect >= 0:
        return (
            f"ledger {seen.suspect} is here, but the metadata does not have it, and has not given its id to any ledger"
        )
    older = "it is older than it was, or was replaced"
    if zxid < seen.zxid:
        return f"ZooKeeper is at transaction {zxid:#x}, but was at {seen.zxid:#x}: {older}"
    step = 0 if note is None else note.step
    if seen.bookie_id == own_id and step < seen.step:  # a former id had another note
        return f"ZooKeeper has note {step} of this bookie, but had note {seen.step}: {older}"
    return None


def is_older_copy(seen: MetadataSeen, note: CollectionNote | None, own_id: str) -> bool:
    """Whether a directory is a copy from before the bookie last ran: the note is at most one ahead of its file. Pure.

    Not noticed: a copy that is older by less than two rounds, starts and stops.
    """
    return note is not None and seen.bookie_id == own_id and note.step > seen.step + 1


class ForwardProof:
    """The proof of one bookie. ``directories``: ``current`` of its ledger and index directories; ``local_ids``: of its
    ledgers."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        bookie_id: str,
        file_system: FileSystem,
        directories: Sequence[str],
        workers: Workers,
        clock: Clock,
        metrics: GarbageCollectionMetrics,
        local_ids: Callable[[], Sequence[LedgerId]],
    ) -> None:
        self._store = store
        self._root = root
        self._bookie_id = bookie_id
        self._notes = RecoveryNotes(store, root).collection
        self._file_system = file_system
        self._directories = directories
        self._workers = workers
        self._clock = clock
        self._metrics = metrics
        self._local_ids = local_ids
        self._seen: MetadataSeen | None = None
        self._step_everywhere = 0
        """Lowest number of the note that a directory remembers; 0 if one remembers nothing that can be read."""
        self._damage: str | None = None
        self._has_notes = True
        """Whether this bookie may read and write its note."""
        self._lock = asyncio.Lock()
        self.stopped: StoppedDeletion | None = None

    async def begin(self) -> None:
        """Read what is remembered, and look at the store. Errors are only logged: the rounds look again.

        A bookie without ledgers and without memory is new, whatever an earlier bookie of this id has left in the store.
        """
        try:
            copies = await self._workers.run(COMPACTION_LANE, read_copies, self._file_system, self._directories)
            self._seen = newest(copies)
            if len(copies) == len(self._directories):
                self._step_everywhere = min(each.step for each in copies.values())
        except (CorruptFileError, OSError) as error:
            self._damage = f"it is unknown how far the metadata was before: {with_path(error)}"
        try:
            if self._seen is None and self._damage is None and not self._local_ids():
                await self.confirm()
            else:
                await self.advance()
        except (BkctlError, OSError) as error:
            logger.warning("garbage collection: %s", error)

    async def require(self) -> None:
        """MetadataError if the metadata is older than it was. Call ``sync`` before."""
        async with self._lock:
            await self._require()

    async def advance(self) -> None:
        """The same, then remember the present. With a ``sync`` of its own."""
        async with self._lock:
            await self._store.sync(self._root)
            note = await self._require()
            before = self._seen or MetadataSeen(bookie_id=self._bookie_id)
            present = self._present(before, note)
            await self._put_note(present.step)  # first: a crash in between leaves a note that is newer than the file
            step = present.step if self._has_notes else before.step
            await self._write(msgspec.structs.replace(present, step=step))

    async def end(self) -> None:
        """A last ``advance``, if the store answers at once."""
        if not self._store.measures.is_connected:
            return
        try:
            async with asyncio.timeout(_END_S_MAX):
                await self.advance()
        except (BkctlError, OSError) as error:
            logger.info("garbage collection: %s", error)

    async def confirm(self) -> StoppedDeletion | None:
        """Accept the present metadata, whatever is remembered; returns what had stopped the deletion.

        OSError if no ledger directory can keep it, MetadataError. The file is first: without the note, it stops again.
        But it must not name a number that the note may never get, or the next look finds the metadata older.
        """
        async with self._lock:
            await self._store.sync(self._root)
            before = self._seen or MetadataSeen(bookie_id=self._bookie_id)
            note = await self._find_note()
            accepted = msgspec.structs.replace(
                self._present(before, note),
                # Otherwise the next round would suspect the ids of the very ledgers that this allows to delete.
                chosen=max(before.chosen, *self._local_ids()[-1:], -1),
                suspect=-1,
            )
            errors = await self._write(msgspec.structs.replace(accepted, step=0 if note is None else note.value.step))
            if len(errors) == len(self._directories):
                self._seen = before
                raise errors[0]
            await self._put_note(accepted.step)
            if self._has_notes:
                await self._write(msgspec.structs.replace(accepted, written=before.written + 1))
            stopped, self.stopped, self._damage = self.stopped, None, None
            self._metrics.deletion_stopped = 0
            if stopped is not None:
                logger.warning("an operator confirmed the metadata, ledgers are deleted again: %s", stopped.reason)
            return stopped

    async def require_given(
        self, ledgers: LedgerStore, missing: Iterable[LedgerId], listed_max: LedgerId | None
    ) -> None:
        """MetadataError if a ledger that is missing has an id that the cluster has not given yet.

        ``listed_max``: highest id in the metadata, -1 without ledgers, None if it is unknown. If it was not given
        either, clients choose ids.
        """
        suspects = await self._not_given(ledgers, missing, listed_max)
        if suspects:
            await self._store.sync(self._root)  # what follows is remembered, and the server may have lagged behind
            suspects = await self._not_given(ledgers, suspects, listed_max)
        for suspect in sorted(suspects, reverse=True):
            if self._seen is not None and await _is_missing(ledgers, suspect):
                async with self._lock:
                    await self._write(msgspec.structs.replace(self._seen, suspect=suspect))
                    await self._require()

    async def _not_given(
        self, ledgers: LedgerStore, missing: Iterable[LedgerId], listed_max: LedgerId | None
    ) -> list[LedgerId]:
        """Those of the missing ledgers with an id that the cluster has not given yet (``require_given``)."""
        next_id = await read_next_id(self._store, self._root, ledgers.tree)
        seen = self._seen
        if next_id is None or seen is None or listed_max is None:
            return []
        if listed_max >= next_id:
            self._seen = msgspec.structs.replace(seen, chosen=max(seen.chosen, listed_max))
            return []
        return [each for each in missing if each >= next_id and each > seen.chosen]

    async def _require(self) -> Versioned[CollectionNote] | None:
        """The note; MetadataError if the metadata is older than it was."""
        note, reason = await self._check_age()
        if reason is not None:
            await self._store.sync(self._root)  # a new session may have read from a server that lags behind
            note, reason = await self._check_age()
        if reason is None:
            self.stopped = None
            self._metrics.deletion_stopped = 0
            return note
        await self._stop(reason, note)
        ends_with_newer = self._seen is None or self._seen.suspect < 0
        remedy = "Put the newer metadata back; if it is lost," if ends_with_newer else "Put newer metadata back first;"
        raise MetadataError(
            f"no ledger is deleted: {reason}. {remedy} bkctl bookie gc confirm {self._bookie_id} allows to delete what "
            "the present metadata does not have"
        )

    async def _check_age(self) -> tuple[Versioned[CollectionNote] | None, str | None]:
        """The note, and why the metadata is older than it was."""
        note, seen = await self._find_note(), self._seen
        if seen is not None and not self._has_notes:
            seen = msgspec.structs.replace(seen, step=0)
        value = None if note is None else note.value
        return note, self._damage or find_older(seen, value, self._bookie_id, self._store.zxid)

    async def _stop(self, reason: str, note: Versioned[CollectionNote] | None) -> None:
        """Show it, also in the note, which keeps its number."""
        value = CollectionNote() if note is None else note.value
        since_ms = value.stopped_ms if self.stopped is None else self.stopped.since_ms
        self.stopped = StoppedDeletion(reason=reason, since_ms=since_ms or self._clock.now_ms())
        self._metrics.deletion_stopped = 1
        if not self._has_notes or value.stopped:
            return
        shown = msgspec.structs.replace(value, stopped=reason, stopped_ms=self.stopped.since_ms)
        try:
            if note is None:
                await self._notes.add(self._bookie_id, shown)
            else:
                await self._notes.replace(self._bookie_id, shown, note.version)
        except MetadataAuthError as error:
            self._lose_notes(error)

    def _present(self, seen: MetadataSeen, note: Versioned[CollectionNote] | None) -> MetadataSeen:
        """What to remember from now on. A note that is ahead of a directory keeps its number (``is_older_copy``)."""
        noted = 0 if note is None else note.value.step
        step = max(seen.step, noted) + (noted <= self._step_everywhere) if self._has_notes else seen.step
        return msgspec.structs.replace(seen, bookie_id=self._bookie_id, zxid=self._store.zxid, step=step)

    async def _find_note(self) -> Versioned[CollectionNote] | None:
        try:
            return await self._notes.find(self._bookie_id)
        except MetadataAuthError as error:
            self._lose_notes(error)
        except MetadataFormatError as error:
            logger.warning("garbage collection: treated as missing: %s", error)
        return None

    async def _put_note(self, step: int) -> None:
        if self._has_notes:
            try:
                await self._notes.put(self._bookie_id, CollectionNote(step=step))
            except MetadataAuthError as error:
                self._lose_notes(error)

    def _lose_notes(self, error: MetadataAuthError) -> None:
        if self._has_notes:
            logger.warning("this bookie may keep no note in ZooKeeper, so not all older metadata is noticed: %s", error)
        self._has_notes = False

    async def _write(self, seen: MetadataSeen) -> list[OSError]:
        self._seen = seen = msgspec.structs.replace(seen, written=seen.written + 1)
        errors = await self._workers.run(
            COMPACTION_LANE, write_metadata_seen, self._file_system, self._directories, seen
        )
        for error in errors:
            logger.warning("cannot remember in every directory how far the metadata was: %s", with_path(error))
        if not errors:
            self._step_everywhere = seen.step
        return errors


async def _is_missing(ledgers: LedgerStore, ledger_id: LedgerId) -> bool:
    try:
        await ledgers.read(ledger_id)
    except LedgerNotFoundError:
        return True
    return False
