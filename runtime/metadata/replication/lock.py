"""The replication lock: one copier per ledger, Java's workers included. Source: metadata sections 10.2, 10.5 and 10.6.

It is an ephemeral node that Java's replication workers use too; they skip a ledger whose lock is held. The collector of
a bookie takes the same lock before it drops a copy that the metadata no longer refers to.

A holder watches the node of its lock, because a Java worker whose session expired still deletes the nodes of its
former locks when it releases them, even if they belong to another process by then. Most ledgers are repaired so fast
that the watch would be a large part of the cost, so it begins after ``UNWATCHED_S``. A lost lock costs only duplicate
work: a change of metadata is always a compare-and-set.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Self, TypeVar

import msgspec

from bkctl.runtime.errors import (
    BadVersionError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from bkctl.runtime.metadata.ledgers.layout import require_storable_id
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.runtime.metadata.replication.directories import ForeignNames, UnderReplicationTree
from bkctl.runtime.metadata.replication.format import decode_lock, encode_lock, parse_mark_name
from bkctl.runtime.metadata.store import (
    CheckNode,
    CreateNode,
    DeleteNode,
    MetadataStore,
    Node,
    NodeWrite,
    Watch,
    children_of,
    read_or_problem,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")

UNWATCHED_S = 1.0
"""How long after its creation the node of a lock is watched."""

_READS_IN_FLIGHT_MAX = 64


class HeldLock(msgspec.Struct, frozen=True):
    """A lock that is taken; ``holder`` is None when its bytes cannot be read, and ``problem`` is the reason.

    ``session_id`` 0: the node belongs to no session, so it stays until it is deleted.
    """

    ledger_id: int
    holder: str | None
    path: str
    session_id: int
    since_ms: int
    problem: MetadataFormatError | None = None


class ReplicationLock:
    """A lock that was acquired; release it, or use it as ``async with``."""

    def __init__(self, ledger_id: int, locks: ReplicationLocks, *, is_unchanged: bool) -> None:
        self.ledger_id = ledger_id
        self.is_unchanged = is_unchanged
        """Whether the node that ``acquire`` was to check had its version when the lock was created."""
        self._locks = locks
        self._is_held = True
        self._watch: Watch | None = None
        self._on_lost: Callable[[], None] | None = None

    @property
    def is_held(self) -> bool:
        """Whether the lock is still there, as far as is known; check before a write that relies on it."""
        return self._is_held

    async def while_held(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """The result of ``work``; None if the lock was lost: then the work was cancelled at once."""
        if not self._is_held:
            return None
        try:
            async with asyncio.timeout(None) as limit:
                self._on_lost = functools.partial(limit.reschedule, 0.0)
                return await work()
        except TimeoutError:
            if limit.expired():
                return None
            raise
        finally:
            self._on_lost = None

    def watch_by(self, watch: Watch) -> None:
        """Set the watch on the node, or the timer for it; it is cancelled when the lock is released or lost."""
        self._watch = watch
        if not self._is_held:
            watch.cancel()

    async def release(self) -> None:
        """Release the lock; can be repeated. If it fails, ``release_in_doubt`` or the session's end deletes it."""
        if not self._is_held:
            return  # once lost, the node may belong to another holder
        self.note_lost()
        await self._locks.give_back(self.ledger_id)

    async def release_in(self, transaction: Callable[[NodeWrite], Awaitable[T]]) -> T:
        """Release the lock in a transaction of the caller, who adds the given write to it; returns its result.

        If it fails, the lock is still held, except after a NoNodeError that names the lock. After
        MetadataUnavailableError, ``confirm`` finds out. The lock must be held.
        """
        return await self._locks.give_back_in(self, transaction)

    async def confirm(self) -> None:
        """Find out whether the lock is still held after a ``release_in`` without an answer. One read."""
        if self._is_held:
            await self._locks.confirm(self)

    def note_lost(self) -> None:
        """Record that the node no longer belongs to this session."""
        self._is_held = False
        self.unwatch()
        on_lost, self._on_lost = self._on_lost, None
        if on_lost is not None:
            on_lost()

    def unwatch(self) -> None:
        """Cancel the watch on the node."""
        if self._watch is not None:
            self._watch.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class ReplicationLocks:
    """Locks of one session. ``holder`` is the host name shown to other processes (``Host.canonical_name``)."""

    def __init__(self, store: MetadataStore, root: str, holder: str, *, unwatched_s: float = UNWATCHED_S) -> None:
        self._unwatched_s = unwatched_s
        self.store = store
        self._paths = Paths(root)
        self._tree = UnderReplicationTree(store, root)
        self._payload = encode_lock(holder)
        self._held: dict[int, ReplicationLock] = {}
        self._acquiring: set[int] = set()
        self._in_doubt: dict[int, None] = {}
        self._one_releases = asyncio.Lock()
        self._sessions_lost_count = 0
        store.on_session_lost(self._note_session_lost)

    async def acquire(self, ledger_id: int, unchanged: CheckNode | None = None) -> ReplicationLock | None:
        """Take the lock of a ledger, marked or not; None when it is held, even by this session. Never waits.

        ``unchanged``: check this in the transaction that creates the lock; ``is_unchanged`` of the lock is the result.
        SessionExpiredError when the session ended before the answer arrived: the lock ended with it.
        """
        require_storable_id(ledger_id)
        if ledger_id in self._held or ledger_id in self._acquiring:
            return None
        self._acquiring.add(ledger_id)
        try:
            await self.release_in_doubt()
            await self._tree.require()
            return await self._acquire(ledger_id, unchanged)
        finally:
            self._acquiring.discard(ledger_id)

    async def _acquire(self, ledger_id: int, unchanged: CheckNode | None) -> ReplicationLock | None:
        path = self._paths.replication_lock(ledger_id)
        sessions_lost_count = self._sessions_lost_count
        try:
            is_unchanged = await self._create(path, unchanged)
        except NodeExistsError:
            return None
        except (MetadataUnavailableError, asyncio.CancelledError):
            self._note_doubt(ledger_id, sessions_lost_count)
            raise
        if sessions_lost_count != self._sessions_lost_count:
            raise SessionExpiredError(f"{path}: the ZooKeeper session expired", path)
        lock = ReplicationLock(ledger_id, self, is_unchanged=is_unchanged)
        self._held[ledger_id] = lock
        self._watch_later(lock)
        return lock

    async def _create(self, path: str, unchanged: CheckNode | None) -> bool:
        """Create the node of a lock; returns whether ``unchanged`` was true in the same transaction."""
        if unchanged is not None:
            with contextlib.suppress(BadVersionError, NoNodeError):  # or the directory of the locks is missing
                await self.store.write_all([CreateNode(path, self._payload, is_ephemeral=True), unchanged])
                return True
        await self._tree.create_node(path, self._payload, is_ephemeral=True)
        return False

    def _watch_later(self, lock: ReplicationLock) -> None:
        lock.watch_by(asyncio.get_running_loop().call_later(self._unwatched_s, self._watch, lock))

    def _watch(self, lock: ReplicationLock) -> None:
        path = self._paths.replication_lock(lock.ledger_id)
        lock.watch_by(self.store.watch_node(path, functools.partial(self._note_node, lock)))

    def _note_node(self, lock: ReplicationLock, node: Node | None) -> None:
        if not lock.is_held or (node is not None and node.stat.ephemeral_owner == self.store.session_id):
            return
        self._note_deleted(lock)

    def _note_deleted(self, lock: ReplicationLock) -> None:
        self._forget(lock)
        logger.warning("another process deleted the replication lock of ledger %d", lock.ledger_id)

    async def release_in_doubt(self) -> None:
        """Release locks that this session may hold without knowing it: those with an unanswered create or delete.

        No operation when there is none, else two for each. MetadataUnavailableError: call again later.
        """
        while self._in_doubt:
            async with self._one_releases:
                if not self._in_doubt:
                    return
                ledger_id = next(iter(self._in_doubt))
                path = self._paths.replication_lock(ledger_id)
                stat = await self.store.exists(path)
                if stat is not None and stat.ephemeral_owner and stat.ephemeral_owner == self.store.session_id:
                    with contextlib.suppress(NoNodeError):
                        await self.store.delete(path)
                self._in_doubt.pop(ledger_id, None)

    def release_later(self, lock: ReplicationLock) -> None:
        """Release a lock without waiting for ZooKeeper: ``release_in_doubt`` or the session's end deletes its node."""
        if lock.is_held:
            lock.note_lost()
            del self._held[lock.ledger_id]
            self._in_doubt[lock.ledger_id] = None

    def _note_doubt(self, ledger_id: int, sessions_lost_count: int) -> None:
        if sessions_lost_count == self._sessions_lost_count:
            self._in_doubt[ledger_id] = None

    def holds(self, ledger_id: int) -> bool:
        """Whether the lock is this session's; no operation."""
        return ledger_id in self._held

    async def read(self, ledger_id: int) -> HeldLock | None:
        """The lock as stored, of any holder; None when it is free."""
        return await read_lock(self.store, self._paths.root, ledger_id)

    async def close(self) -> None:
        """Release everything that is held."""
        for lock in list(self._held.values()):
            await lock.release()

    async def give_back(self, ledger_id: int) -> None:
        """Delete the node of a lock; for ``ReplicationLock.release``."""
        del self._held[ledger_id]
        sessions_lost_count = self._sessions_lost_count
        try:
            await self.store.delete(self._paths.replication_lock(ledger_id))
        except NoNodeError:
            pass
        except (MetadataUnavailableError, asyncio.CancelledError) as error:
            self._note_doubt(ledger_id, sessions_lost_count)
            if isinstance(error, asyncio.CancelledError):
                raise
            logger.warning("cannot release the replication lock of ledger %d yet: %s", ledger_id, error)
        except MetadataError as error:
            logger.warning("the replication lock of ledger %d stays until the session expires: %s", ledger_id, error)

    async def give_back_in(self, lock: ReplicationLock, transaction: Callable[[NodeWrite], Awaitable[T]]) -> T:
        """For ``ReplicationLock.release_in``."""
        path = self._paths.replication_lock(lock.ledger_id)
        lock.unwatch()
        try:
            result = await transaction(DeleteNode(path))
        except asyncio.CancelledError:
            self.release_later(lock)
            raise
        except MetadataUnavailableError:
            raise
        except MetadataError as error:
            if lock.is_held and isinstance(error, NoNodeError) and error.path == path:
                self._note_deleted(lock)
            elif lock.is_held:
                self._watch_later(lock)
            raise
        self._forget(lock)
        return result

    async def confirm(self, lock: ReplicationLock) -> None:
        """For ``ReplicationLock.confirm``."""
        stat = await self.store.exists(self._paths.replication_lock(lock.ledger_id))
        if stat is None or stat.ephemeral_owner != self.store.session_id:
            self._forget(lock)
        elif lock.is_held:
            self._watch_later(lock)

    def _forget(self, lock: ReplicationLock) -> None:
        if lock.is_held:
            lock.note_lost()
            del self._held[lock.ledger_id]

    def _note_session_lost(self) -> None:
        self._sessions_lost_count += 1
        if self._held:
            logger.warning("the ZooKeeper session expired: lost %d replication locks", len(self._held))
        for lock in self._held.values():
            lock.note_lost()
        self._held.clear()
        self._in_doubt.clear()


