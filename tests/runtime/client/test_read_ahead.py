"""What is read ahead fits its limit in bytes, whatever the sizes of the entries are."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

import pytest

from bkctl.runtime.client.read_ahead import ReadAhead
from bkctl.runtime.config import ClientConfig

MIB = 1 << 20
BYTES_MAX = 8 * MIB
CONFIG = ClientConfig(read_bytes_in_flight_max=BYTES_MAX)
SIZES: dict[str, Callable[[int], int]] = {
    "large from the start": lambda _: MIB,
    "small, then large": lambda entry_id: 100 if entry_id < 105 else MIB,
    "larger and larger": lambda entry_id: 1000 * (entry_id + 1),
    "now and then a large one": lambda entry_id: 2 * MIB if entry_id % 40 == 39 else 10,
    "each larger than the limit": lambda _: 2 * BYTES_MAX,
}


class Payload:
    """Stands for so many bytes; knows how many bytes of all payloads are alive."""

    alive_bytes = 0

    def __init__(self, entry_id: int, size: int) -> None:
        self.entry_id = entry_id
        self.size = size
        Payload.alive_bytes += size
        weakref.finalize(self, self._end, size)

    @staticmethod
    def _end(size: int) -> None:
        Payload.alive_bytes -= size


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("name", SIZES)
async def test_a_slow_consumer_holds_no_more_than_the_limit(name: str, is_batched: bool) -> None:
    size_of = SIZES[name]
    highest_bytes = 0
    connection = asyncio.Lock()

    async def read(entry_ids: range) -> list[Payload]:
        nonlocal highest_bytes
        async with connection:  # large answers come one after another
            await asyncio.sleep(0)
        found: list[Payload] = []
        for entry_id in entry_ids:  # an answer has several entries only as far as they are small
            if found and sum(each.size for each in found) + size_of(entry_id) > 128 * 1024:
                break
            found.append(Payload(entry_id, size_of(entry_id)))
        highest_bytes = max(highest_bytes, Payload.alive_bytes)
        return found

    ahead = ReadAhead(read, CONFIG, lambda payload: payload.size, is_batched=is_batched)
    next_id = 0
    async for payload in ahead.entries(0, 199):
        assert payload.entry_id == next_id
        next_id += 1
        for _ in range(100 if next_id > 100 else 0):  # the consumer pauses: all that is under way arrives
            await asyncio.sleep(0)
        highest_bytes = max(highest_bytes, Payload.alive_bytes)
    assert next_id == 200
    largest = max(map(size_of, range(200)))
    # What the consumer has, what comes next, and an answer that shows that it is too much.
    assert highest_bytes <= BYTES_MAX + 3 * largest
