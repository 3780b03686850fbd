"""One client of a bookie: requests in, answers out. Source: wire sections 1, 2, 6 and 7."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec

from runtime.errors import ProtocolError
from runtime.net.answer_queue import AnswerQueue
from runtime.net.handshake import OpenHandshake
from runtime.net.limited_log import LimitedLog
from runtime.net.memory_budget import LongFrame, MemoryBudget
from runtime.net.read_lanes import ConnectionReads, ReadLanes
from runtime.ports import RequestHandler
from runtime.protocol.codec import BookieCodec
from runtime.protocol.framing import FRAME_BYTES_MAX, READ_BYTES, FrameSplitter
from runtime.protocol.messages import (
    AddRun,
    BookieAnswer,
    BookieCall,
    Call,
    HandshakeCall,
    Junk,
    QueuedRead,
    ReadCall,
    RefusedCall,
    RequestCall,
    WriteLacCall,
)
from runtime.protocol.status import Status

logger = logging.getLogger(__name__)

_REQUEST_COST_BYTES = 256
"""What a request holds in memory besides its body, roughly."""

SWEEPS_PER_STALL = 4
"""A peer that makes no progress is looked at this often within the time that it has."""


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the bookie's port; memory ones say when to read no more, or to refuse, never to fail."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest frame, its length word included (nettyMaxFrameSizeBytes)."""
    connections_max: int = 2000
    """Connections served at once; a further one is closed."""
    unanswered_bytes_max: int = 64 * 1024 * 1024
    """Requests of one connection under way, reads excepted, and likewise its answers that it does not take. At the
    first limit nothing more is read from it until half is answered; at the second its reads are refused."""
    memory_bytes_max: int = 256 * 1024 * 1024
    """What all connections may hold together, besides one read each: see ``MemoryBudget``."""
    stall_s_max: float = 60.0
    """How long a peer may stand still within a frame, or with answers that it does not take. Between two frames and
    with all answers taken it may be silent for ever."""


class Standing(NamedTuple):
    """Where a peer stands with what it owes: so many pieces done, so many bytes of the present one."""

    debt: str
    piece_count: int
    piece_bytes: int


