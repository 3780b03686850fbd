"""How often the text of the metrics is made, in virtual time."""

from __future__ import annotations

import asyncio

from bkctl.runtime.admin.exposition import TEXT_LIFE_S
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.metrics.catalogue import bookie_metrics
from tests.crash.model_disk import Mode
from tests.sim.loop import run_simulated
from tests.sim.whole_bookie import CONFIG, WholeBookie


def test_scrapes_within_half_a_second_share_one_text() -> None:
    async def run() -> None:
        metrics = bookie_metrics(BookieServer(CONFIG, WholeBookie(Mode.ORDERED).ports()).view)
        first = metrics.text()
        assert all(metrics.text() is first for _ in range(1000))
        await asyncio.sleep(TEXT_LIFE_S * 0.99)
        assert metrics.text() is first
        await asyncio.sleep(TEXT_LIFE_S * 0.02)
        second = metrics.text()
        assert second != first
        assert metrics.text() is second

    run_simulated(run())
