"""Fair queues for the reads of all connections.

Reads that need the disk wait here. There are four lanes: ordinary reads, reads with high priority, reads with a fence,
and lists of entries. So a backlog of ordinary reads does not delay a recovery, fences that wait for a full journal disk
delay no other read, and lists, which may look at millions of rows, delay no read of an entry. In each lane the
connections take turns: a client with thousands of reads delays another client's read by one round, not by its whole
backlog.

Consecutive reads of a ledger begin together, as a run: one lookup in the index and one read of the entry log answer
them, so a run takes fewer places than its reads would alone.

A waiting read uses memory only for its request. Memory for its answer is counted once it starts. A long poll gives up
its turn while it waits for the LAC, so it delays no other read; only their number is limited.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from bkctl.runtime.net.like_reads import cut_consecutive
from bkctl.runtime.protocol.messages import (
    BatchReadRequest,
    ListEntriesCall,
    LongPollRead,
    QueuedRead,
    ReadCall,
    ReadRun,
)

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

_RUN_READS_MAX = 128
"""Reads in a run."""

_RUN_READS_PER_PLACE = 16
"""So many reads of a run count as one read in progress."""

_RUN_BYTES = 256 * 1024
"""About how many bytes the answers to a run have."""

_WAITING_COST_BYTES = 512
"""Approximate memory of a waiting read."""

_READ_COST_BYTES_MIN = 64 * 1024
"""Minimum memory counted for a read or run in progress; more if the connection's last answer was larger."""

