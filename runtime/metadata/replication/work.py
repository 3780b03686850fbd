"""How a replication worker gets its next ledger: pick, wait, finish. Source: metadata sections 10.5 and 10.6.

The order protects a renewed mark: the version of a mark is read before its lock is taken, and not again after.

The lists of directories and of locks are cached with a one-shot watch, so an idle worker needs no operations. An
outdated list of directories still yields candidates, because each is checked and locked anyway; it is read again only
when it yields none. This saves a worker with thousands of marks from reading thousands of names after each one that is
cleared.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from runtime.errors import ConflictError, NoNodeError
from runtime.metadata.paths import Paths
from runtime.metadata.replication.directories import ForeignNames
from runtime.metadata.replication.format import parse_mark_name
from runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from runtime.metadata.replication.marks import LEVELS, UnderReplicationMarks, groups_among
from runtime.metadata.store import MetadataStore, NodeStat
from storage.ids import LEDGER_ID_MAX

T = TypeVar("T")


class PickedLedger:
    """A marked ledger whose lock we hold. ``mark_version``: version of the mark before the lock was taken."""

    def __init__(self, mark_version: int, lock: ReplicationLock) -> None:
        self.mark_version = mark_version
        self.lock = lock

    @property
    def ledger_id(self) -> int:
        """Id of the ledger."""
        return self.lock.ledger_id

    async def release(self) -> None:
        """Release the lock and leave the mark for another worker, or for later."""
        await self.lock.release()


class _Kept(Generic[T]):
    """A cached answer with a watch; outdated from the first change on."""

    def __init__(self, note_change: Callable[[], None]) -> None:
        self.value: T
        self.is_outdated = False
        self._note_change = note_change

    def outdate(self) -> None:
        """Callback of the watch."""
        self.is_outdated = True
        self._note_change()


class _Directory(_Kept[list[str]]):
    """Names in a directory. ``gone``: names found to be gone since; used only for an outdated list."""

    def __init__(self, note_change: Callable[[], None]) -> None:
        super().__init__(note_change)
        self.gone: set[str] = set()

    @property
    def is_worn_out(self) -> bool:
        """Whether most of it is gone, so that reading it again is cheaper than trying."""
        return 2 * len(self.gone) > len(self.value)

    def note_gone(self, name: str) -> None:
        """Do not try a name again. Only in an outdated list: otherwise it could come back without a notification."""
        if self.is_outdated:
            self.gone.add(name)


class ReplicationWork:
    """Marked ledgers for the workers of one process; ``source`` of randomness keeps processes from competing for one.

    Calls may overlap. The cache takes memory, and a watch at the server, for each directory of marks and for each
    directory without its mark; not for each mark.
    """

    def __init__(
        self,
        store: MetadataStore,
        root: str,
        marks: UnderReplicationMarks,
        locks: ReplicationLocks,
        source: random.Random,
    ) -> None:
        self._store = store
        self._paths = Paths(root)
        self._marks = marks
        self._locks = locks
        self._random = source
        self._foreign = ForeignNames()
        self._directories: dict[str, _Directory] = {}
        self._without_mark: set[int] = set()
        self._locked: _Kept[frozenset[int]] | None = None
        self._switch: _Kept[bool] | None = None
        self._changed = asyncio.Event()

    async def next(self) -> PickedLedger:
        """Lock a marked ledger, waiting until there is one and replication is switched on.

        While nothing changes this waits without an operation. MetadataUnavailableError when the connection is lost for
        longer than the operation time-out.
        """
        while True:
            changed = self._changed
            picked = await self.pick()
            if picked is not None:
                return picked
            await changed.wait()

    async def pick(self) -> PickedLedger | None:
        """Lock a marked ledger, chosen at random; None when none is free, or while replication is switched off."""
        await self._locks.settle()
        if await self._is_switched_off():
            return None
        top = self._paths.under_replicated_ledgers
        picked = await self._pick_below(top, LEVELS)
        if picked is None and self._drop_outdated():
            picked = await self._pick_below(top, LEVELS)
        return picked

    async def finish(self, picked: PickedLedger) -> bool:
        """Clear the mark of a repaired ledger and release its lock.

        False when the mark stays, because it was renewed since it was picked. ConflictError when the lock was lost with
        its session: another worker may be repairing the ledger by now, so the mark stays.
        """
        try:
            if not picked.lock.is_held:
                raise ConflictError(f"ledger {picked.ledger_id}: its replication lock was lost before the repair ended")
            is_cleared = await self._marks.clear(picked.ledger_id, picked.mark_version)
        finally:
            await picked.release()
        directory, _, name = self._paths.mark_directory(picked.ledger_id).rpartition("/")
        kept = self._directories.get(directory)
        if is_cleared and kept is not None:
            kept.note_gone(name)
        return is_cleared

    def _drop_outdated(self) -> bool:
        fresh = {path: kept for path, kept in self._directories.items() if not kept.is_outdated}
        has_dropped = len(fresh) < len(self._directories)
        self._directories = fresh
        if self._locked is None or self._locked.is_outdated:
            self._locked = None
            has_dropped = True  # also after a failed try: callers that wait must watch the locks
        return has_dropped

    async def _pick_below(self, path: str, levels: int) -> PickedLedger | None:
        """Depth-first, shuffled. A directory of the lowest level is not listed: its name gives that of its mark."""
        kept = await self._directory(path)
        if kept is None:
            return None
        for name in _shuffled(kept.value, self._random):
            if name in kept.gone:
                continue
            below = f"{path}/{name}"
            picked = await (self._pick_below(below, levels - 1) if levels > 1 else self._try(below, kept))
            if picked is not None:
                return picked
            if levels > 1 and below not in self._directories:
                kept.note_gone(name)
        return None

    async def _try(self, directory: str, kept: _Directory) -> PickedLedger | None:
        """Version first, then lock; None when the mark is gone or another worker holds the lock."""
        ledger_id = int(directory.removeprefix(self._paths.under_replicated_ledgers).replace("/", ""), 16)
        if ledger_id > LEDGER_ID_MAX:
            self._foreign.skip(directory, "a directory of marks of a ledger that may exist")
            return None
        # This order matters: listing the locks also sets the watch that reports the release of our own locks.
        if ledger_id in self._without_mark or ledger_id in await self._locked_ids() or self._locks.holds(ledger_id):
            return None
        stat = await self._store.exists(self._paths.mark(ledger_id))
        if stat is None and kept.is_outdated:
            kept.note_gone(directory.rpartition("/")[2])
            return None
        if stat is None:
            stat = await self._watch_for_mark(ledger_id)
        if stat is None:
            return None
        lock = await self._locks.acquire(ledger_id)
        if lock is None:
            if self._locked is not None and self._locked.is_outdated:
                self._locked = None  # the list does not have this lock: reading it again costs less than further tries
            return None
        return PickedLedger(stat.version, lock)

    async def _watch_for_mark(self, ledger_id: int) -> NodeStat | None:
        """A directory is created before its mark and may outlive it; only this watch reports the mark."""

        def note_mark() -> None:
            self._without_mark.discard(ledger_id)
            self._note_change()

        watch = _Kept[None](note_mark)
        stat = await self._store.exists(self._paths.mark(ledger_id), watch.outdate)
        if stat is None and not watch.is_outdated:
            self._without_mark.add(ledger_id)
        return stat

    async def _directory(self, path: str) -> _Directory | None:
        """Groups in a directory, from the cache unless worn out; None when it is gone."""
        kept = self._directories.pop(path, None)
        if kept is None or kept.is_worn_out:
            kept = _Directory(self._note_change)
            try:
                names = await self._children(path, kept.outdate)
            except NoNodeError:
                return None
            kept.value = [sys.intern(name) for name in groups_among(names, path, self._foreign)]
        self._directories[path] = kept
        return kept

    async def _locked_ids(self) -> frozenset[int]:
        """Ledgers whose lock is held, as far as is known: even an outdated list saves failing tries."""
        if self._locked is None:
            locked = _Kept[frozenset[int]](self._note_change)
            names = await self._children(self._paths.replication_locks, locked.outdate)
            locked.value = frozenset(found for found in map(parse_mark_name, names) if found is not None)
            self._locked = locked
        return self._locked.value

    async def _is_switched_off(self) -> bool:
        if self._switch is None or self._switch.is_outdated:
            switch = _Kept[bool](self._note_change)
            switch.value = await self._store.exists(self._paths.replication_disabled, switch.outdate) is not None
            self._switch = switch
        return self._switch.value

    async def _children(self, path: str, outdate: Callable[[], None]) -> list[str]:
        """Child names, and a watch; NoNodeError, but an empty list for the two directories that every tree has."""
        while True:
            try:
                return await self._store.children(path, outdate)
            except NoNodeError:
                if path not in {self._paths.under_replicated_ledgers, self._paths.replication_locks}:
                    raise
                if await self._store.exists(path, outdate) is None:
                    return []

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _shuffled(names: Sequence[str], source: random.Random) -> Iterator[str]:
    """In random order; the cost depends on the names that are used, not on all names."""
    moved: dict[int, str] = {}
    for index in range(len(names)):
        chosen = source.randrange(index, len(names))
        yield moved.get(chosen, names[chosen])
        moved[chosen] = moved.pop(index, names[index])
