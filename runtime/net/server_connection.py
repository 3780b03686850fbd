"""One client of a bookie: requests in, answers out. Source: wire sections 1, 2, 6 and 7."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import cast

import msgspec

from runtime.errors import ProtocolError
from runtime.net.answer_queue import AnswerQueue
from runtime.net.limited_log import LimitedLog
from runtime.net.listener_limits import ListenerLimits
from runtime.net.long_frame import LongFrame
from runtime.net.memory_budget import MemoryBudget
from runtime.net.read_lanes import AnyReadCall, ConnectionReads, ReadLanes
from runtime.net.request_handler import RequestHandler
from runtime.net.requests_under_way import RequestsUnderWay
from runtime.net.standstill import Standing, StandstillWatch
from runtime.ports import BookieInfo
from runtime.protocol import v3
from runtime.protocol.entry_list import EntryList, encode_entry_list
from runtime.protocol.framing import READ_BYTES, FrameSplitter
from runtime.protocol.messages import (
    AddCall,
    BookieInfoCall,
    Call,
    ForceLedgerCall,
    ListEntriesCall,
    ReadCall,
    ReadLacCall,
    SelfAnsweredCall,
)
from runtime.protocol.status import Status
from runtime.protocol.v3_entry_list import encode_list_entries_response

logger = logging.getLogger(__name__)

_LIST_FRAME_OVERHEAD_BYTES = 128
"""What a list of entries has around it in its frame, at most."""

_REQUEST_COST_BYTES = 256
"""What a request holds in memory besides its body, roughly."""

SWEEPS_PER_STALL = 4
"""A peer that makes no progress is looked at this often within the time that it has."""


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
    """One client: splits and decodes what it sends, hands requests on, writes all answers of a loop tick at once.

    The limits on unanswered requests hold within one read too: frames behind it are set aside.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._limits = shared.limits
        self._budget = shared.budget
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(shared.limits.frame_bytes_max, shared.read_buffer)
        self._add_responses = v3.AddResponseEncoder()
        self._handler: RequestHandler | None = None
        self._transport: asyncio.Transport | None = None
        self._queue = AnswerQueue(shared.budget, shared.limits.unanswered_bytes_max)
        self._requests = RequestsUnderWay(shared.budget)
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
            self._shared.log.report(f"connection from {self.peer} closed", f"the peer stands still {standing.debt}")
            self.abort()

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
        frame = self._read_frame(txn_id, ledger_id, entry_id, status, body, max_last_add_confirmed)
        self._reads.note_answer(len(frame))
        if not self._queue.has_room_for(frame):
            frame = v3.encode_read_response(txn_id, ledger_id, entry_id, Status.TOO_MANY_REQUESTS, None, None)
        self._respond_to_read(txn_id, frame)

    def respond_read_lac(
        self, txn_id: int, ledger_id: int, status: Status, lac_body: bytes | None, last_entry_body: bytes | None
    ) -> None:
        """Answer a LAC read."""
        frame = v3.encode_read_lac_response(txn_id, ledger_id, status, lac_body, last_entry_body)
        if not self._queue.has_room_for(frame):
            frame = v3.encode_read_lac_response(txn_id, ledger_id, Status.TOO_MANY_REQUESTS, None, None)
        self._respond_to_read(txn_id, frame)

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

    def respond_list_entries(self, txn_id: int, ledger_id: int, status: Status, entries: EntryList | None) -> None:
        """Answer with a list of entries. One that no frame can hold becomes IO_ERROR: less would deny entries."""
        room_bytes = self._limits.frame_bytes_max - _LIST_FRAME_OVERHEAD_BYTES
        blob = None if entries is None else encode_entry_list(entries, room_bytes)
        if status is Status.OK and blob is None:
            status = Status.IO_ERROR
        frame = encode_list_entries_response(txn_id, ledger_id, status, blob)
        if not self._queue.has_room_for(frame):
            frame = encode_list_entries_response(txn_id, ledger_id, Status.TOO_MANY_REQUESTS, None)
        self._respond_to_read(txn_id, frame)

    def _respond(self, txn_id: int, frame: bytes) -> None:
        self._requests.end(txn_id)
        self._queue.send(frame)
        if self._is_reading_paused:
            self.resume_if_possible()

    def _respond_to_read(self, txn_id: int, frame: bytes) -> None:
        self._reads.end(txn_id)
        self._queue.send(frame)

    def _read_frame(
        self, txn_id: int, ledger_id: int, entry_id: int, status: Status, body: bytes | None, lac: int | None
    ) -> bytes:
        frame = v3.encode_read_response(txn_id, ledger_id, entry_id, status, body, lac)
        if len(frame) > self._limits.frame_bytes_max:
            frame = v3.encode_read_response(txn_id, ledger_id, entry_id, Status.IO_ERROR, None, None)
        return frame

    def _take_requests(self) -> None:
        call: Call | None = None
        try:
            for payload in self._splitter.payloads():
                if self._long_frame.size_bytes:
                    self._long_frame.end()
                call = v3.decode_request(payload)
                self._dispatch(call)
                if self._requests.cost_bytes > self._requests_bytes_max:
                    self.pause_reading()
                if self._is_reading_paused:
                    self._splitter.set_aside()
                    return
        except ProtocolError as error:
            self._shared.log.report(f"connection from {self.peer} closed", str(error))
            self.abort()
        except Exception:
            if call is not None and not isinstance(call, SelfAnsweredCall):
                self._requests.end(call.txn_id)  # the handler failed: it will not answer
            raise
        else:
            self._admit_long_frame()

    def _dispatch(self, call: Call) -> None:
        handler = self._handler
        assert handler is not None, "only admitted connections are read from"
        if isinstance(call, AddCall):
            self._requests.begin(call.txn_id, len(call.body) + _REQUEST_COST_BYTES)
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
            self._take_read(handler, call)
        elif isinstance(call, SelfAnsweredCall):
            self._queue.send(call.frame)
        elif isinstance(call, ReadLacCall | ListEntriesCall):
            self._queue_read(call)
        elif isinstance(call, ForceLedgerCall):
            self._requests.begin(call.txn_id, _REQUEST_COST_BYTES)
            handler.force_ledger(self, call.txn_id, call.ledger_id)
        elif isinstance(call, BookieInfoCall):
            self._requests.begin(call.txn_id, _REQUEST_COST_BYTES)
            handler.bookie_info(self, call.txn_id, call.requested)
        else:
            self._requests.begin(call.txn_id, len(call.body) + _REQUEST_COST_BYTES)
            handler.write_lac(self, call.txn_id, call.ledger_id, call.master_key, call.body)

    def _take_read(self, handler: RequestHandler, call: ReadCall) -> None:
        found = handler.read_from_memory(call.ledger_id, call.entry_id) if call.fence_with is None else None
        if found is None:
            self._queue_read(call)
        else:
            body, lac = found
            self._queue.send(self._read_frame(call.txn_id, call.ledger_id, call.entry_id, Status.OK, body, lac))

    def _queue_read(self, call: AnyReadCall) -> None:
        if self._reads.submit(call):
            return
        status = Status.TOO_MANY_REQUESTS
        if isinstance(call, ReadCall):
            frame = v3.encode_read_response(call.txn_id, call.ledger_id, call.entry_id, status, None, None)
        elif isinstance(call, ReadLacCall):
            frame = v3.encode_read_lac_response(call.txn_id, call.ledger_id, status, None, None)
        else:
            frame = encode_list_entries_response(call.txn_id, call.ledger_id, status, None)
        self._queue.send(frame)

    def _begin_read(self, call: AnyReadCall) -> None:
        handler = self._handler
        assert handler is not None, "only admitted connections are read from"
        try:
            if isinstance(call, ReadCall):
                handler.read(self, call.txn_id, call.ledger_id, call.entry_id, call.fence_with, call.is_high_priority)
            elif isinstance(call, ReadLacCall):
                handler.read_lac(self, call.txn_id, call.ledger_id)
            else:
                handler.list_entries(self, call.txn_id, call.ledger_id)
        except Exception:
            self._reads.end(call.txn_id)  # the handler failed: it will not answer
            logger.exception("connection from %s closed: a read failed", self.peer)
            self.abort()

    def _admit_long_frame(self) -> None:
        """A frame that is longer than a read comes in only if the budget has room for all of it."""
        frame_bytes = self._splitter.promised_bytes
        if frame_bytes > READ_BYTES and not self._long_frame.size_bytes:
            self._long_frame.begin(frame_bytes)
            if self._long_frame.is_waiting:
                self.pause_reading()

    def _standing(self) -> Standing | None:
        if self._queue.is_blocked:
            return Standing("and takes no answers", self._queue.block_count, -self._queue.transport_bytes)
        if self._splitter.unfinished_bytes and not self._is_reading_paused:
            return Standing("within a frame", self._splitter.gathered_count, self._splitter.unfinished_bytes)
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
            or self._requests.cost_bytes > self._requests_bytes_max // 2
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
