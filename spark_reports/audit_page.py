"""The report of an audit as one HTML page that needs no other file and no network. Pure.

Names of owners and racks come from metadata that others write: the template escapes all values, and the page's own
policy forbids it to load anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from markupsafe import Markup

from bkctl.runtime.replication.cluster_audit.comparison import AuditChanges, AuditRun
from bkctl.runtime.replication.cluster_audit.findings import (
    audit_findings,
    audit_verdict,
    bookie_severities,
    state_severities,
)
from bkctl.runtime.replication.cluster_audit.inventory_findings import AuditFinding
from bkctl.runtime.replication.cluster_audit.tables import AuditReport, AuditSummary, BookieReplication
from bkctl.spark_reports.charts import RUNS_SHOWN_MAX, Bar, PageChart, Scale, bar_chart, stacked_bar, trend_charts
from bkctl.spark_reports.page_tables import (
    PRINTED_ROWS_MAX,
    changes_table,
    ledger_reasons,
    page_tables,
    time_words,
)
from bkctl.storage.severity import OK, Severity, word
from bkctl.storage.words import capitalized, duration, size

if TYPE_CHECKING:
    from jinja2 import Template

CHART_BARS_MAX = 30
_SHORT_TEXT_MAX = 16
"""Characters of text, such as the name of a state, that stays on one line in a table."""
_SHORT_NUMBER_MAX = 10
"""The same of numbers with their units; times break between date and time."""
_SHORT_WORD_MAX = 22
"""The same of words, such as an address with a comma."""
_PART_OF_NAME = re.compile(rf"[^/.]{{1,{_SHORT_WORD_MAX}}}[/.]*|[/.]+")

_TILES = {
    "replicated": ("replicated", "Every write set has as many live copies as its write quorum (Qw)."),
    "empty": ("empty", "Closed without entries: nothing can be lost."),
    "under_replicated": ("under-replicated", "Some entries have fewer live copies than Qw, but at least as "
        "many as the ack quorum (Qa)."),
    "at_risk": ("at risk", "Some entries have fewer live copies than Qa, but at least one."),
    "unavailable": ("unavailable", "Some entries have no live copy, but a bookie that has one may come "
        "back."),
    "lost": ("lost", "Some entries have no copy on a bookie that is registered or has a cookie."),
    "given_up": ("loss accepted", "Some entries have no copy, and an operator accepted that."),
    "unreadable": ("unreadable", "The metadata cannot be read, so the copies are unknown."),
}  # fmt: skip
"""Each ledger counts in one of these, by its worst write set: name, and what it means."""

_KINDS = {"replicated": OK, "empty": "quiet"}
"""Colours of tiles that no finding is about; the others have those of their findings' severity."""

_PROPERTIES = {
    "one_copy": ("one live copy left", "Some entries have one live copy, although they should have more."),
    "unclosable": ("cannot be closed", "Not closed, and too few bookies of the last segment are registered to prove "
        "where it ends."),
    "unwritable": ("cannot accept writes", "Open, and some write set has fewer writable bookies than Qa."),
    "unreplaceable": ("cannot replace a bookie", "Open, and its writer finds too few writable bookies to replace those "
        "that accept no writes."),
    "breaking_racks": ("in too few racks", "A write set is in fewer racks or regions than the placement rules ask "
        "for."),
    "outside_groups": ("outside of their groups", "A copy is on a bookie that the isolation groups of the ledger do "
        "not admit."),
    "one_rack": ("in one rack", "A write set of several bookies is in one rack."),
    "rack_unknown": ("of unknown placement", "A write set may break the placement rules: the rack of a bookie is "
        "unknown."),
    "ack_quorum_one": ("with an ack quorum of 1", "An acknowledged entry may have had one copy."),
    "write_quorum_one": ("with a write quorum of 1", "Each entry has one copy by design."),
}  # fmt: skip
"""Counts of ledgers that may overlap: name, and what it means."""


class PageCount(msgspec.Struct, frozen=True):
    """A number of ledgers with its name. ``kind`` is the CSS class of its colour, unless the number is 0."""

    label: str
    value: int
    meaning: str
    kind: str = ""