class StandstillWatch:
    """Looks at one peer every so often. Trickling is no progress: a piece ends, or comes on by ``READ_BYTES``."""

    def __init__(self) -> None:
        self._since: Standing | None = None
        self._look_count = 0

    def look(self, now: Standing | None) -> int:
        """How many looks in a row found the peer where it was; None for a peer that owes nothing."""
        since = self._since
        if now is None or since is None or now[:2] != since[:2] or now.piece_bytes - since.piece_bytes >= READ_BYTES:
            self._since, self._look_count = now, 0
        else:
            self._look_count += 1
        return self._look_count


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What the connections of one listener have in common."""

    limits: ListenerLimits
    budget: MemoryBudget
    read_lanes: ReadLanes
    read_buffer: memoryview
    log: LimitedLog
    admit: Callable[[ServerConnection], RequestHandler | None]
    forget: Callable[[ServerConnection], None]


class ServerConnection(asyncio.BufferedProtocol):
    """One client: decodes what it sends read by read, passes calls on, writes all answers of a loop tick at once.

    The limits on unanswered requests hold within one read too: calls after a limit wait, and so does the socket.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._limits = shared.limits
        self._budget = shared.budget
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(shared.limits.frame_bytes_max, shared.read_buffer)
        self._codec = BookieCodec(shared.limits.frame_bytes_max)
        self._handshake = OpenHandshake()
        self._calls: deque[Call] = deque()
        self._handler: RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._queue = AnswerQueue(shared.budget, shared.limits.unanswered_bytes_max)
        self._requests_bytes = 0
        self._reads = ConnectionReads(shared.read_lanes, self._begin_read)
        self._long_frame = LongFrame(shared.budget, self.resume_if_possible)
        self._is_reading_paused = False
        self._is_resume_scheduled = False
        self._standstill = StandstillWatch()
        self.peer = "an unknown address"

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the listener whether it may stay."""
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if address:
            self.peer = f"{address[0]}:{address[1]}"
        self._handler = self._shared.admit(self)
        if self._handler is None:
            self._transport.abort()
            return
        self._queue.connect(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the answers that nobody waits for any more."""
        self._transport = None
        self._queue.drop()
        self._reads.drop()
        self._calls.clear()
        self._splitter.drop()
        self._long_frame.end()
        if exc is not None:
            logger.debug("connection from %s lost: %s", self.peer, exc)
        self._shared.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the splitter knows better
        """Where the next bytes go."""
        return self._splitter.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """Serve all requests that are complete."""
        self._splitter.advance(nbytes)
        if self._budget.is_full:  # it was accepted meanwhile
            self._splitter.set_aside()
            self.pause_reading()
        else:
            self._take_requests()

    def pause_writing(self) -> None:
        """The peer does not take its answers: ask nothing more of it."""
        self._queue.block()
        self._reads.hold()
        self.pause_reading()

    def resume_writing(self) -> None:
        """The peer takes answers again."""
        self._queue.unblock()
        if not self._queue.is_blocked:
            self._reads.go_on()
        self.resume_if_possible()

    # Called by the listener.

    def close(self) -> None:
        """Send what is ready, then close."""
        if self._transport is not None:
            self._queue.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Read nothing more until ``resume_if_possible`` finds that it may be."""
        if not self._is_reading_paused and self._transport is not None and not self._transport.is_closing():
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_if_possible(self) -> None:
        """Something ended for which reading may have been paused."""
        if self._is_reading_paused and not self._is_resume_scheduled and self._may_read():
            self._is_resume_scheduled = True
            self._loop.call_soon(self._resume)  # not from inside an answer: a handler may answer while it is called

    def check_progress(self) -> None:
        """Called ``SWEEPS_PER_STALL`` times in the time that a peer may stand still; then the connection is closed."""
        standing = self._standing()
        if self._standstill.look(standing) >= SWEEPS_PER_STALL and standing is not None:
            self._shared.log.report(f"connection from {self.peer} closed", f"the peer {standing.debt}")
            self.abort()

    # Responder.

    def answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        """Answer a call. A read is refused when too many answers wait for the peer."""
        frame = self._codec.encode(call, answer)
        if isinstance(call, QueuedRead):
            self._reads.end(call)
            if isinstance(call, ReadCall):
                self._reads.note_answer(len(frame))
            if not self._queue.has_room_for(frame):
                frame = self._codec.encode(call, Status.TOO_MANY_REQUESTS)
            self._queue.send(frame)
            self._queue.flush_early()
            return
        self._end_request(_cost_bytes(call))
        self._queue.send(frame)
        if self._is_reading_paused:
            self.resume_if_possible()

    def _begin_request(self, cost_bytes: int) -> None:
        self._requests_bytes += cost_bytes
        self._budget.add_request(cost_bytes)

    def _end_request(self, cost_bytes: int) -> None:
        """Also after the connection has ended: until its answer the handler holds the request."""
        self._requests_bytes -= cost_bytes
        self._budget.end_request(cost_bytes)

    def _take_requests(self) -> None:
        try:
            while payloads := self._splitter.payloads():
                self._long_frame.end()  # the frame of the first payload, if there was a long one
                self._calls += self._codec.decode(payloads)
        except ProtocolError as error:
            self._calls.append(Junk(str(error)))
        while self._calls and not self._is_reading_paused:
            self._dispatch(self._calls.popleft())
            if self._requests_bytes > self._requests_bytes_max:
                self.pause_reading()
        if not self._is_reading_paused:
            self._admit_long_frame()

    def _dispatch(self, call: Call) -> None:
        if isinstance(call, QueuedRead):
            self._take_read(call)
        elif isinstance(call, RefusedCall):
            self._send_answer(call.call, call.status)
        elif isinstance(call, HandshakeCall):
            self._send_answer(call, self._handshake.answer(call))
        elif isinstance(call, Junk):
            self._calls.clear()
            self._shared.log.report(f"connection from {self.peer} closed", call.reason)
            self.abort()
        else:
            if isinstance(call, AddRun):
                call = self._cut_to_room(call)
            self._begin_request(_cost_bytes(call))
            if not self._handle(call):
                self._end_request(_cost_bytes(call))  # of a run, what is left of it

    def _cut_to_room(self, run: AddRun) -> AddRun:
        """As many adds of a run as reach the limit on unanswered requests; the rest waits for its answers."""
        # What this connection begins is also taken from what is left for others.
        own_bytes = self._limits.unanswered_bytes_max - self._requests_bytes
        room_bytes = min(own_bytes, (self._budget.free_request_bytes - self._requests_bytes) // 2)
        if _cost_bytes(run) <= room_bytes:
            return run
        costs = itertools.accumulate(len(body) + _REQUEST_COST_BYTES for body in run.bodies)
        count = 1 + sum(cost_bytes <= room_bytes for cost_bytes in costs)
        first = run.cut(count)
        if run.bodies:
            self._calls.appendleft(run)
        return first

    def _take_read(self, call: QueuedRead) -> None:
        if isinstance(call, ReadCall) and call.fence_with is None:
            handler = self._handler
            assert handler is not None, "only admitted connections are read from"
            answer = handler.read_from_memory(call)
            if answer is not None:
                self._send_answer(call, answer)
                return
        if not self._reads.submit(call):
            self._send_answer(call, Status.TOO_MANY_REQUESTS)

    def _begin_read(self, call: QueuedRead) -> None:
        if not self._handle(call):
            self._reads.end(call)

    def _handle(self, call: BookieCall) -> bool:
        """False if the handler failed: it will not answer, and the connection is closed."""
        handler = self._handler
        assert handler is not None, "only admitted connections are read from"
        try:
            handler.handle(self, call)
        except Exception:
            logger.exception("connection from %s closed: a request failed", self.peer)
            self._calls.clear()
            self.abort()
            return False
        return True

    def _send_answer(self, call: RequestCall, answer: BookieAnswer) -> None:
        """Answer a call that costs nothing until then."""
        self._queue.send(self._codec.encode(call, answer))
        self._queue.flush_early()

    def _admit_long_frame(self) -> None:
        """A frame that is longer than a read comes in only if the budget has room for all of it."""
        frame_bytes = self._splitter.promised_bytes
        if frame_bytes > READ_BYTES and not self._long_frame.size_bytes:
            self._long_frame.begin(frame_bytes)
            if self._long_frame.is_waiting:
                self.pause_reading()

    def _standing(self) -> Standing | None:
        if self._queue.is_blocked:
            return Standing("is not reading responses", self._queue.block_count, -self._queue.transport_bytes)
        if self._splitter.unfinished_bytes and not self._is_reading_paused:
            return Standing("stopped within a frame", self._splitter.gathered_count, self._splitter.unfinished_bytes)
        return None

    @property
    def _requests_bytes_max(self) -> int:
        """As much as is left for others: a client that comes later finds room."""
        return min(self._limits.unanswered_bytes_max, self._budget.free_request_bytes)

    def _may_read(self) -> bool:
        return not (
            self._queue.is_blocked
            or self._long_frame.is_waiting
            or self._budget.is_full
            or self._requests_bytes > self._requests_bytes_max // 2
        )

    def _resume(self) -> None:
        self._is_resume_scheduled = False
        transport = self._transport
        if transport is None or transport.is_closing() or not self._may_read():
            return  # what stands in the way now calls again when it ends
        self._is_reading_paused = False
        self._take_requests()
        if not self._is_reading_paused and not transport.is_closing():
            transport.resume_reading()


def _cost_bytes(call: BookieCall) -> int:
    """What a request costs in memory until it is answered, roughly."""
    if isinstance(call, AddRun):
        return call.size_bytes + len(call.bodies) * _REQUEST_COST_BYTES
    if isinstance(call, WriteLacCall):
        return len(call.body) + _REQUEST_COST_BYTES
    return _REQUEST_COST_BYTES
