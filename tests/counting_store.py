"""A metadata store that counts what is asked of it, so that costs stated in the docs can be held to."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from bkctl.runtime.errors import MetadataError
from bkctl.runtime.metadata.store import ANY_VERSION, MetadataMeasures, MetadataStore, Node, NodeStat, NodeWrite, Watch

Answer = TypeVar("Answer")


class CountingStore:
    """Delegates every operation of the port and counts it by kind: ``get``, ``exists``, ``children``, ``create`` ...

    ``write_all`` counts as one ``transaction``; a standing watch as one ``watched`` per call back, two when the node
    is absent, which is what it costs. Operations are counted when they begin, failed ones too. ``make_parents`` is
    refused: what it costs depends on what is there, and is hidden inside the store.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.counts: collections.Counter[str] = collections.Counter()
        self._unanswered_count = 0

    @contextmanager
    def counted(self) -> Iterator[collections.Counter[str]]:
        """Counts of what begins inside, complete at the end of the block."""
        before = self.counts.copy()
        inside: collections.Counter[str] = collections.Counter()
        try:
            yield inside
        finally:
            inside.update(self.counts - before)

    async def quiet(self) -> None:
        """Return when everything was answered and nothing has been asked for a while: whoever was to be idle is."""
        while True:
            before = self.counts.copy()
            await asyncio.sleep(0.3)
            if self.counts == before and not self._unanswered_count:
                return

    @property
    def session_id(self) -> int:
        return self._store.session_id

    @property
    def zxid(self) -> int:
        return self._store.zxid

    @property
    def measures(self) -> MetadataMeasures:
        return self._store.measures

    async def get(self, path: str) -> Node:
        return await self._ask("get", self._store.get(path))

    async def get_all(self, paths: Sequence[str]) -> list[Node | MetadataError]:
        return await self._ask("get_all", self._store.get_all(paths))

    async def exists(self, path: str, on_change: Callable[[], None] | None = None) -> NodeStat | None:
        return await self._ask("exists", self._store.exists(path, on_change))

    async def children(self, path: str, on_change: Callable[[], None] | None = None) -> list[str]:
        return await self._ask("children", self._store.children(path, on_change))

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
        assert not make_parents, "costs that cannot be counted"
        creating = self._store.create(
            path, data, is_ephemeral=is_ephemeral, is_sequential=is_sequential, is_open_acl=is_open_acl
        )
        return await self._ask("create", creating)

    async def write_all(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        return await self._ask("transaction", self._store.write_all(writes))

    async def set(self, path: str, data: bytes, expected_version: int) -> NodeStat:
        return await self._ask("set", self._store.set(path, data, expected_version))

    async def delete(self, path: str, expected_version: int = ANY_VERSION) -> None:
        await self._ask("delete", self._store.delete(path, expected_version))

    async def sync(self, path: str) -> None:
        await self._ask("sync", self._store.sync(path))

    async def _ask(self, kind: str, asking: Awaitable[Answer]) -> Answer:
        self.counts[kind] += 1
        self._unanswered_count += 1
        try:
            return await asking
        finally:
            self._unanswered_count -= 1

    def watch_children(self, path: str, callback: Callable[[list[str] | None], None]) -> Watch:
        count = self._watch_counter()

        def tell(names: list[str] | None) -> None:
            count(names is not None)
            callback(names)

        return self._store.watch_children(path, tell)

    def watch_node(self, path: str, callback: Callable[[Node | None], None]) -> Watch:
        count = self._watch_counter()

        def tell(node: Node | None) -> None:
            count(node is not None)
            callback(node)

        return self._store.watch_node(path, tell)

    def _watch_counter(self) -> Callable[[bool], None]:
        """The first read counts where the watch begins, not when its answer comes, so that costs are told apart."""
        self.counts["watched"] += 1
        is_first = True

        def count(is_there: bool) -> None:
            nonlocal is_first
            self.counts["watched"] += (0 if is_first else 1) + (0 if is_there else 1)
            is_first = False

        return count

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._store.on_session_lost(callback)

    async def close(self) -> None:
        await self._store.close()
