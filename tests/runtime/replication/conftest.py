"""One stage per test, taken down with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.client.world import World
from tests.runtime.replication.stage import Stage, SteppedStage


@pytest.fixture
async def stage(metadata_uri: str) -> AsyncIterator[Stage]:
    """No bookie runs yet."""
    world = await World.build(metadata_uri)
    try:
        yield await Stage.build(world)
    finally:
        await world.close()


@pytest.fixture
async def stepped(stage: Stage) -> SteppedStage:
    """No bookie runs yet, and no time passes by itself."""
    return await SteppedStage.build(stage.world)
