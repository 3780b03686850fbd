"""One fleet per test, taken down with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.client.fakes import Fakes
from tests.runtime.replication.fleet import Fleet, SteppedFleet


@pytest.fixture
async def fleet(metadata_uri: str) -> AsyncIterator[Fleet]:
    """No bookie runs yet."""
    fakes = await Fakes.build(metadata_uri)
    try:
        yield await Fleet.build(fakes)
    finally:
        await fakes.close()


@pytest.fixture
async def stepped(fleet: Fleet) -> SteppedFleet:
    """No bookie runs yet, and no time passes by itself."""
    return await SteppedFleet.build(fleet.fakes)
