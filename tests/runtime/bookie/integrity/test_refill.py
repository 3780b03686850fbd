from __future__ import annotations

import random

from runtime.bookie.integrity.refill import ByteRate
from runtime.ports import TimerHandle


class SteppedClock:
    """Time passes in ``sleep`` alone."""

    def __init__(self) -> None:
        self.now_ns = 5_000_000_000
        self.random = random.Random(0)

    def now_ms(self) -> int:
        return self.now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        self.now_ns += max(1, round(seconds * 1e9))

    def call_later(self, seconds: float, callback: object) -> TimerHandle:
        raise AssertionError("nobody sets timers here")


async def test_bytes_are_paid_for_before_more_are_spent() -> None:
    clock = SteppedClock()
    rate = ByteRate(clock, 1000)
    began_ns = clock.now_ns
    for _ in range(10):
        await rate.wait()
        rate.spend(500)
    await rate.wait()
    assert 5_000_000_000 <= clock.now_ns - began_ns <= 5_000_000_100


async def test_idle_time_is_not_saved_up() -> None:
    clock = SteppedClock()
    rate = ByteRate(clock, 1000)
    await clock.sleep(100)
    began_ns = clock.now_ns
    rate.spend(2000)
    await rate.wait()
    assert clock.now_ns - began_ns >= 2_000_000_000
