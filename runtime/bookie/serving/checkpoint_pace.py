"""How fast a checkpoint goes: it rests as long as it worked, so that reads keep more than half of their rate.

A checkpoint of a million rows computes for seconds. Beside it each read would wait for the interpreter several times;
what counts is therefore the share of the time in which the checkpoint's lane wants it, not the length of its turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

REST_SHARE: Final = 1.0
"""Rest for each second of work. By the clock, not by what was computed: on a busy machine, and beside reads, the same
work is in their way for longer."""

REST_S_MAX: Final = 1.0
"""Longest rest at once: one slow sync is no reason to stop for as long."""


class CheckpointPace:
    """Called between the parts of a checkpoint, in its lane."""

    def __init__(self, now_s: Callable[[], float], sleep: Callable[[float], None]) -> None:
        """``now_s``: a clock that never goes back; ``sleep``: waits for some seconds."""
        self._now_s = now_s
        self._sleep = sleep
        self._rested_at_s = 0.0
        self._is_urgent: Callable[[], bool] = lambda: False

    def urge_when(self, is_urgent: Callable[[], bool]) -> None:
        """Never rest while this says so: adds wait for the checkpoint, or the bookie is being stopped."""
        self._is_urgent = is_urgent

    def begin(self) -> None:
        """A checkpoint begins in the lane that calls this."""
        self._rested_at_s = self._now_s()

    def pause(self) -> None:
        """Rest for the work done since the last rest."""
        rest_s = min(REST_SHARE * (self._now_s() - self._rested_at_s), REST_S_MAX)
        if rest_s > 0 and not self._is_urgent():
            self._sleep(rest_s)
        self._rested_at_s = self._now_s()
