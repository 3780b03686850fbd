"""A replication worker's way to its next ledger: pick, wait, finish. Source: metadata sections 10.5 and 10.6.

The order is what keeps a renewed mark: the version of a mark is read before its lock is taken, and not again after.

What it costs: the lists of directories and of locks are kept and left with a one-shot watch, so whoever finds nothing
to do waits without a single operation. An outdated list of directories is still good for finding candidates, for each
is looked at and locked anyway; it is read again only when it yields none. That spares a worker, among thousands of
marks, the reading of thousands of names after each one that is cleared.
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
    """A marked ledger whose lock is ours. ``mark_version`` is that of the mark before the lock was taken."""

    def __init__(self, mark_version: int, lock: ReplicationLock) -> None:
        self.mark_version = mark_version
        self.lock = lock

    @property
    def ledger_id(self) -> int:
        """Which ledger."""
        return self.lock.ledger_id

    async def release(self) -> None:
        """Give the lock back and leave the mark for somebody else, or for later."""
        await self.lock.release()


class _Kept(Generic[T]):
    """An answer that left a watch behind; outdated from the first change on."""

    def __init__(self, note_change: Callable[[], None]) -> None:
        self.value: T
        self.is_outdated = False
        self._note_change = note_change

    def outdate(self) -> None:
        """What the watch calls."""
        self.is_outdated = True
        self._note_change()


class _Directory(_Kept[list[str]]):
    """Names in a directory. ``gone``: those found to be gone since, of an outdated list alone."""

    def __init__(self, note_change: Callable[[], None]) -> None:
        super().__init__(note_change)
        self.gone: set[str] = set()

    @property
    def is_worn_out(self) -> bool:
        """Whether most of it is gone, so that reading it again is cheaper than trying."""
        return 2 * len(self.gone) > len(self.value)

    def note_gone(self, name: str) -> None:
        """Try a name no more. One of a list that is not outdated may come back without a word."""
        if self.is_outdated:
            self.gone.add(name)


class ReplicationWork:
    """Marked ledgers for the workers of one process; ``source`` of randomness keeps processes out of each other's way.

    Calls may overlap. What is kept takes memory, and a watch at the server, for each directory of marks and for each
    directory that is left without its mark; not for each mark.
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

        While nothing changes this waits without an operation. A lost connection that does not come back within the
        operation time-out ends it with MetadataUnavailableError.
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
        """The ledger is as it should be: clear its mark and release the lock.

        False when the mark stays, because it was renewed since it was picked. ConflictError when the lock was lost with
        its session: somebody else may be at work by now, so the mark stays.
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
            has_dropped = True  # also when a try in vain dropped it: whoever waits must watch the locks
        return has_dropped

    async def _pick_below(self, path: str, levels: int) -> PickedLedger | None:
        """Depth-first, shuffled. A directory of the lowest level is not listed: its name tells that of its mark."""
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
        """Version first, then lock; None when the mark is gone or somebody works on the ledger."""
        ledger_id = int(directory.removeprefix(self._paths.under_replicated_ledgers).replace("/", ""), 16)
        if ledger_id > LEDGER_ID_MAX:
            self._foreign.skip(directory, "a directory of marks of a ledger that may exist")
            return None
        # Asked in this order, for the list leaves the watch that tells of the release of our own locks, too.
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
                self._locked = None  # it does not name the holder: trying on would cost more than reading it again
            return None
        return PickedLedger(stat.version, lock)

    async def _watch_for_mark(self, ledger_id: int) -> NodeStat | None:
        """A directory comes before its mark, and may outlive it: nobody else would tell of the mark that comes."""

        def note_mark() -> None:
            self._without_mark.discard(ledger_id)
            self._note_change()

        watch = _Kept[None](note_mark)
        stat = await self._store.exists(self._paths.mark(ledger_id), watch.outdate)
        if stat is None and not watch.is_outdated:
            self._without_mark.add(ledger_id)
        return stat

    async def _directory(self, path: str) -> _Directory | None:
        """Groups in a directory, from memory unless worn out; None when it is gone."""
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
        """Ledgers whose lock is held, as far as is known: an outdated list still spares tries in vain."""
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
        """Child names, and a watch; NoNodeError for what others create and prune, an empty list for what will come."""
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
    """In random order, at a cost for what is taken, not for what there is."""
    moved: dict[int, str] = {}
    for index in range(len(names)):
        chosen = source.randrange(index, len(names))
        yield moved.get(chosen, names[chosen])
        moved[chosen] = moved.pop(index, names[index])
