"""Batch reads of one bookie, on a connection of their own: in v2, so that no add waits for their large answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Final, TypeAlias

from bkctl.runtime.errors import ProtocolError
from bkctl.runtime.net.frame_connection import FrameConnection, SharedByConnections
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_batch_reads import (
    BatchReadAnswer,
    BatchReadCall,
    decode_batch_read_answer,
    encode_batch_read,
)

BatchReadDone: TypeAlias = Callable[[list[bytes] | Status | None], None]
"""Called once with the bodies of the first entries, or the status of the first one. UNAVAILABLE and
AUTHENTICATION_REQUIRED: no connection. None: the bookie closed the connection, or sent what is no answer."""


_REFUSALS: Final = frozenset({Status.BAD_REQUEST, Status.BAD_VERSION})


class BatchReadConnection(FrameConnection):
    """Sends batch reads and receives their answers."""

    _is_close_a_sign = False  # a bookie without batch reads closes it too; single reads will report the reason

    def __init__(self, bookie_id: str, shared: SharedByConnections, on_lost: Callable[[FrameConnection], None]) -> None:
        super().__init__(bookie_id, shared, on_lost)
        self._pending: dict[int, tuple[BatchReadCall, BatchReadDone]] = {}
        self._has_answered = False

    @property
    def has_pending(self) -> bool:
        """Whether any request is unanswered."""
        return bool(self._pending)

    @property
    def is_without_batches(self) -> bool:
        """Whether the bookie accepted the connection and the client, and ended it without an answer or with a wrong
        one."""
        is_ended = self._lost_reason is not None and self._lost_status is Status.UNAVAILABLE
        return is_ended and self._transport is not None and not self._has_answered

    def ask(self, call: BatchReadCall, done: BatchReadDone) -> None:
        """Send a request. ``done`` is never called inside this call."""
        refusal = self._send(encode_batch_read(call))
        if refusal is None:
            self._pending[call.request_id] = (call, done)
        else:
            self._loop.call_soon(done, refusal[0])

    def _expire(self, adds_below: int, others_below: int) -> None:  # noqa: ARG002  there are no adds
        for request_id in list(takewhile(others_below.__gt__, self._pending)):
            _, done = self._pending.pop(request_id)
            self._loop.call_soon(done, Status.TIMEOUT)

    def _take(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            try:
                self._take_answer(decode_batch_read_answer(payload))
            except ProtocolError:
                self._has_answered = False
                raise

    def _take_answer(self, answer: BatchReadAnswer) -> None:
        if answer.status is Status.AUTHENTICATION_REQUIRED:
            self._refuse_request()
            return
        if answer.status in _REFUSALS:
            raise ProtocolError("the bookie rejects batch reads")
        pending = self._pending.get(answer.request_id)
        if pending is not None:  # None if the request has timed out
            call, done = pending
            if not answer.fits(call):
                raise ProtocolError("the answer to a batch read is about other entries")
            del self._pending[answer.request_id]
            done(answer.bodies or answer.status)
        self._has_answered = True

    def _end_pending(self, reason: str) -> None:  # noqa: ARG002  single reads will report it
        is_without_answer = self._transport is None or self._lost_status is not Status.UNAVAILABLE
        outcome = self._lost_status if is_without_answer else None
        while self._pending:
            _, (_, done) = self._pending.popitem()
            self._loop.call_soon(done, outcome)
