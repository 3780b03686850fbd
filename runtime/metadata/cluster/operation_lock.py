"""Locks for operators' changes: ephemeral nodes outside the Java namespace.

    /bkctl/operations/<ledgers root>                  E, JSON: what runs, where, since when
    /bkctl/operations/<ledgers root>,<bookie id>      E, the same, of an operation on one bookie
                                                      (root and bookie id percent-encoded)
    /bkctl/operations/<ledgers root>,,modes           E, the same, while an operation makes bookies read-only

The first node locks the cluster: one operation holds it at a time. A recovery takes only the locks of the bookies that
it recovers; ledgers have their own replication locks. So recoveries of different bookies can run at the same time, and
next to every operation except those that replace the metadata of the whole cluster. Both sides create their own node
before they look for the other's, so at least one of them sees the other.

An unknown child below the ledgers root would make Java's nukeexistingcluster refuse (metadata section 3.5). The two
parents have an open ACL and are never deleted, because different users may take locks.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import urllib.parse
from collections.abc import Callable, Collection
from typing import Self

import msgspec

from bkctl.runtime.errors import (
    ConflictError,
    MetadataAuthError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    RefusedError,
    SessionExpiredError,
)
from bkctl.runtime.metadata.store import MetadataStore, children_of
from bkctl.storage.json_text import JsonTextError, decode_json

DIRECTORY = "/bkctl/operations"
_WHOLE_CLUSTER = frozenset({"cluster format", "cluster nuke", "cluster restore"})
_REMOVES_BOOKIES = "decommission"
_MOVES_LEDGERS = frozenset({"recover failed-bookie", _REMOVES_BOOKIES, "bookie drain"})
_ATTEMPTS_MAX = 10
_BOOKIE = ","  # never part of a percent-encoded root
_MODES = ",,modes"  # never the path of a bookie's lock


class OperationHolder(msgspec.Struct, frozen=True):
    """The operation that holds a lock, as shown to other operators."""

    operation: str
    user: str = "?"
    host: str = "?"
    pid: int = 0
    since: str = "?"

    @property
    def is_of_whole_cluster(self) -> bool:
        """Whether no other operation may run meanwhile; also True for a holder that cannot be read."""
        return self.operation in _WHOLE_CLUSTER or self.pid <= 0

    @property
    def moves_ledgers(self) -> bool:
        """Whether it moves the ledgers of the bookies that it holds to others."""
        return self.operation in _MOVES_LEDGERS

    @property
    def removes_bookies(self) -> bool:
        """Whether it waits, at last, until the bookies are stopped."""
        return self.operation == _REMOVES_BOOKIES

    def __str__(self) -> str:
        return f"'{self.operation}' by {self.user} on {self.host}, process {self.pid}, since {self.since}"


_SHORT_OPERATIONS = OperationHolder("the two operations must run one after the other: try again")


class OperationLockedError(ConflictError):
    """Another operation is changing the cluster or one of its bookies."""

    def __init__(self, path: str, holder: OperationHolder, activity: str = "is changing this cluster") -> None:
        super().__init__(f"another operation {activity}: {holder} (lock {path})")
        self.holder = holder


class OperationLock:
    """A lock that was acquired; it lasts as long as the session. Use it as ``async with``."""

    def __init__(self, store: MetadataStore, *paths: str) -> None:
        self._store = store
        self._paths = paths
        self._is_held = True
        store.on_session_lost(self._note_session_lost)

    @property
    def is_held(self) -> bool:
        """Whether the session that took the lock is still open."""
        return self._is_held

    def require_held(self) -> None:
        """SessionExpiredError if the session that took the lock has ended; call before each step that relies on it."""
        if not self._is_held:
            path = self._paths[0]
            raise SessionExpiredError(f"{path}: the operation lock was lost with the ZooKeeper session", path)

    async def taken_at(self) -> datetime.datetime | None:
        """When it was taken, by the clock of the metadata store; None if it was lost."""
        stat = await self._store.exists(self._paths[0])
        return None if stat is None else datetime.datetime.fromtimestamp(stat.ctime_ms / 1000, datetime.UTC)

    async def release(self) -> None:
        """Release the lock; if that fails, the node disappears with the session."""
        if not self._is_held:
            return  # the node may belong to another process by now
        self._is_held = False
        for path in self._paths:
            try:
                await self._store.delete(path)
            except MetadataUnavailableError:
                return  # each further delete would wait as long
            except MetadataError:
                continue

    def _note_session_lost(self) -> None:
        self._is_held = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


def operation_lock_path(root: str) -> str:
    """Node of the lock for one ledgers root; RefusedError if it would be inside the cluster's own tree."""
    if f"{DIRECTORY}/".startswith(f"{root}/"):
        raise RefusedError(
            f"nothing was changed: {root} cannot be the root of a cluster that bkctl changes: its locks are "
            "stored there"
        )
    return f"{DIRECTORY}/{urllib.parse.quote(root.removeprefix('/'), safe='')}"


