"""Per test: real ZooKeeper, scripted bookies on the real wire, and clients."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.runtime.client.fakes import Fakes


@pytest.fixture
async def fakes(metadata_uri: str) -> AsyncIterator[Fakes]:
    """Nothing is registered yet; everything is taken down with the test."""
    fakes = await Fakes.build(metadata_uri)
    try:
        yield fakes
    finally:
        await fakes.close()
