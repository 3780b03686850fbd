"""The MetadataStore port: a tree of small nodes with versions, ephemerals and watches.

Session contract
- A store handle has one session at a time. While disconnected, operations wait; they end with
  MetadataUnavailableError when the operation time-out (a constructor argument) runs out.
- When the session expires, every operation under way fails with SessionExpiredError, all ephemeral nodes of the session
  are gone, and every callback given to ``on_session_lost`` is called once. The adapter then opens a new session by
  itself; ``session_id`` tells them apart. Nothing is created again silently.
- Reads see this session's own writes. ``sync`` makes them see what others had finished before the call.
- A write whose answer is lost fails with MetadataUnavailableError and may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")

ANY_VERSION = -1


class NodeStat(msgspec.Struct, frozen=True, gc=False):
    """What the store knows of a node: data version, times in ms since 1970, owner session (0: persistent)."""

    version: int
    ctime_ms: int
    mtime_ms: int
    ephemeral_owner: int
    children_count: int


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


class Watch(Protocol):
    """A standing interest in a node."""

    def cancel(self) -> None:
        """Never call back again; safe to repeat."""


class MetadataStore(Protocol):
    """See the module docstring for the session contract. Paths are absolute."""

    @property
    def session_id(self) -> int:
        """Id of the current session."""

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
        """Register a callback for the end of a session."""

    async def close(self) -> None:
        """End the session; its ephemeral nodes vanish at once."""
