"""How the report of an audit is printed."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.rendering import Column, Lines, Row, Table, time_text
from bkctl.runtime.replication.cluster_audit.tables import TABLES, AuditReport, severity_of
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.severity import word
from bkctl.storage.words import decimal, size

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
    Column("ledger_state", "STATE", priority=1),
    Column("replication", "REPLICATION"),
    Column("expected_copies", "COPIES", is_right=True),
    Column("live_copies_min", "LIVE", is_right=True),
    Column("ack_quorum_size", "QA", is_right=True, priority=2),
    Column("write_sets", "WRITE SETS", is_right=True, priority=4),
    Column("entry_count", "ENTRIES", is_right=True, priority=6),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=3),
    Column("created", "CREATED", priority=7),
    Column("is_closable", "CLOSABLE", priority=5),
    Column("missing_bookies", "MISSING BOOKIES"),
    Column("owner", "OWNER", priority=8),
)
_FINDING_TABLE = Table("AuditReport", *_LEDGER_TABLE.columns, Column("problem", "PROBLEM"), name="ledger_id")
_UNREADABLE_TABLE = Table(
    "Unreadable ledgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("problem", "PROBLEM"),
)
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
    Column("ledger_state", "STATE", priority=1),
    Column("write_sets", "WRITE SETS", is_right=True),
    Column("racks_min", "RACKS", is_right=True),
    Column("payload_bytes", "BYTES", size, is_right=True, priority=2),
    Column("owner", "OWNER", priority=3),
)

_LEDGER_LISTS = ("under_replicated", "unreadable", "misplaced", "ack_quorum_one", "oldest_open")
"""Tables of a report whose names are also those of counts. In structured output, ``_ledgers`` follows them."""


def print_report(context: CommandContext, report: AuditReport, *, out: str | None, seconds: float | None) -> None:
    """Print the report in the form that was chosen. ``out``: its directory, if it has one; ``seconds``: None if it was
    made earlier."""
    console = context.console
    rows: dict[str, list[Row]] = {
        name: [_row(row) for row in getattr(report, name)] for name in TABLES if name != "summary"
    }
    unreadable_state = {"replication": ReplicationState.UNREADABLE.value}
    findings = sorted(
        [*rows["under_replicated"], *({**row, **unreadable_state} for row in rows["unreadable"])], key=_ledger_id
    )
    if console.form is OutputForm.NAME:
        console.rows(_FINDING_TABLE, findings, is_truncated=report.is_truncated)
        return
    lists = {f"{name}_ledgers" if name in _LEDGER_LISTS else name: found for name, found in rows.items()}
    console.record(
        "AuditReport",
        {
            "severity": word(severity_of(report.summary)),
            **_row(report.summary),
            "seconds": seconds,
            "out": os.path.abspath(out) if out else None,
        },
        show={"payload_bytes": size, "copy_bytes": size, "seconds": decimal},
        details=console.cut(lists, is_truncated=report.is_truncated),
        lines=Lines(_FINDING_TABLE, findings),
    )
    console.table(_BOOKIE_TABLE, rows["bookies"])
    console.table(_RACK_TABLE, rows["racks"])
    console.table(_OWNER_TABLE, rows["owners"])
    console.table(_AGE_TABLE, [row for row in rows["open_ages"] if row["open_ledgers"] or row["in_recovery_ledgers"]])
    console.table(_LOSS_TABLE, [row for row in rows["losses"] if _has_effect(row)])
    console.table(_MISPLACED_TABLE, rows["misplaced"])
    console.table(_LEDGER_TABLE, rows["under_replicated"])
    console.table(_UNREADABLE_TABLE, rows["unreadable"])


def _has_effect(loss: Row) -> bool:
    """Whether a loss is worth a line: it affects ledgers, or the caller asked about it."""
    return loss["kind"] == "set" or any(loss[name] for name in loss if name.endswith("_ledgers"))


def _ledger_id(row: Row) -> int:
    return int(str(row["ledger_id"]))


def _row(struct: Any) -> dict[str, object]:
    """A row of structured output: ids as text, times as text without ``_ms`` in their names."""
    row: dict[str, object] = {}
    for name, value in msgspec.to_builtins(struct).items():
        if name.endswith("_ms"):
            row[name.removesuffix("_ms")] = time_text(value)
        else:
            row[name] = str(value) if name == "ledger_id" else value
    return row
