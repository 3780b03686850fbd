"""The MetadataStore port: a tree of small nodes with versions, ephemerals and watches.

Session contract. Every sentence is a test of ``tests/runtime/metadata/zookeeper/test_store_contract.py``, which runs
against ZooKeeper and against the simulator's model; ``test_ensemble_faults.py`` next to it needs several servers.

Waiting
- Every operation ends within the operation time-out of the store (one time-out per node for ``make_parents``).
- While disconnected, operations wait and go on when the connection is back; when the time runs out they end with
  MetadataUnavailableError, and a write that was still waiting is never sent.
- A server that lost its ensemble and answers reads only is never asked, for it may be behind: that is disconnected.
- Operations of one store are carried out in the order in which they began.

Lost answers
- A write that was sent and not answered, because the connection broke or the time ran out, fails with
  MetadataUnavailableError: it is in doubt, as one that was cancelled. It is not repeated, so it happens once at most.
- It does not stay in doubt: once a later operation of the same session has succeeded, it has happened or never will.
- Reads are repeated within their time.

Sessions
- A store has one session at a time; ``session_id`` names it, 0 between two. Losing the connection does not end it.
- The server ends a session it has not heard of for the session time-out; its ephemeral nodes go with it. The store
  learns that when it reaches a server again. Then every operation that began before fails with SessionExpiredError, and
  each ``on_session_lost`` callback is called once, whatever the others do.
- The store then opens a new session by itself. Nothing is created again silently, and no operation that began in one
  session is carried out by another.
- ``close`` ends the session, its ephemeral nodes vanish at once, and what is under way or comes later fails with
  MetadataUnavailableError. It takes ``CLOSE_TIMEOUT_S`` at most: of a server that does not answer, the session
  time-out takes the nodes away. No callback is called for it.
- A wrong password, certificate or missing permission is MetadataAuthError at once: waiting would not help.

Seeing
- Reads see this session's own writes, and never go back behind what it has seen. A new session may see less:
  ``sync`` makes the reads that follow see what others had finished before the call.
- A watch calls back with the state now, and after changes with the latest state: of fast changes it may skip some, and
  after a lost connection it may repeat itself, but the last state is never missed, across sessions too.
- A watch says None only when the node is absent, never for want of a connection; a callback that raises is called again
  at the next change.
- ``on_change`` is called once: for the change, or for a lost connection, which may hide one.

Nodes
- A node is at version 0 when created, one more after each ``set``, at 0 again when created anew; ``ANY_VERSION`` fits
  all. A failed operation changes nothing.
- A sequential node gets its parent's count of children ever created, ephemeral or not. The count never falls, and
  sticks at 2147483647: from then on each sequential name is that one, and taken while that node exists.
- An ephemeral node has no children (MetadataError).
- Data of more than ``NODE_BYTES_MAX`` and paths that are no paths are refused with MetadataError before anything is
  sent: a server would drop the connection of the one, and the other might mean another node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from runtime.errors import MetadataError, MetadataFormatError, NoNodeError

T = TypeVar("T")

ANY_VERSION = -1
NODE_BYTES_MAX = 1_000_000
"""Largest data of a node: servers drop connections that send requests above 1 MiB (their default jute.maxbuffer)."""
CLOSE_TIMEOUT_S = 3.0
"""Longest time that ``close`` takes."""

_SEGMENT_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


class NodeStat(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of a node: data version, times in ms since 1970, owner session (0: persistent)."""

    version: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int
    children_count: int
    children_created_count: int = 0
    """Children ever created, ephemeral or not: the number of the next sequential one."""


class Node(msgspec.Struct, frozen=True, gc=False):
    """Contents of a node at one version."""

    data: bytes
    stat: NodeStat


class Versioned(msgspec.Struct, Generic[T], frozen=True):
    """A value and the compare-and-set token it was read with.

    ``ctime_ms``: when its node was created, ms since 1970, where the answer of the store told.
    """

    value: T
    version: int
    ctime_ms: int | None = None


class CreateNode(msgspec.Struct, frozen=True):
    """One persistent node of an atomic ``create_all``."""

    path: str
    data: bytes = b""


def check_path(path: str) -> None:
    """MetadataError unless this is the path of a node as ZooKeeper spells it: absolute, no empty or relative part."""
    parts = path.split("/")
    is_root = path == "/"
    if not is_root and (parts[0] or len(parts) < 2 or any(part in {"", ".", ".."} for part in parts[1:])):
        raise MetadataError(f"{path!r} is not the path of a node", path)
    if _SEGMENT_FORBIDDEN.search(path):
        raise MetadataError(f"{path!r} has a character that is not allowed in node names", path)


def check_data(path: str, data: bytes) -> None:
    """MetadataError when a node cannot hold so much."""
    if len(data) > NODE_BYTES_MAX:
        raise MetadataError(f"{path}: {len(data)} bytes exceed the size limit of a node ({NODE_BYTES_MAX})", path)


class Watch(Protocol):
    """A standing interest in a node."""

    def cancel(self) -> None:
        """Never call back again; safe to repeat."""


class MetadataStore(Protocol):
    """See the module docstring for the session contract. Paths are absolute."""

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 between two sessions."""

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        """Stat, or None when absent.

        ``on_change`` is called on the loop, once: when the node is created, changed or deleted after this read, or when
        the connection is lost, which may hide a change. It costs no further operation; what changed is not told.
        """

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Sorted child names; NoNodeError, which leaves no ``on_change`` behind.

        ``on_change`` as in ``exists``: when a child comes or goes, or the node itself goes; not for changed contents.
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
        empty, with the same ACL; parents vanishing meanwhile are created again.
        """

    async def create_all(self, nodes: Sequence[CreateNode]) -> None:
        """Create several persistent nodes, all or none; NodeExistsError, NoNodeError."""

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        """Replace contents; BadVersionError, NoNodeError."""

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete; BadVersionError, NoNodeError, NotEmptyError."""

    async def sync(self, path: str) -> None:
        """Reads that follow see what was finished before this call."""

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        """Call back on the loop with the sorted children now and after every change; None when the node is absent."""

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Call back on the loop with the node now and after every change; None when it is absent."""

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back on the loop, once per session that was lost; not for ``close``."""

    async def close(self) -> None:
        """End the session and with it the ephemeral nodes; safe to repeat, bounded in time, raises nothing."""


class NodeReader(Protocol):
    """The part of a store that only reads."""

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


async def children_of(store: NodeReader, path: str) -> list[str]:
    """Sorted child names; none when the node is absent."""
    try:
        return await store.children(path)
    except NoNodeError:
        return []


def decode_node(path: str, node: Node, decode: Callable[[bytes], T]) -> T:
    """What a node contains; MetadataFormatError names its path."""
    try:
        return decode(node.data)
    except MetadataFormatError as error:
        raise MetadataFormatError(f"{path}: {error}", path) from error


async def read_or_problem(
    store: NodeReader, path: str, decode: Callable[[bytes], T]
) -> tuple[NodeStat, T | None, MetadataFormatError | None] | None:
    """What a node contains, or why that cannot be read; None when the node is absent."""
    node = await find_node(store, path)
    if node is None:
        return None
    try:
        return node.stat, decode_node(path, node, decode), None
    except MetadataFormatError as error:
        return node.stat, None, error
