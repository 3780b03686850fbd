"""A bookie as its own process: adapters, interpreter settings, start and end.

This is the only module of the bookie that creates adapters.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib.metadata
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeAlias

from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.boot.service_reports import ServiceReports
from bkctl.runtime.bookie.boot.stages import waiting_aloud
from bkctl.runtime.bookie.ports import BookiePorts, ChildDaemon
from bkctl.runtime.config import BookieConfig, ClientConfig
from bkctl.runtime.metadata.bookies.service_info import BKCTL_SOFTWARE
from bkctl.runtime.metadata.zookeeper.connect_failures import log_wait
from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.net.frame_connection import Resolver
from bkctl.runtime.net.host import OsHost, listen_tcp
from bkctl.runtime.net.local_socket import listen_unix
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.net.pool import BookiePool
from bkctl.runtime.net.secret_file import read_secret
from bkctl.runtime.ports import ServiceManager
from bkctl.runtime.security.tls_contexts import bookie_contexts
from bkctl.storage.adapters.child_pool import ChildProcesses
from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.setting import MEBIBYTE

logger = logging.getLogger(__name__)

TakeOver: TypeAlias = Callable[[BookieConfig | None], None]
"""Applies changed settings to a bookie; None: they could not be read."""

OnServing: TypeAlias = Callable[[TakeOver], None]

SWITCH_INTERVAL_S = 0.0001
"""How long a lane may hold the interpreter while the loop waits for it. The default of 5 ms costs as much as a sync."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_TRIM_BYTES = 128 * MEBIBYTE
"""Memory of flushed entries that is kept: a write cache of the default size."""
_MMAP_BYTES = 32 * MEBIBYTE
"""What glibc itself goes up to. It stays at its start, 128 KiB, once the other threshold is set."""


def keep_freed_memory() -> None:
    """Let glibc keep what is freed, for the next entries. It would return the memory of each flushed write cache, and a
    page fault for every 4 KiB costs adds of 64 KiB an eighth of the loop's time. Does nothing with another libc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def real_ports(autorecovery: ChildDaemon | None = None) -> BookiePorts:
    """Adapters for this machine; call it on the event loop. The caller closes ``workers``."""
    clock = LoopClock()

    def connect_bookies(resolve: Resolver, config: ClientConfig) -> BookiePool:
        return BookiePool(resolve, config, clock)

    return BookiePorts(
        file_system=OsFileSystem(),
        open_index=open_plyvel,
        children=ChildProcesses(),
        clock=clock,
        workers=LaneWorkers(),
        host=OsHost(),
        listen=listen_tcp,
        listen_local=listen_unix,
        read_secret=read_secret,
        tls_contexts=lambda files: bookie_contexts(files, os.environ),
        connect_metadata=partial(ZooKeeperStore.connect, on_wait=log_wait),
        connect_bookies=connect_bookies,
        release=f"{BKCTL_SOFTWARE}{importlib.metadata.version('bkctl')}",
        autorecovery=autorecovery,
    )


@contextlib.asynccontextmanager
async def running_bookie(config: BookieConfig, ports: BookiePorts | None = None) -> AsyncIterator[BookieServer]:
    """A bookie that serves requests; leaving the block shuts it down cleanly. ``ports`` None: real adapters.

    Raises errors of the start: ConfigurationError, CookieError, ConflictError, MetadataError, RegistrationError,
    StorageError, OSError; and BookieFailedError if the final flush fails.
    """
    ports = ports or real_ports()
    try:
        async with BookieServer(config, ports) as server:
            yield server
    finally:
        await ports.workers.close()


async def run_bookie(
    config: BookieConfig,
    stop: asyncio.Event,
    on_serving: OnServing,
    manager: ServiceManager,
    autorecovery: ChildDaemon | None = None,
) -> None:
    """Run a bookie until ``stop`` is set, then shut it down cleanly. ``autorecovery`` runs while it serves.

    Calls ``on_serving`` once the bookie serves, with a function that applies changed settings. Until then the call can
    be cancelled; the files are then as after a kill, and nothing is registered. Raises errors of the start (see
    ``running_bookie``) and errors that end the bookie: RegistrationError, BookieFailedError.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    keep_freed_memory()
    ports = real_ports(autorecovery)
    async with contextlib.AsyncExitStack() as running:
        server = BookieServer(config, ports)
        running.push_async_callback(_close_workers, server, ports)
        reports = ServiceReports(server.view, manager, stop)
        await running.enter_async_context(reports.running())
        try:
            await running.enter_async_context(server)
        except asyncio.CancelledError:
            logger.info("the start of the bookie was stopped")
            raise

        def apply_settings(config: BookieConfig | None) -> None:
            reports.note_reload(is_failed=config is None)
            if config is not None:
                server.reload(config)

        on_serving(apply_settings)
        reports.report()
        gc.collect()
        gc.freeze()  # objects made at boot live as long as the process: exclude them from collection
        await server.serve_until(stop)
    logger.info("bookie %s shut down cleanly", server.bookie_id)


async def _close_workers(server: BookieServer, ports: BookiePorts) -> None:
    """A read that hangs on its disk, for example, is still running in its thread."""
    async with waiting_aloud("work that is still running in a thread", server.note_wait, ports.clock):
        await ports.workers.close()
