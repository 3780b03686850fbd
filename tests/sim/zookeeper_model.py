"""A model of one ZooKeeper server: the tree, the sessions, the watches. Deterministic; held to the real one by
``tests/runtime/metadata/zookeeper/test_store_contract.py``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from bkctl.runtime.errors import (
    BadVersionError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from bkctl.runtime.metadata.store import ANY_VERSION, CheckNode, CreateNode, Node, NodeStat, NodeWrite, SetNode
from bkctl.runtime.ports import Clock

SEQUENCE_MAX = 2**31 - 1
"""Where the counter of sequential nodes sticks."""

TICK_S = 0.5
"""Sessions end at the next tick after their time-out."""


class ModelNode:
    """One node with all that a Stat tells, and the count of children ever created."""

    def __init__(self, zxid: int, now_ms: int, data: bytes, owner: int) -> None:
        self.data = data
        self.owner = owner
        self.created_zxid = self.modified_zxid = self.children_zxid = zxid
        self.ctime_ms = self.mtime_ms = now_ms
        self.version = 0
        self.children_created_count = 0
        self.children: dict[str, None] = {}

    @property
    def children_version(self) -> int:
        """Creations and deletions of children together (``cversion``)."""
        return 2 * self.children_created_count - len(self.children)

    def copy(self) -> ModelNode:
        """What a transaction that fails goes back to."""
        twin = copy.copy(self)
        twin.children = dict(self.children)
        return twin

    def stat(self) -> NodeStat:
        return NodeStat(
            self.version, self.ctime_ms, self.mtime_ms, self.owner, len(self.children), self.children_created_count
        )


class Watcher(NamedTuple):
    """Who is told, once, of a change: one read of one connection."""

    connection: ServerConnection
    tell: Callable[[], None]


MakeWatcher: TypeAlias = Callable[[], Watcher]


class ServerConnection(Protocol):
    """The server's end of a connection."""

    def close_by_server(self) -> None:
        """Its session ended, or moved to another connection."""


class _Session:
    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.expires_at_s = 0.0
        self.connection: ServerConnection | None = None


