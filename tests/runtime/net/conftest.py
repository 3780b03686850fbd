"""The transports are tested on both loops that bkctl runs on: they differ in when they write, pause and fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from tests.runtime.net.secured_peers import Server


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every test of this directory once per loop."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """Its files; ``served`` makes it listen."""
    return Server(tmp_path)