async def acquire_operation_lock(store: MetadataStore, root: str, holder: OperationHolder) -> OperationLock:
    """Take the cluster's lock. OperationLockedError shows the holder, MetadataAuthError the missing permission.

    SessionExpiredError when the session ended before the answer arrived: the lock ended with it.
    """
    return await _acquire(store, operation_lock_path(root), holder)


async def _acquire(
    store: MetadataStore, path: str, holder: OperationHolder, activity: str = "is changing this cluster"
) -> OperationLock:
    for _ in range(_ATTEMPTS_MAX):
        lock = OperationLock(store, path)  # before the create, so that it sees a session lost during the create
        if await _take(store, path, holder):
            lock.require_held()
            return lock
        found = await _read_holder(store, path)
        if found is not None:
            raise OperationLockedError(path, found, activity)
    raise OperationLockedError(path, _SHORT_OPERATIONS, activity)


async def lock_bookies(
    store: MetadataStore, root: str, holder: OperationHolder, bookie_ids: Collection[str]
) -> OperationLock:
    """Take the locks of these bookies, all or none.

    OperationLockedError shows who holds one of them, or who replaces the metadata of the whole cluster. Locks that this
    session already has count as taken: the answer to an earlier attempt may have been lost.
    """
    cluster_path = operation_lock_path(root)
    paths = {bookie_id: bookie_lock_path(root, bookie_id) for bookie_id in sorted(bookie_ids)}
    lock = OperationLock(store, *paths.values())
    taken: list[str] = []
    refusal = None
    for bookie_id, path in paths.items():
        refusal = await _try_bookie(store, path, holder, bookie_id)
        if refusal is not None:
            break
        taken.append(path)
    lock.require_held()
    found = await _read_holder(store, cluster_path)
    if found is not None and found.is_of_whole_cluster:
        refusal = OperationLockedError(cluster_path, found)
    if refusal is not None:
        await OperationLock(store, *taken).release()
        raise refusal
    return lock


async def lock_modes(store: MetadataStore, root: str, holder: OperationHolder) -> OperationLock:
    """Take the right to make bookies of the cluster read-only, for a short time; errors as ``lock_bookies``."""
    return await _acquire(store, f"{operation_lock_path(root)}{_MODES}", holder, "is making a bookie read-only")


async def _try_bookie(
    store: MetadataStore, path: str, holder: OperationHolder, bookie_id: str
) -> OperationLockedError | None:
    """Take the lock of one bookie, or return the error that shows its holder."""
    activity = f"is working on bookie {bookie_id}"
    for _ in range(_ATTEMPTS_MAX):
        if await _take(store, path, holder) or await _is_of_session(store, path):
            return None
        found = await _read_holder(store, path)
        if found is not None:
            return OperationLockedError(path, found, activity)
    return OperationLockedError(path, _SHORT_OPERATIONS, activity)


