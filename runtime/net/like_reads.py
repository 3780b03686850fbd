"""Consecutive reads of a ledger that came together are answered together: from the bookie's memory at once, others as
a run when their turn comes."""

from __future__ import annotations

import bisect
import itertools
import operator
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

from bkctl.runtime.net.answer_queue import AnswerQueue
from bkctl.runtime.net.request_measures import RequestMeasures
from bkctl.runtime.ports import RequestHandler
from bkctl.runtime.protocol.codec import BookieCodec
from bkctl.runtime.protocol.messages import BookieAnswer, Call, ReadAnswer, ReadCall, ReadRun, ReadRunAnswer
from bkctl.runtime.protocol.status import Status

CallT = TypeVar("CallT", bound=Call)

_TOGETHER_BYTES = 32 * 1024
"""Bodies that are encoded together. Then the connection looks whether the peer still reads its answers."""


def take_like(first: ReadCall | ReadRun, calls: deque[CallT]) -> ReadRun:
    """``first`` and the calls like it at the start of ``calls``, which are removed: plain reads of its ledger, from the
    same socket read, in the same protocol and of the same priority."""
    run = first if isinstance(first, ReadRun) else _alone(first)
    while calls:
        call = calls[0]
        if not isinstance(call, ReadCall | ReadRun) or call.ledger_id != run.ledger_id:
            break
        if call.received_ns != run.received_ns or call.is_high_priority != run.is_high_priority:
            break
        if (isinstance(call, ReadCall) and call.fence_with is not None) or call.wants_lac != run.wants_lac:
            break
        like = call if isinstance(call, ReadRun) else _alone(call)
        run.txn_ids += like.txn_ids
        run.entry_ids += like.entry_ids
        calls.popleft()
    return run


def _alone(call: ReadCall) -> ReadRun:
    txn_ids, entry_ids = [call.txn_id], [call.entry_id]
    return ReadRun(call.txn_id, call.ledger_id, call.is_high_priority, txn_ids, entry_ids, received_ns=call.received_ns)


def cut_consecutive(run: ReadRun, count_max: int) -> ReadRun:
    """Remove and return the first read of a run and those after it of the next entries, at most ``count_max``."""
    if run.entry_id < 0:
        return run.cut(1)
    are_next = map(operator.eq, run.entry_ids[1:count_max], itertools.count(run.entry_id + 1))
    return run.cut(1 + len(list(itertools.takewhile(bool, are_next))))


class LikeReads:
    """Answers the reads of one connection."""

    def __init__(self, queue: AnswerQueue, codec: BookieCodec, measures: RequestMeasures) -> None:
        self._queue = queue
        self._codec = codec
        self._measures = measures

    def answer_from_memory(self, handler: RequestHandler, run: ReadRun) -> ReadRun | None:
        """Answer those reads whose entries are in memory, while the peer reads its answers; returns the others."""
        found, lac = handler.find_in_memory(run.ledger_id, run.entry_ids, wants_lac=run.wants_lac)
        if None not in found:
            return self._send(run, cast("list[bytes]", found), lac, may_be_blocked=False)
        bodies = [body for body in found if body is not None]
        if not bodies:
            return run
        is_missing = [body is None for body in found]
        left = self._send(_chosen(run, map(operator.not_, is_missing)), bodies, lac, may_be_blocked=False)
        missing = _chosen(run, is_missing)
        if left is not None:
            missing.txn_ids += left.txn_ids
            missing.entry_ids += left.entry_ids
        return missing

    def answer_run(self, run: ReadRun, answer: BookieAnswer) -> int:
        """Answer the next reads of a run, or all that are left with one status; returns the size of the largest answer.

        Rejects them, like other reads, if too many answers are unsent.
        """
        if isinstance(answer, Status):
            self.reject(run.cut(len(run.entry_ids)), answer)
            return 0
        assert isinstance(answer, ReadRunAnswer), "a run has no other answers"
        if answer.status is not Status.OK:
            self.reject(run.cut(1), answer.status)
            return 0
        self._send(run.cut(len(answer.bodies)), answer.bodies, answer.lac, may_be_blocked=True)
        return max(map(len, answer.bodies))

    def _send(self, run: ReadRun, bodies: list[bytes], lac: int | None, *, may_be_blocked: bool) -> ReadRun | None:
        """Answer reads, in parts; returns those that are left when the peer stops to read its answers."""
        size_bytes = sum(map(len, bodies))
        while size_bytes > _TOGETHER_BYTES:
            count = 1 + bisect.bisect_left(list(itertools.accumulate(map(len, bodies))), _TOGETHER_BYTES)
            part, bodies = bodies[:count], bodies[count:]
            part_bytes = sum(map(len, part))
            size_bytes -= part_bytes
            self._send_part(run.cut(count), part, part_bytes, lac)
            if self._queue.is_blocked and not may_be_blocked:
                return run if bodies else None
        if bodies:
            self._send_part(run, bodies, size_bytes, lac)
        return None

    def reject(self, run: ReadRun, status: Status) -> None:
        """Answer reads with an error."""
        for call in run.singly():
            answer = ReadAnswer(call.txn_id, status, None, None)
            self._queue.send(self._codec.encode(call, answer))
            self._queue.flush_early()
            self._measures.note_answer(call, answer)

    def _send_part(self, run: ReadRun, bodies: Sequence[bytes], size_bytes: int, lac: int | None) -> None:
        frames = self._codec.encode_bodies(run, bodies, lac)
        if not self._queue.has_room_for(frames):
            self.reject(run, Status.TOO_MANY_REQUESTS)
            return
        self._queue.send(frames)
        self._queue.flush_early()
        self._measures.note_bodies(run, bodies, size_bytes)


def _chosen(run: ReadRun, choice: Iterable[bool]) -> ReadRun:
    chosen = list(choice)
    return run.of(list(itertools.compress(run.txn_ids, chosen)), list(itertools.compress(run.entry_ids, chosen)))
