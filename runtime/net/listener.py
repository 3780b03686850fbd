"""The bookie's side of its connections: requests in, answers out. Source: wire sections 1, 2, 6 and 7."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

from runtime.errors import ProtocolError
from runtime.ports import BookieInfo
from runtime.protocol import v3
from runtime.protocol.framing import FRAME_BYTES_MAX, FrameSplitter
from runtime.protocol.messages import (
    AddCall,
    BookieInfoCall,
    Call,
    ForceLedgerCall,
    ReadCall,
    ReadLacCall,
    SelfAnsweredCall,
)
from runtime.protocol.status import Status

logger = logging.getLogger(__name__)

_REQUEST_COST_BYTES = 256
"""What a request holds in memory besides its body, roughly."""

_READ_COST_BYTES_MIN = 64 * 1024
"""What a read counts as at least; more if the read answered last was larger. Its answer is still to come."""

_WRITE_BYTES = 8 * 1024
"""Answers of a loop tick leave in one write, or in several of this size: the peer works on the first ones meanwhile."""

_WRITE_BUFFER_BYTES_MAX = _WRITE_BYTES // 2
"""Below a write's size: uvloop sends at once what exceeds it, and waits for the end of the tick else."""

_CLOSE_GRACE_S = 1.0
"""How long the last answers may take to leave when the listener closes."""


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What clients may ask of one bookie at most."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest frame, its length word included (nettyMaxFrameSizeBytes)."""
    connections_max: int = 2000
    """Connections served at once; a further one is closed."""
    unanswered_bytes_max: int = 64 * 1024 * 1024
    """Requests of one connection under way; at the limit nothing more is read from it until half is answered."""


class Responder(Protocol):
    """Where the answers to a request go: the connection it came from. Called on the loop.

    Each request is answered once. Answers may come in any order; those to a connection that is gone are dropped.
    """

    def respond_add(self, txn_id: int, ledger_id: int, entry_id: int, status: Status) -> None:
        """Answer an add."""

    def respond_read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        status: Status,
        body: bytes | None,
        max_last_add_confirmed: int | None,
    ) -> None:
        """Answer a read; ``entry_id`` is the one asked for. A body that no frame can hold becomes IO_ERROR."""

    def respond_read_lac(
        self, txn_id: int, ledger_id: int, status: Status, lac_body: bytes | None, last_entry_body: bytes | None
    ) -> None:
        """Answer a LAC read; None for what there is not."""

    def respond_write_lac(self, txn_id: int, ledger_id: int, status: Status) -> None:
        """Answer an explicit LAC."""

    def respond_force_ledger(self, txn_id: int, ledger_id: int, status: Status) -> None:
        """Answer a force."""

    def respond_bookie_info(self, txn_id: int, status: Status, requested: int, info: BookieInfo | None) -> None:
        """Answer with those numbers of ``info`` that ``requested`` asks for."""


