"""Marked ledgers for a replication worker: listed, locked, cleared. Source: metadata sections 10.5 and 10.6.

The order protects a renewed mark: a mark is read before its lock is taken, and only that version of it is cleared.

A listing watches the directories that it reads, so an idle worker needs no operations until something changes. Locks
are not watched: a ledger whose lock is held is tried again later.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from bkctl.runtime.errors import ConflictError, NoNodeError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.metadata.replication.marks import ListedMark, UnderReplicationMarks, list_marked_ids, read_mark
from bkctl.runtime.metadata.replication.switches import WatchedSwitch
from bkctl.runtime.metadata.store import MetadataStore, Node

WATCHES_MAX = 1000
"""Maximum watched nodes. A change of the others shows in the next listing, which follows after some time anyway."""


class NotPicked(enum.Enum):
    """Why a ledger was not locked."""

    NOT_MARKED = "it has no mark"
    LOCKED = "another process has its replication lock"


class PickedLedger(NamedTuple):
    """A marked ledger whose lock we hold. ``mark``: as it was before the lock was taken."""

    mark: ListedMark
    lock: ReplicationLock

    @property
    def ledger_id(self) -> int:
        """Id of the ledger."""
        return self.lock.ledger_id

    async def release(self) -> None:
        """Release the lock and leave the mark for another worker, or for later."""
        await self.lock.release()


class ReplicationWork:
    """Marked ledgers for the workers of one process. Calls may overlap."""

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        marks: UnderReplicationMarks,
        locks: ReplicationLocks,
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called when something that was read may have changed."""
        self._store = store
        self._root = root
        self._paths = Paths(root)
        self._marks = marks
        self._locks = locks
        self._foreign = ForeignNames()
        self._watched: set[str] = set()
        self._on_change = on_change
        self.is_switched_off = WatchedSwitch(store, root, on_change).is_off

    def ids(self) -> AsyncGenerator[int, None]:
        """Ids of the ledgers that have a directory for a mark, ascending; see ``list_marked_ids``."""
        return list_marked_ids(self, self._root, self._foreign)

    async def read(self, ledger_id: int) -> ListedMark | None:
        """The mark of a ledger. None if it has none: then its next mark is reported as a change.

        One operation, two without a mark.
        """
        mark = await read_mark(self._store, self._root, ledger_id)
        if mark is None:  # a directory is created before its mark and may outlive it; no listing would report the mark
            await self._watch_for(self._paths.mark(ledger_id))
        return mark

    async def pick(self, ledger_id: int) -> PickedLedger | NotPicked:
        """Read the mark of a ledger, then take its lock. Two operations."""
        mark = await read_mark(self._store, self._root, ledger_id)
        if mark is None:
            return NotPicked.NOT_MARKED
        if self._locks.holds(ledger_id):
            return NotPicked.LOCKED
        lock = await self._locks.acquire(ledger_id)
        return NotPicked.LOCKED if lock is None else PickedLedger(mark, lock)

    async def finish(self, picked: PickedLedger) -> bool:
        """Clear the mark of a repaired ledger and release its lock.

        False when the mark stays, because it was renewed since it was picked. ConflictError when the lock was lost with
        its session: another worker may be repairing the ledger by now, so the mark stays.
        """
        try:
            if not picked.lock.is_held:
                raise ConflictError(f"ledger {picked.ledger_id}: its replication lock was lost before the repair ended")
            return await self._marks.clear(picked.ledger_id, picked.mark.version)
        finally:
            await picked.release()

    def _watcher(self, path: str) -> Callable[[], None] | None:
        """A callback for the next change of a node; None if it is watched already, or if there are too many watches."""
        if path in self._watched or len(self._watched) >= WATCHES_MAX:
            return None
        self._watched.add(path)
        return functools.partial(self._note_change, path)

    def _note_change(self, path: str) -> None:
        self._watched.discard(path)
        self._on_change()

    async def _watch_for(self, path: str) -> None:
        on_change = self._watcher(path)
        if on_change is not None and await self._store.exists(path, on_change) is not None:
            self._on_change()

    async def get(self, path: str) -> Node:
        """See ``NodeReader``."""
        return await self._store.get(path)

    async def children(self, path: str) -> list[str]:
        """See ``NodeReader``: a listing reads through this, so that its directories are watched."""
        on_change = self._watcher(path)
        try:
            return await self._store.children(path, on_change)
        except NoNodeError:
            self._watched.discard(path)
            if path == self._paths.under_replicated_ledgers:
                await self._watch_for(path)
            raise
        except BaseException:
            self._watched.discard(path)  # no answer, so perhaps no watch
            raise
