"""``bkctl audit show``: the report of an earlier audit."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.audit.findings import FAIL_ON_DEFAULT, FailOn, parse_fail_on, verdict
from bkctl.commands.audit.tables import print_report
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome, unreadable_file
from bkctl.spark_reports.audit_files import read_report


@command("show", example="audit show /var/reports/today", is_cut=True, is_local=True)
def show(
    context: CommandContext,
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory that bkctl audit --out wrote")],
    fail_on: FailOn = FAIL_ON_DEFAULT,
) -> Outcome:
    """Print the report of an earlier audit, with its exit code.

    DIR/report.html is the same report as a page for a browser.
    """
    kinds = parse_fail_on(fail_on)
    try:
        report = read_report(directory)
    except OSError as error:
        raise unreadable_file(str(error.filename or directory), error) from error
    print_report(context, report, out=directory, seconds=None)
    return verdict(context, report.summary, kinds)
