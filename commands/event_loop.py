"""Runs a command's coroutine: the first signal stops it cleanly, a second SIGINT immediately."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, ParamSpec, TypeVar

import uvloop

from bkctl.commands.errors import StoppedBySignalError

logger = logging.getLogger(__name__)

_STDIN = 0

P = ParamSpec("P")
T = TypeVar("T")


def stop_signals() -> asyncio.Event:
    """From now on SIGINT and SIGTERM set this event instead of ending the command."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, event.set)
    return event


class ServerStop:
    """Effect of SIGTERM and SIGINT on a server: its start is cancelled; once it serves, ``event`` is set."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self._starting = asyncio.current_task()

    def note_serving(self) -> None:
        """The start is over."""
        self._starting = None

    def request(self) -> None:
        """A signal came; further ones change nothing."""
        if not self.event.is_set():
            self.event.set()
            if self._starting is not None:
                self._starting.cancel()


def handle_hangup(reload: Callable[[], None], stop: Callable[[], None]) -> None:
    """From now on SIGHUP calls ``reload``; if the terminal of this server was closed, ``stop``.

    A server in the foreground whose terminal is gone can no longer be reached by its operator.
    """
    is_on_terminal = os.isatty(_STDIN)

    def handle() -> None:
        if is_on_terminal and not os.isatty(_STDIN):
            logger.info("the terminal was closed: stopping")
            stop()
        else:
            reload()

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, handle)


@contextmanager
def stoppable_server() -> Iterator[ServerStop]:
    """Inside the block, signals stop the server. A cancelled start leaves the block without an error."""
    stop = ServerStop()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.request)
    try:
        yield stop
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not stop.event.is_set() or task is None:
            raise
        task.uncancel()


@contextmanager
def sigterm_as_error() -> Iterator[None]:
    """For work that blocks outside of the loop: SIGTERM raises StoppedBySignalError, as SIGINT KeyboardInterrupt."""

    def stop(number: int, _: object) -> NoReturn:
        raise StoppedBySignalError(number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def run_to_end(function: Callable[P, Coroutine[Any, Any, T]], *arguments: P.args, **options: P.kwargs) -> T:
    """Result of the coroutine function; KeyboardInterrupt after SIGINT, StoppedBySignalError after SIGTERM.

    SIGINT is held back until the loop can cancel the work: an exception at any point before would leave a coroutine
    that is never awaited.
    """
    is_terminated = False

    async def supervise() -> T:
        task = asyncio.current_task()
        assert task is not None

        def terminate() -> None:
            nonlocal is_terminated
            is_terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        await asyncio.sleep(0)  # a signal that was held back ends the command before it begins
        return await function(*arguments, **options)

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    coroutine = supervise()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(coroutine)
    except asyncio.CancelledError:
        if is_terminated:
            raise StoppedBySignalError(signal.SIGTERM) from None
        raise
    finally:
        coroutine.close()  # without descriptors for a loop it never began
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
