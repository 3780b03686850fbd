"""The option ``--compare``, and reading the reports of earlier audits."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from bkctl.commands.errors import NotFoundError, unreadable_file
from bkctl.runtime.optional_packages import require_package
from bkctl.storage.words import counted

if TYPE_CHECKING:
    from bkctl.runtime.replication.cluster_audit.comparison import AuditRun
    from bkctl.runtime.replication.cluster_audit.tables import AuditReport

Compare: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--compare",
        metavar="OLD",
        help="Show changes since a report, or the newest in a directory of reports",
    ),
]


def read_stored(path: str) -> AuditReport:
    """The report in a directory of ``bkctl audit --out``, or in its JSON file; NotFoundError, InvalidArgumentError,
    MetadataFormatError."""
    from bkctl.spark_reports.audit_files import read_report  # a help page needs the option alone
    from bkctl.spark_reports.series import runs_in

    try:
        return read_report(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and os.path.isdir(path) and (names := runs_in(path)):
            newest = os.path.join(path, names[-1])
            reports = counted(len(names), "report")
            raise NotFoundError(f"{path} has {reports}: name one of them, like {newest}") from error
        raise unreadable_file(str(error.filename or path), error) from error


class EarlierReports(NamedTuple):
    """What ``--compare`` names: an earlier report, its path for messages, and if it is one of a series, the runs of
    that up to it, the oldest first."""

    before: AuditReport | None = None
    path: str = ""
    runs: tuple[AuditRun, ...] = ()


def read_earlier(path: str | None, before_ms: int = sys.maxsize, out: str | None = None) -> EarlierReports:
    """Read one report or, in a directory of reports, all that were made before this time.

    ``out``: where the new report goes; in this directory it may be the first. NotFoundError if there is none otherwise,
    so that a misspelt path is no empty series; ConfigurationError without PyArrow; ConflictError if they are of several
    clusters.
    """
    is_first = path is not None and out is not None and os.path.dirname(os.path.abspath(out)) == os.path.abspath(path)
    if path is None or (is_first and not os.path.lexists(path)):
        return EarlierReports()
    from bkctl.spark_reports.output import REPORT_JSON  # a help page needs the option alone

    if not os.path.isdir(path) or os.path.exists(os.path.join(path, REPORT_JSON)):
        return EarlierReports(read_stored(path), path)
    from bkctl.runtime.replication.cluster_audit.comparison import earlier_runs
    from bkctl.spark_reports.series import read_run, runs_in

    try:
        names = runs_in(path)
    except OSError as error:
        raise unreadable_file(path, error) from error
    if names:
        require_package("pyarrow", f"{path} has several reports: reading their Parquet needs PyArrow")
    runs = earlier_runs([read_run(path, name) for name in names], before_ms)
    if not runs and is_first:
        return EarlierReports()
    if not runs:
        which = "no earlier report" if names else "no report"
        raise NotFoundError(f"{path} has {which}: name a directory that bkctl audit --out wrote, or one of such")
    newest = os.path.join(path, runs[-1].run)
    return EarlierReports(read_stored(newest), newest, runs)
