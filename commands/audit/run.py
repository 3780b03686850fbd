"""``bkctl audit run``, or ``bkctl audit``: how well ledgers are replicated, from metadata and registrations alone."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from bkctl.commands.audit.earlier import Compare, read_earlier
from bkctl.commands.audit.facts import AuditQuestions, parse_losses, read_facts, with_request
from bkctl.commands.audit.file import URI_MARK, audit_file, open_cluster_file
from bkctl.commands.audit.findings import FAIL_ON_DEFAULT, FailOn, parse_fail_on, verdict
from bkctl.commands.audit.ledger_progress import LedgerProgress
from bkctl.commands.audit.on_spark import audit_on_spark
from bkctl.commands.audit.tables import PrintedAudit, print_report, require_order
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.event_loop import run_to_end
from bkctl.commands.outages import report_outage
from bkctl.commands.session import open_session
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.spark_reports.audit import audit_plainly
from bkctl.spark_reports.audit_files import write_page

RUN = "run"


@command(RUN, example="audit run", is_listing=True)
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
    compare: Compare = None,
) -> Outcome:
    """Count live copies, and list under-replicated ledgers.

    Copies are counted by metadata and registered bookies; bkctl ledger verify reads the entries. -o csv has one row,
    and -o name one id, for each ledger that misses copies or cannot be read.
    """
    for option, value in (("--cores", cores), ("--master", master)):
        if value is not None and not is_spark:
            raise InvalidArgumentError(f"{option} needs --spark")
    if ledgers_root is not None and source is None:
        raise InvalidArgumentError("--ledgers-root needs --from")
    kinds = parse_fail_on(fail_on)
    require_order(context.settings)
    request = AuditQuestions(parse_losses(what_if or ()), *read_earlier(compare))
    started_s = time.monotonic()
    if is_spark:
        report = audit_on_spark(context, request, out, master, cores, source, ledgers_root)
    elif source is not None:
        if URI_MARK in source:
            raise InvalidArgumentError(f"{source} needs --spark: only Spark reads files of other file systems")
        with open_cluster_file(context, source, ledgers_root) as (cluster, facts):
            report = run_to_end(audit_file, context, cluster, with_request(facts, request), out)
    else:
        report = run_to_end(_audit_plainly, context, request, out)
    _finish_files(context, report, request, out)
    seconds = round(time.monotonic() - started_s, 3)
    print_report(context, PrintedAudit(report, out, seconds, request.before, bool(request.losses)))
    return verdict(context, report.summary, kinds)


def _finish_files(context: CommandContext, report: AuditReport, request: AuditQuestions, out: str | None) -> None:
    if out is not None and request.before is not None:
        write_page(out, report, request.before)
    if out is not None and not has_package("pyarrow"):
        context.console.warn(
            "only HTML and JSON were written, because Parquet needs PyArrow: pip install 'bkctl[spark]'"
        )


async def _audit_plainly(context: CommandContext, request: AuditQuestions, out: str | None) -> AuditReport:
    on_outage = partial(report_outage, context.console)
    async with open_session(context, must_exist=False, on_outage=on_outage) as session:
        ledgers = await session.ledgers()
        facts = with_request(await read_facts(context, session), request)
        with context.console.progress("auditing") as progress:
            total = await ledgers.estimate_count() if progress.is_shown else None
            return await audit_plainly(
                [ledgers.read_all()], facts, out_directory=out, on_progress=LedgerProgress(progress, total).show
            )
