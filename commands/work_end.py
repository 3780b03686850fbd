"""How commands that move ledgers or write copies end: the verdict, then the findings; the counters with ``-o wide``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from bkctl.commands.config import OutputForm
from bkctl.commands.console import Console
from bkctl.commands.recovery_rendering import (
    FAILURE_TABLE,
    REPORT_SHOW,
    failure_lines,
    failure_rows,
    report_body,
    shortened,
)
from bkctl.commands.rendering import Column, Lines, Row, Table
from bkctl.runtime.replication.judge.advice import GivenUpLedger
from bkctl.runtime.replication.judge.left_ledgers import LeftGroup, Shortage, after_recovery, last_step, left_groups
from bkctl.runtime.replication.run.recovery import RecoveryReport
from bkctl.storage.severity import Severity, word, worst
from bkctl.storage.words import counted, duration, size

_FINDING_TABLE = Table(
    "Findings",
    Column("severity", "SEVERITY"),
    Column("count", "LEDGERS", is_right=True),
    Column("finding", "FINDING"),
    Column("ledger_ids", "IDS"),
    Column("command", "COMMAND"),
    Column("owner", "OWNER OF THE FIRST", is_wide=True),
    Column("detail", "FIRST", is_wide=True),
)
_FENCED_TABLE = Table("Fenced ledgers", Column("ledger_id", "LEDGER", is_right=True), Column("owner", "OWNER"))
_BAD_COPIES_TABLE = Table(
    "Bad copies that stay",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("state", "COPY"),
    Column("entries", "ENTRIES"),
)


class Verdict(NamedTuple):
    """What the work has come to, in one sentence, and more that follows from it. ``severity`` None: all is well."""

    severity: Severity | None
    sentence: str
    notes: tuple[str, ...] = ()


def print_end(
    console: Console,
    kind: str,
    body: Row,
    verdict: Verdict,
    *,
    details: Row,
    show: Mapping[str, Callable[[object], str]] | None = None,
    tables: Sequence[tuple[Table, Sequence[Row]]],
    wide_tables: Sequence[tuple[Table, Sequence[Row]]] = (),
    name: str | None = None,
    lines: Lines | None = None,
) -> None:
    """Print the verdict, then the report: ``tables`` for people, all fields with ``-o wide`` and in other formats."""
    console.verdict(verdict.severity, verdict.sentence, *verdict.notes)
    for table, rows in tables:
        console.table(table, rows)
    if not console.is_for_people:
        body = {"severity": word(verdict.severity), "verdict": verdict.sentence, **body}
    if console.form is not OutputForm.TABLE:
        console.record(kind, body, name=name, show=show, details=details, lines=lines)
    for table, rows in wide_tables if console.form is OutputForm.WIDE else ():
        console.table(table, rows)


def print_recoveries(
    console: Console,
    kind: str,
    body: Row,
    verdict: Verdict,
    recoveries: Sequence[RecoveryReport],
    groups: Sequence[LeftGroup],
) -> None:
    """The end of a recovery or of a drain; ``groups``: what is left."""
    failures = [row for each in recoveries for row in failure_rows(each)]
    fenced = [{"ledger_id": str(each.ledger_id), "owner": each.owner} for one in recoveries for each in one.fenced]
    bad = [
        {
            "ledger_id": str(each.ledger_id),
            "bookie_id": each.bookie_id,
            "state": each.state.value,
            "entries": [str(entries) for entries in each.entries],
        }
        for report in recoveries
        for each in report.defects
    ]
    bad_ids = list(dict.fromkeys(row["ledger_id"] for row in bad))
    if bad_ids and not console.is_for_people:
        console.warn(
            f"{counted(len(bad_ids), 'ledger')} with bad copies on bookies that stay: {shortened(bad_ids)}: "
            "run bkctl recover ledger"
        )
    rows = [_finding(each) for each in groups]
    if bad_ids:
        command = f"bkctl recover ledger {bad_ids[0]}"
        rows.append(_row(Severity.WARNING, "bad copies on bookies that stay", bad_ids, command))
    if fenced:
        ids = [each["ledger_id"] for each in fenced]
        rows.append(_row(Severity.INFORMATION, "closed first, which stops a writer that still runs", ids, None))
    print_end(
        console,
        kind,
        body,
        verdict,
        details={"failures": failures, "fenced": fenced, "bad_copies": bad},
        show=REPORT_SHOW,
        tables=[(_FINDING_TABLE, rows)],
        wide_tables=[
            (FAILURE_TABLE, [line for row in failures for line in failure_lines(row)]),
            (_FENCED_TABLE, fenced),
            (_BAD_COPIES_TABLE, [{**row, "entries": shortened(row["entries"])} for row in bad]),
        ],
    )


def _finding(group: LeftGroup) -> dict[str, object]:
    finding = group.left.sentence(len(group.ledger_ids)) + (f" ({group.remedy})" if group.remedy else "")
    row = _row(group.severity, finding, [str(each) for each in group.ledger_ids], group.command)
    return {**row, "owner": group.owner, "detail": group.detail}


def _row(severity: Severity, finding: str, ledger_ids: Sequence[object], command: str | None) -> dict[str, object]:
    return {
        "severity": severity.value,
        "count": len(ledger_ids),
        "finding": finding,
        "ledger_ids": shortened(list(ledger_ids)),
        "command": command,
    }


def moved_sentence(recoveries: Sequence[RecoveryReport]) -> str:
    """What was moved, like "95 ledgers moved (3.1 GiB in 40 s)"; the time from a second on."""
    ledgers = sum(each.ledgers_repaired + each.ledgers_repaired_by_others for each in recoveries)
    bytes_copied, seconds = sum(each.bytes_copied for each in recoveries), sum(each.seconds for each in recoveries)
    time = f" in {duration(seconds)}" if seconds >= 1 else ""
    amount = f" ({size(bytes_copied)}{time})" if bytes_copied else ""
    return f"{counted(ledgers, 'ledger')} moved{amount}"


def left_sentence(groups: Sequence[LeftGroup]) -> str:
    """What is left, like "45 left: 40 have no live copy (start b3:3181), 5 wait for their writers"."""
    if not groups:
        return "none left"
    number = sum(len(each.ledger_ids) for each in groups)
    return f"{number:,} left: {', '.join(each.sentence for each in groups)}"


def print_recovery(
    console: Console,
    report: RecoveryReport,
    accepted: Mapping[int, GivenUpLedger],
    again: Callable[[Collection[str]], str],
    back: Sequence[str],
    shortage: Shortage,
) -> None:
    """Print the end of a recovery. ``again``: the command that continues it without some of the bookies.

    ``back``: those of the bookies that serve again. ``shortage``: see ``left_groups``."""
    groups = left_groups(report.failures, report.bookie_ids, accepted=accepted, back=back, shortage=shortage)
    sentence = f"{moved_sentence([report])}, {left_sentence(groups)}"
    last = last_step(report.failures, report.bookie_ids, accepted, back)
    sentence += after_recovery(groups, report.bookie_ids, again, last, back)
    verdict = Verdict(worst(each.severity for each in groups), sentence, tuple(filter(None, [last.sentence])))
    print_recoveries(console, "RecoveryReport", report_body(report), verdict, [report], groups)
