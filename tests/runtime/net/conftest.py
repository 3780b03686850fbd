"""The transports are tested on both loops that clients run on: they differ in when they write, pause and fail."""

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
    """Run every test of this directory once per loop; the long attacks only on uvloop, on which all bookies run."""
    of_bookies: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    return of_bookies if item.get_closest_marker("battery") else {"asyncio": asyncio.new_event_loop} | of_bookies


@pytest.fixture
def server(tmp_path: Path) -> Server:
    """Its files; ``served`` makes it listen."""
    return Server(tmp_path)
