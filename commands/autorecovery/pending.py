"""``bkctl autorecovery pending``: ledgers that are marked as under-replicated."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.autorecovery.pending_rows import PendingRows
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.listing import require_no_listing_options
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.rendering import Column, Table
from bkctl.commands.session import Session, open_session
from bkctl.commands.watch import IntervalOption, WatchOption, keep_looking, parse_watch
from bkctl.runtime.metadata.replication.marks import ListedMark, list_marked_ids, list_marks
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_daemons
from bkctl.runtime.replication.judge.marks import repair_pace
from bkctl.storage.words import counted, duration, size

_TABLE = Table(
    "PendingLedgers",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("missing_bookies", "MISSING"),
    Column("age_s", "AGE", duration, is_right=True),
    Column("copies_left", "COPIES", is_right=True),
    Column("bytes", "BYTES", size, is_right=True, priority=1),
    Column("reason", "REASON"),
    Column("worker", "WORKER", priority=1),
    Column("owner", "OWNER", priority=2),
    Column("problem", "PROBLEM", priority=1),
    Column("detail", "DETAIL", is_wide=True),
    Column("attempts", "ATTEMPTS", is_right=True, is_wide=True),
    Column("retry_at", "NEXT TRY", is_wide=True),
    Column("marked_at", "MARKED", is_wide=True),
    Column("locked", "LOCKED", is_wide=True),
    name="ledger_id",
)


class _MarkFilter(NamedTuple):
    """Which marks are listed."""

    missing: str | None
    not_missing: str | None
    age_s_min: float

    async def marks(self, session: Session) -> AsyncGenerator[ListedMark, None]:
        """These marks, by ledger id."""
        listed = list_marks(
            session.store, session.root, session.foreign, missing=self.missing, not_missing=self.not_missing
        )
        async with aclosing(listed):
            async for found in listed:
                if session.age_s(found.marked_ms) >= self.age_s_min:
                    yield found


class _MarksAtOnce(NamedTuple):
    """One listing: how many were listed, how many ledgers are marked in all, and when."""

    listed: int
    marked: int
    now_ms: int


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
    watch: WatchOption = False,
    interval: IntervalOption = None,
) -> Outcome:
    """List ledgers marked as under-replicated, and why each waits.

    Without missing bookies, a ledger violates the placement policy. Unreadable marks are always listed; bkctl
    autorecovery repair-marks --deep clears them. BYTES are to be copied, by the metadata.
    """
    wanted = _MarkFilter(missing, not_missing, 0.0 if stuck_for is None else parse_duration_s(stuck_for))
    interval_s = parse_watch(context, interval, is_watching=watch)
    if watch and (count or fail_if_any):
        raise InvalidArgumentError("--watch never ends: leave out --count and --fail-if-any")
    if watch:
        await _watch(context, wanted, interval_s)
    number = await _count(context, wanted) if count else (await _list(context, wanted)).listed
    return Outcome.FINDINGS if fail_if_any and number else Outcome.OK


async def _watch(context: CommandContext, wanted: _MarkFilter, interval_s: float) -> None:
    """Until the command is interrupted."""
    first: _MarksAtOnce | None = None

    async def look() -> None:
        nonlocal first
        at_once = await _list(context, wanted, first)
        first = first or at_once

    await keep_looking(context, interval_s, look)


async def _count(context: CommandContext, wanted: _MarkFilter) -> int:
    require_no_listing_options(context.settings)
    number = 0
    async with open_session(context) as session, aclosing(wanted.marks(session)) as marks:
        async for _ in marks:
            number += 1
    context.console.record("PendingCount", {"count": number}, name="count")
    return number


async def _list(context: CommandContext, wanted: _MarkFilter, first: _MarksAtOnce | None = None) -> _MarksAtOnce:
    """List once. ``first``: an earlier list, for the time left."""
    number = 0
    async with open_session(context) as session:
        notes = RecoveryNotes(session.store, session.root)
        rows = PendingRows(context, session, await session.ledgers(), notes)
        await rows.prepare()
        async with aclosing(wanted.marks(session)) as marks, aclosing(rows.of(marks)) as found:
            with context.console.listing(_TABLE) as listing:
                async for row in found:
                    number += 1
                    if listing.is_full:
                        listing.truncate()
                        break
                    rows.count(row)
                    listing.add(row)
        if not context.console.is_for_people or not number:
            return _MarksAtOnce(number, number, session.now_ms)
        marked = 0
        async with aclosing(list_marked_ids(session.store, session.root, session.foreign)) as ids:
            async for _ in ids:
                marked += 1
        at_once = _MarksAtOnce(number, marked, session.now_ms)
        context.console.say(await _summary(notes, rows, at_once, first))
    return at_once


async def _summary(notes: RecoveryNotes, rows: PendingRows, at_once: _MarksAtOnce, first: _MarksAtOnce | None) -> str:
    text = f"{counted(at_once.marked, 'ledger')} marked; of those listed: about {size(rows.bytes_missing)} to copy"
    if rows.failed:
        text += f", {counted(rows.failed, 'failed repair')}"
    pace = None
    if first is not None and first.marked > at_once.marked:
        pace = (first.marked - at_once.marked) * 1000 / max(1, at_once.now_ms - first.now_ms)
    elif rows.oldest_ms is not None:
        pace = repair_pace(await read_daemons(notes), rows.oldest_ms)
    left = "unknown (--watch measures it)" if first is None else "unknown"
    return f"{text}; time left: {left if pace is None else 'about ' + duration(at_once.marked / pace)}"
