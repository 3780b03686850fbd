"""Wait for what sends no event: another process, a file, a log, a lane."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar

Answer = TypeVar("Answer")

DEADLINE_S = 300.0
"""Far above what any condition takes on a busy machine, and below pytest's own limit, which says less."""

_FIRST_PAUSE_S = 0.001
_LAST_PAUSE_S = 0.01


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
    for pause_s in _pauses(deadline_s):
        if answer := is_so():
            return answer
        if process is not None and (exit_code := process.poll()) is not None:
            answer = is_so()  # what it did last may be what is waited for
            assert answer, f"the process ended with {exit_code} before: {_named(is_so, what)}\n{tell()}"
            return answer
        time.sleep(pause_s)
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
    for pause_s in _pauses(deadline_s):
        if await _answer(is_so):
            return
        if process is not None and (exit_code := process.poll()) is not None:
            holds = await _answer(is_so)
            assert holds, f"the process ended with {exit_code} before: {_named(is_so, what)}\n{tell()}"
            return
        await asyncio.sleep(pause_s)
    raise AssertionError(f"not in {deadline_s:.0f} s: {_named(is_so, what)}\n{tell()}")


async def _answer(is_so: Callable[[], Awaitable[object] | object]) -> object:
    answer = is_so()
    return await answer if inspect.isawaitable(answer) else answer


def _pauses(deadline_s: float) -> Iterator[float]:
    """Short ones first; they end with the deadline."""
    pause_s, ends = _FIRST_PAUSE_S, time.monotonic() + deadline_s
    while time.monotonic() < ends:
        yield pause_s
        pause_s = min(1.5 * pause_s, _LAST_PAUSE_S)


def _named(is_so: Callable[[], object], what: str) -> str:
    if what:
        return what
    try:
        return inspect.getsource(is_so).strip()
    except (OSError, TypeError):
        return repr(is_so)
