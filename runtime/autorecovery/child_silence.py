"""When a child process that sends nothing is reported, and when it is killed. Pure."""

from __future__ import annotations

import enum

import msgspec


class SilenceLimits(msgspec.Struct, frozen=True):
    """When a process that sends nothing is reported, and when it is killed."""

    step_s: float = 1.0
    warn_s: float = 30.0
    kill_s: float = 60.0


class SilenceEvent(enum.Enum):
    """What the silence of a process calls for."""

    NONE = enum.auto()
    WARN = enum.auto()
    KILL = enum.auto()
    IS_OVER = enum.auto()
    """A silence that was reported."""


class ProcessSilence:
    """For how long one process has sent nothing.

    Time is counted in steps: if this process itself is halted for an hour, that is one step.
    """

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._is_heard = False
        self._is_reported = False
        self._silent_s = 0.0

    def note_message(self) -> None:
        """The process has sent something."""
        self._is_heard = True

    def step(self) -> SilenceEvent:
        """Another step has passed."""
        if self._is_heard:
            was_reported, self._is_reported = self._is_reported, False
            self._is_heard, self._silent_s = False, 0.0
            return SilenceEvent.IS_OVER if was_reported else SilenceEvent.NONE
        self._silent_s += self._limits.step_s
        if self._silent_s >= self._limits.kill_s:
            return SilenceEvent.KILL
        if self._silent_s >= self._limits.warn_s and not self._is_reported:
            self._is_reported = True
            return SilenceEvent.WARN
        return SilenceEvent.NONE
