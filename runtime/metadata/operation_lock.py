"""One operator's change of a cluster at a time: an ephemeral node outside the Java namespace.

    /bkctl/operations/<ledgers root, percent-encoded>          E, JSON: what runs, where, since when
    /bkctl/operations/<ledgers root, percent-encoded>,<id>     E, the same, of an operation that shares the cluster

Recoveries of bookies share the cluster: several may run at a time, together with every operation but those that
replace the metadata of the whole cluster. Both sides create their own node before they look for the other's, so at
least one of them sees the other.

Below the ledgers root an unknown child would make Java's nukeexistingcluster refuse (metadata section 3.5). The two
parents are world-open and stay: whoever may lock need not be the one who locked first.
"""

from __future__ import annotations

import contextlib
import urllib.parse
from typing import Self

import msgspec

from runtime.errors import (
    ConflictError,
    MetadataAuthError,
    MetadataError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
    RefusedError,
    SessionExpiredError,
)
from runtime.metadata.store import MetadataStore
from storage.json_text import JsonTextError, decode_json

DIRECTORY = "/bkctl/operations"
_WHOLE_CLUSTER = frozenset({"cluster format", "cluster nuke", "cluster restore"})
_ATTEMPTS_MAX = 10
_SHARE = ","  # never part of a percent-encoded root


class OperationHolder(msgspec.Struct, frozen=True):
    """Who changes the cluster, as the others are told."""

    operation: str
    user: str = "?"
    host: str = "?"
    pid: int = 0
    since: str = "?"

    @property
    def is_of_whole_cluster(self) -> bool:
        """Whether nothing else may run meanwhile; also True for a holder that cannot be read."""
        return self.operation in _WHOLE_CLUSTER or self.pid <= 0

    def __str__(self) -> str:
        return f"'{self.operation}' by {self.user} on {self.host}, process {self.pid}, since {self.since}"


class OperationLockedError(ConflictError):
    """Somebody else changes the cluster at this moment."""

    def __init__(self, path: str, holder: OperationHolder) -> None:
        super().__init__(f"another operation changes this cluster: {holder} (lock {path})")
        self.holder = holder


class OperationLock:
    """A lock that was acquired; lives as long as the session. Use it as ``async with``."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self._store = store
        self._path = path
        self._is_held = True
        store.on_session_lost(self._note_session_lost)

    @property
    def is_held(self) -> bool:
        """Whether the session that took the lock still lasts."""
        return self._is_held

    def require_held(self) -> None:
        """SessionExpiredError once the session that took the lock is gone: ask before every step that relies on it."""
        if not self._is_held:
            raise SessionExpiredError(f"{self._path}: the operation lock went with the ZooKeeper session", self._path)

    async def release(self) -> None:
        """Give the lock back; if that fails, the end of the session does it."""
        if not self._is_held:
            return  # the node may be another's by now
        self._is_held = False
        with contextlib.suppress(MetadataError):
            await self._store.delete(self._path)

    def _note_session_lost(self) -> None:
        self._is_held = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


def operation_lock_path(root: str) -> str:
    """Node of the lock for one ledgers root; RefusedError where it would lie inside the cluster's own tree."""
    if f"{DIRECTORY}/".startswith(f"{root}/"):
        raise RefusedError(
            f"nothing was changed: {root} cannot be the root of a cluster that bkctl changes: its locks are kept there"
        )
    return f"{DIRECTORY}/{urllib.parse.quote(root.removeprefix('/'), safe='')}"


async def acquire_operation_lock(store: MetadataStore, root: str, holder: OperationHolder) -> OperationLock:
    """Take the cluster's lock; OperationLockedError names who has it, MetadataAuthError says what is missing.

    SessionExpiredError when the session ended before the answer arrived: the lock went with it.
    """
    path = operation_lock_path(root)
    for _ in range(_ATTEMPTS_MAX):
        lock = OperationLock(store, path)  # before the create, so that it sees a session lost during the create
        if await _take(store, path, holder):
            lock.require_held()
            return lock
        found = await _read_holder(store, path)
        if found is not None:
            raise OperationLockedError(path, found)
    raise OperationLockedError(path, OperationHolder("one operation after the other, each of a moment: try again"))


async def share_cluster(store: MetadataStore, root: str, holder: OperationHolder, share_id: str) -> OperationLock:
    """Announce an operation that may run next to others; OperationLockedError while the whole cluster is replaced."""
    path = operation_lock_path(root)
    share_path = f"{path}{_SHARE}{share_id}"
    lock = OperationLock(store, share_path)
    if not await _take(store, share_path, holder) and not await _is_of_session(store, share_path):
        raise OperationLockedError(share_path, holder)
    lock.require_held()
    found = await _read_holder(store, path)
    if found is not None and found.is_of_whole_cluster:
        await lock.release()
        raise OperationLockedError(path, found)
    return lock


async def sharing_operations(store: MetadataStore, root: str) -> list[OperationHolder]:
    """Operations that share the cluster now. ``store.sync`` must come first."""
    path = operation_lock_path(root)
    prefix = f"{path.rpartition('/')[2]}{_SHARE}"
    try:
        names = await store.children(DIRECTORY)
    except NoNodeError:
        return []
    found = [await _read_holder(store, f"{DIRECTORY}/{name}") for name in names if name.startswith(prefix)]
    return [holder for holder in found if holder is not None]


async def _take(store: MetadataStore, path: str, holder: OperationHolder) -> bool:
    """Whether the lock is ours; False where somebody else has it."""
    session_id = store.session_id
    try:
        await _create_directory(store)
        await store.create(path, msgspec.json.encode(holder), is_ephemeral=True)
    except NodeExistsError:
        return False
    except MetadataAuthError as error:
        raise MetadataAuthError(
            f"no permission to create {path}: let an administrator create {DIRECTORY} with rights for this user", path
        ) from error
    except MetadataUnavailableError:
        # The answer may have been lost, not the request.
        if not await _is_of_session(store, path) or store.session_id != session_id:
            raise
    return True


async def _is_of_session(store: MetadataStore, path: str) -> bool:
    """Whether this session created the node: an earlier attempt did, if its answer was lost."""
    session_id = store.session_id
    stat = await store.exists(path)
    return stat is not None and stat.ephemeral_owner == session_id == store.session_id != 0


async def _create_directory(store: MetadataStore) -> None:
    if await store.exists(DIRECTORY) is None:
        with contextlib.suppress(NodeExistsError):
            await store.create(DIRECTORY, make_parents=True, is_open_acl=True)


async def _read_holder(store: MetadataStore, path: str) -> OperationHolder | None:
    """Who has the lock; None when it has just been given back."""
    try:
        return decode_json((await store.get(path)).data, OperationHolder)
    except NoNodeError:
        return None
    except (MetadataAuthError, JsonTextError):
        return OperationHolder("an operation that tells nothing of itself")
