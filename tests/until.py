"""Wait for what sends no event: another process, a file, a log, a lane."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

Answer = TypeVar("Answer")

DEADLINE_S = 300.0
"""Far above what any condition takes on a busy machine, and below pytest's own limit, which says less."""

_FIRST_PAUSE_S = 0.001
_LAST_PAUSE_S = 0.01
_LAST_PAUSE_AFTER_LONG_LOOKS_S = 0.1
_PAUSE_PER_LOOK = 3.0
"""A look that starts a process or a session takes CPU time from what it waits for: the pause after it is longer."""


class EndingProcess(Protocol):
    """A process of ``subprocess`` or of ``tests.processes``."""

    def poll(self) -> int | None:
        """The exit code, None while it runs."""


def wait_until(
    is_so: Callable[[], Answer],
    what: str = "",
    *,
    process: EndingProcess | None = None,
    tell: Callable[[], object] = str,
    deadline_s: float = DEADLINE_S,
) -> Answer:
    """Return the condition's first true answer.

    Raises AssertionError when the deadline has passed, or the process has ended before. The error has ``what``, by
    default the source of the condition, and what ``tell`` returns, for example a log.
    """
    pauses = _Pauses(deadline_s)
    while pauses.has_time():
        if answer := is_so():
            return answer
        if process is not None and (exit_code := process.poll()) is not None:
            answer = is_so()  # what it did last may be what is waited for
            assert answer, f"the process ended with {exit_code} before: {_named(is_so, what)}\n{tell()}"
            return answer
        time.sleep(pauses.next_s())
    raise AssertionError(f"not in {deadline_s:.0f} s: {_named(is_so, what)}\n{tell()}")


async def until(
    is_so: Callable[[], Awaitable[object] | object],
    what: str = "",
    *,
    process: EndingProcess | None = None,
    tell: Callable[[], object] = str,
    deadline_s: float = DEADLINE_S,
) -> None:
    """The same on an event loop; the condition may be a coroutine function, which must end by itself."""
    pauses = _Pauses(deadline_s)
    while pauses.has_time():
        if await _answer(is_so):
            return
        if process is not None and (exit_code := process.poll()) is not None:
            holds = await _answer(is_so)
            assert holds, f"the process ended with {exit_code} before: {_named(is_so, what)}\n{tell()}"
            return
        await asyncio.sleep(pauses.next_s())
    raise AssertionError(f"not in {deadline_s:.0f} s: {_named(is_so, what)}\n{tell()}")


async def _answer(is_so: Callable[[], Awaitable[object] | object]) -> object:
    answer = is_so()
    return await answer if inspect.isawaitable(answer) else answer


class _Pauses:
    """Short ones first; longer ones after looks that take long."""

    def __init__(self, deadline_s: float) -> None:
        self._began = time.monotonic()
        self._ends = self._began + deadline_s
        self._pause_s = _FIRST_PAUSE_S

    def has_time(self) -> bool:
        """Whether the deadline has not passed; a look begins."""
        self._began = time.monotonic()
        return self._began < self._ends

    def next_s(self) -> float:
        """The pause after the look."""
        pause_s = self._pause_s
        self._pause_s = min(1.5 * pause_s, _LAST_PAUSE_S)
        look_s = time.monotonic() - self._began
        return max(pause_s, min(_PAUSE_PER_LOOK * look_s, _LAST_PAUSE_AFTER_LONG_LOOKS_S))


def _named(is_so: Callable[[], object], what: str) -> str:
    if what:
        return what
    try:
        return inspect.getsource(is_so).strip()
    except (OSError, TypeError):
        return repr(is_so)
