"""Warnings that strangers can cause: one line per cause and interval, with the count of those left out."""

from __future__ import annotations

import asyncio
import logging
import re

_NUMBER = re.compile(r"\d+")


class LimitedLog:
    """Logs warnings to ``logger``. Two are of one cause if they differ in their numbers alone."""

    def __init__(self, logger: logging.Logger, interval_s: float) -> None:
        self._logger = logger
        self._interval_s = interval_s
        self._left_out_count: dict[str, int] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def report(self, origin: str, reason: str) -> None:
        """Log ``origin: reason``, or count it if its cause was logged within the interval."""
        cause = _NUMBER.sub("#", reason)
        if cause in self._left_out_count:
            self._left_out_count[cause] += 1
        else:
            self._logger.warning("%s: %s", origin, reason)
            self._begin_interval(cause)

    def close(self) -> None:
        """Tell what was left out so far; no timer remains."""
        for timer in self._timers.values():
            timer.cancel()
        for cause in list(self._left_out_count):
            self._tell(cause)

    def _begin_interval(self, cause: str) -> None:
        self._left_out_count[cause] = 0
        self._timers[cause] = asyncio.get_running_loop().call_later(self._interval_s, self._end_interval, cause)

    def _end_interval(self, cause: str) -> None:
        if self._tell(cause):
            self._begin_interval(cause)

    def _tell(self, cause: str) -> bool:
        del self._timers[cause]
        count = self._left_out_count.pop(cause)
        if count:
            self._logger.warning("%d more connections in %g s: %s", count, self._interval_s, cause)
        return count > 0