class ModelZooKeeper:
    """The server: what a request of an attached connection does is one call of a method below."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.zxid = 0
        self.nodes: dict[str, ModelNode] = {"/": ModelNode(0, clock.now_ms(), b"", 0)}
        self._sessions: dict[int, _Session] = {}
        self._sessions_count = 0
        self._changed: list[tuple[dict[str, list[Watcher]], str]] | None = None
        """Watches to fire at the end of the transaction in progress."""
        self._data_watchers: dict[str, list[Watcher]] = {}
        self._child_watchers: dict[str, list[Watcher]] = {}

    # -- sessions -------------------------------------------------------------------------------------------------

    def open_session(self, timeout_s: float) -> int:
        """A new session id, never used before."""
        self._sessions_count += 1
        session_id = 0x1000_0000_0000 + self._sessions_count
        self._sessions[session_id] = _Session(timeout_s)
        self.touch(session_id)
        self._check_expiry_later(session_id, timeout_s)
        return session_id

    def attach(self, session_id: int, connection: ServerConnection) -> bool:
        """The session goes on over this connection, and over no other; False when it has ended."""
        session = self._sessions.get(session_id)
        if session is None:
            return False
        before, session.connection = session.connection, connection
        if before is not None:
            before.close_by_server()
        return self.touch(session_id)

    def touch(self, session_id: int) -> bool:
        """Something was heard of the session; False when it has ended."""
        session = self._sessions.get(session_id)
        if session is None:
            return False
        session.expires_at_s = self._now_s() + session.timeout_s
        return True

    def end_session(self, session_id: int) -> None:
        """By ``close``, by time, or behind its owner's back: its ephemeral nodes go in one transaction."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        self.zxid += 1
        for path in sorted(path for path, node in self.nodes.items() if node.owner == session_id):
            self._remove(path)
        if session.connection is not None:
            session.connection.close_by_server()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _check_expiry_later(self, session_id: int, seconds: float) -> None:
        def check() -> None:
            session = self._sessions.get(session_id)
            if session is None:
                return
            left_s = session.expires_at_s - self._now_s()
            if left_s > 0:
                self._check_expiry_later(session_id, left_s)
            else:
                self.end_session(session_id)

        self._clock.call_later(seconds + TICK_S, check)

    def is_attached(self, session_id: int, connection: ServerConnection) -> bool:
        """Whether requests of this connection still count: those of an earlier one that come late do not."""
        session = self._sessions.get(session_id)
        return session is not None and session.connection is connection

    def forget_connection(self, connection: ServerConnection) -> None:
        """Watches live as long as the connection that left them."""
        for table in (self._data_watchers, self._child_watchers):
            for path in list(table):
                table[path] = [watcher for watcher in table[path] if watcher.connection is not connection]
                if not table[path]:
                    del table[path]

    # -- reads ----------------------------------------------------------------------------------------------------

    def get(self, path: str, watcher: MakeWatcher | None) -> Node:
        node = self._node(path)
        self._watch(self._data_watchers, path, watcher)
        return Node(node.data, node.stat())

    def exists(self, path: str, watcher: MakeWatcher | None) -> NodeStat | None:
        self._watch(self._data_watchers, path, watcher)
        node = self.nodes.get(path)
        return None if node is None else node.stat()

    def children(self, path: str, watcher: MakeWatcher | None) -> list[str]:
        node = self._node(path)
        self._watch(self._child_watchers, path, watcher)
        return sorted(node.children)

    # -- writes ---------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, *, owner: int, is_sequential: bool) -> str:
        parent_path = _parent(path)
        parent = self._node(parent_path, path)
        if is_sequential:
            path += f"{parent.children_created_count:010d}"
        if path in self.nodes:
            raise NodeExistsError(f"{path}: node already exists", path)
        if parent.owner:
            raise MetadataError(f"{path}: an ephemeral node has no children", path)
        self.zxid += 1
        self.nodes[path] = ModelNode(self.zxid, self._clock.now_ms(), data, owner)
        parent.children[path.rpartition("/")[2]] = None
        parent.children_created_count = min(parent.children_created_count + 1, SEQUENCE_MAX)
        parent.children_zxid = self.zxid
        self._fire(self._data_watchers, path)
        self._fire(self._child_watchers, parent_path)
        return path

    def write_all(self, writes: Sequence[NodeWrite], *, owner: int) -> list[NodeStat | None]:
        """All or none; watchers are told at the end."""
        zxid = self.zxid
        before: dict[str, ModelNode | None] = {}
        for path in dict.fromkeys(path for write in writes for path in (write.path, _parent(write.path))):
            node = self.nodes.get(path)
            before[path] = None if node is None else node.copy()
        changed: list[tuple[dict[str, list[Watcher]], str]] = []
        self._changed = changed
        try:
            results = [self._write(write, owner) for write in writes]
        except MetadataError:
            self.zxid = zxid
            for path, node in before.items():
                self.nodes.pop(path, None)
                if node is not None:
                    self.nodes[path] = node
            raise
        finally:
            self._changed = None
        for table, path in changed:
            self._fire(table, path)
        return results

    def _write(self, write: NodeWrite, owner: int) -> NodeStat | None:
        if isinstance(write, CreateNode):
            owner = owner if write.is_ephemeral else 0
            self.create(write.path, write.data, owner=owner, is_sequential=False)
        elif isinstance(write, SetNode):
            return self.set(write.path, write.data, write.expected_version)
        elif isinstance(write, CheckNode):
            _check_version(write.path, self._node(write.path), write.expected_version)
        else:
            self.delete(write.path, write.expected_version)
        return None

    def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        node = self._node(path)
        _check_version(path, node, expected_version)
        self.zxid += 1
        node.data = data
        node.version += 1
        node.modified_zxid = self.zxid
        node.mtime_ms = self._clock.now_ms()
        self._fire(self._data_watchers, path)
        return node.stat()

    def delete(self, path: str, expected_version: int) -> None:
        node = self._node(path)
        _check_version(path, node, expected_version)
        if node.children:
            raise NotEmptyError(f"{path}: node has children", path)
        self.zxid += 1
        self._remove(path)

    def _remove(self, path: str) -> None:
        del self.nodes[path]
        parent_path = _parent(path)
        parent = self.nodes[parent_path]
        del parent.children[path.rpartition("/")[2]]
        parent.children_zxid = self.zxid
        self._fire(self._data_watchers, path)
        self._fire(self._child_watchers, path)
        self._fire(self._child_watchers, parent_path)

    def _node(self, path: str, named: str | None = None) -> ModelNode:
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError(f"{named or path}: no such node", named or path)
        return node

    @staticmethod
    def _watch(table: dict[str, list[Watcher]], path: str, watcher: MakeWatcher | None) -> None:
        if watcher is not None:
            table.setdefault(path, []).append(watcher())

    def _fire(self, table: dict[str, list[Watcher]], path: str) -> None:
        if self._changed is not None:
            self._changed.append((table, path))
            return
        for watcher in table.pop(path, ()):
            watcher.tell()


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _check_version(path: str, node: ModelNode, expected_version: int) -> None:
    if expected_version not in {ANY_VERSION, node.version}:
        raise BadVersionError(f"{path}: changed by another process in the meantime", path)
