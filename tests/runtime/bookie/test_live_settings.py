"""Rates change while the bookie runs; other settings are named."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.bookie.collection.compaction import CompactionThrottle
from bkctl.runtime.bookie.live_settings import LIVE, LiveSettings
from bkctl.runtime.config import BookieConfig, GarbageCollectionConfig, IntegrityConfig, ZooKeeperConfig
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.rate_limit import RateLimit
from bkctl.storage.config import StorageConfig
from tests.sim.loop import VirtualClock, run_simulated

CONFIG = BookieConfig(
    metadata_uri="zk://a/ledgers",
    storage=StorageConfig(journal_directories=("j",), ledger_directories=("l",)),
)
FASTER = msgspec.structs.replace(
    CONFIG,
    garbage_collection=GarbageCollectionConfig(copied_entries_per_s_max=5000, metadata_operations_per_s_max=7),
    integrity=IntegrityConfig(bytes_per_s_max=1000),
    zookeeper=ZooKeeperConfig(scan_operations_per_s_max=8),
)


def test_all_rates_exist() -> None:
    values = msgspec.to_builtins(CONFIG)
    for name in LIVE:
        section, _, field = name.partition(".")
        assert field in values[section]


def test_rates_are_taken_over_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    live = LiveSettings(CONFIG)
    taken: list[BookieConfig] = []
    live.on_change(taken.append)
    changed = msgspec.structs.replace(FASTER, port=4000, metadata_uri="")
    with caplog.at_level(logging.INFO):
        live.reload(changed)
        live.reload(CONFIG)
        moved = msgspec.structs.replace(CONFIG, permitted_startup_users_java_key="bk.conf:9 (permittedStartupUsers)")
        live.reload(moved)
    assert [config.garbage_collection.copied_entries_per_s_max for config in taken] == [5000, 1000, 1000]
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "setting changed: garbage_collection.copied_entries_per_s_max = 5000 (was 1000.0)",
        "setting changed: garbage_collection.metadata_operations_per_s_max = 7 (was 1000.0)",
        "setting changed: integrity.bytes_per_s_max = 1000 (was 52428800)",
        "setting changed: zookeeper.scan_operations_per_s_max = 8 (was 5000.0)",
        "settings changed that take effect after a restart: port",
        "setting changed: garbage_collection.copied_entries_per_s_max = 1000.0 (was 5000)",
        "setting changed: garbage_collection.metadata_operations_per_s_max = 1000.0 (was 7)",
        "setting changed: integrity.bytes_per_s_max = 52428800 (was 1000)",
        "setting changed: zookeeper.scan_operations_per_s_max = 5000.0 (was 8)",
        "settings reloaded: no bookie setting has changed",
    ]


def test_a_waiting_operation_follows_a_new_rate() -> None:
    async def run() -> float:
        budget = RequestBudget(VirtualClock(), 0.001, 10)
        for _ in range(2):
            waiting = [asyncio.ensure_future(budget.run(lambda: asyncio.sleep(0))) for _ in range(3)]
            await asyncio.sleep(1)
            budget.set_rate(1)
            await asyncio.gather(*waiting)
        return asyncio.get_running_loop().time()

    assert run_simulated(run()) == pytest.approx(6, abs=1.5)


def test_copies_and_fetches_follow_a_new_rate() -> None:
    async def run() -> list[float]:
        clock = VirtualClock(seed=1)
        throttle = CompactionThrottle(clock, GarbageCollectionConfig(copied_entries_per_s_max=1))
        throttle.set_rate(GarbageCollectionConfig(is_throttled_by_bytes=True, copied_bytes_per_s_max=10))
        throttle.note(1000, 20)
        await throttle.wait()
        copied_ns = clock.monotonic_ns()
        rate = RateLimit(clock, 1)
        rate.change(10)
        rate.spend(30)
        await rate.take()
        return [copied_ns / 1e9, (clock.monotonic_ns() - copied_ns) / 1e9]

    assert run_simulated(run()) == pytest.approx([2, 3])


@pytest.mark.cluster
async def test_the_parts_of_a_running_bookie_follow_its_settings(bookie_config: BookieConfig) -> None:
    async with running_bookie(bookie_config) as server:
        collector = server.view.collector
        assert collector is not None
        assert server.view.repair is not None
        throttles = [directory._compactor._throttle for directory in collector._directories]
        collector_budget = collector._passes.overreplicated._store._budget  # type: ignore[attr-defined]
        scan_budget = server.view.repair._ports.ledgers._store._budget  # type: ignore[attr-defined]
        server.reload(msgspec.structs.replace(FASTER, storage=bookie_config.storage))
        assert {throttle._per_s_max for throttle in throttles} == {5000}
        assert collector_budget._limit.per_s == pytest.approx(7, rel=0.1)
        assert scan_budget._limit.per_s == pytest.approx(8, rel=0.1)
        assert server.view.repair._refill._rate.per_s == 1000
