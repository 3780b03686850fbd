"""Charts of the page about the runs of a series. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from markupsafe import Markup

from bkctl.runtime.replication.cluster_audit.comparison import AuditRun
from bkctl.spark_reports.charts import Bar, Scale, column_chart
from bkctl.spark_reports.page_tables import time_words
from bkctl.storage.words import size

RUNS_SHOWN_MAX = 60
_NAMES_SHOWN_MAX = 6
"""Owners, and bookies, with a chart of their own: those with the most bytes in any of the runs."""


class PageChart(msgspec.Struct, frozen=True):
    """A chart with its title."""

    title: str
    svg: Markup


def trend_charts(runs: Sequence[AuditRun]) -> list[PageChart]:
    """Of the newest runs, the oldest first; none of fewer than two."""
    shown = runs[-RUNS_SHOWN_MAX:]
    return list(_charts(shown)) if len(shown) > 1 else []


def _charts(runs: Sequence[AuditRun]) -> Iterator[PageChart]:
    ledgers = Scale("ledgers", "{:,}".format, one="ledger")
    copies = Scale("copies of entries", "{:,}".format, one="copy of an entry")
    in_bytes = Scale("of copies", size, base=2)
    for title, scale, kind, values in (
        ("Ledgers with missing copies", ledgers, "warning", [run.missing_copies for run in runs]),
        ("Ledgers lost with their bookies", ledgers, "critical", [run.lost for run in runs]),
        ("Live copies of entries", copies, "ok", [run.live_copies for run in runs]),
        ("Copies of entries that are not live", copies, "critical", [run.copies - run.live_copies for run in runs]),
        ("Bytes of all copies", in_bytes, "neutral", [run.copy_bytes for run in runs]),
    ):
        yield _chart(runs, title, scale, kind, values)
    for title, scale, kind, name in (
        ("Bad copies", copies, "critical", "bad_copies"),
        ("Entries without a good copy", Scale("entries", "{:,}".format, one="entry"), "critical", "lost_entries"),
    ):
        taken = [run for run in runs if getattr(run, name) is not None]
        if len(taken) > 1:
            yield _chart(taken, title, scale, kind, [getattr(run, name) for run in taken])
    for what, found in (("owner", [run.owners for run in runs]), ("bookie", [run.bookies for run in runs])):
        for name in _largest(found):
            yield _chart(runs, f"Bytes of {what} {name}", in_bytes, "neutral", [each.get(name, 0) for each in found])


def _largest(found: Sequence[Mapping[str, int]]) -> list[str]:
    largest: dict[str, int] = {}
    for values in found:
        for name, value in values.items():
            largest[name] = max(value, largest.get(name, 0))
    named = [name for name, value in largest.items() if value]
    return sorted(named, key=lambda each: (-largest[each], each))[:_NAMES_SHOWN_MAX]


def _chart(runs: Sequence[AuditRun], title: str, scale: Scale, kind: str, values: Sequence[int]) -> PageChart:
    bars = [
        Bar(time_words(run.judged_at_ms), value, scale.text(value), kind)
        for run, value in zip(runs, values, strict=True)
    ]
    return PageChart(title, column_chart(bars, title, scale))
