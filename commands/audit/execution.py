"""One run of ``bkctl audit``: counts, then writes and prints the report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from bkctl.commands.audit.earlier import read_earlier
from bkctl.commands.audit.facts import AuditQuestions, parse_losses, read_facts, with_request
from bkctl.commands.audit.file import audit_file, open_cluster_file
from bkctl.commands.audit.inventory import InventoryPlan, inventory_plan, write_bad_copies
from bkctl.commands.audit.inventory_options import InventoryFlags
from bkctl.commands.audit.ledger_progress import LedgerProgress
from bkctl.commands.audit.on_spark import audit_on_spark
from bkctl.commands.audit.outcome import outcome
from bkctl.commands.audit.place import choose_place
from bkctl.commands.audit.tables import PrintedAudit, print_report, require_order
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.event_loop import run_to_end
from bkctl.commands.outages import report_outage
from bkctl.commands.session import open_session
from bkctl.runtime.client.access import require_access
from bkctl.runtime.optional_packages import has_package
from bkctl.runtime.replication.cluster_audit.tables import AuditReport
from bkctl.runtime.replication.survey.inventory import CopyInventory
from bkctl.spark_reports.audit import audit_plainly
from bkctl.spark_reports.series import with_run


class AuditInput(NamedTuple):
    """Values of the options. ``spark``: master and cores; None: without Spark."""

    out: str | None
    spark: tuple[str | None, int | None] | None
    source: str | None
    ledgers_root: str | None
    what_if: tuple[str, ...]
    compare: str | None
    inventory: InventoryFlags


def execute(context: CommandContext, given: AuditInput, kinds: Sequence[str]) -> Outcome:
    """Audit, write the files, print; the outcome by the kinds of ``--fail-on``."""
    out = given.out
    require_order(context.settings)
    request = AuditQuestions(parse_losses(given.what_if), read_earlier(given.compare, out=out))
    plan = inventory_plan(given.inventory, context.settings)
    place = choose_place(context, given.source, given.ledgers_root, given.spark)
    started_s = time.monotonic()
    if place.deployment is not None:
        report = audit_on_spark(context, place, place.deployment, request, out, plan)
    elif place.file is not None:
        with open_cluster_file(context, place.file, place.ledgers_root) as (cluster, facts):
            report = run_to_end(audit_file, context, cluster, facts, request, out)
    else:
        report = run_to_end(_audit_plainly, context, request, out, plan)
    write_bad_copies(report)
    before, runs = request.earlier.before, with_run(request.earlier.runs, report, out)
    _warn_of_no_parquet(context, out)
    seconds = round(time.monotonic() - started_s, 3)
    is_kept = out is not None
    try:
        print_report(context, PrintedAudit(report, out, seconds, before, bool(request.losses), runs))
        found = outcome(context, report, kinds)
        is_kept = True
    finally:  # last: an error here must not cost the result. The reader of the output may have gone before its end
        if plan is not None and is_kept:
            plan.remember(report)
    return found


def _warn_of_no_parquet(context: CommandContext, out: str | None) -> None:
    if out is not None and not has_package("pyarrow"):
        context.console.warn(
            "only HTML and JSON were written, because Parquet needs PyArrow: pip install 'bkctl[spark]'"
        )


async def _audit_plainly(
    context: CommandContext, request: AuditQuestions, out: str | None, plan: InventoryPlan | None
) -> AuditReport:
    on_outage = partial(report_outage, context.console)
    async with open_session(context, must_exist=False, on_outage=on_outage) as session:
        ledgers = await session.ledgers()
        facts = with_request(await read_facts(context, session), request)
        with context.console.progress("auditing") as progress:
            total, inventory = await ledgers.estimate_count() if progress.is_shown else None, None
            if plan is not None:
                ports = (await session.client()).ports
                await require_access(ports)
                wanted = plan.for_cluster(session, facts.instance_id)
                inventory = wanted.way, CopyInventory(ports, facts.registrations.live, wanted, facts.given_up)
            return await audit_plainly(
                [ledgers.read_all()],
                facts,
                out_directory=out,
                on_progress=LedgerProgress(progress, total).show,
                inventory=inventory,
                extras=request.extras(context),
            )
