"""A bookie as a process of its own: interpreter settings, event loop, signals. Source: design section 3."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys

from runtime.bookie.server import BookieServer
from runtime.config import BookieConfig

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0001
"""How long a lane may hold the interpreter while the loop waits for it. The default, 5 ms, is a sync lost."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def run_bookie(config: BookieConfig) -> None:
    """Run a bookie until SIGTERM or SIGINT, then stop it in order.

    Raises what keeps it from starting: ConfigurationError, CookieError, ConflictError, MetadataError,
    RegistrationError, StorageError, OSError; or what ended it: RegistrationError, BookieFailedError.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    async with BookieServer(config) as server:
        gc.collect()
        gc.freeze()  # what boot allocated lives as long as the process: no collection need look at it again
        await server.serve_until(stop)
    logger.info("bookie %s stopped in order", server.bookie_id)
