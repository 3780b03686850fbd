"""The replication lock: one copier per ledger, Java's workers included. Source: metadata sections 10.1, 10.2 and 10.5.

It is an ephemeral node that Java's replication workers use too; a ledger whose lock is held is left alone by them.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Self

from runtime.errors import ClusterNotFoundError, MetadataError, MetadataFormatError, NodeExistsError, NoNodeError
from runtime.ledger.protobuf_text import format_fields, parse_fields
from runtime.metadata.layout import require_storable_id
from runtime.metadata.paths import Paths
from runtime.metadata.store import MetadataStore

logger = logging.getLogger(__name__)

_LAYOUT_TYPE = "BASIC"
_LAYOUT_VERSION = 1


class ReplicationLock:
    """A lock that was acquired; release it, or use it as ``async with``."""

    def __init__(self, ledger_id: int, give_back: Callable[[], Awaitable[None]]) -> None:
        self.ledger_id = ledger_id
        self._give_back = give_back
        self._is_held = True

    @property
    def is_held(self) -> bool:
        """Whether the session that took the lock still lives; ask before a write that relies on it."""
        return self._is_held

    async def release(self) -> None:
        """Give the lock back; safe to repeat. If that fails, the end of the session does it."""
        if not self._is_held:
            return  # after a lost session the node may be another holder's
        self._is_held = False
        await self._give_back()

    def note_session_lost(self) -> None:
        """The node went with the session."""
        self._is_held = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()


class ReplicationLocks:
    """Locks of one session. ``holder`` is the host name that others are shown, as Java writes it."""

    def __init__(self, store: MetadataStore, root: str, holder: str) -> None:
        self._store = store
        self._paths = Paths(root)
        self._payload = format_fields([("bookieId", holder)]).encode("ascii")
        self._held: dict[int, ReplicationLock] = {}
        self._is_tree_known = False
        store.on_session_lost(self._note_session_lost)

    async def acquire(self, ledger_id: int) -> ReplicationLock | None:
        """Take the lock of a ledger; None when somebody holds it, this session included. Does not wait."""
        require_storable_id(ledger_id)
        if ledger_id in self._held:
            return None
        if not self._is_tree_known:
            await self._ensure_tree()
            self._is_tree_known = True
        path = self._paths.replication_lock(ledger_id)
        try:
            await self._store.create(path, self._payload, is_ephemeral=True)
        except NodeExistsError:
            stat = await self._store.exists(path)
            # Our own node without our knowledge: a create or a delete of this session whose answer was lost.
            if stat is None or stat.ephemeral_owner != self._store.session_id or ledger_id in self._held:
                return None
        lock = ReplicationLock(ledger_id, functools.partial(self._give_back, ledger_id))
        self._held[ledger_id] = lock
        return lock

    async def holder_of(self, ledger_id: int) -> str | None:
        """Who says to hold the lock, usually a host name; None when it is free."""
        from runtime.metadata.metadata_nodes_pb2 import ReplicationLockRecord  # noqa: PLC0415

        try:
            node = await self._store.get(self._paths.replication_lock(ledger_id))
        except NoNodeError:
            return None
        text = node.data.decode("utf-8", "replace")
        return parse_fields(text, ReplicationLockRecord(), "replication lock").bookieId

    async def close(self) -> None:
        """Release everything that is held."""
        for lock in list(self._held.values()):
            await lock.release()

    async def _give_back(self, ledger_id: int) -> None:
        del self._held[ledger_id]
        try:
            await self._store.delete(self._paths.replication_lock(ledger_id))
        except NoNodeError:
            pass
        except MetadataError as error:
            logger.warning("the replication lock of ledger %d stays until the session ends: %s", ledger_id, error)

    def _note_session_lost(self) -> None:
        for lock in self._held.values():
            lock.note_session_lost()
        self._held.clear()

    async def _ensure_tree(self) -> None:
        """The under-replication tree as every Java process creates it (metadata section 10.1)."""
        if await self._store.exists(self._paths.root) is None:
            raise ClusterNotFoundError(f"there is no BookKeeper cluster at {self._paths.root}", self._paths.root)
        layout = format_fields([("type", _LAYOUT_TYPE), ("version", _LAYOUT_VERSION)]).encode("ascii")
        await self._create_if_absent(self._paths.under_replication)
        if not await self._create_if_absent(self._paths.under_replication_layout, layout):
            await self._check_layout()
        await self._create_if_absent(self._paths.under_replicated_ledgers)
        await self._create_if_absent(self._paths.replication_locks)

    async def _check_layout(self) -> None:
        from runtime.metadata.metadata_nodes_pb2 import UnderReplicationLayoutRecord  # noqa: PLC0415

        path = self._paths.under_replication_layout
        text = (await self._store.get(path)).data.decode("utf-8", "replace")
        record = parse_fields(text, UnderReplicationLayoutRecord(), path)
        if (record.type, record.version) != (_LAYOUT_TYPE, _LAYOUT_VERSION):
            raise MetadataFormatError(f"{path}: this kind of under-replication tree is unknown: {text!r}", path)

    async def _create_if_absent(self, path: str, data: bytes = b"") -> bool:
        try:
            await self._store.create(path, data)
        except NodeExistsError:
            return False
        return True
