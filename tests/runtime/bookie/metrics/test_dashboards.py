"""Public dashboards find what they read, and see it change under load."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bkctl.runtime.admin.exposition import ViewCollector, metrics_text
from bkctl.runtime.bookie.boot.process import SWITCH_INTERVAL_S
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.collection.long_work import CompactionKind
from bkctl.runtime.bookie.metrics.catalogue import CATALOGUE
from bkctl.runtime.bookie.metrics.windows import measures_of
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.admin.asking import Asker, local_asker
from tests.runtime.bookie.collected_bookie import CollectedBookie, collected_bookie
from tests.runtime.bookie.metrics.test_exposition import Samples, samples_of

GOLDEN = Path(__file__).parents[3] / "golden" / "metrics" / "dashboards.txt"

RENAMED: Final = {
    "bookie_storage_ledgers_count": "bookie_ledgers_count",
    "bookie_storage_entries_count": "bookie_entries_count",
    "bookie_storage_write_cache_size": "bookie_write_cache_size",
    "bookie_storage_read_cache_size": "bookie_read_cache_size",
    "bookie_MINOR_COMPACTION_COUNT": "bookie_MINOR_COMPACTION_TOTAL",
}
"""Names that a Java bookie of release 4.18 no longer has, with its names for them."""

LEFT_OUT: Final = {
    "bookie_journal_JOURNAL_CB_QUEUE_SIZE": "Java 4.18 no longer has it: callbacks have no queue of their own.",
    "bookie_ledger_dir__pulsar_data_bookkeeper_ledgers_0_usage": "It has a directory of one deployment in its name.",
    "kubelet_volume_stats_available_bytes": "Kubernetes reports it.",
    "kubelet_volume_stats_capacity_bytes": "Kubernetes reports it.",
}
UNCHANGED: Final = {
    "bookie_SERVER_STATUS": "It changes with the mode.",
    "bookie_ledger_writable_dirs": "It changes when a disk becomes full.",
}
"""Metrics that load does not change."""

QUEUES: Final = frozenset(
    {
        "bookie_journal_JOURNAL_QUEUE_SIZE",
        "bookie_journal_JOURNAL_FORCE_WRITE_QUEUE_SIZE",
        "bookkeeper_server_ADD_ENTRY_BLOCKED",
        "bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
        "bookkeeper_server_READ_ENTRY_BLOCKED",
        "bookkeeper_server_READ_ENTRY_IN_PROGRESS",
    }
)
"""They are 0 before and after the load."""


class Wanted(NamedTuple):
    """A sample that a dashboard reads."""

    name: str
    labels: frozenset[tuple[str, str]]


def wanted() -> set[Wanted]:
    found = set()
    for line in GOLDEN.read_text().splitlines():
        if not line.startswith("#"):
            _, name, labels = line.split()
            pairs = (pair.split("=") for pair in labels.split(",") if pair != "-")
            # The old dashboard of Pulsar asks for the quantile "1", which Java 4.18 calls "1.0".
            exact = frozenset((key, "1.0" if (key, value) == ("quantile", "1") else value) for key, value in pairs)
            found.add(Wanted(RENAMED.get(name, name), exact))
    return {each for each in found if each.name not in LEFT_OUT}


class Dashboard:
    """The values that each panel has shown."""

    def __init__(self, server: BookieServer, asker: Asker) -> None:
        self._asker = asker
        self._queues = ViewCollector(server.view, [metric for metric in CATALOGUE if metric.name in QUEUES])
        self._text = ""
        self.shown: defaultdict[Wanted, set[float]] = defaultdict(set)

    async def look(self) -> None:
        """A scrape over the admin interface whose text no earlier scrape got."""
        while (answer := await self._asker.get("/metrics")).text == self._text:
            pass
        self._text = answer.text
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        self._note(samples_of(answer.text.encode()), wanted())

    @contextlib.asynccontextmanager
    async def watching_queues(self) -> AsyncIterator[None]:
        """Look at the lengths of queues in each turn of the loop: a request would take several."""
        queues = {each for each in wanted() if each.name in QUEUES}
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL_S)  # as in the process of a bookie: the lanes must get their turns

        async def watch() -> None:
            while True:
                self._note(samples_of(metrics_text(self._queues.collect())), queues)
                await asyncio.sleep(0)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            sys.setswitchinterval(before_s)

    def _note(self, samples: Samples, panels: set[Wanted]) -> None:
        for panel in panels:
            values = [
                value for (name, labels), value in samples.items() if name == panel.name and panel.labels <= labels
            ]
            if values:
                total = math.fsum(values)
                self.shown[panel].add(-1.0 if math.isnan(total) else total)


async def load(bookie: CollectedBookie, dashboard: Dashboard) -> None:
    """Adds, more of them than the write cache holds; reads from disk and from memory; deleted ledgers; compactions."""
    peer = bookie.peer
    await bookie.write(range(20))
    large, large_id = bytes(8000), 100
    await bookie.create(large_id)
    async with dashboard.watching_queues():
        adds = (peer.add(large_id, each, peer.body(large_id, each, large)) for each in range(200))
        assert set(await asyncio.gather(*adds)) == {Status.OK}
        await dashboard.look()
        await bookie.flush()
        await read_all(bookie, large_id, range(199, 0, -1))
    await dashboard.look()
    await read_all(bookie, large_id, range(199, 0, -1))
    await bookie.delete_metadata(range(15))
    await bookie.collector.force()
    bookie.collector.suspend(CompactionKind.MAJOR)
    await bookie.collector.force()
    bookie.collector.suspend(CompactionKind.MAJOR, is_suspended=False)
    await bookie.write(range(200, 210))
    await bookie.delete_metadata(range(200, 210))
    await bookie.collector.force()


def end_window(server: BookieServer) -> None:
    """Quantiles are those of the last window, which a timer ends."""
    for measures in measures_of(server.view):
        measures.rotate()


async def read_all(bookie: CollectedBookie, ledger_id: int, entry_ids: Sequence[int]) -> None:
    await asyncio.gather(*(bookie.peer.read(ledger_id, each) for each in entry_ids))


async def test_every_panel_exists_and_changes_under_load(metadata_uri: str, tmp_path: Path) -> None:
    async with (
        collected_bookie(metadata_uri, tmp_path) as bookie,
        local_asker(bookie.server.view.config) as asker,
    ):
        dashboard = Dashboard(bookie.server, asker)
        await dashboard.look()
        await load(bookie, dashboard)
        end_window(bookie.server)
        await dashboard.look()
    assert {panel for panel in wanted() if panel not in dashboard.shown} == set()
    still = {panel.name for panel, values in dashboard.shown.items() if len(values) == 1}
    assert still == set(UNCHANGED)


def test_what_is_left_out_or_renamed_is_in_a_dashboard() -> None:
    names = {line.split()[1] for line in GOLDEN.read_text().splitlines() if not line.startswith("#")}
    assert names >= RENAMED.keys() | LEFT_OUT.keys() | UNCHANGED.keys()
