"""What waits in vain says what it waited for."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.until import until, wait_until

ENDED = [sys.executable, "-c", "raise SystemExit(3)"]


async def test_it_returns_once_the_condition_holds() -> None:
    answers = iter([False, False, True, False, True])
    assert wait_until(lambda: next(answers)) is True

    async def is_so() -> bool:
        return next(answers)

    await until(is_so)
    assert next(answers, None) is None
    await until(lambda: True)


async def test_the_deadline_names_the_condition_and_what_is_known() -> None:
    with pytest.raises(AssertionError, match=r"(?s)not in 0 s: the bookie serves.*its log"):
        wait_until(lambda: False, "the bookie serves", tell=lambda: "its log", deadline_s=0.05)
    with pytest.raises(AssertionError, match=r"not in 0 s: .*len\(ENDED\) > 9"):
        await until(lambda: len(ENDED) > 9, deadline_s=0.05)


async def test_the_end_of_the_process_ends_it() -> None:
    with subprocess.Popen(ENDED) as process:  # noqa: ASYNC220  it ends at once
        process.wait()
        with pytest.raises(AssertionError, match="the process ended with 3 before: it serves"):
            wait_until(lambda: False, "it serves", process=process)
        with pytest.raises(AssertionError, match="the process ended with 3 before: it serves"):
            await until(lambda: False, "it serves", process=process)
        states = iter([False, True])
        wait_until(lambda: next(states), process=process)  # it did it last


def test_long_looks_leave_most_of_the_time_to_what_is_waited_for() -> None:
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        time.sleep(0.03)
        return False

    with pytest.raises(AssertionError):
        wait_until(look, deadline_s=0.5)
    assert looks <= 6, "each look and its pause take at least 0.12 s"
