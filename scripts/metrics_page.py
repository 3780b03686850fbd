"""Writes docs/reference/metrics.md from the catalogue of metrics: ``make metrics-page``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from prometheus_client import GC_COLLECTOR, PROCESS_COLLECTOR

from bkctl.runtime.admin.exposition import FAILURES_HELP, FAILURES_NAME
from bkctl.runtime.admin.metric import AnyMetric, MetricType
from bkctl.runtime.autorecovery.metrics import catalogue_of
from bkctl.runtime.bookie.metrics.catalogue import CATALOGUE
from bkctl.runtime.bookie.metrics.java_only import MISSING

HEAD = """# Metrics

This page is generated from the code by `make metrics-page`.

A bookie reports its metrics in Prometheus' text format 0.0.4. Metrics that a Java bookie of release 4.18 also has keep
its names, types, labels and units, so dashboards and alerts for Java bookies work. The others begin with `bkctl_`.

- A summary has the samples `NAME{success,quantile}`, `NAME_count{success}` and `NAME_sum{success}`; `success` is `true`
  or `false`. Durations are in milliseconds.
- Quantiles (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0) are those of the last full minute, `NaN` if nothing happened in
  it. They are at most 6.3 % off. `_sum` is exact; Java's leaves out parts of a millisecond.
- Queue lengths of the journal are counters in Java although they fall. Their type is kept.
- `thread` and `threadPool` are always `0` and `event-loop`. `journalIndex` counts the journal directories from 0.
- `<path>` in a name is a directory, with `_` for each character that a name cannot have.
- A metric that cannot be read is left out of the scrape, and the log has the reason.
- Scrapes within half a second get the same text.
"""

DAEMON = """`bkctl autorecovery start` reports these; a bookie with such a daemon has them next to its own. Names that
begin with `auditor_` or `replication_worker_` are Java's. Values of the auditor exist only while this daemon is the
auditor. `bkctl autorecovery start` reports the process and interpreter metrics above, too."""

TITLES = {
    "bookkeeper_server": "Requests",
    "bookie_journal": "Journals",
    "bookie": "Bookie and storage",
    "bkctl": "Only here",
    "jvm": "Process",
}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    by_title: dict[str, list[AnyMetric]] = {title: [] for title in TITLES.values()}
    for metric in sorted(CATALOGUE, key=lambda each: each.name.lower()):
        prefix = next(prefix for prefix in TITLES if metric.name.startswith(f"{prefix}_"))
        by_title[TITLES[prefix]].append(metric)
    for title, metrics in by_title.items():
        rows = [row(each.name, each.type.value, labels_of(each), each.help) for each in metrics]
        if title == TITLES["bkctl"]:
            rows.append(row(FAILURES_NAME, MetricType.COUNTER.value, (), FAILURES_HELP))
        if title == TITLES["jvm"]:
            rows += process_rows()
        parts += [f"## {title}\n", table(("metric", "type", "labels", "meaning"), sorted(rows, key=name_of))]
    rows = [row(each.name, each.type.value, labels_of(each), each.help) for each in catalogue_of(lambda: 0)]
    parts += [f"## Autorecovery daemon\n\n{DAEMON}\n", table(("metric", "type", "labels", "meaning"), rows)]
    parts += [
        "## Metrics of a Java bookie that do not exist here\n",
        table(("metric", "reason"), [cells(f"`{name}`", why) for why, names in MISSING.items() for name in names]),
    ]
    return "\n".join(parts).rstrip() + "\n"


def process_rows() -> list[str]:
    """What prometheus-client itself reports."""
    families = [*PROCESS_COLLECTOR.collect(), *GC_COLLECTOR.collect()]
    return [
        row(each.samples[0].name, each.type, tuple(each.samples[0].labels), f"{each.documentation.removesuffix('.')}.")
        for each in families
    ]


def labels_of(metric: AnyMetric) -> tuple[str, ...]:
    """All label names of a metric."""
    return (*metric.labels, "success", "quantile") if metric.type is MetricType.SUMMARY else metric.labels


def row(name: str, metric_type: str, labels: Iterable[str], meaning: str) -> str:
    """A metric as a row."""
    return cells(f"`{name}`", metric_type, ", ".join(f"`{label}`" for label in labels), meaning)


def name_of(line: str) -> str:
    """The name in a row, for sorting."""
    return line.split("`")[1].lower()


def table(heads: tuple[str, ...], rows: Iterable[str]) -> str:
    """A table with its heads."""
    return "\n".join((cells(*heads), f"|{'---|' * len(heads)}", *rows, ""))


def cells(*texts: str) -> str:
    """A row of a table."""
    return f"| {' | '.join(texts)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
