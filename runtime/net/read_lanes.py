"""Fair queues for the reads of all connections.

Reads that need the disk wait here. There are four lanes: ordinary reads, reads with high priority, reads with a fence,
and lists of entries. So a backlog of ordinary reads does not delay a recovery, fences that wait for a full journal disk
delay no other read, and lists, which may look at millions of rows, delay no read of an entry. In each lane the
connections take turns: a client with thousands of reads delays another client's read by one round, not by its whole
backlog.

A waiting read uses memory only for its request. Memory for its answer is counted once it starts. A long poll gives up
its turn while it waits for the LAC, so it delays no other read; only their number is limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from bkctl.runtime.protocol.messages import BatchReadRequest, ListEntriesCall, LongPollRead, QueuedRead, ReadCall

UNDER_WAY_MAX = 32
"""Concurrent reads without a fence. Few, because the next read waits until these are answered."""

FENCING_UNDER_WAY_MAX = 256
"""Concurrent reads with a fence. More, because they wait for a journal sync."""

LISTS_UNDER_WAY_MAX = 4
"""Concurrent lists of entries. Very few: each is kept in memory until it is complete."""

WAITING_READS_MAX = 10_000
"""Maximum waiting reads of one connection in one lane; further ones are rejected."""

WAITING_POLLS_MAX = 32_768
"""Maximum long polls of all connections that wait for a LAC: about 1 KiB each. A connection may have at most as many as
are still free. Further ones are answered immediately, as if their time was over."""

_WAITING_COST_BYTES = 512
"""Approximate memory of a waiting read."""

_READ_COST_BYTES_MIN = 64 * 1024
"""Minimum memory counted for a read in progress; more if the connection's last answer was larger."""


