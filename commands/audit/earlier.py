"""The option ``--compare``, and reading the report of an earlier audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from bkctl.commands.errors import unreadable_file

if TYPE_CHECKING:
    from bkctl.runtime.replication.cluster_audit.tables import AuditReport

Compare: TypeAlias = Annotated[
    str | None,
    typer.Option("--compare", metavar="OLD", help="Show what changed since this report: its directory or JSON file"),
]


def read_stored(path: str) -> AuditReport:
    """The report in a directory of ``bkctl audit --out``, or in its JSON file; NotFoundError, InvalidArgumentError,
    MetadataFormatError."""
    from bkctl.spark_reports.audit_files import read_report  # a help page needs the option alone

    try:
        return read_report(path)
    except OSError as error:
        raise unreadable_file(str(error.filename or path), error) from error


def read_earlier(path: str | None) -> tuple[AuditReport | None, str]:
    """The report of ``--compare``, and its path, for messages."""
    return (None, "") if path is None else (read_stored(path), path)
