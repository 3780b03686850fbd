"""``bkctl audit run``, or ``bkctl audit``: how well ledgers are replicated, from metadata and registrations alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from bkctl.commands.audit.facts import parse_losses, read_facts, with_losses
from bkctl.commands.audit.file import URI_MARK, audit_file, open_cluster_file
from bkctl.commands.audit.findings import FAIL_ON_DEFAULT, FailOn, parse_fail_on, verdict
from bkctl.commands.audit.ledger_progress import LedgerProgress
from bkctl.commands.audit.on_spark import audit_on_spark
from bkctl.commands.audit.tables import print_report
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.event_loop import run_to_end
from bkctl.commands.outages import report_outage
from bkctl.commands.session import open_session
from bkctl.runtime.replication.cluster_audit.facts import Loss
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.spark_reports.audit import audit_plainly

RUN = "run"


@command(RUN, example="audit run", is_cut=True)
def audit(
    context: CommandContext,
    is_spark: Annotated[bool, typer.Option("--spark", help="Run on Spark; the result is the same")] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", help="Write the report here: HTML, JSON and Parquet"),
    ] = None,
    fail_on: FailOn = FAIL_ON_DEFAULT,
    cores: Annotated[
        int | None, typer.Option("--cores", min=1, metavar="N", help="Cores for Spark (default: all)")
    ] = None,
    master: Annotated[
        str | None,
        typer.Option(
            "--master", metavar="URL", help="Run on this Spark master, e.g. spark://host:7077 (default: here)"
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="PATH", help="Read a ZooKeeper snapshot, or a cluster backup"),
    ] = None,
    ledgers_root: Annotated[
        str | None,
        typer.Option("--ledgers-root", metavar="PATH", help="Ledgers root in PATH (default: /ledgers)"),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="ID,...", help="Show what the loss of bookies or rack:/PATH would do"),
    ] = None,
) -> Outcome:
    """Count live copies, and list under-replicated ledgers.

    Copies are counted by metadata and registered bookies; bkctl ledger verify reads the entries. -o csv has one row,
    and -o name one id, for each ledger that misses copies or cannot be read.
    """
    if cores is not None and not is_spark:
        raise InvalidArgumentError("--cores needs --spark")
    if master is not None and not is_spark:
        raise InvalidArgumentError("--master needs --spark")
    if ledgers_root is not None and source is None:
        raise InvalidArgumentError("--ledgers-root needs --from")
    kinds = parse_fail_on(fail_on)
    losses = parse_losses(what_if or ())
    started_s = time.monotonic()
    if is_spark:
        report = audit_on_spark(context, losses, out, master, cores, source, ledgers_root)
    elif source is not None:
        if URI_MARK in source:
            raise InvalidArgumentError(f"{source} needs --spark: only Spark reads files of other file systems")
        with open_cluster_file(context, source, ledgers_root) as (cluster, facts):
            report = run_to_end(audit_file, context, cluster, with_losses(facts, losses), out)
    else:
        report = run_to_end(_audit_plainly, context, losses, out)
    print_report(context, report, out=out, seconds=round(time.monotonic() - started_s, 3))
    return verdict(context, report.summary, kinds)


async def _audit_plainly(context: CommandContext, losses: Sequence[Loss], out: str | None) -> AuditReport:
    on_outage = partial(report_outage, context.console)
    async with open_session(context, must_exist=False, on_outage=on_outage) as session:
        ledgers = await session.ledgers()
        facts = with_losses(await read_facts(context, session), losses)
        with context.console.progress("auditing") as progress:
            total = await ledgers.estimate_count() if progress.is_shown else None
            return await audit_plainly(
                [ledgers.read_all()], facts, out_directory=out, on_progress=LedgerProgress(progress, total).show
            )
