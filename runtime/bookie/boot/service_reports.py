"""What a bookie reports to the service manager that started it (systemd): ready, healthy, its mode, stopping.

Healthy means that the event loop turns and that the thread of each journal runs jobs, so that no write or sync of a
journal hangs. A bookie that is read-only, without ZooKeeper or with a ledger disk that hangs is healthy: a restart
would not help it. STATUS shows these troubles.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Final

from bkctl.runtime.bookie.boot.trouble_watch import JOURNAL_HANGS, LaneWatch
from bkctl.runtime.bookie.troubles import Trouble
from bkctl.runtime.bookie.view import BookieView
from bkctl.runtime.ports import ServiceManager

logger = logging.getLogger(__name__)

_INTERVAL_S_MAX: Final = 1.0
"""At most this long after a change of the mode, or a trouble, STATUS shows it."""
_START_EXTENSION_S: Final = 120
"""How long a step of the start may take: the flush of a full write cache, on a slow disk."""


class ServiceReports:
    """Reports the state of one bookie until ``stop`` is set."""

    def __init__(self, view: BookieView, manager: ServiceManager, stop: asyncio.Event) -> None:
        self._view = view
        self._manager = manager
        self._stop = stop
        # A quarter, so that a healthy bookie is never a whole interval late.
        self._interval_s = min(_INTERVAL_S_MAX, (manager.watchdog_s or _INTERVAL_S_MAX) / 4)
        self._is_ready = False
        self._progress: object = None
        self._status = ""
        self._journal_lanes: tuple[LaneWatch, ...] = ()
        self._is_hanging = False
        self._has_failed_reload = False

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Report in the background inside the block; nothing without a service manager."""
        if not self._manager.is_present:
            yield
            return
        task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while not self._stop.is_set():
            self.report()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._stop.wait()
        self._status = "stopping"
        self._manager.notify(STOPPING=1, STATUS=self._status)
        while True:
            await self._view.ports.clock.sleep(self._interval_s)
            status = "; ".join(filter(None, ("stopping", self._view.stop_waits_for, self._view.trouble_text)))
            if status != self._status:
                self._status = status
                self._manager.notify(STATUS=status)

    def report(self) -> None:
        """Send what has changed since the last report, and that the bookie is healthy."""
        if not self._manager.is_present:
            return
        fields: dict[str, str | int] = {}
        if not self._view.is_running:
            progress = (self._view.stage, self._view.replay_step_count)
            if progress != self._progress:
                self._progress = progress
                fields["EXTEND_TIMEOUT_USEC"] = _START_EXTENSION_S * 1_000_000
            status = f"starting: {self._view.stage}"
        else:
            if not self._is_ready:
                self._is_ready = True
                fields["READY"] = 1
            if self._manager.watchdog_s is not None and self._do_journals_respond():
                fields["WATCHDOG"] = 1
            status = self._running_status()
        if status != self._status:
            self._status = fields["STATUS"] = status
        if fields:
            self._manager.notify(**fields)

    def note_reload(self, *, is_failed: bool) -> None:
        """The settings were read again, or could not be read. The status shows a failure until the next reload."""
        self._has_failed_reload = is_failed
        if self._is_ready and self._status != self._running_status():
            self._status = self._running_status()
            self._manager.notify(STATUS=self._status)

    def _running_status(self) -> str:
        is_new_hang = self._is_hanging and Trouble.JOURNAL_DISK not in self._view.troubles
        failed = "the last reload of the settings failed (see the log)" if self._has_failed_reload else ""
        texts = (self._view.modes.text, JOURNAL_HANGS if is_new_hang else "", self._view.trouble_text, failed)
        return "; ".join(filter(None, texts))

    def _do_journals_respond(self) -> bool:
        """Whether the thread of each journal has run a job since the last report."""
        path, ports = self._view.path, self._view.ports
        assert path is not None
        is_first = not self._journal_lanes
        if is_first:
            self._journal_lanes = tuple(LaneWatch(ports.workers, lane) for lane in path.journal_lanes)
        if any(lane.is_waiting for lane in self._journal_lanes):
            if not self._is_hanging:
                logger.error("a write or sync of a journal hangs: no message to systemd's watchdog until it returns")
            self._is_hanging = True
            return False
        if self._is_hanging:
            logger.warning("the journals respond again")
        self._is_hanging = False
        for lane in self._journal_lanes:
            lane.stalled_since_ns(ports.clock.monotonic_ns())
        return not is_first
