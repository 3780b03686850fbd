"""One small world per test: real ZooKeeper, scripted bookies on the real wire, and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.client.world import World


@pytest.fixture
async def world(metadata_uri: str) -> AsyncIterator[World]:
    """Nothing is registered yet; everything is taken down with the test."""
    world = await World.build(metadata_uri)
    try:
        yield world
    finally:
        await world.close()
