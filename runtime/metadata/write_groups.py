"""Joins the writes of concurrent callers: ZooKeeper forces a transaction to its disk once, however many writes it has.

The callers notice nothing else: each write succeeds or fails by itself. If one write of a transaction fails, ZooKeeper
carries out none of them; the others are then sent one by one.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Sequence

from runtime.errors import MetadataError, MetadataUnavailableError, SessionExpiredError
from runtime.metadata.store import CreateNode, DeleteNode, MetadataStore, NodeStat, NodeWrite, SetNode

TRANSACTIONS_UNDER_WAY_MAX = 2
"""Writes that begin while so many transactions are unanswered wait, and form the next one."""
WRITES_MAX = 128
BYTES_MAX = 256 * 1024
"""Limits of one transaction; a server accepts 1 MiB."""
_WRITE_OVERHEAD_BYTES = 64


class _Unit:
    """What one caller wants to be written, all or none."""

    __slots__ = ("answer", "paths", "size_bytes", "writes")

    def __init__(self, writes: Sequence[NodeWrite], answer: asyncio.Future[list[NodeStat | None]]) -> None:
        self.writes = writes
        self.answer = answer
        self.paths = {write.path for write in writes}
        self.size_bytes = 0
        for write in writes:
            self.size_bytes += len(write.path) + _WRITE_OVERHEAD_BYTES
            if isinstance(write, CreateNode | SetNode):
                self.size_bytes += len(write.data)

    def succeed(self, stats: list[NodeStat | None]) -> None:
        if not self.answer.done():  # cancelled
            self.answer.set_result(stats)

    def fail(self, error: MetadataError) -> None:
        """An own error for each caller: with its own path, if that of the error belongs to another one."""
        if self.answer.done():
            return
        path, sentence = error.path, str(error)
        if path is not None and path not in self.paths:
            path, sentence = self.writes[0].path, self.writes[0].path + sentence.removeprefix(path)
        self.answer.set_exception(type(error)(sentence, path))


class WriteGroups:
    """Writes to one store. A write that waits for its transaction has not begun: if cancelled, it is never sent."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._waiting: collections.deque[_Unit] = collections.deque()
        self._under_way: dict[asyncio.Task[None], list[_Unit]] = {}
        store.on_session_lost(self._note_session_lost)

    async def write(self, *writes: NodeWrite) -> list[NodeStat | None]:
        """Carry out all of these writes or none; results and errors as in ``MetadataStore.write_all``."""
        loop = asyncio.get_running_loop()
        unit = _Unit(writes, loop.create_future())
        if not self._waiting:  # after this turn of the loop, so that all writes of the turn go together
            loop.call_soon(self._send_waiting)
        self._waiting.append(unit)
        return await unit.answer

    def _send_waiting(self) -> None:
        while len(self._under_way) < TRANSACTIONS_UNDER_WAY_MAX and (group := self._next_group()):
            task = asyncio.get_running_loop().create_task(self._send(group))
            self._under_way[task] = group
            task.add_done_callback(self._note_sent)

    def _note_sent(self, task: asyncio.Task[None]) -> None:
        for unit in self._under_way.pop(task):
            if task.cancelled():  # the loop is ending
                unit.answer.cancel()
            elif not unit.answer.done() and (error := task.exception()) is not None:  # not one of the store's
                unit.answer.set_exception(error)
        self._send_waiting()

    def _next_group(self) -> list[_Unit]:
        """The units for the next transaction. No node is written twice in it: a failure is identified by its path."""
        group: list[_Unit] = []
        paths: set[str] = set()
        size_bytes = 0
        while self._waiting:
            unit = self._waiting[0]
            size_bytes += unit.size_bytes
            is_full = size_bytes > BYTES_MAX or len(paths) + len(unit.paths) > WRITES_MAX
            if group and (is_full or not paths.isdisjoint(unit.paths)):
                break
            group.append(self._waiting.popleft())
            paths |= unit.paths
        return group

    async def _send(self, group: list[_Unit]) -> None:
        group = [unit for unit in group if not unit.answer.done()]
        if len(group) < 2:
            await self._send_one_by_one(group)
            return
        try:
            stats = await self._store.write_all([write for unit in group for write in unit.writes])
        except MetadataUnavailableError as error:
            for unit in group:
                unit.fail(error)
        except MetadataError as error:
            for unit in group:
                if error.path in unit.paths:
                    unit.fail(error)
            await self._send_one_by_one(group)
        else:
            for unit in group:
                count = len(unit.writes)
                unit.succeed(stats[:count])
                del stats[:count]

    async def _send_one_by_one(self, units: list[_Unit]) -> None:
        await asyncio.gather(*map(self._send_alone, units))

    async def _send_alone(self, unit: _Unit) -> None:
        if unit.answer.done():
            return
        try:
            unit.succeed(await self._write(unit.writes))
        except MetadataError as error:
            unit.fail(error)

    async def _write(self, writes: Sequence[NodeWrite]) -> list[NodeStat | None]:
        match writes:
            case [CreateNode(path, data, is_ephemeral)]:
                await self._store.create(path, data, is_ephemeral=is_ephemeral)
                return [None]
            case [SetNode(path, data, expected_version)]:
                return [await self._store.set(path, data, expected_version)]
            case [DeleteNode(path, expected_version)]:
                await self._store.delete(path, expected_version)
                return [None]
            case _:
                return await self._store.write_all(writes)

    def _note_session_lost(self) -> None:
        """What began in a session must not be sent in the next one."""
        units = [*self._waiting, *(unit for group in self._under_way.values() for unit in group)]
        self._waiting.clear()
        for unit in units:
            path = unit.writes[0].path
            unit.fail(SessionExpiredError(f"{path}: the ZooKeeper session expired", path))
