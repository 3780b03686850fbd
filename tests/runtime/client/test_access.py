"""Whether the bookies accept a client: asked before work, so it must not wait for bookies that hang."""

from __future__ import annotations

import asyncio

from bkctl.runtime.client.access import require_access
from bkctl.runtime.config import ClientConfig
from tests.runtime.client.fakes import Fakes


async def test_one_bookie_that_accepts_is_enough(fakes: Fakes) -> None:
    _, hanging = await fakes.bookies("b1", "b2")
    hanging.hang("info")
    client = await fakes.client(ClientConfig(add_timeout_s=3600.0, read_timeout_s=3600.0))
    async with asyncio.timeout(60):
        await require_access(client.ports)
        await require_access(client.ports, ["b1", "no-longer-registered"])


async def test_an_answer_of_the_bookies_that_are_needed_is_waited_for(fakes: Fakes) -> None:
    _, slow = await fakes.bookies("b1", "b2")
    held = slow.hold("info")
    client = await fakes.client(ClientConfig(add_timeout_s=3600.0, read_timeout_s=3600.0))
    asked = asyncio.create_task(require_access(client.ports, ["b2"]))
    await held.arrived()
    assert not asked.done()
    held.release()
    async with asyncio.timeout(60):
        await asked
