"""``bkctl audit show``: the report of an earlier audit."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.audit.earlier import Compare, read_earlier, read_stored
from bkctl.commands.audit.findings import FAIL_ON_DEFAULT, FailOn, parse_fail_on, require_inventory
from bkctl.commands.audit.outcome import outcome
from bkctl.commands.audit.tables import PrintedAudit, print_report, require_order
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.runtime.replication.cluster_audit.comparison import require_comparable
from bkctl.spark_reports.series import with_run


@command("show", example="audit show /var/reports/today", is_listing=True, is_local=True)
def show(
    context: CommandContext,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory that bkctl audit --out wrote")],
    fail_on: FailOn = FAIL_ON_DEFAULT,
    compare: Compare = None,
) -> Outcome:
    """Print the report of an earlier audit, with its exit code.

    DIR/report.html is the same report as a page for a browser.
    """
    kinds = parse_fail_on(fail_on)
    require_order(context.settings)
    report = read_stored(directory)
    require_inventory(kinds, has_inventory=report.summary.inventory is not None)
    before, path, runs = read_earlier(compare, report.summary.judged_at_ms)
    if before is not None:
        require_comparable(before, report.summary.instance_id, path)
    shown = PrintedAudit(report, directory, before=before, runs=with_run(runs, report, directory))
    print_report(context, shown)
    return outcome(context, report, kinds)
