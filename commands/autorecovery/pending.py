"""``bkctl autorecovery pending``: ledgers that are marked as under-replicated."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from commands.autorecovery.access import readable
from commands.command import command
from commands.context import CommandContext
from commands.errors import Outcome
from commands.listing import require_no_listing_options
from commands.parse import parse_duration_s
from commands.rendering import Column, Table, time_text
from commands.session import Session, open_session

if TYPE_CHECKING:
    from runtime.metadata.replication.marks import ListedMark


def show_age(value: object) -> str:
    """Seconds as the largest unit that fits, for tables."""
    if not isinstance(value, int):
        return "-"
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if value >= seconds:
            return f"{value // seconds}{unit}"
    return f"{value}s"


_TABLE = Table(
    "PendingLedgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("missing_bookies", "MISSING"),
    Column("age_s", "AGE", show_age, is_right=True),
    Column("marked_at", "MARKED", is_wide=True),
    Column("locked", "LOCKED", is_wide=True),
    Column("worker", "WORKER"),
    Column("problem", "PROBLEM"),
    name="ledger_id",
)


@command("pending", example="autorecovery pending --stuck-for 1h", is_listing=True)
async def list_pending(
    context: CommandContext,
    missing: Annotated[
        str | None, typer.Option("--missing", metavar="ID", help="Only marks with this missing bookie")
    ] = None,
    not_missing: Annotated[
        str | None, typer.Option("--not-missing", metavar="ID", help="Only marks without this missing bookie")
    ] = None,
    stuck_for: Annotated[
        str | None, typer.Option("--stuck-for", metavar="DURATION", help="Only marks that are at least this old")
    ] = None,
    count: Annotated[bool, typer.Option("--count", help="Show only the number of items")] = False,
    fail_if_any: Annotated[bool, typer.Option("--fail-if-any", help="Exit with 10 if there is any")] = False,
) -> Outcome:
    """List ledgers marked as under-replicated, with their missing bookies and the current worker.

    A ledger without missing bookies is listed because it violates the placement policy. Unreadable marks are always
    listed, with the reason, because they could name any bookie; bkctl autorecovery repair-marks --deep clears them.
    """
    from runtime.metadata.replication.marks import list_marks

    if count:
        require_no_listing_options(context.settings)
    age_s_min = 0.0 if stuck_for is None else parse_duration_s(stuck_for)
    number = 0
    async with (
        open_session(context) as session,
        aclosing(
            list_marks(session.store, session.root, session.foreign, missing=missing, not_missing=not_missing)
        ) as marks,
    ):
        if count:
            async for found in marks:
                number += session.age_s(found.marked_ms) >= age_s_min
            context.console.record("PendingCount", {"count": number}, name="count")
            return _outcome(number, fail_if_any=fail_if_any)
        locked = await _locked(session)
        with context.console.listing(_TABLE) as listing:
            async for found in marks:
                if session.age_s(found.marked_ms) < age_s_min:
                    continue
                number += 1
                if listing.is_full:
                    listing.truncate()
                    break
                listing.add(await _row(context, session, found, is_locked=found.ledger_id in locked))
    return _outcome(number, fail_if_any=fail_if_any)


async def _locked(session: Session) -> frozenset[int]:
    from runtime.metadata.replication.lock import list_locked_ids

    return frozenset(await list_locked_ids(session.store, session.root, session.foreign))


async def _row(context: CommandContext, session: Session, found: ListedMark, *, is_locked: bool) -> dict[str, object]:
    from runtime.metadata.replication.lock import read_lock_holder

    reading = read_lock_holder(session.store, session.root, found.ledger_id) if is_locked else None
    return {
        "ledger_id": str(found.ledger_id),
        "missing_bookies": None if found.mark is None else list(found.mark.missing_bookies),
        "marked_at": time_text(found.marked_ms),
        "age_s": session.age_s(found.marked_ms),
        "locked": is_locked,
        "worker": None if reading is None else await readable(context, reading),
        "problem": None if found.problem is None else str(found.problem),
    }


def _outcome(number: int, *, fail_if_any: bool) -> Outcome:
    return Outcome.FINDINGS if fail_if_any and number else Outcome.OK