class ReadLane:
    """One lane. Half of its memory is for reads in progress, half for waiting ones.

    A connection's waiting reads may use at most as much as is still free. So a lane always has room for new clients.
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

    @property
    def under_way_count(self) -> int:
        """Reads in progress."""
        return self._under_way_count

    @property
    def waiting_count(self) -> int:
        """Reads that wait for their turn."""
        return self._waiting_count

    def may_wait(self, own_count: int) -> bool:
        """Whether a connection with ``own_count`` waiting reads may queue another one."""
        return own_count < min(WAITING_READS_MAX, self._waiting_count_max - self._waiting_count)

    def may_begin(self, cost_bytes: int) -> bool:
        """Whether a read may begin now; always if none is in progress."""
        return self._under_way_count == 0 or (
            self._under_way_count < self._under_way_count_max
            and self._under_way_bytes + cost_bytes <= self._under_way_bytes_max
        )

    @property
    def has_turns(self) -> bool:
        """Whether any connection is waiting for its turn."""
        return bool(self._turns)

    def add_request(self, cost_bytes: int) -> None:
        """Count a read that begins."""
        self._under_way_count += 1
        self._under_way_bytes += cost_bytes

    def end_request(self, cost_bytes: int) -> None:
        """Release an answered read."""
        self._under_way_count -= 1
        self._under_way_bytes -= cost_bytes
        self._schedule_round()

    def count_waiting(self, difference: int) -> None:
        """Add ``difference`` to the number of waiting reads."""
        self._waiting_count += difference

    def queue_up(self, queue: _ReadQueue) -> None:
        """Queue a connection with a waiting read after the other connections."""
        self._turns.setdefault(queue)
        self._schedule_round()

    def withdraw(self, queue: _ReadQueue) -> None:
        """Remove a connection whose reads may not begin now."""
        self._turns.pop(queue, None)

    def _schedule_round(self) -> None:
        if self._turns and not self._is_round_scheduled:
            self._is_round_scheduled = True
            self._loop.call_soon(self._run_round)

    def _run_round(self) -> None:
        self._is_round_scheduled = False
        for _ in range(self._under_way_count_max):  # reads that are answered immediately must not block the loop
            if not self._turns:
                return
            queue = next(iter(self._turns))
            if not self.may_begin(queue.next_cost_bytes):
                return  # the next round is scheduled when a read in progress ends
            del self._turns[queue]
            queue.begin_next()
        self._schedule_round()


class RequestsUnderWay:
    """Counts the reads in progress of one connection in one lane.

    A read counts until its answer even if the connection ends first, because the handler still works on it.
    """

    def __init__(self, lane: ReadLane) -> None:
        self._lane = lane
        self._cost_of: dict[int, int] = {}
        self._costs_of_repeated: dict[int, list[int]] = {}

    @property
    def has_any(self) -> bool:
        """Whether a read is in progress."""
        return bool(self._cost_of)

    def begin(self, txn_id: int, cost_bytes: int) -> None:
        """Count a read that begins."""
        if txn_id in self._cost_of:  # a peer may use an id twice
            self._costs_of_repeated.setdefault(txn_id, []).append(cost_bytes)
        else:
            self._cost_of[txn_id] = cost_bytes
        self._lane.add_request(cost_bytes)

    def end(self, txn_id: int) -> None:
        """Release one answered read with this id; ignored if there is none."""
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
        self.lists = ReadLane(lane_bytes_max // 16, LISTS_UNDER_WAY_MAX)
        self._all = (self.ordinary, self.urgent, self.fencing, self.lists)
        self.waiting_polls_max = WAITING_POLLS_MAX
        self.waiting_poll_count = 0
        """Long polls that wait for a LAC."""

    @property
    def under_way_count(self) -> int:
        """Reads in progress in all lanes."""
        return sum(lane.under_way_count for lane in self._all)

    @property
    def waiting_count(self) -> int:
        """Reads that wait for their turn in any lane."""
        return sum(lane.waiting_count for lane in self._all)


class ConnectionReads:
    """The waiting reads of one connection in all lanes, and its reads in progress.

    ``begin`` passes a read to the handler.
    """

    def __init__(self, lanes: ReadLanes, begin: Callable[[QueuedRead], None]) -> None:
        self._ordinary = _ReadQueue(lanes.ordinary, begin)
        self._urgent = _ReadQueue(lanes.urgent, begin)
        self._fencing = _ReadQueue(lanes.fencing, begin)
        self._lists = _ReadQueue(lanes.lists, begin)
        self._queues = (self._ordinary, self._urgent, self._fencing, self._lists)
        self._lanes = lanes
        self._polls: dict[int, Callable[[], None]] = {}
        """How to drop each poll that waits for a LAC, by the identity of its call."""

    @property
    def has_any(self) -> bool:
        """Whether a read waits for its turn or is in progress. Polls that wait for a LAC do not count."""
        return any(queue.has_any for queue in self._queues)

    def submit(self, call: QueuedRead) -> bool:
        """Begin a read now or when its turn comes. False if too many are waiting: reject it."""
        return self._queue_of(call).submit(call)

    def end(self, call: QueuedRead) -> None:
        """Release an answered read."""
        self._queue_of(call).under_way.end(call.txn_id)

    def suspend(self, call: LongPollRead, drop: Callable[[], None]) -> bool:
        """End the turn of a poll that waits for a LAC (``RequestSource.suspend``)."""
        if len(self._polls) >= self._lanes.waiting_polls_max - self._lanes.waiting_poll_count:
            return False
        self._lanes.waiting_poll_count += 1
        self._polls[id(call)] = drop
        self.end(call)
        return True

    def resume(self, call: LongPollRead) -> None:
        """Such a poll waits no longer."""
        del self._polls[id(call)]
        self._lanes.waiting_poll_count -= 1

    def _queue_of(self, call: QueuedRead) -> _ReadQueue:
        if isinstance(call, ListEntriesCall):
            return self._lists
        if isinstance(call, ReadCall | BatchReadRequest) and call.fence_with is not None:
            return self._fencing
        if isinstance(call, ReadCall | BatchReadRequest | LongPollRead) and call.is_high_priority:
            return self._urgent
        return self._ordinary

    def note_answer(self, size_bytes: int) -> None:
        """Record the size of an answer, as the estimate for the next one."""
        for queue in self._queues:
            queue.next_cost_bytes = max(_READ_COST_BYTES_MIN, size_bytes)

    def hold(self) -> None:
        """Start no more reads: the peer is not reading its answers."""
        for queue in self._queues:
            queue.hold()

    def go_on(self) -> None:
        """Start reads again: the peer reads its answers."""
        for queue in self._queues:
            queue.go_on()

    def drop(self) -> None:
        """The connection is lost: drop waiting reads. Reads in progress count until the handler answers."""
        for queue in self._queues:
            queue.drop()
        self._lanes.waiting_poll_count -= len(self._polls)
        for drop in reversed(self._polls.values()):  # usually the end of the list that it is removed from
            drop()
        self._polls.clear()


class _ReadQueue:
    """The reads of one connection in one lane."""

    def __init__(self, lane: ReadLane, begin: Callable[[QueuedRead], None]) -> None:
        self._lane = lane
        self._begin = begin
        self._waiting: deque[QueuedRead] = deque()
        self._is_held = False
        self.under_way = RequestsUnderWay(lane)
        self.next_cost_bytes = _READ_COST_BYTES_MIN

    @property
    def has_any(self) -> bool:
        return bool(self._waiting) or self.under_way.has_any

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
        """Begin the oldest read, and queue up again for the next one."""
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
