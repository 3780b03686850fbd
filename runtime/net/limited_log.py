"""Rate-limited logging of events that peers or a failing disk cause: one line per cause and interval, and a count."""

from __future__ import annotations

import asyncio
import logging
import re

_NUMBER = re.compile(r"\b\d\w*")
"""Also with letters after it ("1f", "4ms"). Digits after a letter belong to a word ("v2", "useV2WireProtocol")."""


class LimitedLog:
    """Logs to ``logger`` at ``level``; ``noun``: the counted events, in the plural."""

    def __init__(self, logger: logging.Logger, interval_s: float, noun: str, level: int = logging.WARNING) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._noun = noun
        self._level = level
        self._left_out_count: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def report(self, origin: str, reason: str, cause: str | None = None) -> None:
        """Log ``origin: reason``, or count it if its cause was logged within the interval.

        Without ``cause``, reasons that differ only in numbers have the same cause.
        """
        cause = _NUMBER.sub("#", reason) if cause is None else cause
        if cause in self._left_out_count:
            self._left_out_count[cause] += 1
        else:
            self._logger.log(self._level, "%s: %s", origin, reason)
            self._begin_interval(cause)

    def close(self) -> None:
        """Log the pending counts and cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        for cause in list(self._left_out_count):
            self._log_suppressed(cause)

    def _begin_interval(self, cause: str) -> None:
        self._left_out_count[cause] = 0
        self._timers[cause] = asyncio.get_running_loop().call_later(self._interval_s, self._end_interval, cause)

    def _end_interval(self, cause: str) -> None:
        if self._log_suppressed(cause):
            self._begin_interval(cause)

    def _log_suppressed(self, cause: str) -> bool:
        del self._timers[cause]
        count = self._left_out_count.pop(cause)
        if count:
            self._logger.log(self._level, "%d more %s in %g s: %s", count, self._noun, self._interval_s, cause)
        return count > 0
