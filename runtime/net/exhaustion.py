"""The machine gives this process no more memory, or no other thread: a server must end, wherever that happened.

All places report it to the exception handler of the event loop, which also gets the errors that no other code catches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeGuard

logger = logging.getLogger(__name__)

NO_THREAD: Final = "can't start new thread"
"""What Python says if the machine refuses one."""


def is_exhaustion(error: BaseException | None) -> TypeGuard[MemoryError | RuntimeError]:
    """Whether the error says that there is no memory, or no thread."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error) == NO_THREAD)


def report_exhaustion(loop: asyncio.AbstractEventLoop, error: BaseException) -> bool:
    """Report such an error to the handler of the loop, in its thread; returns whether it is one."""
    if is_exhaustion(error):
        loop.call_exception_handler({"message": "no memory or thread", "exception": error})
    return is_exhaustion(error)


def on_exhaustion(end: Callable[[BaseException], None]) -> Callable[[], None]:
    """Call ``end`` for each such error that the running loop gets to know of; returns a function that undoes this.

    Its traceback is only in the debug log. Other errors are handled as before.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if is_exhaustion(error):
            logger.debug("%s", context["message"], exc_info=error)
            end(error)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    return partial(loop.set_exception_handler, before)
