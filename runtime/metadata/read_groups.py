"""Joins the reads of concurrent callers: one request for many nodes costs ZooKeeper little more than one for one node.

The callers notice nothing else: each read succeeds or fails by itself.
"""

from __future__ import annotations

import asyncio
import functools
import itertools

from bkctl.runtime.errors import MetadataError, SessionExpiredError
from bkctl.runtime.metadata.request_budget import Begin, RequestBudget
from bkctl.runtime.metadata.store import MetadataStore, Node, check_path

READS_MAX = 128
BYTES_MAX = 256 * 1024
"""Limits of one request. The bytes are of its answer, so they are a guess."""
_NODE_BYTES_ASSUMED = 4096

COST_OF_COMPANY = 0.1
"""What one more node in a request costs the server, in requests (docs/performance.md)."""


class _Read:
    __slots__ = ("answer", "group", "path")

    def __init__(self, path: str, answer: asyncio.Future[Node]) -> None:
        self.path = path
        self.answer = answer
        self.group: _ReadGroup | None = None
        """The request that it is in."""

    def settle(self, found: Node | Exception) -> None:
        if self.answer.done():  # cancelled
            return
        if isinstance(found, Node):
            self.answer.set_result(found)
        else:
            self.answer.set_exception(found)


class _ReadGroup:
    __slots__ = ("_callers", "reads", "task")

    def __init__(self, reads: list[_Read]) -> None:
        self.reads = reads
        self.task: asyncio.Task[None]
        self._callers = len(reads)
        for read in reads:
            read.group = self

    def note_cancelled(self) -> None:
        """A caller has gone. Without any the request ends."""
        self._callers -= 1
        if not self._callers:
            self.task.cancel()


class ReadGroups:
    """Reads of one store. A read that waits for its turn has not begun: if cancelled, it is never sent.

    Each read has a place in the queue of the budget, and the first of them to get its turn takes others along: the
    places of those are then empty, and cost nothing.
    """

    def __init__(self, store: MetadataStore, budget: RequestBudget) -> None:
        self._store = store
        self._budget = budget
        self._new: list[Begin] = []
        """The places of this turn of the loop, which are asked for together."""
        self._waiting: dict[_Read, None] = {}
        """In the order of their places."""
        self._under_way: dict[_ReadGroup, None] = {}
        self._node_bytes = _NODE_BYTES_ASSUMED
        """How large the next nodes may be."""
        store.on_session_lost(self._note_session_lost)

    async def get(self, path: str) -> Node:
        """Contents, and errors, as in ``MetadataStore.get``."""
        check_path(path)  # or the others that go along would fail too
        loop = asyncio.get_running_loop()
        read = _Read(path, loop.create_future())
        self._waiting[read] = None
        if not self._new:
            loop.call_soon(self._ask_for_new)
        self._new.append(functools.partial(self._begin, read))
        try:
            return await read.answer
        except asyncio.CancelledError:
            self._waiting.pop(read, None)
            if read.group is not None:
                read.group.note_cancelled()
            raise

    def _ask_for_new(self) -> None:
        new, self._new = self._new, []
        self._budget.ask(*new)

    def _begin(self, read: _Read, cost_max: float) -> float:
        """The turn of a read. Returns the cost of what was sent, which may be 0."""
        if read not in self._waiting:
            return 0.0
        count_max = min((cost_max - 1.0) / COST_OF_COMPANY + 1, READS_MAX, BYTES_MAX / self._node_bytes)
        group = _ReadGroup(list(itertools.islice(self._waiting, max(1, int(count_max)))))
        for each in group.reads:
            del self._waiting[each]
        self._under_way[group] = None
        group.task = asyncio.get_running_loop().create_task(self._send(group.reads))
        group.task.add_done_callback(functools.partial(self._note_sent, group))
        return 1.0 + (len(group.reads) - 1) * COST_OF_COMPANY

    async def _send(self, reads: list[_Read]) -> None:
        paths = [read.path for read in reads]
        found: list[Node | MetadataError]
        try:
            if len(paths) > 1:
                found = await self._store.get_all(paths)
                self._note_sizes(found)
            else:
                found = [await self._store.get(paths[0])]
        except MetadataError as error:
            found = [error.for_caller((path,)) for path in paths]
        for read, each in zip(reads, found, strict=True):
            read.settle(each)

    def _note_sizes(self, found: list[Node | MetadataError]) -> None:
        sizes = [len(each.data) for each in found if isinstance(each, Node)]
        self._node_bytes = max(1, self._node_bytes // 2, sum(sizes) // max(1, len(sizes)))

    def _note_sent(self, group: _ReadGroup, task: asyncio.Task[None]) -> None:
        del self._under_way[group]
        if task.cancelled():  # the loop is ending, or no caller is left
            for read in group.reads:
                read.answer.cancel()
        elif isinstance(error := task.exception(), Exception):  # not one of the store's
            for read in group.reads:
                read.settle(error)
        self._budget.release()

    def _note_session_lost(self) -> None:
        """What began in a session must not be sent in the next one."""
        waiting, self._waiting = self._waiting, {}
        for read in [*waiting, *(read for group in self._under_way for read in group.reads)]:
            read.settle(SessionExpiredError(f"{read.path}: the ZooKeeper session expired", read.path))
