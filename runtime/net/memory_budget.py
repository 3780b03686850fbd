"""What all connections of one bookie may hold in memory together, whoever the peers are.

Separate shares, so that no peer can use up what the others need to go on:

* requests under way other than reads (a quarter of the budget): they end by the bookie's own work. A connection that
  holds more than what is left of the share is not read from until it holds half of that, so one client alone stops at
  half of the share. If many large requests use up all of it, no connection is read from until half of it is free.
* reads (a quarter): see ``ReadLane``. They never stop a connection's other requests.
* long unfinished frames (an eighth): each is let in as a whole or waits its turn, so those that are let in can end.
  What ends a peer that then sends nothing is the time limit of the connection.
* answers that their peers do not take (three eighths): reads of a peer are refused when its answers would hold more
  than what is left of the share.

Besides that each connection may hold one read of its socket, ``READ_BYTES``.
"""

from __future__ import annotations

from collections.abc import Callable

DoneWaiting = Callable[[], None]


class MemoryBudget:
    """Counts bytes; all calls on the loop."""

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
        self._frames_bytes = 0
        self._answers_bytes = 0
        self._waiting: dict[object, tuple[int, DoneWaiting]] = {}
        self.is_full = False
        """Whether the share of the requests is used up: nothing may be read now."""

    @property
    def free_request_bytes(self) -> int:
        """What is left for requests."""
        return max(0, self._requests_bytes_max - self._requests_bytes)

    def add_request(self, size_bytes: int) -> None:
        """A request begins."""
        self._requests_bytes += size_bytes
        if self._requests_bytes > self._requests_bytes_max and not self.is_full:
            self.is_full = True
            self._on_requests_full()

    def end_request(self, size_bytes: int) -> None:
        """It was answered."""
        self._requests_bytes -= size_bytes
        if self.is_full and self._requests_bytes <= self._requests_bytes_max // 2:
            self.is_full = False
            self._on_requests_low()

    def admit_frame(self, owner: object, size_bytes: int, done_waiting: DoneWaiting) -> bool:
        """Whether a long frame may come in now. If not, ``done_waiting`` is called when it may, in order of asking.

        An owner has one frame at a time, and ends it with ``end_frame`` once it was let in.
        """
        if not self._waiting and self._has_room(size_bytes):
            self._frames_bytes += size_bytes
            return True
        self._waiting[owner] = (size_bytes, done_waiting)
        return False

    def end_frame(self, owner: object, size_bytes: int) -> None:
        """A frame is complete or given up; ``size_bytes`` is 0 if it was not let in yet."""
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
        """What is left for answers that their peers do not take."""
        return max(0, self._answers_bytes_max - self._answers_bytes)

    def add_answers(self, size_bytes: int) -> None:
        """Answers wait for their peer; negative when they left or were dropped."""
        self._answers_bytes += size_bytes

    def _has_room(self, frame_bytes: int) -> bool:
        # The first one always has: a frame above the whole share would wait for ever.
        return self._frames_bytes == 0 or self._frames_bytes + frame_bytes <= self._frames_bytes_max


class LongFrame:
    """At most one at a time. ``is_waiting``: there is no room for it yet; ``on_admitted`` is called when there is."""

    def __init__(self, budget: MemoryBudget, on_admitted: Callable[[], None]) -> None:
        self._budget = budget
        self._on_admitted = on_admitted
        self.size_bytes = 0
        """Of the whole frame; 0 while there is none."""
        self.is_waiting = False

    def begin(self, size_bytes: int) -> None:
        """A frame of this size is promised."""
        self.size_bytes = size_bytes
        self.is_waiting = not self._budget.admit_frame(self, size_bytes, self._admit)

    def end(self) -> None:
        """It is complete, or the connection is gone; safe to repeat."""
        size_bytes, self.size_bytes = self.size_bytes, 0
        if size_bytes:
            self._budget.end_frame(self, 0 if self.is_waiting else size_bytes)

    def _admit(self) -> None:
        self.is_waiting = False
        self._on_admitted()
