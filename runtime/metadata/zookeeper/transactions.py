"""Stats, transactions and reads of several nodes for ``store``, without an import of kazoo (decision 7).

A transaction goes through kazoo as bytes: kazoo takes as long for its objects as for all the rest.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

from bkctl.runtime.errors import MetadataError
from bkctl.runtime.metadata.store import (
    CheckNode,
    CreateNode,
    DeleteNode,
    Node,
    NodeReader,
    NodeStat,
    NodeWrite,
    SetNode,
    check_path,
    get_each,
)
from bkctl.runtime.metadata.zookeeper.errors import error_of, is_at_fault, is_unknown_request, translate
from bkctl.storage.measures import Outcomes

INT: Final = struct.Struct(">i")
PART: Final = struct.Struct(">i?i")
"""Before each operation of a request, and before each result: its kind, whether it is the end, an error."""
ERROR: Final = -1
END: Final = PART.pack(ERROR, True, -1)
STAT: Final = struct.Struct(">qqqqiiiqiiq")

_CREATE: Final = 1
_DELETE: Final = 2
_SET: Final = 5
_CHECK: Final = 13


def node_stat(stat: Any) -> NodeStat:
    """The stat of the port for one of kazoo."""
    return NodeStat(
        version=stat.version,
        ctime_ms=stat.ctime,
        mtime_ms=stat.mtime,
        ephemeral_owner=stat.ephemeralOwner,
        children_count=stat.numChildren,
        children_created_count=_children_created(stat.cversion, stat.numChildren),
    )


def stat_at(answer: bytes, offset: int) -> NodeStat:
    """The stat in an answer."""
    _, _, ctime_ms, mtime_ms, version, cversion, _, owner, _, children, _ = STAT.unpack_from(answer, offset)
    return NodeStat(version, ctime_ms, mtime_ms, owner, children, _children_created(cversion, children))


def _children_created(cversion: int, children_count: int) -> int:
    """Children ever created: a server reports, in 32 bits, twice this number minus the number of children."""
    return (cversion + children_count & 0xFFFFFFFF) >> 1


@dataclasses.dataclass(frozen=True)
class Transaction:
    """A request for several writes, in the form that kazoo's connection takes."""

    writes: Sequence[NodeWrite]
    acl: Sequence[Any]

    type: ClassVar[int] = 14

    def serialize(self) -> bytes:
        """The request without its header."""
        acl = INT.pack(len(self.acl)) + b"".join(
            INT.pack(each.perms) + _text(each.id.scheme) + _text(each.id.id) for each in self.acl
        )
        parts: list[bytes] = []
        for write in self.writes:
            if isinstance(write, CreateNode):
                flags = INT.pack(write.is_ephemeral)
                parts += (_start(_CREATE, write), INT.pack(len(write.data)), write.data, acl, flags)
            elif isinstance(write, SetNode):
                version = INT.pack(write.expected_version)
                parts += (_start(_SET, write), INT.pack(len(write.data)), write.data, version)
            else:
                kind = _CHECK if isinstance(write, CheckNode) else _DELETE
                parts += (_start(kind, write), INT.pack(write.expected_version))
        return b"".join((*parts, END))

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> list[NodeStat | Exception | None]:
        """A stat for each new content, None for other writes; all errors if it failed."""
        results: list[NodeStat | Exception | None] = []
        while True:
            kind, is_end, _ = PART.unpack_from(answer, offset)
            offset += PART.size
            if is_end:
                return results
            if kind == ERROR:
                results.append(error_of(*INT.unpack_from(answer, offset)))
                offset += INT.size
            elif kind == _SET:
                results.append(stat_at(answer, offset))
                offset += STAT.size
            else:
                results.append(None)
            if kind == _CREATE:  # the path follows
                offset += INT.size + INT.unpack_from(answer, offset)[0]


def _start(kind: int, write: NodeWrite) -> bytes:
    return PART.pack(kind, False, -1) + _text(write.path)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return INT.pack(len(encoded)) + encoded


def begin_request(client: Any, request: Any) -> Any:
    """Send a request that kazoo does not know; returns its asynchronous result."""
    result = client.handler.async_result()
    client._call(request, result)  # noqa: SLF001  there is no public call for it
    return result


def stats_of(writes: Sequence[NodeWrite], results: Sequence[NodeStat | Exception | None]) -> list[NodeStat | None]:
    """The results of a transaction; if it failed, raises the error of the write at fault."""
    failures = [(write, result) for write, result in zip(writes, results, strict=True) if isinstance(result, Exception)]
    # The operations other than the one at fault have RolledBackError or RuntimeInconsistency.
    failures.sort(key=lambda failure: not is_at_fault(failure[1]))
    for write, result in failures:
        raise translate(result, write.path, is_of_parent=isinstance(write, CreateNode | DeleteNode))
    return [result for result in results if not isinstance(result, Exception)]


_GET_DATA: Final = 4
_START: Final = PART.pack(_GET_DATA, False, -1)
_NO_WATCH: Final = b"\0"


@dataclasses.dataclass(frozen=True)
class MultiRead:
    """A request for the contents of nodes, which kazoo does not offer, in the form that its connection takes.

    ZooKeeper has it since 3.6.
    """

    paths: Sequence[str]

    type: ClassVar[int] = 22

    def serialize(self) -> bytes:
        """The request without its header."""
        names = [path.encode() for path in self.paths]
        parts = [part for name in names for part in (_START, INT.pack(len(name)), name, _NO_WATCH)]
        return b"".join((*parts, END))

    @staticmethod
    def deserialize(answer: bytes, offset: int) -> list[Node | Exception]:
        """A node or kazoo's error for each path."""
        found: list[Node | Exception] = []
        while True:
            kind, is_end, _ = PART.unpack_from(answer, offset)
            offset += PART.size
            if is_end:
                return found
            (number,) = INT.unpack_from(answer, offset)
            offset += INT.size
            if kind == ERROR:
                found.append(error_of(number))
                continue
            data = answer[offset : offset + max(0, number)]  # -1: no data
            offset += len(data)
            found.append(Node(data, stat_at(answer, offset)))
            offset += STAT.size


class MultiReader:
    """Reads nodes together as long as the server can do that."""

    def __init__(
        self, client: Any, store: NodeReader, request: Callable[..., Awaitable[Any]], outcomes: Outcomes
    ) -> None:
        """``request`` runs one kazoo call, for the node that an error names, and counts it in ``outcomes``."""
        self._client = client
        self._store = store
        self._request = request
        self._outcomes = outcomes
        self._is_possible = True

    async def get_all(self, paths: Sequence[str]) -> list[Node | MetadataError]:
        """As ``MetadataStore.get_all``. A server before 3.6 refuses the request, and closes the connection."""
        for path in paths:
            check_path(path)
        if self._is_possible:
            submit = functools.partial(begin_request, self._client, MultiRead(paths))
            try:
                found = await self._request(paths[0], self._outcomes, submit, is_read=True)
            except MetadataError as error:
                if not is_unknown_request(error.__cause__):
                    raise
                self._is_possible = False
            else:
                return [
                    translate(each, path) if isinstance(each, Exception) else each
                    for path, each in zip(paths, found, strict=True)
                ]
        return await get_each(self._store, paths)
