"""``bkctl ledger verify``: read every entry from every bookie that should have it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from commands.command import command
from commands.config import OutputForm
from commands.context import CommandContext
from commands.errors import InvalidArgumentError, Outcome
from commands.parse import parse_ledger_id
from commands.rendering import Column, Lines, Table, counted, decimal, size
from commands.session import open_session

if TYPE_CHECKING:
    from runtime.replication.checker import CheckTotals, LedgerCheck

_ROWS_MAX = 100_000
_TABLE = Table(
    "LedgerVerification",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "STATE", priority=6),
    Column("entries", "ENTRIES", is_right=True, priority=5),
    Column("copies_expected", "COPIES", is_right=True),
    Column("copies_good", "GOOD", is_right=True),
    Column("copies_missing", "MISSING", is_right=True, priority=1),
    Column("copies_corrupt", "CORRUPT", is_right=True, priority=1),
    Column("copies_failed", "FAILED", is_right=True, priority=2),
    Column("copies_unreachable", "UNREACHABLE", is_right=True, priority=1),
    Column("copies_different", "DIFFERENT", is_right=True, priority=3),
    Column("lost", "LOST ENTRIES"),
    Column("unreadable", "UNREADABLE ENTRIES", is_wide=True),
    Column("problem", "PROBLEM"),
    name="ledger_id",
)
_DEFECT_TABLE = Table(
    "Bad copies",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("state", "COPY"),
    Column("copies", "COPIES", is_right=True, priority=2),
    Column("entries", "ENTRIES", priority=1),
    Column("reason", "REASON"),
)


@command("verify", example="ledger verify 17 18", is_cut=True)
async def verify(
    context: CommandContext,
    ledgers: Annotated[list[str] | None, typer.Argument(metavar="[LEDGER]...", help="Ledger ids")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All ledgers of the cluster")] = False,
) -> Outcome:
    """Read every entry from every bookie that should have it, and check digests and equality.

    Reads only; fences nothing. Copies that are missing, corrupt, failed (the bookie answers with an error), unreachable
    (no answer) or different are counted separately. With --all, ledgers without problems are not listed. -o csv has one
    row for each listed ledger. A bookie that does not answer is asked a second time; then its copies count as
    unreachable. Exits with 10 if there is any problem.
    """
    if is_all and ledgers:
        raise InvalidArgumentError(f"--all means every ledger: omit {' '.join(ledgers)} or --all")
    if not is_all and not ledgers:
        raise InvalidArgumentError("specify ledger IDs or --all")
    named = [parse_ledger_id(text) for text in dict.fromkeys(ledgers or ())]
    from runtime.metadata.pipeline import each_of
    from runtime.replication.checker import LedgerChecker

    checks: list[LedgerCheck] = []
    is_truncated = False
    ledgers_total = len(named)
    started_s = time.monotonic()
    async with open_session(context, must_exist=False) as session:
        client = await session.client()
        live = (await session.registrations.snapshot()).live
        checker = LedgerChecker(client.ports, live, context.settings.replication)
        ids = client.ports.ledgers.list_ids() if is_all else each_of(named)
        with context.console.progress("verifying") as progress:
            if is_all and progress.is_shown:  # listing ids costs little compared with reading entries
                ledgers_total = await client.ports.ledgers.count()

            def take(check: LedgerCheck, totals: CheckTotals) -> None:
                nonlocal is_truncated
                note = f"{counted(totals.copies_good, 'good copy', 'good copies')}, {size(totals.bytes_read)}"
                progress.update(totals.ledgers, max(totals.ledgers, ledgers_total), note)
                if not is_all or not (check.is_clean or check.is_deleted):
                    if len(checks) < _ROWS_MAX:
                        checks.append(check)
                    else:
                        is_truncated = True

            totals = await checker.check_all(ids, take)
            progress.update(totals.ledgers, totals.ledgers)  # ledgers may have been created or deleted meanwhile
    checks.sort(key=lambda check: check.ledger_id)
    present = [check for check in checks if not check.is_deleted]
    _print(context, totals, present, time.monotonic() - started_s, is_truncated=is_truncated)
    _require_all_found(named, present)
    return Outcome.OK if totals.ledgers == totals.ledgers_clean else Outcome.FINDINGS


def _print(
    context: CommandContext,
    totals: CheckTotals,
    checks: Sequence[LedgerCheck],
    seconds: float,
    *,
    is_truncated: bool,
) -> None:
    import msgspec

    rows = [_row(check) for check in checks]
    defects = [_defect_row(check, index) for check in checks for index in range(len(check.defects))]
    body: dict[str, object] = {"ledgers": totals.ledgers, "ledgers_clean": totals.ledgers_clean}
    body |= msgspec.to_builtins(totals)
    body["seconds"] = round(seconds, 3)
    console = context.console
    details = console.cut({"items": rows, "defects": defects}, is_truncated=is_truncated)
    if console.form is OutputForm.NAME:
        console.rows(_TABLE, rows, is_truncated=is_truncated)
        return
    show = {"bytes_read": size, "seconds": decimal}
    console.record("LedgerVerification", body, show=show, details=details, lines=Lines(_TABLE, rows))
    console.table(_TABLE.titled("Ledgers"), rows)
    console.table(_DEFECT_TABLE, defects)


def _require_all_found(named: Sequence[int], present: Sequence[LedgerCheck]) -> None:
    from runtime.errors import LedgerNotFoundError

    absent = set(named) - {check.ledger_id for check in present}
    if absent:
        raise LedgerNotFoundError(min(absent), "no such ledger")


def _row(check: LedgerCheck) -> dict[str, object]:
    from runtime.replication.fragments import format_ranges

    return {
        "ledger_id": str(check.ledger_id),
        "state": check.ledger_state,
        "last_entry_id": str(check.last_entry_id) if check.last_entry_id >= 0 else None,
        "is_clean": check.is_clean,
        "entries": check.entries,
        "copies_expected": check.copies_expected,
        "copies_good": check.copies_good,
        "copies_missing": check.copies_missing,
        "copies_corrupt": check.copies_corrupt,
        "copies_failed": check.copies_failed,
        "copies_unreachable": check.copies_unreachable,
        "copies_different": check.copies_different,
        "lost": format_ranges(check.lost) or None,
        "unreadable": format_ranges(check.unreadable) or None,
        "problem": check.problem,
    }


def _defect_row(check: LedgerCheck, index: int) -> dict[str, object]:
    from runtime.replication.fragments import format_ranges

    defect = check.defects[index]
    return {
        "ledger_id": str(check.ledger_id),
        "bookie_id": defect.bookie_id,
        "state": defect.state.value,
        "copies": defect.copies,
        "entries": format_ranges(defect.entries),
        "reason": defect.reason,
    }
