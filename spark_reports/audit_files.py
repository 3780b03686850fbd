"""The report itself in its directory: ``report.json`` for programs, ``report.html`` for people."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from typing import Literal, NamedTuple

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.new_file import write_whole
from bkctl.runtime.replication.cluster_audit.comparison import AuditRun, compare
from bkctl.runtime.replication.cluster_audit.tables import TABLES, AuditReport
from bkctl.spark_reports.audit_page import report_page
from bkctl.spark_reports.output import REPORT_JSON, REPORT_PAGE
from bkctl.spark_reports.series import with_run

_IDS = ("ledger_id", "last_ledger_id", "first_entry_id", "last_entry_id")


class ReportFile(AuditReport, frozen=True, kw_only=True):
    """``report.json``: a report in the envelope of all structured output. Ids of ledgers are strings there."""

    apiVersion: Literal["bkctl/v1"] = "bkctl/v1"  # noqa: N815  spelling of the structured output contract
    kind: Literal["AuditReport"] = "AuditReport"


class ReportExtras(NamedTuple):
    """What the files have besides the report: what changed since ``before``, an earlier one, and in the page the trend
    of the ``earlier`` runs and this one. ``complete``: adds to the commands in a text the options for their cluster."""

    before: AuditReport | None = None
    earlier: tuple[AuditRun, ...] = ()
    complete: Callable[[str], str] = str


NO_EXTRAS = ReportExtras()


def write_report_files(directory: str, report: AuditReport, extras: ReportExtras = NO_EXTRAS) -> None:
    """Write both files; OSError."""
    changes = None if extras.before is None else compare(extras.before, report)
    body = msgspec.to_builtins(report)
    lists = [body[name] for name in TABLES if isinstance(body[name], list | tuple)]
    if changes is not None:
        body["changes"] = msgspec.to_builtins(changes)
        lists.append(body["changes"]["ledgers"])
    for row in chain.from_iterable(lists):
        row |= {each: str(row[each]) for each in _IDS if each in row}
    head = {"apiVersion": "bkctl/v1", "kind": "AuditReport"}
    text = msgspec.json.format(msgspec.json.encode(head | body), indent=1) + b"\n"
    write_whole(os.path.join(directory, REPORT_JSON), text)
    page = report_page(report, changes, with_run(extras.earlier, report, directory), extras.complete)
    write_whole(os.path.join(directory, REPORT_PAGE), page.encode())


def read_report(path: str) -> AuditReport:
    """The report in a directory of ``bkctl audit --out``, or in its JSON file; OSError; MetadataFormatError if it is
    none, or damaged."""
    path = os.path.join(path, REPORT_JSON) if os.path.isdir(path) else path
    with open(path, "rb") as file:
        data = file.read()
    try:
        return msgspec.json.decode(data, type=ReportFile, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        reason = f"is not the report of an audit, or is damaged: {error}"
        if _is_printed_audit(data):
            reason = "is what bkctl audit -o json prints, which has less than a report"
        fix = f"a report is a directory that bkctl audit --out DIR wrote, or its {REPORT_JSON}"
        raise MetadataFormatError(f"{path} {reason}; {fix}") from error


class _Printed(msgspec.Struct):
    """What tells printed output of an audit from its report."""

    kind: Literal["AuditReport"]
    verdict: str


def _is_printed_audit(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=_Printed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True
