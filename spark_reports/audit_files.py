"""The report itself in its directory: ``report.json`` for programs, ``report.html`` for people."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.new_file import write_whole
from bkctl.runtime.replication.cluster_audit.tables import TABLES, AuditReport
from bkctl.runtime.replication.cluster_audit.trend import AuditRun
from bkctl.spark_reports.audit_page import report_page
from bkctl.spark_reports.output import REPORT_JSON, REPORT_PAGE

_IDS = ("ledger_id", "last_ledger_id", "first_entry_id", "last_entry_id")


class ReportFile(AuditReport, frozen=True, kw_only=True):
    """``report.json``: a report in the envelope of all structured output. Ids of ledgers are strings there."""

    apiVersion: Literal["bkctl/v1"] = "bkctl/v1"  # noqa: N815  spelling of the structured output contract
    kind: Literal["AuditReport"] = "AuditReport"


def write_report_files(directory: str, report: AuditReport) -> None:
    """Write both files; OSError."""
    body = msgspec.to_builtins(report)
    for name in TABLES:
        for row in body[name] if isinstance(body[name], list | tuple) else ():
            row |= {
                each: str(row[each])
                for each in ("ledger_id", "last_ledger_id", "first_entry_id", "last_entry_id")
                if each in row
            }
    head = {"apiVersion": "bkctl/v1", "kind": "AuditReport"}
    text = msgspec.json.format(msgspec.json.encode(head | body), indent=1) + b"\n"
    write_whole(os.path.join(directory, REPORT_JSON), text)
    write_page(directory, report)


def write_page(
    directory: str, report: AuditReport, before: AuditReport | None = None, runs: Sequence[AuditRun] = ()
) -> None:
    """Write the page, or replace it by one that also shows what changed since ``before``, and the trend; OSError."""
    write_whole(os.path.join(directory, REPORT_PAGE), report_page(report, before, runs).encode())


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
