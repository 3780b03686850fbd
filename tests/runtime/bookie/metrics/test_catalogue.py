"""The metrics of a real bookie."""

from __future__ import annotations

import logging
import re
from collections import Counter

import pytest

from runtime.bookie.boot.process import running_bookie
from runtime.bookie.metrics.catalogue import CATALOGUE
from runtime.bookie.metrics.exposition import FAILURES_NAME, BookieMetrics
from runtime.bookie.metrics.metric import PATH, MetricType
from runtime.config import BookieConfig
from tests.runtime.bookie.metrics.test_exposition import samples_of


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
            found = samples_of(BookieMetrics(server.view).text())
    assert not caplog.records
    assert found[FAILURES_NAME, frozenset()] == 0
    names = {name for name, _ in found}
    (directory,) = bookie_config.storage.ledger_directories
    path = re.sub("[^a-zA-Z0-9]", "_", directory)
    without_index = (metric for metric in CATALOGUE if not metric.name.startswith("bookie_index_"))
    for metric in without_index:
        suffix = "_count" if metric.type is MetricType.SUMMARY else ""
        assert metric.name.replace(PATH, path) + suffix in names
    assert {"process_cpu_seconds_total", "process_open_fds", "python_gc_collections_total"} <= names
    assert found["bookie_SERVER_STATUS", frozenset()] == 1
    assert found["bookie_ledger_writable_dirs", frozenset()] == 1
