"""``bkctl audit``: how well every ledger is replicated, from metadata and registrations alone."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commands.command import command, group
from commands.config import OutputForm
from commands.context import CommandContext
from commands.errors import InvalidArgumentError, Outcome
from commands.rendering import Column, Lines, Table, decimal, size
from commands.session import open_session, require_metadata_uri

if TYPE_CHECKING:
    from runtime.metadata.bookies.registration import Registrations
    from runtime.replication.audit_report import AuditReport


_BOOKIE_TABLE = Table(
    "Replication by bookie",
    Column("bookie_id", "BOOKIE"),
    Column("mode", "MODE"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("write_sets", "WRITE SETS", is_right=True, priority=4),
    Column("under_replicated_write_sets", "UNDER-REPLICATED", is_right=True),
    Column("last_copy_ledgers", "LAST COPIES", is_right=True, priority=1),
    Column("entry_copies", "ENTRIES", is_right=True, priority=3),
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
    Column("entry_count", "ENTRIES", is_right=True, priority=3),
    Column("missing_bookies", "MISSING BOOKIES"),
)
_FINDING_TABLE = Table("AuditReport", *_LEDGER_TABLE.columns, Column("problem", "PROBLEM"), name="ledger_id")
_UNREADABLE_TABLE = Table(
    "Unreadable ledgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("problem", "PROBLEM"),
)


@command("audit", example="audit", is_cut=True)
def audit(
    context: CommandContext,
    is_spark: Annotated[bool, typer.Option("--spark", help="Run on Spark; executors read ZooKeeper directly")] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write the result as Parquet datasets to this new directory"),
    ] = None,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, metavar="N", help="Cores for Spark (default: all)")
    ] = None,
) -> Outcome:
    """Count live copies, and list under-replicated ledgers.

    Copies are counted by metadata and registered bookies; bkctl ledger verify reads the entries. A bookie that ledgers
    reference and that is not registered counts as unregistered. The result is the same with and without --spark. -o csv
    has one row, and -o name one id, for each ledger that misses copies or cannot be read. Exits with 10 if there is
    one.
    """
    from commands.event_loop import run_to_end, sigterm_as_error

    if cores is not None and not is_spark:
        raise InvalidArgumentError("--cores needs --spark")
    started_s = time.monotonic()
    if is_spark:
        from runtime.metadata.zookeeper.embedded import find_java

        find_java("Spark")  # without Java, Spark fails after seconds with a long error
        from spark_reports.report import audit_with_spark

        registrations = run_to_end(_registrations(context))
        # Outside of the event loop: the job blocks, and Spark needs the signals.
        with sigterm_as_error():
            report = audit_with_spark(
                require_metadata_uri(context),
                registrations,
                zookeeper=context.settings.zookeeper,
                out_directory=out,
                cores=cores,
                on_starting=lambda: context.console.say("starting Spark on this machine"),
            )
    else:
        report = run_to_end(_audit_plainly(context, out))
    _print(context, report, out, time.monotonic() - started_s)
    return Outcome.FINDINGS if report.summary.has_findings else Outcome.OK


async def _registrations(context: CommandContext) -> Registrations:
    """The registrations; ClusterNotFoundError before Spark is started."""
    async with open_session(context, must_exist=False) as session:
        return await session.registrations.snapshot()


async def _audit_plainly(context: CommandContext, out: str | None) -> AuditReport:
    from spark_reports.report import audit_plainly

    async with open_session(context, must_exist=False) as session:
        ledgers = await session.ledgers()
        registrations = await session.registrations.snapshot()
        with context.console.progress("auditing") as progress:
            return await audit_plainly(ledgers, registrations, out_directory=out, on_progress=progress.update)


def _ledger_id(row: dict[str, object]) -> int:
    return int(str(row["ledger_id"]))


def _print(context: CommandContext, report: AuditReport, out: str | None, seconds: float) -> None:
    from runtime.replication.audit import ReplicationState

    console = context.console
    under_replicated = [_row(ledger) for ledger in report.under_replicated]
    unreadable = [_row(ledger) for ledger in report.unreadable]
    unreadable_state = {"replication": ReplicationState.UNREADABLE.value}
    findings = sorted([*under_replicated, *(row | unreadable_state for row in unreadable)], key=_ledger_id)
    if console.form is OutputForm.NAME:
        console.rows(_FINDING_TABLE, findings, is_truncated=report.is_truncated)
        return
    bookies = [_row(bookie) for bookie in report.bookies]
    body = _row(report.summary) | {"seconds": round(seconds, 3), "out": os.path.abspath(out) if out else None}
    details = console.cut(
        {"bookies": bookies, "under_replicated_ledgers": under_replicated, "unreadable_ledgers": unreadable},
        is_truncated=report.is_truncated,
    )
    console.record(
        "AuditReport",
        body,
        show={"payload_bytes": size, "seconds": decimal},
        details=details,
        lines=Lines(_FINDING_TABLE, findings),
    )
    console.table(_BOOKIE_TABLE, bookies)
    console.table(_LEDGER_TABLE, under_replicated)
    console.table(_UNREADABLE_TABLE, unreadable)


def _row(struct: Any) -> dict[str, object]:
    import msgspec

    row: dict[str, object] = msgspec.to_builtins(struct)
    if "ledger_id" in row:
        row["ledger_id"] = str(row["ledger_id"])
    return row


app = group("", audit)
