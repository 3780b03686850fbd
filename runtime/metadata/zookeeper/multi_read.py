"""Reads several nodes with one request, which kazoo does not offer. ZooKeeper has it since 3.6.

Part of the adapter ``store``, without an import of kazoo (decision 7).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final

from bkctl.runtime.errors import MetadataError
from bkctl.runtime.metadata.store import Node, NodeReader, check_path, get_each
from bkctl.runtime.metadata.zookeeper.errors import error_of, is_unknown_request, translate
from bkctl.runtime.metadata.zookeeper.transactions import END, ERROR, INT, PART, STAT, begin_request, stat_at
from bkctl.storage.measures import Outcomes

_GET_DATA: Final = 4
_START: Final = PART.pack(_GET_DATA, False, -1)
_NO_WATCH: Final = b"\0"


@dataclasses.dataclass(frozen=True)
class MultiRead:
    """A request for the contents of nodes, in the form that kazoo's connection takes."""

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
