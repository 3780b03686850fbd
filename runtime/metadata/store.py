"""The MetadataStore port: a tree of small nodes with versions, ephemerals and watches.

Session contract. Each sentence has a test in ``tests/runtime/metadata/zookeeper/test_store_contract.py``, which runs
against ZooKeeper and the simulator's model; tests that need several servers are in ``test_ensemble_faults.py``.

Waiting
- Every operation ends within the operation time-out of the store (one time-out per node for ``make_parents``).
- While disconnected, operations wait and continue after the reconnect. If the time runs out first, they fail with
  MetadataUnavailableError, and a write that was still waiting is never sent.
- A server that lost its quorum and answers reads only is never used, as its data may be stale: that is disconnected.
- Operations of one store are carried out in the order in which they began.

Lost answers
- A write that was sent but not answered, because the connection broke or the time ran out, fails with
  MetadataUnavailableError. Its outcome is unknown, as after a cancellation. It is never sent twice.
- The outcome is settled once a later operation of the same session succeeds: the write has happened or never will.
- Reads are repeated within their time-out.

Sessions
- A store has one session at a time; ``session_id`` is its id, 0 between two. Losing the connection does not end it.
- The server ends a session after the session time-out without contact and deletes its ephemeral nodes. The store learns
  this when it reaches a server again. Then every operation that began before fails with SessionExpiredError, and each
  ``on_session_lost`` callback is called once, whatever other callbacks do.
- The store then opens a new session by itself. It recreates no nodes, and never carries out in one session an operation
  that began in another.
- ``close`` ends the session and its ephemeral nodes immediately; running and later operations fail with
  MetadataUnavailableError. It takes at most ``CLOSE_TIMEOUT_S``; if the server does not answer, the nodes stay until
  the session time-out. No callback is called for it.
- A wrong password, certificate or missing permission raises MetadataAuthError immediately: waiting would not help.

Consistency
- Reads see this session's own writes and never go back to an older state. A new session may see an older one:
  ``sync`` makes the reads that follow see what others had finished before the call.
- A watch calls back with the current state and, after changes, with the latest one. It may skip states between fast
  changes and repeat one after a lost connection, but never misses the last state, not even across sessions.
- A watch reports None only when the node is absent, never because the connection is lost. A callback that raises is
  called again at the next change.
- ``on_change`` is called once: for the change, or for a lost connection, which may hide one.

Nodes
- A node has version 0 when created, also when created again, and one more after each ``set``; ``ANY_VERSION`` matches
  all. A failed operation changes nothing.
- A sequential node is numbered by its parent's count of children ever created, ephemeral or not. The count never falls.
  It stops at 2147483647: each later sequential name has this number, and creation fails while that node exists.
- An ephemeral node has no children (MetadataError).
- Data of more than ``NODE_BYTES_MAX`` and invalid paths are refused with MetadataError before anything is sent: a
  server would drop the connection for the first, and an invalid path might refer to another node.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from bkctl.runtime.errors import MetadataError, MetadataFormatError, NoNodeError
from bkctl.storage.measures import Measures, Outcomes


class MetadataMeasures(Measures):
    """Durations include the wait for a lost connection. An error of the store, like an absent node, is a failure."""

    def __init__(self) -> None:
        super().__init__()
        self.connections_count = 0
        """How often a connection to a server was established."""
        self.is_connected = False
        """Whether a server is connected now; a session outlives a lost connection until a server ends it."""
        self.opened: Final = Outcomes()
        """Opening the session."""
        self.creates: Final = Outcomes()
        self.transactions: Final = Outcomes()
        self.deletes: Final = Outcomes()
        self.exists: Final = Outcomes()
        self.gets: Final = Outcomes()
        self.lists: Final = Outcomes()
        """Listing the children of a node."""
        self.sets: Final = Outcomes()
        self.syncs: Final = Outcomes()


T = TypeVar("T")

ANY_VERSION = -1
NODE_BYTES_MAX = 1_000_000
"""Maximum data of a node: servers drop connections that send requests above 1 MiB (their default jute.maxbuffer)."""
CLOSE_TIMEOUT_S = 3.0
"""How long ``close`` may take."""

_USUAL_PATH = re.compile(r"(?:/[\w:-][\w.:-]*)+", re.ASCII)
"""Almost all paths; the others are looked at more closely."""
_SEGMENT_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class NodeStat(msgspec.Struct, frozen=True, gc=False):
    """Stat of a node: data version, times in ms since 1970, owner session (0: persistent)."""

    version: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int
    children_count: int
    children_created_count: int = 0
    """Children ever created, ephemeral or not; this is the number of the next sequential child."""


class Node(msgspec.Struct, frozen=True, gc=False):
    """Contents of a node at one version."""

    data: bytes
    stat: NodeStat


class Versioned(msgspec.Struct, Generic[T], frozen=True):
    """A value and the compare-and-set token it was read with.

    ``ctime_ms``: creation time of its node in ms since 1970, None if the store's answer did not include it.
    """

    value: T
    version: int
    ctime_ms: int | None = None


class CreateNode(msgspec.Struct, frozen=True, gc=False):
    """Creation of a node in a transaction."""

    path: str
    data: bytes = b""
    is_ephemeral: bool = False


class SetNode(msgspec.Struct, frozen=True, gc=False):
    """New contents of a node in a transaction."""

    path: str
    data: bytes
    expected_version: int


class DeleteNode(msgspec.Struct, frozen=True, gc=False):
    """Deletion of a node in a transaction."""

    path: str
    expected_version: int = ANY_VERSION


class CheckNode(msgspec.Struct, frozen=True, gc=False):
    """Fails the transaction unless the node has this version; changes nothing."""

    path: str
    expected_version: int


NodeWrite: TypeAlias = CreateNode | SetNode | DeleteNode | CheckNode


def check_path(path: str) -> None:
    """MetadataError unless this is a valid absolute ZooKeeper path: no empty or relative part."""
    if _USUAL_PATH.fullmatch(path):
        return
    parts = path.split("/")
    is_root = path == "/"
    if not is_root and (parts[0] or len(parts) < 2 or any(part in {"", ".", ".."} for part in parts[1:])):
        raise MetadataError(f"{path!r} is not the path of a node", path)
    if _SEGMENT_FORBIDDEN.search(path):
        raise MetadataError(f"{path!r} has a character that is not allowed in node names", path)


def check_data(path: str, data: bytes) -> None:
    """MetadataError when the data is too large for a node."""
    if len(data) > NODE_BYTES_MAX:
        raise MetadataError(f"{path}: {len(data)} bytes exceed the size limit of a node ({NODE_BYTES_MAX})", path)


def check_writes(writes: Sequence[NodeWrite]) -> None:
    """MetadataError unless all paths are valid and no data is too large for a node."""
    for write in writes:
        check_path(write.path)
        if isinstance(write, CreateNode | SetNode):
            check_data(write.path, write.data)


class Watch(Protocol):
    """A persistent watch on a node."""

    def cancel(self) -> None:
        """Never call back again; safe to repeat."""


class MetadataStore(Protocol):
    """See the module docstring for the session contract. Paths are absolute."""

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 between two sessions."""

    @property
    def zxid(self) -> int:
        """Number of the last transaction that the server had carried out when it last answered this session.

        It grows with every change in the store, and with every election of a leader. 0: not known yet.
        """

    @property
    def measures(self) -> MetadataMeasures:
        """Durations of the operations."""

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""

    async def get_all(self, paths: Sequence[str]) -> list[Node | MetadataError]:
        """Contents of one or more nodes, or the error of each, in one request. They may be of different moments."""

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        """Stat, or None when absent.

        ``on_change`` is called on the loop, once: when the node is created, changed or deleted after this read, or when
        the connection is lost, which may hide a change. It costs no further operation and does not say what changed.
        """

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Sorted child names; NoNodeError, in which case ``on_change`` is not registered.

        ``on_change`` as in ``exists``: when a child comes or goes or the node is deleted, not when its data changes.
        """

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        is_ephemeral: bool = False,
        is_sequential: bool = False,
        make_parents: bool = False,
        is_open_acl: bool = False,
    ) -> str:
        """Create a node, return its path (with the number for a sequential one).

        NodeExistsError; NoNodeError if the parent is missing and ``make_parents`` is off. Parents are persistent and
        empty, with the same ACL; parents that are deleted meanwhile are created again.
        """

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        """All of these writes in one transaction, or none; returns a stat for each SetNode, None for the others.

        The error of the write at fault has its path: NodeExistsError, NoNodeError, BadVersionError, NotEmptyError.
        """

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        """Replace contents; BadVersionError, NoNodeError."""

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete; BadVersionError, NoNodeError, NotEmptyError."""

    async def sync(self, path: str) -> None:
        """Make the reads that follow see everything finished before this call."""

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        """Call back on the loop with the sorted children now and after every change; None when the node is absent."""

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Call back on the loop with the node now and after every change; None when it is absent."""

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back on the loop, once per session that was lost; not for ``close``."""

    async def close(self) -> None:
        """End the session and delete its ephemeral nodes. Can be repeated, takes bounded time, never raises."""


