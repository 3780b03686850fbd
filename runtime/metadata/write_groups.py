"""Joins the writes of concurrent callers: ZooKeeper forces a transaction to its disk once, however many writes it has.

The callers notice nothing else: each write succeeds or fails by itself. If one write of a transaction fails, ZooKeeper
carries out none of them; the others are then sent one by one.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence

from bkctl.runtime.errors import MetadataError, MetadataUnavailableError, SessionExpiredError
from bkctl.runtime.metadata.request_budget import Begin, RequestBudget
from bkctl.runtime.metadata.store import CheckNode, CreateNode, DeleteNode, MetadataStore, NodeStat, NodeWrite, SetNode

TRANSACTIONS_UNDER_WAY_MAX = 2
"""Writes that begin while so many transactions are unanswered wait, and form the next one."""
WRITES_MAX = 128
BYTES_MAX = 256 * 1024
"""Limits of one transaction; a server accepts 1 MiB."""
_WRITE_OVERHEAD_BYTES = 64

_NO_CHECK = -2
"""No expected version; different from None, the check of a node that is written."""

COST_OF_COMPANY = 0.25
"""What the writes of one more caller cost the server in a transaction, in requests (docs/performance.md)."""


class _Unit:
    """What one caller wants to be written, all or none."""

    __slots__ = ("answer", "checks", "had_turn", "paths", "size_bytes", "writes")

    def __init__(self, writes: Sequence[NodeWrite], answer: asyncio.Future[list[NodeStat | None]]) -> None:
        self.writes = writes
        self.answer = answer
        self.had_turn = False
        self.paths = {write.path for write in writes}
        self.checks = {write.path: write.expected_version for write in writes if isinstance(write, CheckNode)}
        self.size_bytes = 0
        for write in writes:
            self.size_bytes += len(write.path) + _WRITE_OVERHEAD_BYTES
            if isinstance(write, CreateNode | SetNode):
                self.size_bytes += len(write.data)

    def succeed(self, stats: list[NodeStat | None]) -> None:
        if not self.answer.done():  # cancelled
            self.answer.set_result(stats)

    def fail(self, error: MetadataError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error.for_caller([write.path for write in self.writes]))


class WriteGroups:
    """Writes to one store. A write that waits for its transaction has not begun: if cancelled, it is never sent.

    Each write has a place in the queue of the budget, and the first of them to get its turn takes others along: the
    places of those are then empty, and cost nothing. A write whose turn comes while two transactions are unanswered
    remains in front of the others, and gets a place before all that wait when one of them is answered.
    """

    def __init__(self, store: MetadataStore, budget: RequestBudget) -> None:
        self._store = store
        self._budget = budget
        self._new: list[_Unit] = []
        """Those of this turn of the loop, which ask for their places together. They are in ``_waiting`` too."""
        self._waiting: dict[_Unit, None] = {}
        """In the order of their places, those that had their turns first."""
        self._retried: dict[_Unit, None] = {}
        """Those whose transaction failed for another one's write. Each waits for a turn to be sent alone."""
        self._transactions: dict[asyncio.Task[list[_Unit]], list[_Unit]] = {}
        self._sent_alone: dict[asyncio.Task[list[_Unit]], list[_Unit]] = {}
        store.on_session_lost(self._note_session_lost)

    async def write(self, *writes: NodeWrite) -> list[NodeStat | None]:
        """Carry out all of these writes or none; results and errors as in ``MetadataStore.write_all``."""
        assert writes, "a transaction without writes has no answer"
        loop = asyncio.get_running_loop()
        unit = _Unit(writes, loop.create_future())
        self._waiting[unit] = None
        if not self._new:
            loop.call_soon(self._ask_for_new)
        self._new.append(unit)
        try:
            return await unit.answer
        finally:  # it may have been cancelled
            self._waiting.pop(unit, None)
            self._retried.pop(unit, None)

    def _ask_for_new(self) -> None:
        units, self._new = self._new, []
        self._budget.ask(*(functools.partial(self._begin, unit) for unit in units))

    def _begin(self, unit: _Unit, cost_max: float) -> float:
        """The turn of a unit. Returns the cost of what was sent, which may be 0."""
        if unit not in self._waiting:
            return 0.0
        unit.had_turn = True
        return self._begin_transaction(cost_max)

    def _begin_transaction(self, cost_max: float) -> float:
        """Send those that wait longest, if one of them had its turn."""
        units_max = int(min((cost_max - 1.0) / COST_OF_COMPANY + 1, WRITES_MAX))
        # To wait for a larger group is of use only where the budget allows a larger one.
        has_to_wait = len(self._waiting) <= units_max or units_max == WRITES_MAX
        if has_to_wait and len(self._transactions) >= TRANSACTIONS_UNDER_WAY_MAX:
            return 0.0
        group = self._next_group(units_max)
        if not group:
            return 0.0
        if self._is_one_left():
            asyncio.get_running_loop().call_soon(self._ask_for_those_left)
        return self._start(group, self._transactions)

    def _is_one_left(self) -> bool:
        """Whether one that had its turn still waits."""
        return next((unit.had_turn for unit in self._waiting), False)

    def _ask_for_those_left(self) -> None:
        if self._is_one_left():
            self._budget.ask(self._begin_transaction, is_first=True)

    def _next_group(self, units_max: int) -> list[_Unit]:
        """The units for the next transaction. A failure is identified by its path: two units have the same node in it
        only if both check it for the same version, and then the failure is that of both."""
        group: list[_Unit] = []
        paths: set[str] = set()
        checks: dict[str, int] = {}
        size_bytes = 0
        for unit in self._waiting:
            if unit.answer.done():  # cancelled just now
                continue
            size_bytes += unit.size_bytes
            shared = paths & unit.paths
            writes_count = len(paths) + len(unit.paths) - len(shared)
            is_full = size_bytes > BYTES_MAX or writes_count > WRITES_MAX or len(group) == units_max
            if group and (is_full or any(checks.get(path) != unit.checks.get(path, _NO_CHECK) for path in shared)):
                break
            if not (group or unit.had_turn):
                break
            group.append(unit)
            paths |= unit.paths
            checks |= unit.checks
        for unit in group:
            del self._waiting[unit]
        return group

    def _begin_alone(self, _: float) -> float:
        """Send the one whose transaction failed first."""
        unit = next((unit for unit in self._retried if not unit.answer.done()), None)
        if unit is None:
            return 0.0
        del self._retried[unit]
        return self._start([unit], self._sent_alone)

    def _start(self, group: list[_Unit], under_way: dict[asyncio.Task[list[_Unit]], list[_Unit]]) -> float:
        task = asyncio.get_running_loop().create_task(self._send(group))
        under_way[task] = group
        task.add_done_callback(functools.partial(self._note_sent, under_way))
        return 1.0 + (len(group) - 1) * COST_OF_COMPANY

    def _note_sent(
        self, under_way: dict[asyncio.Task[list[_Unit]], list[_Unit]], task: asyncio.Task[list[_Unit]]
    ) -> None:
        group = under_way.pop(task)
        places: list[Begin] = []
        if task.cancelled():  # the loop is ending
            for unit in group:
                unit.answer.cancel()
        elif (error := task.exception()) is not None:  # not one of the store's
            for unit in group:
                if not unit.answer.done():
                    unit.answer.set_exception(error)
        else:
            self._retried.update(dict.fromkeys(task.result()))
            places += (self._begin_alone for _ in task.result())
        if self._is_one_left():
            places.append(self._begin_transaction)
        self._budget.ask(*places, is_first=True)
        self._budget.release()

    async def _send(self, group: list[_Unit]) -> list[_Unit]:
        """Send a group, and return those of a failed transaction for which its error says nothing."""
        group = [unit for unit in group if not unit.answer.done()]  # cancelled, or its session ended, just now
        if len(group) == 1:
            await self._send_alone(group[0])
        elif group:
            writes = list(dict.fromkeys(write for unit in group for write in unit.writes))  # a shared check only once
            try:
                stats = dict(zip(writes, await self._store.write_all(writes), strict=True))
            except MetadataUnavailableError as error:
                for unit in group:
                    unit.fail(error)
            except MetadataError as error:
                for unit in group:
                    if error.path in unit.paths:
                        unit.fail(error)
                return [unit for unit in group if not unit.answer.done()]
            else:
                for unit in group:
                    unit.succeed([stats[write] for write in unit.writes])
        return []

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
        units = [*self._waiting, *self._retried, *(unit for group in groups for unit in group)]
        self._waiting.clear()
        self._retried.clear()
        for unit in units:
            path = unit.writes[0].path
            unit.fail(SessionExpiredError(f"{path}: the ZooKeeper session expired", path))