async def read_lock(store: MetadataStore, root: str, ledger_id: int) -> HeldLock | None:
    """The lock of a ledger as stored, of any holder; None when it is free. One operation."""
    path = Paths(root).replication_lock(ledger_id)
    found = await read_or_problem(store, path, decode_lock)
    if found is None:
        return None
    stat, holder, problem = found
    return HeldLock(ledger_id, holder, path, stat.ephemeral_owner, stat.ctime_ms, problem)


async def list_locked_ids(store: MetadataStore, root: str, foreign: ForeignNames) -> list[int]:
    """Ids of all ledgers whose lock is held, ascending. One operation; creates nothing."""
    directory = Paths(root).replication_locks
    names = await children_of(store, directory)
    return sorted(foreign.parsed(directory, names, parse_mark_name, "a replication lock").values())


async def list_held_locks(store: MetadataStore, root: str, foreign: ForeignNames) -> AsyncGenerator[HeldLock, None]:
    """Every lock that is held, by ledger id; one operation each and one for all. Close the iterator to stop early."""
    ids = each_of(await list_locked_ids(store, root, foreign))
    reads = pipelined(ids, lambda ledger_id: read_lock(store, root, ledger_id), _READS_IN_FLIGHT_MAX)
    async with aclosing(reads) as locks:
        async for lock in locks:
            if lock is not None:
                yield lock