class NodeReader(Protocol):
    """The read operations of a store."""

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""

    async def children(self, path: str) -> list[str]:
        """Sorted child names; NoNodeError."""


async def find_node(store: NodeReader, path: str) -> Node | None:
    """The node, or None when it is absent."""
    try:
        return await store.get(path)
    except NoNodeError:
        return None


async def get_each(store: NodeReader, paths: Iterable[str]) -> list[Node | MetadataError]:
    """``MetadataStore.get_all`` with a request for each node."""
    found: list[Node | MetadataError] = []
    for each in await asyncio.gather(*map(store.get, paths), return_exceptions=True):
        if not isinstance(each, Node | MetadataError):
            raise each
        found.append(each)
    return found


async def children_of(store: NodeReader, path: str) -> list[str]:
    """Sorted child names; none when the node is absent."""
    try:
        return await store.children(path)
    except NoNodeError:
        return []


def decode_node(path: str, node: Node, decode: Callable[[bytes], T]) -> T:
    """Decode the contents of a node; MetadataFormatError includes its path."""
    try:
        return decode(node.data)
    except MetadataFormatError as error:
        raise MetadataFormatError(f"{path}: {error}", path) from error


async def read_or_problem(
    store: NodeReader, path: str, decode: Callable[[bytes], T]
) -> tuple[NodeStat, T | None, MetadataFormatError | None] | None:
    """Decoded contents of a node, or why they cannot be read; None when the node is absent."""
    node = await find_node(store, path)
    if node is None:
        return None
    try:
        return node.stat, decode_node(path, node, decode), None
    except MetadataFormatError as error:
        return node.stat, None, error
