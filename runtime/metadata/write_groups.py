"""Joins the writes of concurrent callers: ZooKeeper forces a transaction to its disk once, however many writes it has.

The callers notice nothing else: each write succeeds or fails by itself. If one write of a transaction fails, ZooKeeper
carries out none of them; the others are then sent one by one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

from runtime.errors import MetadataError, MetadataUnavailableError, SessionExpiredError
from runtime.metadata.request_budget import RequestBudget
from runtime.metadata.store import CreateNode, DeleteNode, MetadataStore, NodeStat, NodeWrite, SetNode

TRANSACTIONS_UNDER_WAY_MAX = 2
"""Writes that begin while so many transactions are unanswered wait, and form the next one."""
WRITES_MAX = 128
BYTES_MAX = 256 * 1024
"""Limits of one transaction; a server accepts 1 MiB."""
_WRITE_OVERHEAD_BYTES = 64

COST_OF_COMPANY = 0.25
"""What one more caller's writes in a transaction cost the server, in requests (docs/development.md)."""


def _cost(units_count: int) -> float:
    return 1.0 + (units_count - 1) * COST_OF_COMPANY


class _Unit:
    """What one caller wants to be written, all or none."""

    __slots__ = ("answer", "is_alone", "paths", "size_bytes", "writes")

    def __init__(self, writes: Sequence[NodeWrite], answer: asyncio.Future[list[NodeStat | None]]) -> None:
        self.writes = writes
        self.answer = answer
        self.is_alone = False
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
    """Writes to one store. A write that waits for its transaction has not begun: if cancelled, it is never sent.

    Each write has its own place in the queue of the budget. The first of them to get its turn takes others along that
    still wait, so none has to wait longer than without groups; the places of those are then empty and cost nothing.
    """

    def __init__(self, store: MetadataStore, budget: RequestBudget) -> None:
        self._store = store
        self._budget = budget
        self._asking: list[_Unit] = []
        """Written in this turn of the loop: all of them ask for their places together."""
        self._waiting: dict[_Unit, None] = {}
        """In their order."""
        self._turns_missed: list[_Unit] = []
        """They got their turns while two transactions were unanswered: they ask again, before all others."""
        self._transactions: dict[asyncio.Task[None], list[_Unit]] = {}
        self._sent_alone: dict[asyncio.Task[None], list[_Unit]] = {}
        """Those of a transaction that failed for another one's write."""
        store.on_session_lost(self._note_session_lost)

    async def write(self, *writes: NodeWrite) -> list[NodeStat | None]:
        """Carry out all of these writes or none; results and errors as in ``MetadataStore.write_all``."""
        loop = asyncio.get_running_loop()
        unit = _Unit(writes, loop.create_future())
        self._waiting[unit] = None
        if not self._asking:
            loop.call_soon(self._ask)
        self._asking.append(unit)
        try:
            return await unit.answer
        finally:
            self._waiting.pop(unit, None)  # cancelled

    def _ask(self) -> None:
        units, self._asking = self._asking, []
        self._ask_for(units)

    def _ask_for(self, units: Sequence[_Unit], *, is_first: bool = False) -> None:
        self._budget.ask(*(functools.partial(self._begin, unit) for unit in units), is_first=is_first)

    def _begin(self, unit: _Unit, cost_max: float) -> float:
        """The turn of a unit: send it, and others with it. Returns the cost; 0 if nothing was sent."""
        if unit not in self._waiting:
            return 0.0
        if unit.is_alone:
            group, under_way = [unit], self._sent_alone
        elif len(self._transactions) < TRANSACTIONS_UNDER_WAY_MAX:
            group, under_way = self._group_with(unit, cost_max), self._transactions
        else:
            self._turns_missed.append(unit)
            return 0.0
        for each in group:
            del self._waiting[each]
        task = asyncio.get_running_loop().create_task(self._send(group))
        under_way[task] = group
        task.add_done_callback(functools.partial(self._note_sent, under_way))
        return _cost(len(group))

    def _group_with(self, first: _Unit, cost_max: float) -> list[_Unit]:
        """The units for one transaction. No node is written twice in it: a failure is identified by its path."""
        group = [first]
        paths = set(first.paths)
        size_bytes = first.size_bytes
        for unit in self._waiting:
            if unit is first or unit.is_alone:
                continue
            size_bytes += unit.size_bytes
            is_full = size_bytes > BYTES_MAX or len(paths) + len(unit.paths) > WRITES_MAX
            if is_full or _cost(len(group) + 1) > cost_max or not paths.isdisjoint(unit.paths):
                break
            group.append(unit)
            paths |= unit.paths
        return group

    def _note_sent(self, under_way: dict[asyncio.Task[None], list[_Unit]], task: asyncio.Task[None]) -> None:
        for unit in under_way.pop(task):
            if task.cancelled():  # the loop is ending
                unit.answer.cancel()
            elif not unit.answer.done() and (error := task.exception()) is not None:  # not one of the store's
                unit.answer.set_exception(error)
        units, self._turns_missed = self._turns_missed, []
        self._ask_for([unit for unit in units if unit in self._waiting], is_first=True)
        self._budget.release()

    async def _send(self, group: list[_Unit]) -> None:
        group = [unit for unit in group if not unit.answer.done()]  # cancelled, or its session ended, just now
        if len(group) < 2:
            for unit in group:
                await self._send_alone(unit)
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
            self._send_each_alone([unit for unit in group if not unit.answer.done()])
        else:
            for unit in group:
                count = len(unit.writes)
                unit.succeed(stats[:count])
                del stats[:count]

    def _send_each_alone(self, units: list[_Unit]) -> None:
        for unit in units:
            unit.is_alone = True
            self._waiting[unit] = None
        self._ask_for(units, is_first=True)

    async def _send_alone(self, unit: _Unit) -> None:
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
        groups = [*self._transactions.values(), *self._sent_alone.values()]
        units = [*self._waiting, *(unit for group in groups for unit in group)]
        self._waiting.clear()
        for unit in units:
            path = unit.writes[0].path
            unit.fail(SessionExpiredError(f"{path}: the ZooKeeper session expired", path))
