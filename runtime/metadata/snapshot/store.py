"""Nodes of a file as a metadata store that cannot be written, for code that reads them from ZooKeeper as well."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from bkctl.runtime.errors import MetadataError, NoNodeError, RefusedError
from bkctl.runtime.metadata.snapshot.format import FileNode
from bkctl.runtime.metadata.store import ANY_VERSION, MetadataMeasures, Node, NodeStat, NodeWrite, Watch, get_each


class FileStore:
    """``MetadataStore`` over some nodes of a file; a node that is not among them does not exist."""

    def __init__(self, nodes: Iterable[FileNode]) -> None:
        self._nodes = {node.path or "/": node for node in nodes}
        self._children: dict[str, list[str]] = {}
        for path in sorted(self._nodes):
            parent, _, name = path.rpartition("/")
            self._children.setdefault(parent or "/", []).append(name)
        self.measures = MetadataMeasures()

    @property
    def session_id(self) -> int:
        """There is no session, and it does not change."""
        return 1

    @property
    def zxid(self) -> int:
        """A file does not change."""
        return 0

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""
        node = self._find(path)
        return Node(node.data, self._stat(node))

    async def get_all(self, paths: Sequence[str]) -> list[Node | MetadataError]:
        """Contents of nodes, or the error of each."""
        return await get_each(self, paths)

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:  # noqa: ARG002
        """Stat, or None when absent. It never changes."""
        node = self._nodes.get(path)
        return None if node is None else self._stat(node)

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:  # noqa: ARG002
        """Sorted child names; NoNodeError. They never change."""
        self._find(path)
        return list(self._children.get(path, ()))

    async def sync(self, path: str) -> None:
        """Nothing is newer than the file."""

    async def create(
        self,
        path: str,
        data: bytes = b"",  # noqa: ARG002
        *,
        is_ephemeral: bool = False,  # noqa: ARG002
        is_sequential: bool = False,  # noqa: ARG002
        make_parents: bool = False,  # noqa: ARG002
        is_open_acl: bool = False,  # noqa: ARG002
    ) -> str:
        """RefusedError."""
        _refuse(path)

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        """RefusedError."""
        _refuse(writes[0].path)

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:  # noqa: ARG002
        """RefusedError."""
        _refuse(path)

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:  # noqa: ARG002
        """RefusedError."""
        _refuse(path)

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:  # noqa: ARG002
        """RefusedError."""
        _refuse(path)

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:  # noqa: ARG002
        """RefusedError."""
        _refuse(path)

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """It is never lost."""

    async def close(self) -> None:
        """Nothing to close."""

    def _find(self, path: str) -> FileNode:
        node = self._nodes.get(path)
        if node is None:
            raise NoNodeError(f"{path} is not in the file", path)
        return node

    def _stat(self, node: FileNode) -> NodeStat:
        children_count = len(self._children.get(node.path, ()))
        return NodeStat(node.version, node.ctime_ms, node.mtime_ms, node.ephemeral_owner, children_count)


def _refuse(path: str) -> NoReturn:
    raise RefusedError(f"{path} is in a file, which is only read")
