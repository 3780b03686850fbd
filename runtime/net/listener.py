"""The bookie's TCP port: accepts connections and owns their shared state. Source: wire section 1."""

from __future__ import annotations

import asyncio
import logging

from bkctl.runtime.net.bookie_security import BookieSecurity
from bkctl.runtime.net.connection_room import ConnectionRoom
from bkctl.runtime.net.limited_log import LimitedLog
from bkctl.runtime.net.memory_budget import MemoryBudget
from bkctl.runtime.net.read_lanes import ReadLanes
from bkctl.runtime.net.request_measures import RequestMeasures
from bkctl.runtime.net.secured_connection import SecuredConnection
from bkctl.runtime.net.server_connection import SWEEPS_PER_STALL, ListenerLimits, ServerConnection, Shared
from bkctl.runtime.ports import Listen, ListeningPort, RequestHandler
from bkctl.runtime.protocol.framing import LONG_READ_BYTES, read_buffer
from bkctl.storage.measures import NowNs, no_clock

logger = logging.getLogger(__name__)

_CLOSE_GRACE_S = 1.0
"""How long ``close`` waits for the last answers to be sent."""

_LOG_INTERVAL_S = 10.0
"""Peers can cause at most one log line per cause within this time."""


class BookieListener:
    """Accepts connections and serves them with one handler.

    The port may be opened before the bookie is ready: until ``serve`` is called, connections are closed at once.
    """

    def __init__(
        self, limits: ListenerLimits, now_ns: NowNs = no_clock, security: BookieSecurity | None = None
    ) -> None:
        self._limits = limits
        self.security = security
        self.measures = RequestMeasures(now_ns)
        self._handler: RequestHandler | None = None
        self._port: ListeningPort | None = None
        self._connections: ConnectionRoom[ServerConnection] = ConnectionRoom(limits.connections_max)
        self._all_closed = asyncio.Event()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._log = LimitedLog(logger, _LOG_INTERVAL_S, "connections")
        budget = MemoryBudget(limits.memory_bytes_max, self._pause_all, self._resume_all)
        self._shared = Shared(
            limits=limits,
            budget=budget,
            read_lanes=ReadLanes(budget.read_lane_bytes_max),
            measures=self.measures,
            read_buffer=read_buffer(LONG_READ_BYTES),
            log=self._log,
            admit=self._admit,
            note_activity=self._connections.note_activity,
            forget=self._forget,
        )

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    @property
    def budget(self) -> MemoryBudget:
        """Memory that the connections use together."""
        return self._shared.budget

    @property
    def read_lanes(self) -> ReadLanes:
        """Reads of all connections that need the disk."""
        return self._shared.read_lanes

    async def open(self, listen: Listen, host: str | None, port: int) -> int:
        """Listen on ``host`` (None: all addresses) and ``port`` (0: any free one); returns the port. OSError."""
        self._port = await listen(self._accept, host, port)
        return self._port.port

    def serve(self, handler: RequestHandler) -> None:
        """Start serving: pass requests to ``handler``."""
        self._handler = handler

    def stop(self) -> None:
        """Stop listening and start closing all connections; they accept no more requests. Safe to repeat."""
        self._handler = None  # rejects connections that are being accepted
        if self._port is not None:
            self._port.close()
        for connection in list(self._connections):
            connection.close()

    async def close(self) -> None:
        """Stop listening, send the available answers and close all connections; safe to repeat."""
        self.stop()
        self._log.close()
        if not self._connections:
            return
        self._all_closed.clear()
        try:
            async with asyncio.timeout(_CLOSE_GRACE_S):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    def _accept(self) -> ServerConnection:
        if self.security is None:
            return ServerConnection(self._shared)
        return SecuredConnection(self._shared, self.security)

    def _admit(self, connection: ServerConnection) -> RequestHandler | None:
        if self._handler is None:
            return None
        if (replaced := self._connections.enter(connection)) is not None:
            reason = f"at most {self._limits.connections_max} may be open, and "
            reason += "no other is idle" if replaced is connection else "no other has been idle for longer"
            self._log.report(f"connection from {replaced.peer} closed", reason)
            if replaced is connection:
                return None
        if self._sweep_timer is None:
            self._begin_sweep()
        return self._handler

    def _forget(self, connection: ServerConnection) -> None:
        self._connections.leave(connection)
        if not self._connections:
            self._all_closed.set()
            if self._sweep_timer is not None:
                self._sweep_timer.cancel()
                self._sweep_timer = None

    def _begin_sweep(self) -> None:
        interval_s = self._limits.stall_s_max / SWEEPS_PER_STALL
        self._sweep_timer = asyncio.get_running_loop().call_later(interval_s, self._sweep)

    def _sweep(self) -> None:
        """Close stalled connections; repeats as long as there are connections."""
        self._begin_sweep()
        for connection in list(self._connections):
            connection.check_progress()

    def _pause_all(self) -> None:
        logger.debug("memory for requests in progress is used up: paused reading from %d peers", len(self._connections))
        for connection in self._connections:
            connection.pause_reading()

    def _resume_all(self) -> None:
        for connection in self._connections:
            connection.resume_if_possible()
