"""Answers in the order of their arrival."""

from __future__ import annotations

import asyncio

import pytest

from runtime.client.replies import Replies
from runtime.errors import NoSuchEntryError
from runtime.net.loop import LoopClock
from runtime.ports import ReadReply

ENTRY = ReadReply(b"body", None)


def futures(count: int) -> list[asyncio.Future[ReadReply]]:
    return [asyncio.get_running_loop().create_future() for _ in range(count)]


async def test_answers_come_as_they_arrive_errors_included() -> None:
    replies = Replies[int, ReadReply](LoopClock())
    first, second = futures(2)
    replies.expect(1, first)
    replies.expect(2, second)
    absent = NoSuchEntryError("b2", "absent")
    second.set_exception(absent)
    assert await replies.next() == (2, absent)
    asyncio.get_running_loop().call_soon(first.set_result, ENTRY)
    assert await replies.next() == (1, ENTRY)
    assert replies.outstanding == 0


async def test_silence_ends_with_the_time_out_and_the_answer_can_still_come() -> None:
    replies = Replies[int, ReadReply](LoopClock())
    (slow,) = futures(1)
    replies.expect(1, slow)
    assert await replies.next(timeout_s=0.01) is None
    slow.set_result(ENTRY)
    assert await replies.next(timeout_s=0.01) == (1, ENTRY)


async def test_an_error_that_is_no_bookies_answer_is_raised() -> None:
    replies = Replies[int, ReadReply](LoopClock())
    (broken,) = futures(1)
    replies.expect(1, broken)
    broken.set_exception(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        await replies.next()


async def test_answers_that_nobody_waits_for_are_not_reported_as_unhandled() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    replies = Replies[int, ReadReply](LoopClock())
    (late,) = futures(1)
    replies.expect(1, late)
    late.set_exception(NoSuchEntryError("b1", "absent"))
    await asyncio.sleep(0)
    del late, replies
    await asyncio.sleep(0)
    assert complaints == []
