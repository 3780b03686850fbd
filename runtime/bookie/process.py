"""A bookie as a process of its own: interpreter settings, start and end. Source: design section 3."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable
from typing import TypeAlias

from runtime.bookie.server import BookieServer
from runtime.config import BookieConfig

logger = logging.getLogger(__name__)

OnServing: TypeAlias = Callable[[Callable[[BookieConfig], None]], None]

SWITCH_INTERVAL_S = 0.0001
"""How long a lane may hold the interpreter while the loop waits for it. The default, 5 ms, is a sync lost."""


async def run_bookie(config: BookieConfig, stop: asyncio.Event, on_serving: OnServing) -> None:
    """Run a bookie until ``stop`` is set, then stop it in order. ``on_serving`` is called once it serves, with what
    takes over changed settings.

    Before that it can be cancelled: it leaves what a kill would, and nothing registered.

    Raises what keeps it from starting: ConfigurationError, CookieError, ConflictError, MetadataError,
    RegistrationError, StorageError, OSError; or what ended it: RegistrationError, BookieFailedError.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    server = BookieServer(config)
    async with contextlib.AsyncExitStack() as running:
        try:
            await running.enter_async_context(server)
        except asyncio.CancelledError:
            logger.info("the start of the bookie was stopped")
            raise
        on_serving(server.reload)
        gc.collect()
        gc.freeze()  # what boot allocated lives as long as the process: no collection need look at it again
        await server.serve_until(stop)
    logger.info("bookie %s stopped in order", server.bookie_id)
