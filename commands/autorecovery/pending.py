"""``bkctl autorecovery pending``: ledgers that are marked as under-replicated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, NamedTuple

import typer

from bkctl.commands.autorecovery.access import readable
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, DaemonFlags
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.listing import require_no_listing_options
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.session import Session, open_session
from bkctl.commands.watch import IntervalOption, WatchOption, keep_looking, parse_watch
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.mark_listing import believed
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError, RefusedError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.pipeline import pipelined
from bkctl.runtime.metadata.replication.lock import list_locked_ids, read_lock
from bkctl.runtime.metadata.replication.marks import ListedMark, list_marked_ids, list_marks
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote, RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_daemons
from bkctl.runtime.replication.judge.marks import PendingLedger, WaitReason, pending_ledger, repair_pace, why_it_waits
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
                    if listing.end_if_full():
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


_ROWS_IN_FLIGHT_MAX = 64


class PendingRows:
    """Makes rows of marks. Each costs one read of metadata, and one more if the ledger is locked or has failed."""

    def __init__(self, context: CommandContext, session: Session, ledgers: LedgerStore, notes: RecoveryNotes) -> None:
        self._context = context
        self._session = session
        self._ledgers = ledgers
        self._notes = notes
        self._locked: frozenset[int] = frozenset()
        self._failed: frozenset[str] = frozenset()
        self._live: frozenset[str] = frozenset()
        self._is_enabled = True
        self._config = AutorecoveryConfig()
        self.bytes_missing = 0
        """Of the rows so far, as far as it is known."""
        self.failed = 0
        self.oldest_ms: int | None = None

    async def prepare(self) -> None:
        """Read what all rows need."""
        session = self._session
        locked, failed, registrations, self._is_enabled = await asyncio.gather(
            list_locked_ids(session.store, session.root, session.foreign),
            self._notes.failures.keys(),
            session.registrations.snapshot(),
            session.switches.is_enabled(),
        )
        self._locked, self._failed, self._live = frozenset(locked), frozenset(failed), registrations.live
        if failed:
            self._config = self._context.load_daemon_settings(DaemonFlags()).config.autorecovery

    def of(self, marks: AsyncGenerator[ListedMark, None]) -> AsyncGenerator[dict[str, object], None]:
        """The rows of these marks, in their order. Close the iterator to stop early."""
        return pipelined(marks, self._row, _ROWS_IN_FLIGHT_MAX)

    def count(self, row: dict[str, object]) -> None:
        """Add a row that is shown to the sums."""
        bytes_missing = row["bytes"]
        self.bytes_missing += bytes_missing if isinstance(bytes_missing, int) else 0
        self.failed += row["attempts"] is not None

    async def _row(self, found: ListedMark) -> dict[str, object]:
        session, ledger_id = self._session, found.ledger_id
        is_locked = ledger_id in self._locked
        lock = await read_lock(session.store, session.root, ledger_id) if is_locked else None
        if lock is not None and lock.problem is not None:
            self._context.console.warn(str(lock.problem))
        failure = await self._failure(ledger_id)
        ledger, problem = await self._ledger(ledger_id)
        reason: str = WaitReason.UNREADABLE
        if found.problem is not None:
            problem = str(found.problem)
        if problem is None or is_locked or failure is not None:
            reason = why_it_waits(ledger, failure, is_locked=is_locked, is_enabled=self._is_enabled)
        if self.oldest_ms is None or found.marked_ms < self.oldest_ms:
            self.oldest_ms = found.marked_ms
        return {
            "ledger_id": str(ledger_id),
            "missing_bookies": None if found.mark is None else list(found.mark.missing_bookies),
            "marked_at": time_text(found.marked_ms),
            "age_s": session.age_s(found.marked_ms),
            "copies_left": None if ledger is None else ledger.copies,
            "bytes": None if ledger is None else ledger.bytes_missing,
            "owner": None if ledger is None else ledger.owner,
            "locked": is_locked,
            "worker": None if lock is None else lock.holder,
            "reason": reason,
            "detail": None if failure is None else failure.detail,
            "attempts": None if failure is None else failure.attempts,
            "retry_at": None if failure is None else time_text(failure.retry_ms),
            "problem": problem if problem is not None or failure is None else failure.detail,
        }

    async def _failure(self, ledger_id: int) -> FailedLedgerNote | None:
        """The note about a failed repair, with the times that workers believe; they may have other settings."""
        if str(ledger_id) not in self._failed:
            return None
        found = await readable(self._context, self._notes.failures.find(str(ledger_id)))
        return None if found is None else believed(found.value, self._session.now_ms, self._config)

    async def _ledger(self, ledger_id: int) -> tuple[PendingLedger | None, str | None]:
        """What the metadata says (None: the ledger is deleted, or there is a problem), and why it cannot be read."""
        try:
            metadata = (await self._ledgers.read(ledger_id)).value
        except LedgerNotFoundError:
            return None, None
        except (MetadataFormatError, RefusedError) as error:
            return None, str(error)
        return pending_ledger(ledger_id, metadata, self._live), None
