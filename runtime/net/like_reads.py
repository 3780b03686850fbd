"""Consecutive reads of a ledger that came together are answered together: from the bookie's memory at once, others as
a run when their turn comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from bkctl.runtime.net.answer_queue import AnswerQueue
from bkctl.runtime.net.request_measures import RequestMeasures
from bkctl.runtime.ports import RequestHandler
from bkctl.runtime.protocol.codec import BookieCodec
from bkctl.runtime.protocol.messages import BookieAnswer, Call, ReadAnswer, ReadCall, ReadRun, ReadRunAnswer
from bkctl.runtime.protocol.status import Status

CallT = TypeVar("CallT", bound=Call)

_TOGETHER_BYTES = 32 * 1024
"""Bodies that are encoded together. Then the connection looks whether the peer still reads its answers."""


def take_like(first: ReadCall, calls: deque[CallT]) -> list[ReadCall]:
    """``first`` and the calls like it at the start of ``calls``, which are removed: plain reads of its ledger, from the
    same socket read and in the same protocol."""
    like = [first]
    ledger_id, received_ns, wants_lac = first.ledger_id, first.received_ns, first.wants_lac
    while calls:
        call = calls[0]
        if not isinstance(call, ReadCall) or call.ledger_id != ledger_id or call.fence_with is not None:
            break
        if call.received_ns != received_ns or (call.txn_id >= 0) != wants_lac:
            break
        like.append(call)
        calls.popleft()
    return like


def take_run(first: ReadCall, calls: deque[CallT], count_max: int) -> list[ReadCall]:
    """``first`` and those after it in ``calls`` that are like it and read the next entries, at most ``count_max``; they
    are removed from ``calls``."""
    run = [first]
    if first.fence_with is not None or first.entry_id < 0:
        return run
    ledger_id, received_ns, wants_lac = first.ledger_id, first.received_ns, first.wants_lac
    for entry_id in range(first.entry_id + 1, first.entry_id + count_max):
        call = calls[0] if calls else None
        if not isinstance(call, ReadCall) or call.entry_id != entry_id or call.ledger_id != ledger_id:
            break
        if call.received_ns != received_ns or (call.txn_id >= 0) != wants_lac or call.fence_with is not None:
            break
        run.append(call)
        calls.popleft()
    return run


class LikeReads:
    """Answers the reads of one connection."""

    def __init__(self, queue: AnswerQueue, codec: BookieCodec, measures: RequestMeasures) -> None:
        self._queue = queue
        self._codec = codec
        self._measures = measures

    def answer_from_memory(self, handler: RequestHandler, calls: list[ReadCall]) -> list[ReadCall]:
        """Answer those of like reads whose entries are in memory, while the peer reads its answers; returns the
        others."""
        first = calls[0]
        entry_ids = [call.entry_id for call in calls]
        bodies, lac = handler.find_in_memory(first.ledger_id, entry_ids, wants_lac=first.wants_lac)
        left: list[ReadCall] = []
        found: list[ReadCall] = []
        found_bodies: list[bytes] = []
        found_bytes = 0
        for call, body in zip(calls, bodies, strict=True):
            if body is None or self._queue.is_blocked:
                left.append(call)
                continue
            found.append(call)
            found_bodies.append(body)
            found_bytes += len(body)
            if found_bytes >= _TOGETHER_BYTES:
                self._send(found, found_bodies, found_bytes, lac)
                found, found_bodies, found_bytes = [], [], 0
        if found:
            self._send(found, found_bodies, found_bytes, lac)
        return left

    def answer_run(self, run: ReadRun, answer: BookieAnswer) -> int:
        """Answer the next reads of a run, or all that are left with one status; returns the size of the largest answer.

        Rejects them, like other reads, if too many answers are unsent.
        """
        if isinstance(answer, Status):
            for call in run.cut(len(run.left)):
                self._reject(call, answer)
            return 0
        assert isinstance(answer, ReadRunAnswer), "a run has no other answers"
        if answer.status is not Status.OK:
            [call] = run.cut(1)
            self._reject(call, answer.status)
            return 0
        calls = run.cut(len(answer.bodies))
        start = 0
        while start < len(calls):
            stop, size_bytes = start, 0
            while stop < len(calls) and size_bytes < _TOGETHER_BYTES:
                size_bytes += len(answer.bodies[stop])
                stop += 1
            self._send(calls[start:stop], answer.bodies[start:stop], size_bytes, answer.lac)
            start = stop
        return max(map(len, answer.bodies))

    def _send(self, calls: Sequence[ReadCall], bodies: Sequence[bytes], size_bytes: int, lac: int | None) -> None:
        frames = self._codec.encode_bodies(calls, bodies, lac)
        if not self._queue.has_room_for(frames):
            for call in calls:
                self._reject(call, Status.TOO_MANY_REQUESTS)
            return
        self._queue.send(frames)
        self._queue.flush_early()
        self._measures.note_bodies(calls[0], bodies, size_bytes)

    def _reject(self, call: ReadCall, status: Status) -> None:
        answer = ReadAnswer(call.txn_id, status, None, None)
        self._queue.send(self._codec.encode(call, answer))
        self._queue.flush_early()
        self._measures.note_answer(call, answer)
