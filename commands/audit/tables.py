"""How the report of an audit is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from bkctl.commands.audit.holdings import (
    BAD_COPY_TABLE,
    HOLDING_TABLE,
    bad_copy_rows,
    counts_text,
    holding_rows,
    inventory_total,
    only_bad_copies,
    report_row,
    requests_total,
)
from bkctl.commands.config import OutputForm, Settings
from bkctl.commands.context import CommandContext
from bkctl.commands.listing import RowOrder, parse_order
from bkctl.commands.rendering import Column, Lines, Row, Table, plain, state_words, time_text
from bkctl.runtime.replication.cluster_audit.comparison import (
    CHANGES,
    STATES,
    AuditChanges,
    AuditRun,
    CountChange,
    compare,
    listed_changes,
)
from bkctl.runtime.replication.cluster_audit.findings import (
    AuditVerdict,
    audit_findings,
    audit_verdict,
)
from bkctl.runtime.replication.cluster_audit.inventory_findings import AuditFinding
from bkctl.runtime.replication.cluster_audit.tables import TABLES, AuditReport
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.severity import word, worst
from bkctl.storage.words import decimal, listed, size

_BOOKIE_TABLE = Table(
    "Replication by bookie",
    Column("bookie_id", "BOOKIE"),
    Column("mode", "MODE"),
    Column("rack", "RACK", priority=5),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("open_ledgers", "OPEN", is_right=True, priority=3),
    Column("write_sets", "WRITE SETS", is_right=True, priority=6),
    Column("under_replicated_write_sets", "UNDER-REPLICATED", is_right=True),
    Column("last_copy_ledgers", "LAST COPIES", is_right=True, priority=1),
    Column("entry_copies", "ENTRIES", is_right=True, priority=4),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=2),
)
_LEDGER_TABLE = Table(
    "Under-replicated ledgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("ledger_state", "STATE", state_words, priority=2),
    Column("replication", "REPLICATION", state_words),
    Column("expected_copies", "COPIES", is_right=True),
    Column("live_copies_min", "LIVE", is_right=True),
    Column("ack_quorum_size", "QA", is_right=True, priority=2),
    Column("write_sets", "WRITE SETS", is_right=True, priority=4),
    Column("entry_count", "ENTRIES", is_right=True, priority=6),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=3),
    Column("created", "CREATED", priority=7),
    Column("is_closable", "CLOSABLE", priority=5),
    Column("missing_bookies", "MISSING BOOKIES", priority=1),
    Column("owner", "OWNER", priority=8),
)
_FINDING_TABLE = Table("AuditReport", *_LEDGER_TABLE.columns, Column("problem", "PROBLEM"), name="ledger_id")
_RACK_TABLE = Table(
    "Racks",
    Column("rack", "RACK"),
    Column("bookies_writable", "WRITABLE", is_right=True),
    Column("bookies_read_only", "READ-ONLY", is_right=True, priority=3),
    Column("bookies_unregistered", "UNREGISTERED", is_right=True, priority=2),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("open_ledgers", "OPEN", is_right=True, priority=1),
    Column("entry_copies", "ENTRIES", is_right=True, priority=4),
    Column("payload_bytes", "BYTES", size, is_right=True),
)
_GROUP_TABLE = Table(
    "Isolation groups",
    Column("group", "GROUP"),
    Column("bookies_writable", "WRITABLE", is_right=True),
    Column("bookies_read_only", "READ-ONLY", is_right=True, priority=2),
    Column("bookies_unregistered", "UNREGISTERED", is_right=True, priority=1),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("outside_ledgers", "OUTSIDE", is_right=True),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=3),
)
_OWNER_TABLE = Table(
    "Owners",
    Column("owner", "OWNER"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("open_ledgers", "OPEN", is_right=True, priority=1),
    Column("oldest_open", "OLDEST OPEN", priority=5),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=2),
    Column("copy_bytes", "BYTES OF COPIES", size, is_right=True),
    Column("under_replicated", "UNDER-REPLICATED", is_right=True, priority=3),
    Column("at_risk", "AT RISK", is_right=True, priority=2),
    Column("unavailable", "UNAVAILABLE", is_right=True, priority=1),
    Column("unclosable", "NOT CLOSABLE", is_right=True, priority=4),
    Column("ack_quorum_one", "QA 1", is_right=True, priority=6),
)
_AGE_TABLE = Table(
    "Ledgers that are not closed, by age",
    Column("age", "AGE"),
    Column("open_ledgers", "OPEN", is_right=True),
    Column("in_recovery_ledgers", "IN RECOVERY", is_right=True),
    Column("unclosable_ledgers", "NOT CLOSABLE", is_right=True),
)
_LOSS_TABLE = Table(
    "Ledgers that one more loss would affect",
    Column("name", "LOSS OF"),
    Column("bookies", "BOOKIES", is_right=True, priority=1),
    Column("lost_ledgers", "LOST", is_right=True),
    Column("unreadable_ledgers", "UNREADABLE", is_right=True),
    Column("unwritable_ledgers", "NOT WRITABLE", is_right=True),
    Column("unreplaceable_ledgers", "NO REPLACEMENT", is_right=True),
)
_MISPLACED_TABLE = Table(
    "Ledgers that break placement rules",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("ledger_state", "STATE", state_words, priority=1),
    Column("write_sets", "WRITE SETS", is_right=True),
    Column("racks_min", "RACKS", is_right=True),
    Column("isolation_groups", "GROUPS"),
    Column("secondary_groups", "SECONDARY GROUPS", priority=4),
    Column("outside_bookies", "OUTSIDE OF THEM", priority=2),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=3),
    Column("owner", "OWNER", priority=5),
)

_LEDGER_LISTS = ("under_replicated", "unreadable", "misplaced", "ack_quorum_one", "oldest_open", "unknown_ends")
"""Tables of a report whose names are also those of counts. In structured output, ``_ledgers`` follows them."""


_FINDINGS_TABLE = Table(
    "Findings",
    Column("severity", "SEVERITY"),
    Column("part", "PART", is_wide=True),
    Column("ledgers", "LEDGERS", is_right=True, is_wide=True),
    Column("finding", "FINDING"),
    Column("owners_text", "OWNERS", priority=1),
    Column("command", "COMMAND"),
)
_CHANGE_TABLE = Table(
    "Changed ledgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("change", "CHANGE"),
    Column("before", "BEFORE", state_words),
    Column("now", "NOW", state_words),
    Column("missing_bookies", "MISSING BOOKIES", priority=2),
    Column("owner", "OWNER", priority=1),
)
_COUNT_CHANGE_TABLE = Table(
    "Changed counts",
    Column("name", "COUNT"),
    Column("before", "BEFORE", is_right=True),
    Column("now", "NOW", is_right=True),
)
_TREND_TABLE = Table(
    "Trend",
    Column("run", "RUN"),
    Column("judged_at", "JUDGED", priority=4),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("missing_copies", "MISS COPIES", is_right=True),
    Column("lost", "LOST", is_right=True),
    Column("bad_copies", "BAD COPIES", is_right=True, priority=2),
    Column("lost_entries", "LOST ENTRIES", is_right=True, priority=2),
    Column("copies", "COPIES", is_right=True, priority=3),
    Column("live_copies", "LIVE", is_right=True, priority=2),
    Column("copy_bytes", "BYTES OF COPIES", size, is_right=True, priority=1),
)
_TOTALS_TABLE = Table("Totals", Column("name", "OF"), Column("sentence", "TOTAL"))
_LEDGERS_SHOWN_MAX = 10
"""Rows of a list of ledgers below the findings, unless --limit or -o wide ask for more: the verdict stays in sight."""
_OWNERS_SHOWN_MAX = 2


class PrintedAudit(NamedTuple):
    """A report and what is printed with it. ``out``: its directory, if it has one; ``seconds``: None if it was made
    earlier; ``before``: an earlier report to compare it with; ``has_losses``: whether the caller asked about losses;
    ``runs``: those of the series, this one last."""

    report: AuditReport
    out: str | None
    seconds: float | None = None
    before: AuditReport | None = None
    has_losses: bool = False
    runs: tuple[AuditRun, ...] = ()


def sort_fields() -> list[str]:
    """What ``--sort`` may name."""
    return [column.key for column in _FINDING_TABLE.columns]


def require_order(settings: Settings) -> RowOrder | None:
    """What ``--sort`` asks for, of the listed ledgers; InvalidArgumentError."""
    return None if settings.sort is None else parse_order(settings.sort, _FINDING_TABLE.columns)


def print_report(context: CommandContext, printed: PrintedAudit) -> None:
    """Print the report in the form that was chosen: for people the verdict first, then what to do."""
    console, report, order = context.console, printed.report, require_order(context.settings)
    rows: dict[str, list[Row]] = {
        name: [report_row(row) for row in getattr(report, name)] for name in TABLES if name != "summary"
    }
    unreadable_state = {"replication": ReplicationState.UNREADABLE.value}
    ledgers = sorted(
        [*rows["under_replicated"], *({**row, **unreadable_state} for row in rows["unreadable"])], key=_ledger_id
    )
    if order is not None:
        ledgers, rows["under_replicated"] = order.sorted(ledgers), order.sorted(rows["under_replicated"])
    lines = [*ledgers, *only_bad_copies(report, {_ledger_id(row) for row in ledgers})]
    if console.form is OutputForm.NAME:
        console.rows(_FINDING_TABLE, lines, is_truncated=report.is_truncated)
        return
    findings = audit_findings(report)
    verdict = audit_verdict(report, findings)
    changes = None if printed.before is None else compare(printed.before, report)
    if console.is_for_people:
        worst_first = ledgers if order is not None else sorted(ledgers, key=_severity_of_row)
        _print_for_people(context, printed, verdict, findings, changes, worst_first)
        if console.form is OutputForm.WIDE:
            _print_tables(context, printed, rows)
        return
    lists = {f"{name}_ledgers" if name in _LEDGER_LISTS else name: found for name, found in rows.items()}
    details = {
        "findings": [_finding_row(each) for each in findings],
        **console.cut(lists, is_truncated=report.is_truncated),
    }
    details["trend"] = [_trend_row(each) for each in printed.runs] if printed.runs else None
    details["changes"] = None if changes is None else _changes_body(context, changes)
    body = {
        "severity": word(worst(each.advice.severity for each in findings)),
        "verdict": verdict.sentence,
        **_body(printed),
    }
    console.record("AuditReport", body, details=details, lines=Lines(_FINDING_TABLE, lines))


_SHOWN_AS: dict[str, Callable[[object], str]] = {
    "payload_bytes": size,
    "copy_bytes": size,
    "bytes_read": size,
    "seconds": decimal,
}


def _body(printed: PrintedAudit) -> dict[str, object]:
    out = os.path.abspath(printed.out) if printed.out else None
    return {**report_row(printed.report.summary), "seconds": printed.seconds, "out": out}


def _finding_row(found: AuditFinding) -> dict[str, object]:
    advice = found.advice
    return {
        "severity": advice.severity.value,
        "part": advice.part,
        "ledgers": found.ledgers,
        "finding": advice.sentence,
        "command": advice.command,
        "owners": [msgspec.to_builtins(each) for each in found.owners],
        "owners_total": found.owners_total,
    }


def _changes_body(context: CommandContext, changes: AuditChanges) -> dict[str, object]:
    return {
        "before": time_text(changes.before_ms),
        **{change: changes.number(change) for change in CHANGES},
        "has_all": changes.has_all,
        "bookies_gone": changes.bookies_gone,
        "bookies_back": changes.bookies_back,
        "counts": [msgspec.to_builtins(each) for each in changes.counts],
        **context.console.cut({"ledgers": listed_changes(changes.ledgers)}, is_truncated=not changes.has_all),
    }


# --- for people ----------------------------------------------------------------------------------------------------


def _print_for_people(
    context: CommandContext,
    printed: PrintedAudit,
    verdict: AuditVerdict,
    findings: Sequence[AuditFinding],
    changes: AuditChanges | None,
    ledgers: Sequence[Row],
) -> None:
    console, report = context.console, printed.report
    rows_max = None if console.form is OutputForm.WIDE else _LEDGERS_SHOWN_MAX
    since = [] if changes is None else [f"since the report of {time_text(changes.before_ms)}: {changes}"]
    console.verdict(verdict.severity, verdict.sentence, *since)
    rows = []
    for each in findings:
        owners = [f"{owner.owner} ({owner.ledgers:,})" for owner in each.owners]
        text = listed(owners, _OWNERS_SHOWN_MAX, total=each.owners_total) if owners else None
        rows.append({**_finding_row(each), "owners_text": text})
    console.table(_FINDINGS_TABLE, rows, is_cut=False)
    console.table(_FINDING_TABLE.titled("Ledgers that miss copies or cannot be read"), ledgers, rows_max=rows_max)
    console.table(BAD_COPY_TABLE, bad_copy_rows(report), rows_max=rows_max)
    if changes is not None:
        console.table(_CHANGE_TABLE, listed_changes(changes.ledgers), rows_max=rows_max)
        console.table(_COUNT_CHANGE_TABLE, [_count_row(each) for each in changes.different_counts], is_cut=False)
    if printed.runs:
        shown = [_trend_row(each) for each in printed.runs]
        console.table(_TREND_TABLE, shown if rows_max is None else shown[-rows_max:], is_cut=False)
    if printed.has_losses:
        losses = [row for row in map(report_row, report.losses) if row["kind"] == "set"]
        console.table(_LOSS_TABLE, losses)
    console.table(_TOTALS_TABLE, _totals(printed), is_cut=False)
    if console.form is OutputForm.TABLE:
        console.say("-o wide shows all counts, and tables of bookies, racks, owners and losses")


def _trend_row(run: AuditRun) -> Row:
    row = report_row(run)
    return {name: value for name, value in row.items() if name not in {"owners", "bookies", "instance_id"}}


def _count_row(change: CountChange) -> Row:
    show = _SHOWN_AS.get(change.name, plain)
    return {"name": change.name, "before": show(change.before), "now": show(change.now)}


def _totals(printed: PrintedAudit) -> list[Row]:
    summary = printed.report.summary
    states = ((state_words(state.value), getattr(summary, state.value)) for state in ReplicationState)
    sizes = f"{size(summary.payload_bytes)} in one copy, {size(summary.copy_bytes)} in all copies"
    bookies = (
        (summary.bookies_writable, "writable"),
        (summary.bookies_read_only, "read-only"),
        (summary.bookies_named_unregistered, "not registered"),
    )
    refusing = sum(each.refusal is not None for each in printed.report.bookies)
    silent = sum(each.no_answer is not None for each in printed.report.bookies)
    unanswered = f"; {refusing} answered with an error" if refusing else ""
    unanswered += f"; {silent} did not answer" if silent else ""
    sources = dict.fromkeys((summary.ledgers_from, summary.bookies_from))
    totals = {
        "ledgers": f"{summary.ledgers:,}: {counts_text(states)}" if summary.ledgers else "0",
        "not closed": f"{summary.open_ledgers:,}" if summary.open_ledgers else None,
        "data": f"{sizes} ({summary.entries:,} entries of closed ledgers)" if summary.payload_bytes else None,
        "bookies": counts_text((name, number) for number, name in bookies) + unanswered,
        "copies": inventory_total(summary),
        "requests": requests_total(printed.report),
        "cluster": summary.metadata_uri or summary.instance_id,
        "judged": f"{time_text(summary.judged_at_ms)}, from {' and '.join(sources)}",
        "report": os.path.abspath(printed.out) if printed.out else None,
    }
    return [{"name": name, "sentence": total} for name, total in totals.items() if total is not None]


def _print_tables(context: CommandContext, printed: PrintedAudit, rows: dict[str, list[Row]]) -> None:
    console = context.console
    counts = [{"name": name, "sentence": _SHOWN_AS.get(name, plain)(value)} for name, value in _body(printed).items()]
    console.table(_TOTALS_TABLE.titled("Counts"), counts, is_cut=False, rows_max=len(counts))
    ages = [row for row in rows["open_ages"] if row["open_ledgers"] or row["in_recovery_ledgers"]]
    console.table(_BOOKIE_TABLE, rows["bookies"])
    console.table(_RACK_TABLE, rows["racks"])
    console.table(_GROUP_TABLE, rows["groups"])
    console.table(_OWNER_TABLE, rows["owners"])
    console.table(_AGE_TABLE, ages)
    console.table(_LOSS_TABLE, [row for row in rows["losses"] if _has_effect(row)])
    console.table(_MISPLACED_TABLE, rows["misplaced"])
    console.table(HOLDING_TABLE, holding_rows(printed.report))


def _has_effect(loss: Row) -> bool:
    """Whether a loss is worth a line: it affects ledgers, or the caller asked about it."""
    return loss["kind"] == "set" or any(loss[name] for name in loss if name.endswith("_ledgers"))


def _ledger_id(row: Row) -> int:
    return int(str(row["ledger_id"]))


def _severity_of_row(row: Row) -> tuple[int, int]:
    return -STATES.index(str(row["replication"])), _ledger_id(row)
