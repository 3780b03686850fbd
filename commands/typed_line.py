"""Reads what an operator types."""

from __future__ import annotations

from typing import TextIO


async def read_line(stream: TextIO) -> str:
    """A line typed on a terminal; "" at the end of input. The event loop keeps running, for signals and sessions.

    A terminal becomes readable when a line is complete, so the read itself does not block.
    """
    import asyncio  # most invocations ask nothing

    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(stream.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(stream.fileno())
    return stream.readline()
