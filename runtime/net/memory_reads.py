"""Reads of entries that are in the bookie's memory: consecutive ones of a ledger are answered together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from bkctl.runtime.net.answer_queue import AnswerQueue
from bkctl.runtime.net.request_measures import RequestMeasures
from bkctl.runtime.ports import RequestHandler
from bkctl.runtime.protocol.codec import BookieCodec
from bkctl.runtime.protocol.messages import Call, ReadCall

_TOGETHER_BYTES = 32 * 1024
"""Bodies that are encoded together. Then the connection looks whether the peer still reads its answers."""


def take_like(first: ReadCall, calls: deque[Call]) -> list[ReadCall]:
    """``first`` and the calls like it at the start of ``calls``, which are removed: plain reads of its ledger, from the
    same socket read and in the same protocol."""
    like = [first]
    ledger_id, received_ns, wants_lac = first.ledger_id, first.received_ns, first.wants_lac
    while calls:
        call = calls[0]
        if not isinstance(call, ReadCall) or call.ledger_id != ledger_id or call.fence_with is not None:
            break
        if call.received_ns != received_ns or call.wants_lac != wants_lac:
            break
        like.append(call)
        calls.popleft()
    return like


class MemoryReads:
    """Answers the reads of one connection."""

    def __init__(self, queue: AnswerQueue, codec: BookieCodec, measures: RequestMeasures) -> None:
        self._queue = queue
        self._codec = codec
        self._measures = measures

    def answer(self, handler: RequestHandler, calls: list[ReadCall]) -> list[ReadCall]:
        """Answer those of like reads whose entries are in memory, while the peer reads its answers; returns the
        others."""
        first = calls[0]
        entry_ids = [call.entry_id for call in calls]
        bodies, lac = handler.find_in_memory(first.ledger_id, entry_ids, wants_lac=first.wants_lac)
        left: list[ReadCall] = []
        found: list[tuple[ReadCall, bytes]] = []
        found_bytes = 0
        for call, body in zip(calls, bodies, strict=True):
            if body is None or self._queue.is_blocked:
                left.append(call)
                continue
            found.append((call, body))
            found_bytes += len(body)
            if found_bytes >= _TOGETHER_BYTES:
                self._send(found, found_bytes, lac)
                found, found_bytes = [], 0
        if found:
            self._send(found, found_bytes, lac)
        return left

    def _send(self, found: Iterable[tuple[ReadCall, bytes]], found_bytes: int, lac: int | None) -> None:
        calls, bodies = map(list, zip(*found, strict=True))
        self._queue.send(self._codec.encode_bodies(calls, bodies, lac))
        self._queue.flush_early()
        self._measures.note_bodies(calls[0], bodies, found_bytes)
