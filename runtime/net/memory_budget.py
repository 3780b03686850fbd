"""Memory limit for all connections of one bookie together.

The budget has separate shares, so that no peer can block the others:

* requests in progress except reads (a quarter of the budget): they end by the bookie's own work. If a connection uses
  more than the free rest of the share, the bookie stops reading from it until it uses half of that. So a single client
  stops at half of the share. If the whole share is used, the bookie reads from no connection until half is free.
* reads (a quarter): see ``ReadLane``. They never stop a connection's other requests.
* long unfinished frames (an eighth): a frame is admitted as a whole or waits, so admitted frames can always complete.
  If the peer then sends nothing, the connection's time limit ends it.
* answers that peers have not read (three eighths): a peer's reads are rejected if its answers would use more than the
  free rest of the share.

In addition each connection may use one socket read, ``READ_BYTES``. Reads may be longer, ``LONG_READ_BYTES``, while few
bytes beyond ``READ_BYTES`` are kept for later (a thirty-second of the budget); these count as requests.
"""

from __future__ import annotations

from collections.abc import Callable

from bkctl.runtime.protocol.framing import LONG_READ_BYTES, READ_BYTES, FrameSplitter
from bkctl.runtime.protocol.messages import AddRun, BookieCall, WriteLacCall

DoneWaiting = Callable[[], None]

REQUEST_COST_BYTES = 256
"""Approximate memory of a request in addition to its body."""


class MemoryBudget:
    """Counts the bytes of each share. Call it on the loop only."""

    def __init__(
        self, bytes_max: int, on_requests_full: Callable[[], None], on_requests_low: Callable[[], None]
    ) -> None:
        self._requests_bytes_max = bytes_max // 4
        self._frames_bytes_max = bytes_max // 8
        self._answers_bytes_max = bytes_max // 8 * 3
        self.read_lane_bytes_max = bytes_max // 12
        """Share of each of the three lanes of reads."""
        self._on_requests_full = on_requests_full
        self._on_requests_low = on_requests_low
        self._requests_bytes = 0
        self._kept_bytes = 0
        self._frames_bytes = 0
        self._answers_bytes = 0
        self._waiting: dict[object, tuple[int, DoneWaiting]] = {}
        self.is_full = False
        """Whether the share of requests is used up, so that reading from all connections is paused."""

    @property
    def used_bytes(self) -> int:
        """Bytes of requests in progress, long frames and unsent answers; reads are counted in their lanes."""
        return self._requests_bytes + self._frames_bytes + self._answers_bytes

    @property
    def free_request_bytes(self) -> int:
        """Free bytes for requests."""
        return max(0, self._requests_bytes_max - self._requests_bytes)

    def add_request(self, size_bytes: int) -> None:
        """Count a request that begins."""
        self._requests_bytes += size_bytes
        if self._requests_bytes > self._requests_bytes_max and not self.is_full:
            self.is_full = True
            self._on_requests_full()

    def end_request(self, size_bytes: int) -> None:
        """Release an answered request."""
        self._requests_bytes -= size_bytes
        if self.is_full and self._requests_bytes <= self._requests_bytes_max // 2:
            self.is_full = False
            self._on_requests_low()

    @property
    def read_bytes(self) -> int:
        """Size of the next socket read. What a long one leaves behind is ``keep``'s, and there is room for it."""
        has_room = self._kept_bytes + LONG_READ_BYTES <= self._requests_bytes_max // 8
        return LONG_READ_BYTES if has_room else READ_BYTES

    def keep(self, size_bytes: int) -> None:
        """Count bytes beyond ``READ_BYTES`` of which a connection has not made requests yet."""
        self._kept_bytes += size_bytes
        self.add_request(size_bytes)

    def release(self, size_bytes: int) -> None:
        """Release bytes that were counted by ``keep``."""
        self._kept_bytes -= size_bytes
        self.end_request(size_bytes)

    def admit_frame(self, owner: object, size_bytes: int, done_waiting: DoneWaiting) -> bool:
        """Whether a long frame may be received now. If not, ``done_waiting`` is called once it may, in order of asking.

        An owner has one frame at a time and ends it with ``end_frame``.
        """
        if not self._waiting and self._has_room(size_bytes):
            self._frames_bytes += size_bytes
            return True
        self._waiting[owner] = (size_bytes, done_waiting)
        return False

    def end_frame(self, owner: object, size_bytes: int) -> None:
        """Release a frame that is complete or abandoned; ``size_bytes`` is 0 if it was not admitted yet."""
        self._waiting.pop(owner, None)
        self._frames_bytes -= size_bytes
        while self._waiting:
            first = next(iter(self._waiting))
            wanted_bytes, done_waiting = self._waiting[first]
            if not self._has_room(wanted_bytes):
                return
            del self._waiting[first]
            self._frames_bytes += wanted_bytes
            done_waiting()

    @property
    def free_answer_bytes(self) -> int:
        """Free bytes for answers that peers have not read."""
        return max(0, self._answers_bytes_max - self._answers_bytes)

    def add_answers(self, size_bytes: int) -> None:
        """Count unsent answers; negative if they were sent or dropped."""
        self._answers_bytes += size_bytes

    def _has_room(self, frame_bytes: int) -> bool:
        # Always admit a single frame: one larger than the whole share would otherwise wait forever.
        return self._frames_bytes == 0 or self._frames_bytes + frame_bytes <= self._frames_bytes_max


