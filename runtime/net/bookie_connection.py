"""Client side of a connection: sends pipelined requests and receives answers. Source: wire sections 1 and 14."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from itertools import takewhile
from typing import TypeAlias, cast

from runtime.errors import ProtocolError
from runtime.net.request_batch import OutcomeT, RequestBatch
from runtime.ports import AddDone
from runtime.protocol import v3
from runtime.protocol.framing import FrameSplitter
from runtime.protocol.messages import AddAnswer, Answer, ReadAnswer
from runtime.protocol.status import Status
from storage.errors import BkctlError

logger = logging.getLogger(__name__)

Resolver: TypeAlias = Callable[[str], Awaitable[tuple[str, int]]]
"""Returns host and port of a bookie id; raises BookieNotFoundError and similar if it has none."""

AnswerDone: TypeAlias = Callable[[Answer | Status, str], None]
"""Called once with the answer, or with a Status if there is none, and a detail for messages."""

_WRITE_BYTES = 64 * 1024
"""Requests of a loop tick are sent in writes of this size, so the bookie can start on the first ones early."""

_WRITE_BUFFER_BYTES_MAX = 32 * 1024
"""Smaller than a write: uvloop sends immediately above this limit, otherwise at the end of the tick."""

_UNSENT_BYTES_ALWAYS = 4 * 1024 * 1024
"""Every bookie may have this much unsent, whatever is unsent to others: slow bookies must not affect fast ones.
"""


class UnsentBytes:
    """Counts the unsent bytes to all bookies of a client."""

    def __init__(self, per_bookie_max: int, total_max: int) -> None:
        self.per_bookie_max = per_bookie_max
        self.total_max = total_max
        self.total = 0

    def has_room(self, waiting_bytes: int, frame_bytes: int) -> bool:
        """Whether a frame may be queued after ``waiting_bytes`` of the same bookie; the first one always may."""
        if waiting_bytes == 0:
            return True
        wanted_bytes = waiting_bytes + frame_bytes
        return wanted_bytes <= self.per_bookie_max and (
            self.total + frame_bytes <= self.total_max or wanted_bytes <= _UNSENT_BYTES_ALWAYS
        )


class BookieConnection(asyncio.BufferedProtocol):
    """Sends requests to one bookie. Requests made before the connection is established are queued.

    It connects once. If it fails or is lost, it calls ``on_lost``, then all pending requests end with UNAVAILABLE; the
    owner creates a new one. Frames of a loop tick are sent in one write. Callbacks never run inside a request call.
    """

    def __init__(
        self,
        bookie_id: str,
        *,
        frame_bytes_max: int,
        unsent_in_all: UnsentBytes,
        read_buffer: memoryview,
        on_lost: Callable[[BookieConnection], None],
    ) -> None:
        self.bookie_id = bookie_id
        self._frame_bytes_max = frame_bytes_max
        self._unsent_in_all = unsent_in_all
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(frame_bytes_max, read_buffer)
        self._transport: asyncio.Transport | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_flush_scheduled = False
        self._is_writing_paused = False
        self._lost_reason: str | None = None
        self._adds: dict[int, AddDone] = {}
        self._others: dict[int, tuple[type[Answer], AnswerDone]] = {}
        self._add_batches: dict[int, RequestBatch[Status]] = {}
        self._read_batches: dict[int, RequestBatch[bytes]] = {}
        self._connecting: asyncio.Task[None] | None = None
        self._transport_closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def has_pending(self) -> bool:
        """Whether any request is unanswered."""
        return bool(self._adds or self._others or self._add_batches or self._read_batches)

    def refuse(self, reason: str) -> None:
        """Do not connect: every request ends with UNAVAILABLE."""
        self._lose(reason)

    def connect(self, resolve: Resolver, timeout_s: float) -> None:
        """Start connecting."""
        self._connecting = self._loop.create_task(self._connect(resolve, timeout_s))

    def add(self, txn_id: int, frame: bytes, done: AddDone) -> None:
        """Send an add."""
        refusal = self._send(frame)
        if refusal is None:
            self._adds[txn_id] = done
        else:
            self._loop.call_soon(done, refusal[0])

    def request(self, txn_id: int, frame: bytes, answer_type: type[Answer], done: AnswerDone) -> None:
        """Send any other request. Answers of another type with its id are ignored (wire 14.2)."""
        refusal = self._send(frame)
        if refusal is None:
            self._others[txn_id] = (answer_type, done)
        else:
            self._loop.call_soon(done, *refusal)

    def add_many(self, first_txn_id: int, frames: Iterable[bytes], batch: RequestBatch[Status]) -> None:
        """Send adds with consecutive transaction ids."""
        self._send_many(first_txn_id, frames, batch, self._add_batches)

    def read_many(self, first_txn_id: int, frames: Iterable[bytes], batch: RequestBatch[bytes]) -> None:
        """Send reads with consecutive transaction ids."""
        self._send_many(first_txn_id, frames, batch, self._read_batches)

    def expire(self, adds_below: int, others_below: int) -> None:
        """Time out all requests with smaller transaction ids; ids ascend in the order of sending."""
        for txn_id in list(takewhile(adds_below.__gt__, self._adds)):
            done = self._adds.pop(txn_id, None)
            if done is not None:  # None if an earlier callback closed this connection
                done(Status.TIMEOUT)
        for txn_id in list(takewhile(others_below.__gt__, self._others)):
            other = self._others.pop(txn_id, None)
            if other is not None:
                other[1](Status.TIMEOUT, "")
        _end_below(adds_below, self._add_batches)
        _end_below(others_below, self._read_batches)
        if self._unsent and not self.has_pending:
            self._drop_unsent()  # their requests have timed out

    async def close(self) -> None:
        """Fail all pending requests, close, and wait until the socket is closed."""
        self._lose("the client was closed")
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._transport is not None:
            await self._transport_closed

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the queued requests."""
        self._transport = cast("asyncio.Transport", transport)
        if self._lost_reason is not None:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all pending requests."""
        self._transport_closed.set_result(None)
        self._lose(f"the connection was lost: {exc}" if exc is not None else "the bookie closed the connection")

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  the splitter knows how much it needs
        """Buffer for the next bytes."""
        return self._splitter.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        """Deliver all complete answers."""
        self._splitter.advance(nbytes)
        try:
            while payloads := self._splitter.payloads():
                for payload in payloads:
                    answer = v3.decode_response(payload)
                    if isinstance(answer, AddAnswer):
                        self._take_add(answer)
                    else:
                        self._take_other(answer)
        except ProtocolError as error:
            logger.warning("connection to bookie %s closed: %s", self.bookie_id, error)
            self._lose(str(error))

    def pause_writing(self) -> None:
        """Queue frames until the bookie reads again."""
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """Send the queued frames."""
        self._is_writing_paused = False
        while self._unsent and not self._is_writing_paused and self._transport is not None:
            self._transport.write(self._next_piece())

    def _next_piece(self) -> bytes:
        """The first queued frames, enough for one write. More would be copied again by each attempt."""
        count = piece_bytes = 0
        while count < len(self._unsent) and piece_bytes < _WRITE_BYTES:
            piece_bytes += len(self._unsent[count])
            count += 1
        piece = b"".join(self._unsent[:count])
        del self._unsent[:count]
        self._count_unsent(-piece_bytes)
        return piece

    def _drop_unsent(self) -> None:
        self._unsent.clear()
        self._count_unsent(-self._unsent_bytes)

    def _count_unsent(self, change_bytes: int) -> None:
        self._unsent_bytes += change_bytes
        self._unsent_in_all.total += change_bytes

    def _send_many(
        self,
        first_txn_id: int,
        frames: Iterable[bytes],
        batch: RequestBatch[OutcomeT],
        batches: dict[int, RequestBatch[OutcomeT]],
    ) -> None:
        for txn_id, frame in enumerate(frames, first_txn_id):
            refusal = self._send(frame)
            if refusal is None:
                batches[txn_id] = batch
            else:
                batch.note(txn_id, refusal[0])

    def _take_add(self, answer: AddAnswer) -> None:
        done = self._adds.pop(answer.txn_id, None)
        if done is not None:
            done(answer.status)
            return
        batch = self._add_batches.pop(answer.txn_id, None)
        if batch is not None:  # None if the add has timed out
            batch.note(answer.txn_id, answer.status)

    def _take_other(self, answer: Answer) -> None:
        if isinstance(answer, ReadAnswer):
            batch = self._read_batches.pop(answer.txn_id, None)
            if batch is not None:
                batch.note(answer.txn_id, _read_outcome(answer))
                return
        expected = self._others.get(answer.txn_id)
        if expected is not None and expected[0] is type(answer):
            del self._others[answer.txn_id]
            expected[1](answer, "")

    async def _connect(self, resolve: Resolver, timeout_s: float) -> None:
        where = self.bookie_id
        try:
            async with asyncio.timeout(timeout_s):
                host, port = await resolve(self.bookie_id)
                where = f"{host}:{port}"
                await self._loop.create_connection(lambda: self, host, port)
        except TimeoutError:
            self._lose(f"no connection to {where} within {timeout_s:g} s")
        except (OSError, ValueError, OverflowError) as error:  # the last two: an invalid host or port
            self._lose(f"cannot connect to {where}: {_reason_of(error)}")
        except BkctlError as error:
            self._lose(str(error))
        finally:
            if self._transport is None:
                self._lose("connecting ended without a connection")  # for any other reason: leave no request pending

    def _send(self, frame: bytes) -> tuple[Status, str] | None:
        """Queue a frame, or return the reason why not."""
        if self._lost_reason is not None:
            return Status.UNAVAILABLE, self._lost_reason
        if len(frame) > self._frame_bytes_max:
            return Status.BAD_REQUEST, f"a request of {len(frame)} bytes does not fit into a frame"
        if not self._unsent_in_all.has_room(self._unsent_bytes, len(frame)):
            return Status.TOO_MANY_REQUESTS, f"{self._unsent_bytes} bytes wait to be sent"
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)
        self._unsent.append(frame)
        self._count_unsent(len(frame))
        if self._unsent_bytes >= _WRITE_BYTES:
            self._flush()
        return None

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._unsent and self._transport is not None and not self._is_writing_paused:
            frames, self._unsent = self._unsent, []
            self._count_unsent(-self._unsent_bytes)
            self._transport.write(b"".join(frames))

    def _lose(self, reason: str) -> None:
        """End this connection and fail its requests; does nothing the second time."""
        if self._lost_reason is not None:
            return
        self._lost_reason = reason
        self._on_lost(self)
        if self._transport is not None:
            self._transport.abort()
        self._drop_unsent()
        adds, self._adds = self._adds, {}
        others, self._others = self._others, {}
        for done in adds.values():  # in separate calls: one that raises must not stop the others
            self._loop.call_soon(done, Status.UNAVAILABLE)
        for _, answer_done in others.values():
            self._loop.call_soon(answer_done, Status.UNAVAILABLE, reason)
        for batches in (self._add_batches, self._read_batches):
            while batches:
                txn_id, batch = batches.popitem()
                batch.note(txn_id, Status.UNAVAILABLE)


def _read_outcome(answer: ReadAnswer) -> bytes | Status:
    if answer.status is not Status.OK:
        return answer.status
    return Status.IO_ERROR if answer.body is None else answer.body


def _end_below(txn_id: int, batches: dict[int, RequestBatch[OutcomeT]]) -> None:
    for expired_id in list(takewhile(txn_id.__gt__, batches)):
        batches.pop(expired_id).note(expired_id, Status.TIMEOUT)


def _reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error)