BeginRead: TypeAlias = Callable[[QueuedRead | ReadRun], None]
"""Passes reads to the handler."""


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

    def free_waiting(self, own_count: int) -> int:
        """How many reads a connection with ``own_count`` waiting ones may queue: as many as it leaves to others."""
        left_to_others = self._waiting_count_max - self._waiting_count - own_count
        return max(0, min(WAITING_READS_MAX - own_count, (left_to_others + 1) // 2))

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

    def add_request(self, cost_bytes: int, places: int) -> None:
        """Count a read, or a run, that begins."""
        self._under_way_count += places
        self._under_way_bytes += cost_bytes

    def end_request(self, cost_bytes: int, places: int) -> None:
        """Release an answered one."""
        self._under_way_count -= places
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
        room = UNDER_WAY_MAX  # reads that are answered immediately must not block the loop
        while room > 0:
            if not self._turns:
                return
            queue = next(iter(self._turns))
            if not self.may_begin(queue.next_cost_bytes):
                return  # the next round is scheduled when a read in progress ends
            del self._turns[queue]
            room -= _places_of(queue.begin_next())
        self._schedule_round()


def _places_of(count: int) -> int:
    """Places of a read or a run."""
    return -(-count // _RUN_READS_PER_PLACE)


class RequestsUnderWay:
    """Counts the reads in progress of one connection in one lane.

    A read counts until its answer even if the connection ends first, because the handler still works on it.
    """

    def __init__(self, lane: ReadLane) -> None:
        self._lane = lane
        self._cost_of: dict[int, tuple[int, int]] = {}
        """Bytes and places of each, by transaction id."""
        self._costs_of_repeated: dict[int, list[tuple[int, int]]] = {}

    @property
    def has_any(self) -> bool:
        """Whether a read is in progress."""
        return bool(self._cost_of)

    def begin(self, txn_id: int, cost_bytes: int, places: int = 1) -> None:
        """Count a read, or a run with the id of its first one, that begins."""
        if txn_id in self._cost_of:  # a peer may use an id twice
            self._costs_of_repeated.setdefault(txn_id, []).append((cost_bytes, places))
        else:
            self._cost_of[txn_id] = cost_bytes, places
        self._lane.add_request(cost_bytes, places)

    def end(self, txn_id: int) -> None:
        """Release one answered read with this id; ignored if there is none."""
        cost = self._cost_of.pop(txn_id, None)
        if cost is None:
            return
        if txn_id in self._costs_of_repeated:
            costs = self._costs_of_repeated[txn_id]
            self._cost_of[txn_id] = costs.pop()
            if not costs:
                del self._costs_of_repeated[txn_id]
        self._lane.end_request(*cost)


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

    ``begin`` passes a read or a run to the handler.
    """

    def __init__(self, lanes: ReadLanes, begin: BeginRead) -> None:
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

    def submit(self, call: QueuedRead | ReadRun) -> bool:
        """Begin a read now or when its turn comes. False if too many are waiting: reject it, or what is left of a
        run."""
        return self._queue_of(call).submit(call)

    def end(self, call: QueuedRead | ReadRun) -> None:
        """Release an answered read, or a run of which all are answered."""
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

    def _queue_of(self, call: QueuedRead | ReadRun) -> _ReadQueue:
        if isinstance(call, ReadRun):
            return self._urgent if call.is_high_priority else self._ordinary
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
            queue.answer_bytes = size_bytes

    def note_part(self, run: ReadRun, size_bytes: int) -> None:
        """Some reads of a run were answered, with at most ``size_bytes`` each; it ends with the last one."""
        self.note_answer(size_bytes)
        if not run.entry_ids:
            self.end(run)

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

    def __init__(self, lane: ReadLane, begin: BeginRead) -> None:
        self._lane = lane
        self._begin = begin
        self._waiting: deque[QueuedRead | ReadRun] = deque()
        self._waiting_count = 0
        self._is_held = False
        self.under_way = RequestsUnderWay(lane)
        self.answer_bytes = _READ_COST_BYTES_MIN
        """Size of the connection's last answer."""

    @property
    def has_any(self) -> bool:
        return bool(self._waiting) or self.under_way.has_any

    @property
    def next_cost_bytes(self) -> int:
        """Memory for the next read, or for a whole run of small ones."""
        return max(_READ_COST_BYTES_MIN, self.answer_bytes)

    def submit(self, call: QueuedRead | ReadRun) -> bool:
        """Begin it now or when its turn comes. False if it, or what is left of a run, must be rejected."""
        lane, new = self._lane, deque([call])
        while new and not self._waiting and not self._is_held and not lane.has_turns:
            if not lane.may_begin(self.next_cost_bytes):
                break
            self._start_next(new)
        if not new:
            return True
        left_count = len(call.entry_ids) if isinstance(call, ReadRun) else 1
        count = min(left_count, lane.free_waiting(self._waiting_count))
        if count > 0:
            self._waiting.append(call.cut(count) if isinstance(call, ReadRun) else call)
            self._count_waiting(count)
        if self._waiting and not self._is_held:
            lane.queue_up(self)
        return count == left_count

    def begin_next(self) -> int:
        """Begin the oldest read or run, and queue up again for the next one; returns how many reads began."""
        count = self._start_next(self._waiting)
        self._count_waiting(-count)
        if self._waiting and not self._is_held:
            self._lane.queue_up(self)
        return count

    def hold(self) -> None:
        self._is_held = True
        self._lane.withdraw(self)

    def go_on(self) -> None:
        self._is_held = False
        if self._waiting:
            self._lane.queue_up(self)

    def drop(self) -> None:
        self.hold()
        self._count_waiting(-self._waiting_count)
        self._waiting.clear()

    def _count_waiting(self, difference: int) -> None:
        self._waiting_count += difference
        self._lane.count_waiting(difference)

    def _start_next(self, calls: deque[QueuedRead | ReadRun]) -> int:
        """Begin the first of ``calls``, or the first reads of a run; returns how many."""
        call = calls[0]
        count = 1
        if isinstance(call, ReadRun):
            count_max = max(1, min(_RUN_READS_MAX, _RUN_BYTES // max(1, self.answer_bytes)))
            run = cut_consecutive(call, count_max)
            if not call.entry_ids:
                calls.popleft()
            count = len(run.entry_ids)  # the handler may answer it now
            call = run if count > 1 else run.singly()[0]
        else:
            calls.popleft()
        cost_bytes = self.next_cost_bytes if count == 1 else max(_READ_COST_BYTES_MIN, count * self.answer_bytes)
        self.under_way.begin(call.txn_id, cost_bytes, _places_of(count))
        self._begin(call)
        return count
