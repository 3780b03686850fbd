"""Server side of a connection: receives requests and sends answers. Source: wire sections 1, 2, 6 and 7."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.net.answer_queue import AnswerQueue
from bkctl.runtime.net.exhaustion import report_exhaustion
from bkctl.runtime.net.like_reads import LikeReads, take_like
from bkctl.runtime.net.limited_log import LimitedLog
from bkctl.runtime.net.memory_budget import REQUEST_COST_BYTES, LongFrame, MemoryBudget, request_cost_bytes
from bkctl.runtime.net.read_lanes import ConnectionReads, ReadLanes
from bkctl.runtime.net.request_measures import RequestMeasures
from bkctl.runtime.net.standstill import Standing, StandstillWatch
from bkctl.runtime.ports import RequestHandler
from bkctl.runtime.protocol.codec import BookieCodec, handshake_answer
from bkctl.runtime.protocol.framing import FRAME_BYTES_MAX, FrameSplitter
from bkctl.runtime.protocol.messages import (
    AddRun,
    BatchReadRequest,
    BookieAnswer,
    BookieCall,
    BookieRequest,
    Call,
    HandshakeCall,
    Junk,
    LongPollRead,
    QueuedRead,
    ReadCall,
    ReadRun,
    RefusedCall,
    RequestCall,
)
from bkctl.runtime.protocol.status import Status

logger = logging.getLogger(__name__)

_ADDS_PER_REQUEST, _READS_PER_REQUEST = 8, 2

_TURN_BATCH_BYTES = 256 * 1024
"""Answers to batch reads in one turn of a connection. Such an answer is as long as those to hundreds of reads."""

SWEEPS_PER_STALL = 4
"""Progress checks of a peer per ``stall_s_max``."""


class ListenerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the bookie's port. At a memory limit the bookie stops reading or rejects requests; it never fails."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest frame, including its length word (nettyMaxFrameSizeBytes)."""
    connections_max: int = 2000
    """Maximum open connections; a further one replaces the longest idle one."""
    turn_requests_max: int = 128
    """Requests that the bookie takes from one connection until it has looked at the others: one turn of the event loop.
    Adds and plain reads cost less: ``_ADDS_PER_REQUEST`` or ``_READS_PER_REQUEST`` count as one."""
    unanswered_bytes_max: int = 64 * 1024 * 1024
    """Limit for a connection's requests in progress (except reads), and also for its unsent answers. At the first limit
    the bookie stops reading from it until half is answered; at the second it rejects its reads."""
    memory_bytes_max: int = 256 * 1024 * 1024
    """Limit for all connections together, in addition to one socket read each: see ``MemoryBudget``."""
    stall_s_max: float = 60.0
    """How long a peer may make no progress within a frame or in reading its answers, and may take to do what the bookie
    requires (TLS, a login). A peer that owes nothing may be idle forever."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """State shared by the connections of one listener."""

    limits: ListenerLimits
    budget: MemoryBudget
    read_lanes: ReadLanes
    measures: RequestMeasures
    read_buffer: memoryview
    log: LimitedLog
    admit: Callable[[ServerConnection], RequestHandler | None]
    note_activity: Callable[[ServerConnection], None]
    forget: Callable[[ServerConnection], None]


class ServerConnection(asyncio.BufferedProtocol):
    """Connection of one client: decodes requests, passes calls on, sends all answers of a loop tick in one write.

    The limits on unanswered requests, and on requests per turn of the loop, also apply within one socket read: the
    further ones wait, and reading is paused.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._limits = shared.limits
        self._budget = shared.budget
        self._measures = shared.measures
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(shared.limits.frame_bytes_max, shared.read_buffer)
        self._codec = BookieCodec(shared.limits.frame_bytes_max)
        self._calls: deque[Call] = deque()
        self._handler: RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._queue = AnswerQueue(shared.budget, shared.limits.unanswered_bytes_max)
        self._like_reads = LikeReads(self._queue, self._codec, shared.measures)
        self._requests_bytes = 0
        self._reads = ConnectionReads(shared.read_lanes, self._begin_read)
        self._long_frame = LongFrame(shared.budget, self.resume_if_possible)
        self._received_ns = 0
        self._turn_room = self._batch_count_max = shared.limits.turn_requests_max
        self._turn_batch_bytes = 0
        self._is_reading_paused = False
        self._is_resume_scheduled = False
        self._standstill = StandstillWatch()
        self.peer = "an unknown address"
        self.address = ""

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask the listener to admit the connection."""
        self._transport = cast("asyncio.Transport", transport)
        address = transport.get_extra_info("peername")
        if address:
            self.address = address[0]
            self.peer = f"{address[0]}:{address[1]}"
        self._handler = self._shared.admit(self)
        if self._handler is None:
            self._transport.abort()
            return
        self._queue.connect(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the queued answers."""
        self._transport = None
        self._queue.drop()
        self._reads.drop()
        self._calls.clear()
        self._splitter.drop()
        self._long_frame.end()
        self._long_frame.release()
        if exc is not None:
            logger.debug("connection from %s lost: %s", self.peer, exc)
        self._shared.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the splitter knows how much it needs
        """Buffer for the next bytes."""
        return self._splitter.free_space(self._budget.read_bytes)

    def buffer_updated(self, nbytes: int) -> None:
        """Serve the complete requests."""
        self._splitter.advance(nbytes)
        self._received_ns = self._measures.now_ns()
        self._shared.note_activity(self)
        if self._budget.is_full:  # this connection was accepted after all others were paused
            self._long_frame.set_aside(self._splitter)
            self.pause_reading()
        else:
            self._take_requests()

    def pause_writing(self) -> None:
        """The peer is not reading its answers: stop reading its requests."""
        self._queue.block()
        self._reads.hold()
        self.pause_reading()

    def resume_writing(self) -> None:
        """The peer reads its answers again."""
        self._shared.note_activity(self)
        self._queue.unblock()
        if not self._queue.is_blocked:
            self._reads.go_on()
        self.resume_if_possible()

    # Called by the listener.

    @property
    def is_busy(self) -> bool:
        """Whether a request is in progress. A peer that does not read its answers waits for none."""
        if self._queue.is_blocked:
            return False
        return (
            self._queue.has_frames
            or self._requests_bytes > 0
            or bool(self._calls)
            or self._splitter.has_waiting
            or self._reads.has_any
        )

    def close(self) -> None:
        """Send the available answers, then close."""
        if self._transport is not None:
            self._queue.flush()
            self._transport.close()

    def abort(self) -> None:
        """Close immediately."""
        self._calls.clear()
        self._splitter.drop()
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Pause reading until ``resume_if_possible`` allows it again."""
        if not self._is_reading_paused and self._transport is not None and not self._transport.is_closing():
            self._is_reading_paused = True
            self._transport.pause_reading()

    def resume_if_possible(self) -> None:
        """Resume reading if no limit forbids it any longer."""
        if self._is_reading_paused and not self._is_resume_scheduled and self._may_read():
            self._is_resume_scheduled = True
            self._loop.call_soon(self._resume)  # not inside an answer: a handler may answer within its call

    def check_progress(self) -> None:
        """Close the connection if its peer is stalled. Called ``SWEEPS_PER_STALL`` times per ``stall_s_max``."""
        standing = self._standing()
        if self._standstill.stalled_checks(standing) >= SWEEPS_PER_STALL and standing is not None:
            self._shared.log.report(f"connection from {self.peer} closed", f"the peer {standing.debt}")
            self.abort()

    # Responder.

    def answer(self, call: BookieCall, answer: BookieAnswer) -> None:
        """Answer a call. A read is rejected if too many answers are unsent."""
        self._shared.note_activity(self)
        if isinstance(call, ReadRun):
            self._reads.note_part(call, self._like_reads.answer_run(call, answer))
            return
        frame = self._codec.encode(call, answer)
        if isinstance(call, AddRun):
            size_bytes = call.size_bytes
            cost_bytes = size_bytes + len(call.bodies) * REQUEST_COST_BYTES
            self._measures.note_adds(call, cast("Status", answer), size_bytes)
        elif isinstance(call, QueuedRead):
            self._reads.end(call)
            if isinstance(call, ReadCall | LongPollRead | BatchReadRequest):
                self._reads.note_answer(len(frame))
            if not self._queue.has_room_for(frame):
                answer = Status.TOO_MANY_REQUESTS
                frame = self._codec.encode(call, answer)
            self._queue.send(frame)
            self._queue.flush_early()
            self._measures.note_answer(call, answer)
            if isinstance(call, BatchReadRequest):
                self._turn_batch_bytes += len(frame)
                if self._turn_batch_bytes >= _TURN_BATCH_BYTES:  # even if all batches are in memory, others are next
                    self.pause_reading()
                    self.resume_if_possible()
            return
        else:
            cost_bytes = request_cost_bytes(call)
            self._measures.note_answer(call, answer)
        self._end_request(cost_bytes)
        self._queue.send(frame)
        if self._is_reading_paused:
            self.resume_if_possible()

    def suspend(self, call: LongPollRead, drop: Callable[[], None]) -> bool:
        """Let a poll give up its turn (``RequestSource``)."""
        return self._transport is not None and self._reads.suspend(call, drop)

    def resume(self, call: LongPollRead) -> None:
        """Hand a poll to the handler again, unless the connection was lost in the meantime. Raises nothing: other
        polls are resumed after this one."""
        if self._transport is not None:
            self._reads.resume(call)
            try:
                self._take_read(call)
            except Exception as error:
                self._end_after(error)

    def _begin_request(self, cost_bytes: int) -> None:
        self._requests_bytes += cost_bytes
        self._budget.add_request(cost_bytes)

    def _end_request(self, cost_bytes: int) -> None:
        """Release an answered request, even after the connection has ended: the handler kept it until now."""
        self._requests_bytes -= cost_bytes
        self._budget.end_request(cost_bytes)

    def _take_requests(self) -> None:
        self._turn_batch_bytes = 0
        self._long_frame.release()
        self._dispatch_calls()
        # Not what is left of the turn: that would cut runs of adds into small ones.
        while self._turn_room > 0 and not self._is_reading_paused and (payloads := self._next_payloads()):
            self._decode(payloads)
            self._dispatch_calls()
        if self._is_reading_paused:
            self._long_frame.set_aside(self._splitter)
        elif self._turn_room > 0:
            if not self._long_frame.admit(self._splitter):
                self.pause_reading()
        else:  # the next turn goes on, after it has looked at the other connections
            self._turn_room = self._limits.turn_requests_max
            self._long_frame.set_aside(self._splitter)
            self.pause_reading()
            self.resume_if_possible()

    def _next_payloads(self) -> list[bytes]:
        try:
            payloads = self._splitter.payloads(self._batch_count_max)
        except ProtocolError as error:
            self._dispatch(Junk(str(error)))
            return []
        if payloads:
            self._long_frame.end()  # it ended with the first payload
        return payloads

    def _decode(self, payloads: list[bytes]) -> None:
        self._batch_count_max = self._limits.turn_requests_max * _READS_PER_REQUEST
        for call in self._codec.decode(payloads):
            if isinstance(call, BookieRequest):
                call.received_ns = self._received_ns
            if isinstance(call, AddRun | ReadRun):
                per_request = _ADDS_PER_REQUEST if isinstance(call, AddRun) else _READS_PER_REQUEST
                self._turn_room -= -(-len(call.entry_ids) // per_request)
            else:
                self._turn_room -= 1
                self._batch_count_max = self._limits.turn_requests_max
            self._calls.append(call)

    def _dispatch_calls(self) -> None:
        while self._calls and not self._is_reading_paused:
            self._dispatch(self._calls.popleft())
            if self._requests_bytes > self._requests_bytes_max:
                self.pause_reading()

    def _dispatch(self, call: Call) -> None:
        if isinstance(call, ReadRun) or (isinstance(call, ReadCall) and call.fence_with is None):
            self._take_plain_reads(call)
        elif isinstance(call, QueuedRead):
            self._take_read(call)
        elif isinstance(call, RefusedCall):
            self._send_answer(call.call, call.status)
        elif isinstance(call, HandshakeCall):
            self._shake_hands(call)
        elif isinstance(call, Junk):
            if call.is_logged:
                self._shared.log.report(f"connection from {self.peer} closed", call.reason)
            self.abort()
        else:
            cost_bytes = request_cost_bytes(call)
            if isinstance(call, AddRun):
                call, cost_bytes = self._cut_to_room(call, cost_bytes)
            self._begin_request(cost_bytes)
            if not self._handle(call):
                self._end_request(request_cost_bytes(call))  # of a run, its remaining adds

    def _shake_hands(self, call: HandshakeCall) -> None:
        self._send_answer(call, handshake_answer(call))

    def _cut_to_room(self, run: AddRun, cost_bytes: int) -> tuple[AddRun, int]:
        """The first adds of a run, up to the limit on unanswered requests; the others wait for answers.

        ``cost_bytes``: of the whole run; also returned, for the first adds.
        """
        # Requests of this connection also reduce what is free for others.
        own_bytes = self._limits.unanswered_bytes_max - self._requests_bytes
        room_bytes = min(own_bytes, (self._budget.free_request_bytes - self._requests_bytes) // 2)
        if cost_bytes <= room_bytes:
            return run, cost_bytes
        costs = itertools.accumulate(len(body) + REQUEST_COST_BYTES for body in run.bodies)
        first = run.cut(1 + sum(up_to_bytes <= room_bytes for up_to_bytes in costs))
        if run.bodies:
            self._calls.appendleft(run)
        return first, request_cost_bytes(first)

    def _take_plain_reads(self, first: ReadCall | ReadRun) -> None:
        assert self._handler is not None, "only admitted connections are read from"
        run = take_like(first, self._calls)
        left = run if self._queue.is_blocked else self._like_reads.answer_from_memory(self._handler, run)
        if left is not None and not self._reads.submit(left):
            self._like_reads.reject(left, Status.TOO_MANY_REQUESTS)

    def _take_read(self, call: QueuedRead) -> None:
        if isinstance(call, LongPollRead) and not self._queue.is_blocked:
            assert self._handler is not None, "only admitted connections are read from"
            answer = self._handler.poll_memory(call)
            if answer is not None:
                self._send_answer(call, answer)
                self._measures.note_answer(call, answer)
                return
        if not self._reads.submit(call):
            self._reject(call)

    def _reject(self, call: QueuedRead) -> None:
        self._send_answer(call, Status.TOO_MANY_REQUESTS)
        self._measures.note_answer(call, Status.TOO_MANY_REQUESTS)

    def _begin_read(self, call: QueuedRead | ReadRun) -> None:
        self._measures.begin_read(call)
        if not self._handle(call):
            self._reads.end(call)

    def _handle(self, call: BookieCall) -> bool:
        """False if the handler failed. It will not answer then, and the connection is closed."""
        handler = self._handler
        assert handler is not None, "only admitted connections are read from"
        try:
            handler.handle(self, call)
        except Exception as error:
            self._end_after(error)
            return False
        return True

    def _end_after(self, error: Exception) -> None:
        """A request failed and will not be answered: close the connection."""
        if not report_exhaustion(self._loop, error):
            logger.error("connection from %s closed: a request failed", self.peer, exc_info=error)
        self.abort()

    def _send_answer(self, call: RequestCall, answer: BookieAnswer) -> None:
        """Answer a call that was not counted as a request."""
        self._queue.send(self._codec.encode(call, answer))
        self._queue.flush_early()

    def _standing(self) -> Standing | None:
        if self._queue.is_blocked:
            return Standing("is not reading responses", self._queue.block_count, -self._queue.transport_bytes)
        if self._splitter.unfinished_bytes and not self._is_reading_paused:
            return Standing("stopped within a frame", self._splitter.gathered_count, self._splitter.unfinished_bytes)
        return None

    @property
    def _requests_bytes_max(self) -> int:
        """At most as much as is left for others, so that later clients find room."""
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
            return  # the cause calls this again when it ends
        self._is_reading_paused = False
        self._take_requests()
        if not self._is_reading_paused and not transport.is_closing():
            transport.resume_reading()
