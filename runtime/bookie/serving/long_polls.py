"""Long polls that wait for the LAC of a ledger to move. Source: wire section 5.4.

Nothing asks repeatedly: each ledger has a list of its polls, ordered by the LAC that they know, so an add that wakes
none of them looks at one. Unlike in Java, an add that does not raise the LAC far enough leaves a poll waiting.
"""

from __future__ import annotations

import asyncio
import bisect
import itertools
from collections import deque

from bkctl.runtime.ports import Clock, RequestSource, TimerHandle
from bkctl.runtime.protocol.messages import LongPollRead
from bkctl.storage.measures import Measures, Outcomes

_WOKEN_PER_TURN_MAX = 128
"""Polls that go on in one turn of the loop: one add may wake thousands."""

_WAIT_MS_MAX = 24 * 3600 * 1000


class LongPollMeasures(Measures):
    """Polls that waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = Outcomes()
        """How long they waited; a failure waited until its time was over."""


class _WaitingPoll:
    __slots__ = ("began_ns", "call", "place", "source", "timer")

    def __init__(self, source: RequestSource, call: LongPollRead, place: tuple[int, int], began_ns: int) -> None:
        self.source = source
        self.call = call
        self.place = place
        """The LAC that the client knows, and a number."""
        self.began_ns = began_ns
        self.timer: TimerHandle | None = None


class LongPolls:
    """The waiting polls of one bookie; used on the loop."""

    def __init__(self, clock: Clock) -> None:
        self.measures = LongPollMeasures()
        self._clock = clock
        self._numbers = itertools.count()
        self._of_ledger: dict[int, list[_WaitingPoll]] = {}
        """No list is empty; each is ordered by ``place``."""
        self._woken: deque[_WaitingPoll] = deque()

    def wait(self, source: RequestSource, call: LongPollRead) -> bool:
        """Wait for a LAC above ``call.previous_lac``; then, or when its time is over, the call comes again, with
        ``wait_ms`` 0. False if it may not wait."""
        if call.wait_ms <= 0:
            return False
        place = (call.previous_lac, next(self._numbers))
        poll = _WaitingPoll(source, call, place, self._clock.monotonic_ns())
        if not source.suspend(call, lambda: self._drop(poll)):
            return False
        bisect.insort(self._of_ledger.setdefault(call.ledger_id, []), poll, key=_place_of)
        poll.timer = self._clock.call_later(min(call.wait_ms, _WAIT_MS_MAX) / 1000, lambda: self._end_time(poll))
        return True

    def is_awaited(self, ledger_id: int) -> bool:
        """Whether a poll of this ledger waits."""
        return ledger_id in self._of_ledger

    def note_lac(self, ledger_id: int, last_add_confirmed: int) -> None:
        """Wake the polls that wait for this LAC, after an add or an explicit LAC."""
        polls = self._of_ledger.get(ledger_id)
        if polls is None or polls[0].place[0] >= last_add_confirmed:
            return
        end = bisect.bisect_left(polls, (last_add_confirmed, -1), key=_place_of)
        woken, polls[:end] = polls[:end], []
        if not polls:
            del self._of_ledger[ledger_id]
        changed_ms = self._clock.now_ms()
        for poll in woken:
            poll.call.lac_changed_ms = changed_ms
        self._wake(woken, is_success=True)

    def note_end(self, ledger_id: int) -> None:
        """Wake all polls of a ledger: it was fenced or deleted."""
        self._wake(self._of_ledger.pop(ledger_id, []), is_success=True)

    def _end_time(self, poll: _WaitingPoll) -> None:
        self._remove(poll)
        self._wake([poll], is_success=False)

    def _wake(self, polls: list[_WaitingPoll], *, is_success: bool) -> None:
        if polls and not self._woken:
            asyncio.get_running_loop().call_soon(self._go_on)
        now_ns = self._clock.monotonic_ns()
        for poll in polls:
            assert poll.timer is not None, "it was set when the poll began to wait"
            poll.timer.cancel()
            poll.call.wait_ms = 0
            self.measures.waits.add(now_ns - poll.began_ns, is_success=is_success)
        self._woken.extend(polls)

    def _go_on(self) -> None:
        for _ in range(min(_WOKEN_PER_TURN_MAX, len(self._woken))):
            poll = self._woken.popleft()
            poll.source.resume(poll.call)
        if self._woken:
            asyncio.get_running_loop().call_soon(self._go_on)

    def _drop(self, poll: _WaitingPoll) -> None:
        """The connection is lost."""
        if poll.call.wait_ms:  # otherwise it was woken
            assert poll.timer is not None, "it was set when the poll began to wait"
            poll.timer.cancel()
            self._remove(poll)

    def _remove(self, poll: _WaitingPoll) -> None:
        ledger_id = poll.call.ledger_id
        polls = self._of_ledger[ledger_id]
        del polls[bisect.bisect_left(polls, poll.place, key=_place_of)]
        if not polls:
            del self._of_ledger[ledger_id]


def _place_of(poll: _WaitingPoll) -> tuple[int, int]:
    return poll.place
