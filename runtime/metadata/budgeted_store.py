"""A store whose requests keep to a budget."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from bkctl.runtime.errors import MetadataError, SessionExpiredError
from bkctl.runtime.metadata.outage import OutageWait
from bkctl.runtime.metadata.read_groups import ReadGroups
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import (
    ANY_VERSION,
    CreateNode,
    DeleteNode,
    MetadataMeasures,
    MetadataStore,
    Node,
    NodeStat,
    NodeWrite,
    SetNode,
    Watch,
)
from bkctl.runtime.metadata.write_groups import WriteGroups

T = TypeVar("T")


class BudgetedStore:
    """A MetadataStore that sends each request in its turn; the time-out of an operation begins with its turn.

    The session contract holds from the call on: an operation whose session ends while it waits is not carried out.
    Watches go straight to the store: they cost an operation only when something changes. ``create`` with
    ``make_parents`` counts as one operation, its parents included.

    Concurrent writes are sent in common transactions, concurrent reads of contents in common requests, which count as
    what they cost the server (``WriteGroups``, ``ReadGroups``). So an operation may be carried out before another one
    that began earlier, unless its caller waited for that one.
    """

    def __init__(self, store: MetadataStore, budget: RequestBudget, outage: OutageWait | None = None) -> None:
        """``outage``: each read is repeated until the store answers again; MetadataOutageError. Only for work that
        changes nothing: a write whose answer was lost may have been carried out."""
        self._store = store
        self._outage = outage
        self._groups = WriteGroups(store, budget)
        self._reads = ReadGroups(store, budget)
        self._budget = budget
        self._sessions_lost_count = 0
        store.on_session_lost(self._note_session_lost)

    def _note_session_lost(self) -> None:
        self._sessions_lost_count += 1

    async def _run(self, path: str, operation: Callable[[], Awaitable[T]]) -> T:
        sessions_lost_count = self._sessions_lost_count

        async def begin() -> T:
            if self._sessions_lost_count != sessions_lost_count:
                raise SessionExpiredError(f"{path}: the ZooKeeper session expired", path)
            return await operation()

        return await self._budget.run(begin)

    async def _read(self, path: str, operation: Callable[[], Awaitable[T]]) -> T:
        if self._outage is None:
            return await self._run(path, operation)
        return await self._outage.outlast(lambda: self._run(path, operation))

    @property
    def session_id(self) -> int:
        """Id of the current session; 0 between two sessions."""
        return self._store.session_id

    @property
    def zxid(self) -> int:
        """Number of the last transaction that the server had carried out when it last answered."""
        return self._store.zxid

    @property
    def measures(self) -> MetadataMeasures:
        """Durations of the operations, without the wait for their turn."""
        return self._store.measures

    async def get(self, path: str) -> Node:
        """Contents; NoNodeError."""
        if self._outage is None:
            return await self._reads.get(path)
        return await self._outage.outlast(lambda: self._reads.get(path))

    async def get_all(self, paths: Sequence[str]) -> list[Node | MetadataError]:
        """Contents of one or more nodes, or the error of each; counts as one operation."""
        return await self._read(paths[0], lambda: self._store.get_all(paths))

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        """Stat, or None when absent."""
        return await self._read(path, lambda: self._store.exists(path, on_change))

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        """Sorted child names; NoNodeError."""
        return await self._read(path, lambda: self._store.children(path, on_change))

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
        """Create a node and return its path; NodeExistsError, NoNodeError without ``make_parents``."""
        if not (is_sequential or make_parents or is_open_acl):
            await self._groups.write(CreateNode(path, data, is_ephemeral))
            return path
        return await self._run(
            path,
            lambda: self._store.create(
                path,
                data,
                is_ephemeral=is_ephemeral,
                is_sequential=is_sequential,
                make_parents=make_parents,
                is_open_acl=is_open_acl,
            ),
        )

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        """All of these writes or none; counts as one operation, or less together with others."""
        return await self._groups.write(*writes)

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        """Replace contents; BadVersionError, NoNodeError."""
        (stat,) = await self._groups.write(SetNode(path, data, expected_version))
        assert stat is not None, "every SetNode has one"
        return stat

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        """Delete; BadVersionError, NoNodeError, NotEmptyError."""
        await self._groups.write(DeleteNode(path, expected_version))

    async def sync(self, path: str) -> None:
        """Make the reads that follow see everything finished before this call."""
        await self._read(path, lambda: self._store.sync(path))

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        """Call back with the sorted children now and after every change."""
        return self._store.watch_children(path, callback)

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        """Call back with the node now and after every change."""
        return self._store.watch_node(path, callback)

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back once per session that was lost."""
        self._store.on_session_lost(callback)

    async def close(self) -> None:
        """End the session; operations that wait for their turn fail when it comes."""
        await self._store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
