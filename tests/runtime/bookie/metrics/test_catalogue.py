"""The metrics of a real bookie."""

from __future__ import annotations

import logging
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from bkctl.runtime.admin.exposition import FAILURES_NAME
from bkctl.runtime.admin.metric import PATH, MetricType
from bkctl.runtime.bookie.boot.process import real_ports, running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.bookie.metrics.catalogue import CATALOGUE, bookie_metrics
from bkctl.runtime.bookie.metrics.protection import PROTECTION
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import NoSuchLedgerError
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.collected_bookie import collected_bookie
from tests.runtime.bookie.metrics.test_exposition import samples_of

ABSENT = ("bookie_index_", "bkctl_requests_failed", "bkctl_autorecovery_", *(metric.name for metric in PROTECTION))
"""Without separate index directories, TLS, logins or an autorecovery daemon, and before any request has failed."""


def test_each_metric_has_its_own_name_and_one_sentence() -> None:
    assert max(Counter(metric.name for metric in CATALOGUE).values()) == 1
    for metric in CATALOGUE:
        assert re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", metric.name.replace(PATH, "x")), metric.name
        assert re.fullmatch(r"[A-Z0-9].*[^.]\.", metric.help), metric.name
        assert ". " not in metric.help, metric.name


async def test_every_metric_of_a_booted_bookie_can_be_read(
    bookie_config: BookieConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        async with running_bookie(bookie_config) as server:
            found = samples_of(bookie_metrics(server.view).text())
    assert not caplog.records
    assert found[FAILURES_NAME, frozenset()] == 0
    names = {name for name, _ in found}
    (directory,) = bookie_config.storage.ledger_directories
    path = re.sub("[^a-zA-Z0-9]", "_", directory)
    for metric in CATALOGUE:
        if metric.name.startswith(ABSENT):
            continue
        suffix = "_count" if metric.type is MetricType.SUMMARY else ""
        assert metric.name.replace(PATH, path) + suffix in names
    assert {"process_cpu_seconds_total", "process_open_fds", "python_gc_collections_total"} <= names
    assert found["bookie_SERVER_STATUS", frozenset()] == 1
    assert found["bookie_ledger_writable_dirs", frozenset()] == 1


async def test_a_bookie_that_is_starting_reports_what_it_has(bookie_config: BookieConfig) -> None:
    ports = real_ports()
    try:
        found = samples_of(bookie_metrics(BookieServer(bookie_config, ports).view).text())
    finally:
        await ports.workers.close()
    assert found[FAILURES_NAME, frozenset()] == 0
    assert found["bookie_SERVER_STATUS", frozenset()] == -1
    assert "bookie_ledgers_count" not in {name for name, _ in found}


async def test_a_read_only_bookie_with_index_directories(bookie_config: BookieConfig, tmp_path: Path) -> None:
    storage = msgspec.structs.replace(bookie_config.storage, index_directories=(str(tmp_path / "index-0"),))
    config = msgspec.structs.replace(bookie_config, storage=storage, is_read_only=True)
    async with running_bookie(config) as server:
        found = samples_of(bookie_metrics(server.view).text())
    assert found["bookie_SERVER_STATUS", frozenset()] == 0
    assert found["bkctl_read_only_reason", frozenset({("reason", "forced")})] == 1
    assert found["bkctl_read_only_reason", frozenset({("reason", "disk_full")})] == 0
    assert found["bookie_index_num_dirs", frozenset()] == found["bookie_index_writable_dirs", frozenset()] == 1
    path = re.sub("[^a-zA-Z0-9]", "_", str(tmp_path / "index-0"))
    assert 0 <= found[f"bookie_index_dir_{path}_usage", frozenset()] <= 100
    labels = frozenset({("ledgerDir", storage.ledger_directories[0]), ("indexDir", storage.index_directories[0])})
    assert found["bookie_ledgers_count", labels] == 0


async def test_failed_requests_are_counted_by_operation_and_status(metadata_uri: str, tmp_path: Path) -> None:
    async with collected_bookie(metadata_uri, tmp_path) as bookie:
        with pytest.raises(NoSuchLedgerError):
            await bookie.peer.read(7, 0)
        assert await bookie.peer.add(7, 0, b"short") is Status.BAD_REQUEST
        found = samples_of(bookie_metrics(bookie.server.view).text())
    for operation, status in (("READ_ENTRY", "NO_SUCH_LEDGER"), ("ADD_ENTRY", "BAD_REQUEST")):
        assert found["bkctl_requests_failed", frozenset({("operation", operation), ("status", status)})] == 1
