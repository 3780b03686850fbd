"""Requests to a bookie in v3, on one connection, and their answers. Source: wire sections 4 and 14."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import TypeAlias

from bkctl.runtime.net.frame_connection import FrameConnection, SharedByConnections
from bkctl.runtime.net.request_batch import AddBatch, ReadBatch
from bkctl.runtime.ports import AddDone
from bkctl.runtime.protocol import v3, v3_batches
from bkctl.runtime.protocol.messages import AddAnswer, Answer
from bkctl.runtime.protocol.status import Status

AnswerDone: TypeAlias = Callable[[Answer | Status, str], None]
"""Called once with the answer, or with a Status if there is none, and a detail for messages."""

_SETTLE_S_MAX = 2.0


async def settle(connections: Iterable[BookieConnection]) -> None:
    """Wait shortly until no add is unanswered; not at all if the caller has been cancelled."""
    caller = asyncio.current_task()
    if caller is not None and caller.cancelling():
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLE_S_MAX):
            await asyncio.gather(*(each.settle() for each in connections))


class BookieConnection(FrameConnection):
    """Requests end with UNAVAILABLE or AUTHENTICATION_REQUIRED if the connection fails.

    Callbacks never run inside a request call.
    """

    def __init__(self, bookie_id: str, shared: SharedByConnections, on_lost: Callable[[FrameConnection], None]) -> None:
        super().__init__(bookie_id, shared, on_lost)
        self._adds: dict[int, AddDone] = {}
        self._others: dict[int, tuple[type[Answer], AnswerDone]] = {}
        self._batches: dict[int, AddBatch | ReadBatch] = {}
        """By the transaction id of each request."""
        self._settled: asyncio.Future[None] | None = None

    @property
    def has_pending(self) -> bool:
        """Whether any request is unanswered."""
        return bool(self._adds or self._others or self._batches)

    async def settle(self) -> None:
        """Return once no add of a writer is unanswered; those of copiers are in batches."""
        if self._adds:
            self._settled = self._loop.create_future()
            await self._settled

    def _note_settled(self) -> None:
        if self._settled is not None and not self._settled.done():
            self._settled.set_result(None)

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

    def send_batch(self, frames: list[bytes], batch: AddBatch | ReadBatch) -> None:
        """Send the requests of a batch."""
        txn_ids = range(batch.first_txn_id, batch.first_txn_id + len(frames))
        if self._send_all(frames):
            self._batches.update(dict.fromkeys(txn_ids, batch))
            return
        for txn_id, frame in zip(txn_ids, frames, strict=True):
            refusal = self._send(frame)
            if refusal is None:
                self._batches[txn_id] = batch
            else:
                batch.note(txn_id, refusal[0])

    def _expire(self, adds_below: int, others_below: int) -> None:
        for txn_id in list(takewhile(adds_below.__gt__, self._adds)):
            done = self._adds.pop(txn_id, None)
            if done is not None:  # None if an earlier callback closed this connection
                done(Status.TIMEOUT)
        for txn_id in list(takewhile(others_below.__gt__, self._others)):
            other = self._others.pop(txn_id, None)
            if other is not None:
                other[1](Status.TIMEOUT, "")
        for txn_id in list(takewhile(max(adds_below, others_below).__gt__, self._batches)):
            batch = self._batches[txn_id]
            if txn_id < (adds_below if isinstance(batch, AddBatch) else others_below):
                del self._batches[txn_id]
                batch.note(txn_id, Status.TIMEOUT)

    def _take(self, payloads: list[bytes]) -> None:
        batches = self._batches
        place = 0
        while place < len(payloads):
            txn_id = v3_batches.txn_id_of(payloads[place])
            batch = batches.get(txn_id)
            taken = 0 if batch is None else batch.take_run(payloads, place, txn_id)
            for taken_id in range(txn_id, txn_id + taken):
                del batches[taken_id]
            if taken == 0:
                self._take_answer(v3.decode_response(payloads[place]))
            place += taken or 1

    def _take_answer(self, answer: Answer) -> None:
        if answer.status is Status.AUTHENTICATION_REQUIRED:
            self._refuse_request()
            return
        batch = self._batches.get(answer.txn_id)
        if batch is not None:
            if batch.take(answer):
                del self._batches[answer.txn_id]
        elif isinstance(answer, AddAnswer):
            done = self._adds.pop(answer.txn_id, None)
            if done is not None:  # None if the add has timed out
                done(answer.status)
            if not self._adds:
                self._note_settled()
        else:
            expected = self._others.get(answer.txn_id)
            if expected is not None and expected[0] is type(answer):
                del self._others[answer.txn_id]
                expected[1](answer, "")

    def _end_pending(self, reason: str) -> None:
        adds, self._adds = self._adds, {}
        self._note_settled()
        others, self._others = self._others, {}
        for done in adds.values():  # in separate calls: one that raises must not stop the others
            self._loop.call_soon(done, self._lost_status)
        for _, answer_done in others.values():
            self._loop.call_soon(answer_done, self._lost_status, reason)
        while self._batches:
            txn_id, batch = self._batches.popitem()
            batch.note(txn_id, self._lost_status)
