"""The windows of all measures of a bookie, and the delay of its event loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bkctl.runtime.bookie.view import BookieView
from bkctl.storage.measures import WINDOW_S, Measures

LOOK_INTERVAL_S: Final = 0.1
"""Time between two looks at the delay of the loop."""


async def run_windows(view: BookieView) -> None:
    """End windows once a minute, count what was noted, and measure how late the loop is, until cancelled."""
    clock, loop_delay = view.ports.clock, view.loop_delay
    window_ns = int(WINDOW_S * 1e9)
    end_ns = clock.monotonic_ns() + window_ns
    while True:
        due_ns = clock.monotonic_ns() + int(LOOK_INTERVAL_S * 1e9)
        await clock.sleep(LOOK_INTERVAL_S)
        now_ns = clock.monotonic_ns()
        loop_delay.succeeded.add(max(0, now_ns - due_ns))
        for measures in noting_measures_of(view):
            measures.count_noted()
        if now_ns >= end_ns:
            end_ns = now_ns + window_ns
            loop_delay.rotate()
            for measures in measures_of(view):
                measures.rotate()


def noting_measures_of(view: BookieView) -> Iterator[Measures]:
    """Those on the path of adds."""
    if view.listener is not None:
        yield view.listener.measures
    if view.path is not None:
        yield from (journal.measures for journal in view.path.journals)


def measures_of(view: BookieView) -> Iterator[Measures]:
    """All measures of the parts that the boot has created."""
    if view.listener is not None:
        yield view.listener.measures
    if view.store is not None:
        yield view.store.measures
    if view.storage is not None:
        yield from (engine.measures for engine in view.storage.engines)
    if view.path is not None:
        yield view.path.adds.measures
        yield view.path.handler.fence_measures
        yield view.path.handles.polls.measures
        yield from (journal.measures for journal in view.path.journals)
    if view.collector is not None:
        yield view.collector.timings
        yield from view.collector.directory_timings
