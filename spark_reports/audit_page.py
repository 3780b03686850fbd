"""The report of an audit as one HTML page that needs no other file and no network. Pure.

Names of owners and racks come from metadata that others write: the template escapes all values, and the page's own
policy forbids it to load anything.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from functools import cache

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from bkctl.runtime.replication.cluster_audit.tables import (
    SEVERITIES,
    TABLES,
    AuditReport,
    AuditSummary,
    BookieReplication,
)
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.spark_reports.charts import Bar, bar_chart, stacked_bar
from bkctl.storage.words import duration, size

TABLE_ROWS_MAX = 1000
"""Rows of one table on the page; a page of all of them would be too large for a browser."""
CHART_BARS_MAX = 30

_TIME_LIMIT_MS = 253_402_300_800_000
"""The year 10000: metadata may contain any number."""

_TITLES = {
    "losses": "What if these bookies were lost",
    "under_replicated": "Ledgers with missing copies",
    "unreadable": "Ledgers whose metadata cannot be read",
    "bookies": "Bookies",
    "racks": "Racks",
    "owners": "Owners",
    "misplaced": "Ledgers in too few racks",
    "ack_quorum_one": "Ledgers with an ack quorum of 1",
    "oldest_open": "Oldest ledgers that are not closed",
}
"""The tables of the page, in its order."""

_NOTES = {
    "losses": "Ledgers that would get into this state, if a bookie or a whole rack were lost in addition to those that "
    "are gone now.",
}

_COUNT_LABELS = {
    "unavailable": "unavailable: no live copy",
    "lost": "lost: no copy on any bookie of the cluster",
    "unreadable": "unreadable metadata",
    "at_risk": "at risk: fewer live copies than Qa",
    "one_copy": "at one copy",
    "under_replicated": "under-replicated",
    "unclosable": "not closed, and cannot be closed",
    "unwritable": "open, and cannot accept writes",
    "ack_quorum_one": "with an ack quorum of 1",
    "misplaced": "in too few racks",
}
"""The numbers at the top of the page, in its order."""

_STATE_KINDS = {
    ReplicationState.REPLICATED: "good",
    ReplicationState.EMPTY: "neutral",
    ReplicationState.UNDER_REPLICATED: "warning",
    ReplicationState.AT_RISK: "at-risk",
    ReplicationState.UNAVAILABLE: "critical",
    ReplicationState.UNREADABLE: "unknown",
}
_MODE_KINDS = {"writable": "good", "read_only": "warning", "unregistered": "critical"}


class PageCell(msgspec.Struct, frozen=True):
    """A cell: its text, and the number that it is sorted by (None: sorted as text)."""

    text: str
    number: int | None = None


class PageTable(msgspec.Struct, frozen=True):
    """A table of the page. ``numbers``: columns that are sorted by number. ``rows_total`` counts rows left out, too."""

    name: str
    title: str
    note: str
    headings: tuple[str, ...]
    numbers: frozenset[int]
    rows: tuple[tuple[PageCell, ...], ...]
    rows_total: int


class PageCount(msgspec.Struct, frozen=True):
    """A number at the top of the page. ``severity`` is the CSS class of its colour, unless the number is 0."""

    label: str
    value: int
    severity: str


class PageChart(msgspec.Struct, frozen=True):
    """A chart with its title."""

    title: str
    svg: Markup


def report_page(report: AuditReport) -> str:
    """The whole page."""
    summary = report.summary
    return _template().render(
        judged_at=_time(summary.judged_at_ms),
        file_written=None if summary.file_written_ms is None else _time(summary.file_written_ms),
        file_age=duration(max(0, summary.judged_at_ms - (summary.file_written_ms or 0)) / 1000),
        summary=summary,
        payload=size(summary.payload_bytes),
        copies=size(summary.copy_bytes),
        counts=_counts(summary),
        states=_states(summary),
        states_svg=stacked_bar(_states(summary), "Ledgers by the state of their worst write set"),
        charts=_charts(report),
        tables=[page_table(report, name) for name in _TITLES if getattr(report, name)],
    )


def page_table(report: AuditReport, name: str) -> PageTable:
    """One of the report's tables, at most ``TABLE_ROWS_MAX`` rows of it."""
    found = getattr(report, name)
    fields = TABLES[name].__struct_fields__
    rows = tuple(
        tuple(_cell(field, getattr(row, field)) for field in fields)
        for row in _worst_first(name, found)[:TABLE_ROWS_MAX]
    )
    return PageTable(
        name=name,
        title=_TITLES[name],
        note=_NOTES.get(name, ""),
        headings=tuple(_heading(field) for field in fields),
        numbers=frozenset(index for row in rows for index, cell in enumerate(row) if cell.number is not None),
        rows=rows,
        rows_total=_total(report.summary, name, len(found)),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("bkctl.spark_reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("audit_page.html")


def _counts(summary: AuditSummary) -> list[PageCount]:
    values = {kind: getattr(summary, kind) for kind in _COUNT_LABELS}
    return [
        PageCount(_COUNT_LABELS[kind], value, SEVERITIES[kind].value)
        for kind, value in values.items()
        if value is not None
    ]


def _states(summary: AuditSummary) -> list[Bar]:
    return [
        Bar(state.value.replace("_", "-"), count, f"{count:,}", kind)
        for state, kind in _STATE_KINDS.items()
        if (count := getattr(summary, state.value))
    ]


def _charts(report: AuditReport) -> list[PageChart]:
    by_bytes = sorted(report.bookies, key=lambda bookie: -bookie.payload_bytes)
    charts = [
        ("Bytes by bookie", [_bookie_bar(each) for each in by_bytes]),
        ("Bytes by rack", [_bytes_bar(each.rack or "unknown", each.payload_bytes) for each in report.racks]),
        ("Bytes by owner", [_bytes_bar(each.owner, each.copy_bytes) for each in report.owners]),
        (
            "Ledgers that are not closed, by age",
            [
                Bar(each.age, count, f"{count:,}")
                for each in report.open_ages
                if (count := each.open_ledgers + each.in_recovery_ledgers)
            ],
        ),
    ]
    return [
        PageChart(_chart_title(title, len(bars)), bar_chart(bars[:CHART_BARS_MAX], title))
        for title, bars in charts
        if bars
    ]


def _chart_title(title: str, bars: int) -> str:
    return title if bars <= CHART_BARS_MAX else f"{title}: {CHART_BARS_MAX} of {bars:,}"


def _bookie_bar(bookie: BookieReplication) -> Bar:
    label = bookie.bookie_id if bookie.mode == "writable" else f"{bookie.bookie_id}, {bookie.mode.replace('_', '-')}"
    return _bytes_bar(label, bookie.payload_bytes, _MODE_KINDS[bookie.mode])


def _bytes_bar(label: str, value: int, kind: str = "neutral") -> Bar:
    return Bar(label, value, size(value), kind)


def _heading(field: str) -> str:
    for end, words in (("_bytes", " bytes"), ("_ms", ""), ("_id", ""), ("_size", "")):
        if field.endswith(end):
            field = field.removesuffix(end) + words
    return field.removeprefix("is_").replace("_", " ")


def _cell(field: str, value: object) -> PageCell:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return PageCell(_text(field, value), value if is_number else None)  # type: ignore[arg-type]


def _text(field: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if not isinstance(value, int) or field == "ledger_id":
        return str(value)
    if field.endswith("_ms"):
        return _time(value)
    return size(value) if field.endswith("_bytes") else f"{value:,}"


def _time(time_ms: int) -> str:
    """Minutes, in UTC."""
    if not 0 <= time_ms < _TIME_LIMIT_MS:
        return str(time_ms)
    return datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _worst_first(name: str, rows: Sequence[msgspec.Struct]) -> Sequence[msgspec.Struct]:
    if name == "under_replicated":
        severity = {state.value: -number for number, state in enumerate(ReplicationState)}
        rows = sorted(rows, key=lambda row: severity[row.replication])  # type: ignore[attr-defined]
    return rows


def _total(summary: AuditSummary, name: str, rows: int) -> int:
    match name:
        case "under_replicated":
            return summary.under_replicated + summary.at_risk + summary.unavailable
        case "oldest_open":
            return summary.open_ledgers
        case "unreadable" | "misplaced" | "ack_quorum_one":
            return getattr(summary, name) or 0
        case _:
            return rows
