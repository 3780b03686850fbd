"""What the report of an inventory prints: tables of copies, and the totals."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec

from bkctl.commands.rendering import Column, Row, Table, time_text
from bkctl.runtime.replication.cluster_audit.inventory_tables import BadCopyRange, BookieInventory
from bkctl.runtime.replication.cluster_audit.tables import AuditReport, AuditSummary
from bkctl.runtime.replication.judge.fragments import EntryRange, format_ranges
from bkctl.storage.words import counted, size

HOLDING_TABLE = Table(
    "What bookies hold",
    Column("bookie_id", "BOOKIE"),
    Column("ledgers", "LEDGERS", is_right=True, priority=4),
    Column("expected_copies", "COPIES", is_right=True),
    Column("read_copies", "READ", is_right=True),
    Column("listed_copies", "LISTED", is_right=True),
    Column("unknown_copies", "UNKNOWN", is_right=True),
    Column("missing_copies", "MISSING", is_right=True),
    Column("corrupt_copies", "CORRUPT", is_right=True, priority=1),
    Column("failed_copies", "FAILED", is_right=True, priority=1),
    Column("different_copies", "DIFFERENT", is_right=True, priority=2),
    Column("unnamed_copies", "NOT NAMED", is_right=True, priority=2),
    Column("lists_unanswered", "NO LISTS", is_right=True, priority=3),
    Column("requests", "REQUESTS", is_right=True, priority=3),
    Column("ms_per_request", "MS PER REQUEST", is_right=True, priority=3),
)
BAD_COPY_TABLE = Table(
    "Bad copies",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("copy", "COPY"),
    Column("known_by", "KNOWN BY", priority=1),
    Column("copies", "COPIES", is_right=True),
    Column("entries", "ENTRIES"),
    Column("owner", "OWNER", priority=2),
)


def report_row(struct: Any) -> dict[str, object]:
    """A row of structured output: ids as text, times as text without ``_ms`` in their names."""
    row: dict[str, object] = {}
    for name, value in msgspec.to_builtins(struct).items():
        if name.endswith("_ms"):
            row[name.removesuffix("_ms")] = time_text(value)
        else:
            row[name] = str(value) if name.endswith(("ledger_id", "_entry_id")) else value
    return row


def counts_text(counts: Iterable[tuple[str, int]]) -> str:
    """The counts that are not 0."""
    return ", ".join(f"{number:,} {name}" for name, number in counts if number) or "none"


def holding_rows(report: AuditReport) -> list[Row]:
    """One row for each bookie."""
    return [{**report_row(row), "ms_per_request": _ms_per_request(row)} for row in report.holdings]


def _ms_per_request(row: BookieInventory) -> str | None:
    return f"{row.waited_us / row.requests / 1000:,.1f}" if row.requests else None


def bad_copy_rows(report: AuditReport) -> list[Row]:
    """One row for the bad copies of a ledger on one bookie that are alike."""
    found: dict[tuple[object, ...], tuple[BadCopyRange, list[EntryRange], int]] = {}
    for row in report.bad_copy_ranges:
        key = row.ledger_id, row.bookie_id, row.copy, row.known_by
        first, ranges, copies = found.get(key, (row, [], 0))
        ranges.append(EntryRange(row.first_entry_id, row.last_entry_id))
        found[key] = first, ranges, copies + row.copies
    return [
        {**report_row(first), "entries": format_ranges(ranges), "copies": copies}
        for first, ranges, copies in found.values()
    ]


def only_bad_copies(report: AuditReport, others: Collection[int]) -> list[Row]:
    """A row for each ledger with bad copies that the metadata alone does not show."""
    found: dict[int, tuple[BadCopyRange, set[str]]] = {}
    for row in report.bad_copy_ranges:
        if row.ledger_id not in others:
            found.setdefault(row.ledger_id, (row, set()))[1].add(row.bookie_id)
    return [
        {
            "ledger_id": str(ledger_id),
            "ledger_state": first.ledger_state,
            "replication": "bad_copies",
            "missing_bookies": sorted(bookies),
            "created": time_text(first.created_ms),
            "owner": first.owner,
        }
        for ledger_id, (first, bookies) in found.items()
    ]


def inventory_total(summary: AuditSummary) -> str | None:
    """How the copies are known, if an inventory was taken."""
    if summary.inventory is None:
        return None
    names = {"read_copies": "read", "listed_copies": "listed", "bad_copies": "bad", "unknown_copies": "unknown"}
    counts = counts_text((name, getattr(summary, field)) for field, name in names.items())
    total = f"{summary.expected_copies:,}: {counts}; {size(summary.bytes_read)} read"
    if summary.left_out_ledgers is None:
        return total
    ledgers = counted(summary.inventory_ledgers or 0, "ledger")
    return f"{total}; of {ledgers}, with no time for {summary.left_out_ledgers:,}"


def requests_total(report: AuditReport) -> str | None:
    """What bookies were asked, and which of them was slowest, if an inventory was taken."""
    asked = [row for row in report.holdings if row.requests]
    if not asked:
        return None
    slowest = max(asked, key=lambda row: row.waited_us / row.requests)
    requests, waited_us = sum(row.requests for row in asked), sum(row.waited_us for row in asked)
    each = f"{waited_us / requests / 1000:,.1f} ms each; slowest: {slowest.bookie_id}, {_ms_per_request(slowest)} ms"
    return f"{requests:,} to {counted(len(asked), 'bookie')}, {each}"