class LongFrame:
    """The long frame of a connection, if any, and what else it keeps beyond one socket read of ``READ_BYTES``.

    ``is_waiting``: no room yet for the frame; ``on_admitted`` is called once there is.
    """

    def __init__(self, budget: MemoryBudget, on_admitted: Callable[[], None]) -> None:
        self._budget = budget
        self._on_admitted = on_admitted
        self.size_bytes = 0
        """Size of the whole frame; 0 if there is none."""
        self.is_waiting = False
        self._kept_bytes = 0

    def set_aside(self, splitter: FrameSplitter) -> None:
        """Keep the rest of a socket read, counted until ``release``."""
        splitter.set_aside()
        self._keep(splitter)

    def admit(self, splitter: FrameSplitter) -> bool:
        """False if the unfinished frame must wait, because it is longer than a socket read and there is no room for all
        of it."""
        frame_bytes = splitter.promised_bytes
        if frame_bytes > READ_BYTES and not self.size_bytes:
            self.begin(frame_bytes)
            if self.is_waiting:
                self._keep(splitter)
        return not self.is_waiting

    def _keep(self, splitter: FrameSplitter) -> None:
        begun_bytes = splitter.unfinished_bytes if self.is_waiting or not self.size_bytes else 0
        kept_bytes = splitter.waiting_bytes + begun_bytes - READ_BYTES
        if kept_bytes > 0:
            self._kept_bytes += kept_bytes
            self._budget.keep(kept_bytes)

    def release(self) -> None:
        """What was kept is taken up again, or the connection is lost; safe to repeat."""
        if self._kept_bytes:
            kept_bytes, self._kept_bytes = self._kept_bytes, 0
            self._budget.release(kept_bytes)

    def begin(self, size_bytes: int) -> None:
        """A frame of this size begins."""
        self.size_bytes = size_bytes
        self.is_waiting = not self._budget.admit_frame(self, size_bytes, self._admit)

    def end(self) -> None:
        """The frame is complete, or the connection is lost; safe to repeat."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        if size_bytes:
            self._budget.end_frame(self, 0 if self.is_waiting else size_bytes)

    def _admit(self) -> None:
        self.is_waiting = False
        self._on_admitted()


def request_cost_bytes(call: BookieCall) -> int:
    """Approximate memory of a request until it is answered."""
    if isinstance(call, AddRun):
        return call.size_bytes + len(call.bodies) * REQUEST_COST_BYTES
    if isinstance(call, WriteLacCall):
        return len(call.body) + REQUEST_COST_BYTES
    return REQUEST_COST_BYTES
