"""The text of metrics: names, types and labels as a Prometheus server reads them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bkctl.runtime.admin.exposition import FAILURES_NAME, ViewCollector, metrics_text
from bkctl.runtime.admin.metric import AnyMetric, Scope
from bkctl.runtime.bookie.view import BookieView
from bkctl.storage.measures import Outcomes

NO_VIEW = cast("BookieView", None)
"""The scopes of these tests read nothing."""
ONE = Scope[int]((), lambda _: [((), 1)])
TWO = Scope[int](("ledgerDir",), lambda _: [(("/a",), 1), (('/b"\\\n',), 2)])
PATHS = Scope[int]((), lambda _: [(("/data/ledgers-0",), 10), (("/b",), 20)])

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: bytes) -> Samples:
    """The samples by name and labels. The parser of prometheus-client reads the text too, but renames counters."""
    assert list(text_string_to_metric_families(text.decode()))
    found: Samples = {}
    for line in text.decode().splitlines():
        if not line.startswith("#"):
            name, labels, value = _SAMPLE.fullmatch(line).groups()  # type: ignore[union-attr]
            pairs = frozenset((key, _unescaped(text)) for key, text in _LABEL.findall(labels or ""))
            assert (name, pairs) not in found, line
            found[name, pairs] = float(value)
    return found


_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def scraped(*catalogue: AnyMetric) -> bytes:
    return metrics_text(ViewCollector(NO_VIEW, catalogue).collect())


def test_counters_keep_their_names() -> None:
    lines = scraped(ONE.counter("bookie_WRITE_BYTES", "Bytes.", lambda value: value)).decode().splitlines()
    assert lines[:3] == [
        "# HELP bookie_WRITE_BYTES Bytes.",
        "# TYPE bookie_WRITE_BYTES counter",
        "bookie_WRITE_BYTES 1.0",
    ]


def test_labels_are_escaped_and_read_back() -> None:
    found = samples_of(scraped(TWO.gauge("cache", "One\\two\nthree.", float)))
    assert found["cache", frozenset({("ledgerDir", "/a")})] == 1
    assert found["cache", frozenset({("ledgerDir", '/b"\\\n')})] == 2


def test_a_path_in_a_name_makes_one_metric_per_directory() -> None:
    text = scraped(PATHS.gauge("dir_<path>_usage", "Used.", float))
    assert text.count(b"# TYPE dir_") == 2
    assert samples_of(text)["dir__data_ledgers_0_usage", frozenset()] == 10
    assert samples_of(text)["dir__b_usage", frozenset()] == 20


def test_a_scope_without_parts_reports_nothing() -> None:
    assert b"absent" not in scraped(Scope[int]((), lambda _: []).gauge("absent", "Absent.", float))


@pytest.mark.parametrize(("make", "factor"), [(TWO.duration, 1e-6), (TWO.sizes, 1.0)])
def test_a_summary_has_quantiles_count_and_sum_by_success(
    make: Callable[[str, str, Callable[[int], Outcomes]], AnyMetric], factor: float
) -> None:
    outcomes = Outcomes()
    for _ in range(3):
        outcomes.succeeded.add(2_000_000)
    outcomes.rotate()
    found = samples_of(scraped(make("JOURNAL_SYNC", "Syncs.", lambda _: outcomes)))
    good, bad = {("success", "true"), ("ledgerDir", "/a")}, {("success", "false"), ("ledgerDir", "/a")}
    assert found["JOURNAL_SYNC_count", frozenset(good)] == 3
    assert found["JOURNAL_SYNC_sum", frozenset(good)] == pytest.approx(6_000_000 * factor)
    assert found["JOURNAL_SYNC_count", frozenset(bad)] == 0
    for quantile in ("0.5", "0.75", "0.95", "0.99", "0.999", "0.9999", "1.0"):
        value = found["JOURNAL_SYNC", frozenset({*good, ("quantile", quantile)})]
        assert value == pytest.approx(2_000_000 * factor, rel=1 / 16)
        assert math.isnan(found["JOURNAL_SYNC", frozenset({*bad, ("quantile", quantile)})])


def test_a_metric_that_cannot_be_read_is_left_out_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    values: Sequence[int] = []
    catalogue = (ONE.gauge("broken", "Broken.", lambda _: values[0]), ONE.gauge("whole", "Whole.", float))
    collector = ViewCollector(NO_VIEW, catalogue)
    with caplog.at_level(logging.ERROR):
        for count in (1, 2):
            found = samples_of(metrics_text(collector.collect()))
            assert ("broken", frozenset()) not in found
            assert found["whole", frozenset()] == 1
            assert found[FAILURES_NAME, frozenset()] == count
    assert [record.getMessage() for record in caplog.records] == ["cannot read the metric broken, which is left out"]