def report_page(
    report: AuditReport,
    changes: AuditChanges | None = None,
    runs: Sequence[AuditRun] = (),
    complete: Callable[[str], str] = str,
) -> str:
    """The whole page; with ``changes`` since an earlier report, and the trend of ``runs``, the earlier ones and this,
    the oldest first. ``complete``: adds to the commands in a text the options for their cluster."""
    summary = report.summary
    findings = audit_findings(report)
    verdict = audit_verdict(report, findings)
    tiles, reasons = page_tiles(summary, findings), ledger_reasons(report)
    return _template().render(
        verdict=verdict,
        severity=word(verdict.severity),
        complete=complete,
        explain=complete("bkctl ledger explain"),
        findings=findings,
        judged_at=time_words(summary.judged_at_ms),
        file_written=None if summary.file_written_ms is None else time_words(summary.file_written_ms),
        file_age=duration(max(0, summary.judged_at_ms - (summary.file_written_ms or 0)) / 1000),
        summary=summary,
        payload=size(summary.payload_bytes),
        copies=size(summary.copy_bytes),
        tiles=tiles,
        properties=_properties(summary),
        states_svg=stacked_bar(
            [Bar(each.label, each.value, f"{each.value:,}", each.kind) for each in tiles],
            "Ledgers by the state of their worst write set",
            Scale("percent of all ledgers", lambda percent: f"{percent} %"),
        ),
        charts=_charts(report),
        trend=trend_charts(runs),
        runs_shown=min(len(runs), RUNS_SHOWN_MAX),
        runs_total=len(runs),
        changes=changes,
        changes_sentence=None if changes is None else capitalized(str(changes)),
        changed_since=None if changes is None else time_words(changes.before_ms),
        changed_counts=[] if changes is None else _changed_counts(changes),
        tables=[
            *([changes_table(changes)] if changes is not None and changes.ledgers else []),
            *page_tables(report),
        ],
        reasons=reasons,
        linked={each.ledger_id for each in reasons},
        printed_rows_max=PRINTED_ROWS_MAX,
        short_text_max=_SHORT_TEXT_MAX,
        short_number_max=_SHORT_NUMBER_MAX,
    )


def page_tiles(summary: AuditSummary, findings: Sequence[AuditFinding]) -> list[PageCount]:
    """Numbers of ledgers that add up to all of them."""
    kinds = _KINDS | {state: found.value for state, found in state_severities(findings).items()}
    values = {kind: getattr(summary, kind) for kind in _TILES}
    values["unavailable"] -= values["lost"]
    return [
        PageCount(label, values[key], meaning, kinds.get(key, "quiet"))
        for key, (label, meaning) in _TILES.items()
        if key != "given_up" or values[key]
    ]


def _properties(summary: AuditSummary) -> list[PageCount]:
    """Those that are known and not 0."""
    return [
        PageCount(label, value, meaning)
        for key, (label, meaning) in _PROPERTIES.items()
        if (value := getattr(summary, key))
    ]


def _changed_counts(changes: AuditChanges) -> list[tuple[str, str, str]]:
    def text(name: str, value: int | None) -> str:
        if value is None:
            return "unknown"
        return size(value) if name.endswith("_bytes") else f"{value:,}"

    return [
        (each.name.replace("_", " "), text(each.name, each.before), text(each.name, each.now))
        for each in changes.different_counts
    ]


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  most audits write no page

    environment = Environment(
        loader=PackageLoader("bkctl.spark_reports", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = "{:,}".format
    environment.filters["breakable"] = _breakable
    return environment.get_template("audit_page.html")


def _breakable(text: str) -> Markup:
    """Lines break between words, and in long ones, such as names of topics and hosts, after their parts first."""
    if len(text) <= _SHORT_TEXT_MAX:
        return Markup.escape(text)
    words = Markup(" ").join(
        Markup('<span class="short">{}</span>').format(word)
        if _SHORT_TEXT_MAX // 2 < len(word) <= _SHORT_WORD_MAX
        else Markup("<wbr>").join(_PART_OF_NAME.findall(word))
        for word in text.split(" ")
    )
    return Markup("<span>{}</span>").format(words)


def _charts(report: AuditReport) -> list[PageChart]:
    by_bytes = sorted(report.bookies, key=lambda bookie: -bookie.payload_bytes)
    in_bytes = Scale("bytes of copies", size, base=2)
    ages = [
        Bar(each.age, count, f"{count:,}")
        for each in report.open_ages
        if (count := each.open_ledgers + each.in_recovery_ledgers)
    ]
    severities = bookie_severities(report)
    charts = [
        ("Bytes by bookie", in_bytes, [_bookie_bar(each, severities.get(each.bookie_id)) for each in by_bytes]),
        ("Bytes by rack", in_bytes, [_bytes_bar(each.rack or "unknown", each.payload_bytes) for each in report.racks]),
        ("Bytes by owner", in_bytes, [_bytes_bar(each.owner, each.copy_bytes) for each in report.owners]),
        ("Ledgers that are not closed, by age", Scale("ledgers", "{:,}".format), ages),
    ]
    return [
        PageChart(_chart_title(title, len(bars)), bar_chart(bars[:CHART_BARS_MAX], title, scale))
        for title, scale, bars in charts
        if bars
    ]


def _chart_title(title: str, bars: int) -> str:
    return title if bars <= CHART_BARS_MAX else f"{title}: {CHART_BARS_MAX} of {bars:,}"


def _bookie_bar(bookie: BookieReplication, severity: Severity | None) -> Bar:
    label = bookie.bookie_id if bookie.mode == "writable" else f"{bookie.bookie_id}, {bookie.mode.replace('_', '-')}"
    if bookie.no_answer is not None or bookie.refusal is not None:
        label += ", does not answer" if bookie.refusal is None else ", answers with an error"
    return _bytes_bar(label, bookie.payload_bytes, word(severity))


def _bytes_bar(label: str, value: int, kind: str = "neutral") -> Bar:
    return Bar(label, value, size(value), kind)
