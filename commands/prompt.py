"""Waiting for an answer on a terminal without keeping the event loop from its other work."""

from __future__ import annotations

import asyncio
from typing import TextIO


async def read_line(stream: TextIO) -> str:
    """A line typed on a terminal; "" at the end of input. The loop runs meanwhile, so signals and sessions do too.

    A terminal becomes readable when a line is complete, so that the read itself does not wait.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(stream.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(stream.fileno())
    return stream.readline()