class RequestHandler(Protocol):
    """What a bookie does with requests. Called on the loop, once per request, in the order of their arrival.

    It must not wait; it answers through the responder now or later. Ids may be negative.
    """

    def add(
        self,
        connection: Responder,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        body: bytes,
        is_recovery_add: bool,
        is_high_priority: bool,
        is_deferred_sync: bool,
    ) -> None:
        """Store an entry (wire 5.1)."""

    def read(
        self,
        connection: Responder,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        fence_with: bytes | None,
        is_high_priority: bool,
    ) -> None:
        """Read an entry, or the last one for -1; with a key, fence first (wire 5.2 and 5.3)."""

    def read_lac(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        """Give explicit LAC and last entry (wire 5.6)."""

    def write_lac(self, connection: Responder, txn_id: int, ledger_id: int, master_key: bytes, body: bytes) -> None:
        """Keep an explicit LAC packet (wire 5.5)."""

    def force_ledger(self, connection: Responder, txn_id: int, ledger_id: int) -> None:
        """Make the ledger's entries durable (wire 5.8)."""

    def bookie_info(self, connection: Responder, txn_id: int, requested: int) -> None:
        """Tell disk space (wire 5.7)."""


class ServerConnection(asyncio.BufferedProtocol):
    """One client: splits and decodes what it sends, hands requests on, writes all answers of a loop tick at once.

    The limit on unanswered requests holds within one read too: frames behind it wait in the buffer.
    """

    def __init__(
        self,
        limits: ListenerLimits,
        admit: Callable[[ServerConnection], RequestHandler | None],
        forget: Callable[[ServerConnection], None],
    ) -> None:
        self._limits = limits
        self._admit = admit
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(limits.frame_bytes_max)
        self._add_responses = v3.AddResponseEncoder()
        self._handler: RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._answers: list[bytes] = []
        self._answer_bytes = 0
        self._read_cost_bytes = _READ_COST_BYTES_MIN
        self._cost_of: dict[int, int] = {}
        self._unanswered_bytes = 0
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_resume_scheduled = False
        self.peer = "an unknown address"

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the listener whether it may stay."""
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if address:
            self.peer = f"{address[0]}:{address[1]}"
        self._handler = self._admit(self)
        if self._handler is None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the answers that nobody waits for any more."""
        self._transport = None
        self._answers.clear()
        self._cost_of.clear()
        if exc is not None:
            logger.debug("connection from %s lost: %s", self.peer, exc)
        self._forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the splitter knows better
        """Where the next bytes go."""
        return self._splitter.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """Serve all requests that are complete."""
        self._splitter.advance(nbytes)
        self._take_requests()

    def pause_writing(self) -> None:
        """The peer does not take its answers: ask nothing more of it."""
        self._is_writing_paused = True
        self._pause_reading()

    def resume_writing(self) -> None:
        """The peer takes answers again."""
        self._is_writing_paused = False
        if self._answers:
            self._flush()
        self._resume_if_possible()

    # Called by the listener.

    def close(self) -> None:
        """Send what is ready, then close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    # Responder.

    def respond_add(self, txn_id: int, ledger_id: int, entry_id: int, status: Status) -> None:
        """Answer an add."""
        self._respond(txn_id, self._add_responses.encode(txn_id, ledger_id, entry_id, status))

    def respond_read(
        self,
        txn_id: int,
        ledger_id: int,
        entry_id: int,
        status: Status,
        body: bytes | None,
        max_last_add_confirmed: int | None,
    ) -> None:
        """Answer a read. A body that no frame can hold becomes IO_ERROR: the peer would drop the connection."""
        frame = v3.encode_read_response(txn_id, ledger_id, entry_id, status, body, max_last_add_confirmed)
        if len(frame) > self._limits.frame_bytes_max:
            frame = v3.encode_read_response(txn_id, ledger_id, entry_id, Status.IO_ERROR, None, None)
        self._read_cost_bytes = max(_READ_COST_BYTES_MIN, len(frame))
        self._respond(txn_id, frame)

    def respond_read_lac(
        self, txn_id: int, ledger_id: int, status: Status, lac_body: bytes | None, last_entry_body: bytes | None
    ) -> None:
        """Answer a LAC read."""
        self._respond(txn_id, v3.encode_read_lac_response(txn_id, ledger_id, status, lac_body, last_entry_body))

    def respond_write_lac(self, txn_id: int, ledger_id: int, status: Status) -> None:
        """Answer an explicit LAC."""
        self._respond(txn_id, v3.encode_write_lac_response(txn_id, ledger_id, status))

    def respond_force_ledger(self, txn_id: int, ledger_id: int, status: Status) -> None:
        """Answer a force."""
        self._respond(txn_id, v3.encode_force_ledger_response(txn_id, ledger_id, status))

    def respond_bookie_info(self, txn_id: int, status: Status, requested: int, info: BookieInfo | None) -> None:
        """Answer with those numbers of ``info`` that ``requested`` asks for."""
        total_bytes, free_bytes = (None, None) if info is None else (info.total_bytes, info.free_bytes)
        self._respond(txn_id, v3.encode_bookie_info_response(txn_id, status, requested, total_bytes, free_bytes))

    def _respond(self, txn_id: int, frame: bytes) -> None:
        self._unanswered_bytes -= self._cost_of.pop(txn_id, 0)
        self._send(frame)
        if self._is_reading_paused:
            self._resume_if_possible()

    def _send(self, frame: bytes) -> None:
        if self._transport is None:
            return
        if not self._answers and not self._is_writing_paused:
            self._loop.call_soon(self._flush)
        self._answers.append(frame)
        self._answer_bytes += len(frame)
        if self._answer_bytes >= _WRITE_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._answers and self._transport is not None and not self._is_writing_paused:
            frames, self._answers, self._answer_bytes = self._answers, [], 0
            self._transport.write(b"".join(frames))

    def _take_requests(self) -> None:
        try:
            for payload in self._splitter.payloads():
                self._dispatch(v3.decode_request(payload))
                if self._unanswered_bytes > self._limits.unanswered_bytes_max:
                    self._pause_reading()
                if self._is_reading_paused:
                    return
        except ProtocolError as error:
            logger.warning("connection from %s closed: %s", self.peer, error)
            self.abort()

    def _dispatch(self, call: Call) -> None:
        handler = self._handler
        assert handler is not None, "only admitted connections are read from"
        if isinstance(call, AddCall):
            self._expect_answer(call.txn_id, len(call.body) + _REQUEST_COST_BYTES)
            handler.add(
                self,
                call.txn_id,
                call.ledger_id,
                call.entry_id,
                call.master_key,
                call.body,
                call.is_recovery_add,
                call.is_high_priority,
                call.is_deferred_sync,
            )
        elif isinstance(call, ReadCall):
            self._expect_answer(call.txn_id, self._read_cost_bytes)
            handler.read(self, call.txn_id, call.ledger_id, call.entry_id, call.fence_with, call.is_high_priority)
        elif isinstance(call, SelfAnsweredCall):
            self._send(call.frame)
        elif isinstance(call, ReadLacCall):
            self._expect_answer(call.txn_id, self._read_cost_bytes)
            handler.read_lac(self, call.txn_id, call.ledger_id)
        elif isinstance(call, ForceLedgerCall):
            self._expect_answer(call.txn_id, _REQUEST_COST_BYTES)
            handler.force_ledger(self, call.txn_id, call.ledger_id)
        elif isinstance(call, BookieInfoCall):
            self._expect_answer(call.txn_id, _REQUEST_COST_BYTES)
            handler.bookie_info(self, call.txn_id, call.requested)
        else:
            self._expect_answer(call.txn_id, len(call.body) + _REQUEST_COST_BYTES)
            handler.write_lac(self, call.txn_id, call.ledger_id, call.master_key, call.body)

    def _expect_answer(self, txn_id: int, cost_bytes: int) -> None:
        # A peer may use a transaction id twice: the first answer then frees the cost of both.
        self._cost_of[txn_id] = self._cost_of.get(txn_id, 0) + cost_bytes
        self._unanswered_bytes += cost_bytes

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and self._transport is not None and not self._transport.is_closing():
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _resume_if_possible(self) -> None:
        if (
            self._is_reading_paused
            and not self._is_resume_scheduled
            and not self._is_writing_paused
            and self._unanswered_bytes <= self._limits.unanswered_bytes_max // 2
        ):
            self._is_resume_scheduled = True
            self._loop.call_soon(self._resume)  # not from inside an answer: a handler may answer while it is called

    def _resume(self) -> None:
        self._is_resume_scheduled = False
        if self._transport is None or self._transport.is_closing():
            return
        self._is_reading_paused = False
        self._take_requests()
        if self._is_writing_paused:
            self._pause_reading()
        elif not self._is_reading_paused and not self._transport.is_closing():
            self._transport.resume_reading()


class BookieListener:
    """Accepts connections and serves them with one handler.

    The port may be opened before the bookie is ready: until ``serve`` is called, connections are closed at once.
    """

    def __init__(self, limits: ListenerLimits) -> None:
        self._limits = limits
        self._handler: RequestHandler | None = None
        self._server: asyncio.Server | None = None
        self._connections: set[ServerConnection] = set()
        self._all_closed = asyncio.Event()

    async def open(self, host: str | None, port: int) -> int:
        """Listen (``host`` None: on all addresses; ``port`` 0: on a free one) and return the port. OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    def serve(self, handler: RequestHandler) -> None:
        """From now on give requests to ``handler``."""
        self._handler = handler

    async def close(self) -> None:
        """Stop listening, send the answers that are ready and close all connections; safe to repeat."""
        self._handler = None  # what is being accepted just now is turned away
        if self._server is not None:
            self._server.close()
        if not self._connections:
            return
        self._all_closed.clear()
        for connection in list(self._connections):
            connection.close()
        try:
            async with asyncio.timeout(_CLOSE_GRACE_S):
                await self._all_closed.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    def _accept(self) -> ServerConnection:
        return ServerConnection(self._limits, self._admit, self._forget)

    def _admit(self, connection: ServerConnection) -> RequestHandler | None:
        if self._handler is None:
            return None
        if len(self._connections) >= self._limits.connections_max:
            logger.warning("a connection from %s is refused: %d are open", connection.peer, len(self._connections))
            return None
        self._connections.add(connection)
        return self._handler

    def _forget(self, connection: ServerConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()
