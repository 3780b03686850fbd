"""``bkctl bookie restart-check``: whether bookies can be stopped now without harm to readers and writers."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import Outcome
from bkctl.commands.parse import parse_bookie_id
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import open_session
from bkctl.runtime.replication.judge.stop_verdict import StopVerdict
from bkctl.runtime.replication.survey.stop_scan import scan_for_stop
from bkctl.storage.words import first_lines, size

OBJECTION_TABLE = Table(
    "Reasons",
    Column("severity", "SEVERITY"),
    Column("reason", "REASON"),
    Column("ledgers", "LEDGERS", is_right=True),
    Column("detail", "DETAIL"),
    Column("ledger_ids", "LEDGER IDS", priority=1),
)
_IDS_SHOWN_MAX = 10


@command("restart-check", example="bookie restart-check b1.example.com:3181 || exit 1")
async def restart_check(
    context: CommandContext,
    bookie_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Bookies to stop at the same time")],
) -> Outcome:
    """Check whether bookies can be stopped now.

    Reads the metadata of all ledgers. The answer is no if entries would have no running copy, an open ledger could not
    be closed, a writer would find no other bookie, ledgers of a size in use could not be created, the racks would not
    suffice, another bookie is down or does not answer, or ledgers are marked as under-replicated. Bookies with full
    disks count as unable to take over. Changes nothing. Exits with 0 for yes, with 10 for no.
    """
    for bookie_id in bookie_ids:
        parse_bookie_id(bookie_id)
    async with open_session(context) as session:
        ports = (await session.client()).ports
        parts = (ports, session.store)
        with context.console.progress("reading ledgers") as progress:
            verdict = await scan_for_stop(
                *parts, bookie_ids, foreign=session.foreign, on_progress=lambda done: progress.update(done, None)
            )
    print_verdict(context, verdict)
    return Outcome.OK if verdict.is_yes else Outcome.FINDINGS


def print_verdict(context: CommandContext, verdict: StopVerdict) -> None:
    """Print the verdict; in table format with the reasons below it."""
    rows = objection_rows(verdict)
    body = {
        "bookie_ids": list(verdict.bookie_ids),
        "can_stop": verdict.is_yes,
        "ledgers_scanned": verdict.ledgers_scanned,
        "ledgers_on_them": verdict.ledgers_on_them,
        "open_ledgers_on_them": verdict.open_ledgers_on_them,
        "bytes_on_them": verdict.bytes_on_them,
        "writable_after": list(verdict.writable_after),
    }
    context.console.record("RestartCheck", body, show={"bytes_on_them": size}, details={"reasons": rows})
    context.console.table(OBJECTION_TABLE, [row | {"ledger_ids": _shown(row["ledger_ids"])} for row in rows])


def objection_rows(verdict: StopVerdict) -> list[dict[str, object]]:
    """One row for each reason of a group of ledgers, those that refuse first: they are critical."""
    return [
        {
            "severity": each.severity.value,
            "reason": each.reason.value,
            "ledgers": each.ledgers,
            "detail": each.detail,
            "ledger_ids": [str(ledger_id) for ledger_id in each.ledger_ids],
        }
        for each in (*verdict.reasons, *verdict.warnings)
    ]


def _shown(ledger_ids: object) -> list[str]:
    assert isinstance(ledger_ids, list)
    return first_lines(ledger_ids, _IDS_SHOWN_MAX)