def bookie_lock_path(root: str, bookie_id: str) -> str:
    """Node of the lock for one bookie; RefusedError as for the cluster's."""
    return f"{operation_lock_path(root)}{_BOOKIE}{urllib.parse.quote(bookie_id, safe='')}"


async def operations_on_bookies(store: MetadataStore, root: str) -> list[OperationHolder]:
    """Holders of bookie locks, one for each locked bookie. Call ``store.sync`` first."""
    prefix = f"{operation_lock_path(root).rpartition('/')[2]}{_BOOKIE}"
    modes = f"{prefix.removesuffix(_BOOKIE)}{_MODES}"
    return list((await _holders(store, lambda name: name.startswith(prefix) and name != modes)).values())


async def running_operations(store: MetadataStore, root: str) -> dict[OperationHolder, list[str]]:
    """Operations that hold the lock of the cluster or of some of its bookies; each with these bookies."""
    name = operation_lock_path(root).rpartition("/")[2]
    found: dict[OperationHolder, list[str]] = {}
    for each, holder in (await _holders(store, lambda each: each.partition(_BOOKIE)[0] == name)).items():
        bookie_ids = found.setdefault(holder, [])
        if each not in (name, f"{name}{_MODES}"):
            bookie_ids.append(urllib.parse.unquote(each.partition(_BOOKIE)[2]))
    return found


async def leaving_bookies(store: MetadataStore, root: str) -> frozenset[str]:
    """Bookies whose ledgers operations move to others now."""
    return (await moved_bookies(store, root))[0]


async def moved_bookies(store: MetadataStore, root: str) -> tuple[frozenset[str], frozenset[str]]:
    """The same, and those of them that the operations remove from the cluster at last."""
    running = (await running_operations(store, root)).items()
    moved = (bookie_ids for holder, bookie_ids in running if holder.moves_ledgers)
    removed = (bookie_ids for holder, bookie_ids in running if holder.removes_bookies)
    return frozenset(itertools.chain.from_iterable(moved)), frozenset(itertools.chain.from_iterable(removed))


async def _holders(store: MetadataStore, is_wanted: Callable[[str], bool]) -> dict[str, OperationHolder]:
    names = sorted(await children_of(store, DIRECTORY))
    found = {name: await _read_holder(store, f"{DIRECTORY}/{name}") for name in names if is_wanted(name)}
    return {name: holder for name, holder in found.items() if holder is not None}


async def _take(store: MetadataStore, path: str, holder: OperationHolder) -> bool:
    """Whether this session got the lock; False when another process holds it."""
    session_id = store.session_id
    try:
        await _create_directory(store)
        await store.create(path, msgspec.json.encode(holder), is_ephemeral=True)
    except NodeExistsError:
        return False
    except MetadataAuthError as error:
        raise MetadataAuthError(
            (
                f"no permission to create {path}: ask an administrator to create {DIRECTORY} with permission for "
                "this user"
            ),
            path,
        ) from error
    except MetadataUnavailableError:
        # The request may have succeeded and only its answer was lost.
        if not await _is_of_session(store, path) or store.session_id != session_id:
            raise
    return True


async def _is_of_session(store: MetadataStore, path: str) -> bool:
    """Whether this session created the node, in an earlier attempt whose answer was lost."""
    session_id = store.session_id
    stat = await store.exists(path)
    return stat is not None and stat.ephemeral_owner == session_id == store.session_id != 0


async def _create_directory(store: MetadataStore) -> None:
    if await store.exists(DIRECTORY) is None:
        with contextlib.suppress(NodeExistsError):
            await store.create(DIRECTORY, make_parents=True, is_open_acl=True)


async def _read_holder(store: MetadataStore, path: str) -> OperationHolder | None:
    """The holder of the lock; None when it has just been released."""
    try:
        return decode_json((await store.get(path)).data, OperationHolder)
    except NoNodeError:
        return None
    except (MetadataAuthError, JsonTextError):
        return OperationHolder("an operation without a description")
