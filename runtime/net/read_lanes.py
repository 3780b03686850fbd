"""Reads of all connections that wait for their turn.

Reads that need the disk wait here. There are three lanes: ordinary reads, reads with high priority, and reads with a
fence. So a backlog of ordinary reads does not delay a recovery, and fences that wait for a journal without room delay
no other read. In each lane the connections take turns: a client with thousands of reads delays another client's read
by one round, not by its whole backlog.

A waiting read holds only its request. It costs the memory of an answer from the moment its turn comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from runtime.protocol.messages import QueuedRead, ReadCall

UNDER_WAY_MAX = 32
"""Reads without a fence that the handler works on. Few, because the next read waits until these are answered."""

FENCING_UNDER_WAY_MAX = 256
"""Reads with a fence that the handler works on. More, because they wait for a sync of the journal."""

WAITING_READS_MAX = 10_000
"""Reads of one connection that may wait in one lane; further ones are refused."""

_WAITING_COST_BYTES = 512
"""Memory of a waiting read, roughly."""

_READ_COST_BYTES_MIN = 64 * 1024
"""What a read under way counts as at least; more if the connection's last answer was larger."""


class ReadLane:
    """One lane. Half of its memory is for reads under way, half for waiting ones.

    A connection may have as many waiting reads as there is room left for others. So a full lane always keeps room for
    clients that have not used it yet.
    """

    def __init__(self, bytes_max: int, under_way_count_max: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._under_way_count_max = under_way_count_max
        self._under_way_bytes_max = bytes_max // 2
        self._waiting_count_max = bytes_max // 2 // _WAITING_COST_BYTES
        self._under_way_bytes = 0
        self._under_way_count = 0
        self._waiting_count = 0
        self._turns: dict[_ReadQueue, None] = {}
        self._is_round_scheduled = False

    def may_wait(self, own_count: int) -> bool:
        """Whether one more read may wait, of a connection that has ``own_count`` waiting."""
        return own_count < min(WAITING_READS_MAX, self._waiting_count_max - self._waiting_count)

    def may_begin(self, cost_bytes: int) -> bool:
        """Whether a read may begin now. One always may if there is none under way."""
        return self._under_way_count == 0 or (
            self._under_way_count < self._under_way_count_max
            and self._under_way_bytes + cost_bytes <= self._under_way_bytes_max
        )

    @property
    def has_turns(self) -> bool:
        """Whether any connection waits for its turn."""
        return bool(self._turns)

    def add_request(self, cost_bytes: int) -> None:
        """A read begins."""
        self._under_way_count += 1
        self._under_way_bytes += cost_bytes

    def end_request(self, cost_bytes: int) -> None:
        """A read was answered."""
        self._under_way_count -= 1
        self._under_way_bytes -= cost_bytes
        self._schedule_round()

    def count_waiting(self, difference: int) -> None:
        """Reads begin to wait (positive) or end waiting (negative)."""
        self._waiting_count += difference

    def queue_up(self, queue: _ReadQueue) -> None:
        """A connection has a read that may begin; it gets its turn after the others."""
        self._turns.setdefault(queue)
        self._schedule_round()

    def withdraw(self, queue: _ReadQueue) -> None:
        """A connection's reads may not begin now."""
        self._turns.pop(queue, None)

    def _schedule_round(self) -> None:
        if self._turns and not self._is_round_scheduled:
            self._is_round_scheduled = True
            self._loop.call_soon(self._run_round)

    def _run_round(self) -> None:
        self._is_round_scheduled = False
        for _ in range(self._under_way_count_max):  # those that are answered at once must not hold up the loop
            if not self._turns:
                return
            queue = next(iter(self._turns))
            if not self.may_begin(queue.next_cost_bytes):
                return  # the end of a read under way schedules the next round
            del self._turns[queue]
            queue.begin_next()
        self._schedule_round()


class RequestsUnderWay:
    """Counts the reads of one connection in one lane from their beginning to their answer.

    Also when the connection ends before the answer: the handler still holds them.
    """

    def __init__(self, lane: ReadLane) -> None:
        self._lane = lane
        self._cost_of: dict[int, int] = {}
        self._costs_of_repeated: dict[int, list[int]] = {}

    def begin(self, txn_id: int, cost_bytes: int) -> None:
        """A read begins."""
        if txn_id in self._cost_of:  # a peer may use an id twice
            self._costs_of_repeated.setdefault(txn_id, []).append(cost_bytes)
        else:
            self._cost_of[txn_id] = cost_bytes
        self._lane.add_request(cost_bytes)

    def end(self, txn_id: int) -> None:
        """One read of this id was answered; ignored if there is none."""
        cost_bytes = self._cost_of.pop(txn_id, None)
        if cost_bytes is None:
            return
        if txn_id in self._costs_of_repeated:
            costs = self._costs_of_repeated[txn_id]
            self._cost_of[txn_id] = costs.pop()
            if not costs:
                del self._costs_of_repeated[txn_id]
        self._lane.end_request(cost_bytes)


class ReadLanes:
    """The lanes of one listener."""

    def __init__(self, lane_bytes_max: int) -> None:
        self.ordinary = ReadLane(lane_bytes_max, UNDER_WAY_MAX)
        self.urgent = ReadLane(lane_bytes_max, UNDER_WAY_MAX)
        self.fencing = ReadLane(lane_bytes_max, FENCING_UNDER_WAY_MAX)


class ConnectionReads:
    """The reads of one connection: those that wait in any lane, and those under way.

    ``begin`` hands a read to the handler.
    """

    def __init__(self, lanes: ReadLanes, begin: Callable[[QueuedRead], None]) -> None:
        self._ordinary = _ReadQueue(lanes.ordinary, begin)
        self._urgent = _ReadQueue(lanes.urgent, begin)
        self._fencing = _ReadQueue(lanes.fencing, begin)
        self._queues = (self._ordinary, self._urgent, self._fencing)

    def submit(self, call: QueuedRead) -> bool:
        """Begin a read now or when its turn comes. False: too many are waiting, refuse it."""
        return self._queue_of(call).submit(call)

    def end(self, call: QueuedRead) -> None:
        """A read was answered."""
        self._queue_of(call).under_way.end(call.txn_id)

    def _queue_of(self, call: QueuedRead) -> _ReadQueue:
        if isinstance(call, ReadCall) and call.fence_with is not None:
            return self._fencing
        return self._urgent if isinstance(call, ReadCall) and call.is_high_priority else self._ordinary

    def note_answer(self, size_bytes: int) -> None:
        """The size of the last answer is the best estimate for the next one."""
        for queue in self._queues:
            queue.next_cost_bytes = max(_READ_COST_BYTES_MIN, size_bytes)

    def hold(self) -> None:
        """Begin no reads: the peer does not take its answers."""
        for queue in self._queues:
            queue.hold()

    def go_on(self) -> None:
        """The peer takes its answers again."""
        for queue in self._queues:
            queue.go_on()

    def drop(self) -> None:
        """The connection is gone: forget the reads that wait. Those under way count until the handler answers."""
        for queue in self._queues:
            queue.drop()


class _ReadQueue:
    """The reads of one connection in one lane."""

    def __init__(self, lane: ReadLane, begin: Callable[[QueuedRead], None]) -> None:
        self._lane = lane
        self._begin = begin
        self._waiting: deque[QueuedRead] = deque()
        self._is_held = False
        self.under_way = RequestsUnderWay(lane)
        self.next_cost_bytes = _READ_COST_BYTES_MIN

    def submit(self, call: QueuedRead) -> bool:
        lane = self._lane
        if not self._waiting and not self._is_held and not lane.has_turns and lane.may_begin(self.next_cost_bytes):
            self._start(call)
            return True
        if not lane.may_wait(len(self._waiting)):
            return False
        self._waiting.append(call)
        lane.count_waiting(1)
        if not self._is_held:
            lane.queue_up(self)
        return True

    def begin_next(self) -> None:
        """Its turn has come: begin the oldest read, and queue up again for the next one."""
        call = self._waiting.popleft()
        self._lane.count_waiting(-1)
        self._start(call)
        if self._waiting and not self._is_held:
            self._lane.queue_up(self)

    def hold(self) -> None:
        self._is_held = True
        self._lane.withdraw(self)

    def go_on(self) -> None:
        self._is_held = False
        if self._waiting:
            self._lane.queue_up(self)

    def drop(self) -> None:
        self.hold()
        self._lane.count_waiting(-len(self._waiting))
        self._waiting.clear()

    def _start(self, call: QueuedRead) -> None:
        self.under_way.begin(call.txn_id, self.next_cost_bytes)
        self._begin(call)
