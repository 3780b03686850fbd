"""``bkctl ledger verify``: read every entry from every bookie that should have it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated

import msgspec
import typer

from bkctl.commands.check_progress import check_progress
from bkctl.commands.command import command
from bkctl.commands.config import OutputForm
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError, NotFoundError, Outcome
from bkctl.commands.findings_file import new_findings_file
from bkctl.commands.parse import (
    SEED_MAX,
    drawn_seed,
    parse_entry_range,
    parse_ledger_id,
    parse_rate_limit,
    parse_share,
)
from bkctl.commands.rendering import Column, Lines, Table
from bkctl.commands.session import Session, open_session
from bkctl.runtime.client.access import require_access
from bkctl.runtime.errors import LedgerNotFoundError, MetadataAuthError
from bkctl.runtime.metadata.cluster.root import read_instance_id
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.replication.copy.limits import CopyRate, SharedPacer
from bkctl.runtime.replication.judge.check_scope import CheckScope, Sample
from bkctl.runtime.replication.judge.copies import CheckTotals, CopyDefect, LedgerCheck
from bkctl.runtime.replication.judge.findings import CopyFinding, copy_findings
from bkctl.runtime.replication.judge.fragments import EntryRange, format_ranges
from bkctl.runtime.replication.survey.checker import LedgerChecker
from bkctl.storage.ids import ENTRY_ID_MAX
from bkctl.storage.words import SHOWN_MAX, counted, decimal, listed, percent, size

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
    Column("unreadable", "UNREADABLE ENTRIES"),
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


@command("verify", example="ledger verify --all --sample 1% --out bad.jsonl", is_cut=True)
async def verify(
    context: CommandContext,
    ledgers: Annotated[list[str] | None, typer.Argument(metavar="[LEDGER]...", help="Ledger ids")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All ledgers of the cluster")] = False,
    entries: Annotated[
        str | None, typer.Option("--range", metavar="FIRST-LAST", help="Read only these entries of each ledger")
    ] = None,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="PERCENT", help="Read only a share of each ledger, like 1%")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, max=SEED_MAX, help="Repeat the sample with this seed")
    ] = None,
    copy_rate: Annotated[
        str | None, typer.Option("--copy-rate", metavar="RATE", help="Read at most this much, like 200MiB/s")
    ] = None,
    findings: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="New file of bad copies for bkctl recover ledger")
    ] = None,
) -> Outcome:
    """Read every entry from every bookie that should have it, and check digests and equality.

    Reads only; fences nothing. Missing, corrupt, failed (error), unreachable (no answer) and different copies are
    counted separately; none is expected on bookies that were given up. --all lists no clean ledgers. -o csv has one row
    for each listed ledger. Exits with 10 if there is a problem, 11 if a ledger may not be read, 4 if --range is empty.
    """
    if is_all and ledgers:
        raise InvalidArgumentError(f"--all means every ledger: omit {' '.join(ledgers)} or --all")
    if not is_all and not ledgers:
        raise InvalidArgumentError("specify ledger IDs or --all")
    named, scope = [parse_ledger_id(text) for text in dict.fromkeys(ledgers or ())], _scope(entries, sample, seed)
    rate = parse_rate_limit(copy_rate)
    result = _Verified(is_all=is_all)
    ended: BaseException | None = None
    started_s = time.monotonic()
    async with open_session(context, must_exist=False) as session:
        with contextlib.ExitStack() as files:
            if findings is not None:
                instance_id = await read_instance_id(session.store, session.root)
                result.note_bad = files.enter_context(new_findings_file(findings, session.root, instance_id))
            try:
                await _verify(context, session, result, named, scope, rate)
            except BaseException as error:
                if not result.totals.ledgers:
                    raise
                ended = error  # what was found so far counts, and the file is completed
    if ended is not None:
        context.console.warn(_so_far(result, findings))
        raise ended
    result.checks.sort(key=lambda check: check.ledger_id)
    present = [check for check in result.checks if not check.is_deleted]
    unread = None if entries is None else _nothing_read(result, present, entries, is_all=is_all)
    totals = result.totals
    if unread is not None and not totals.entries:
        raise unread
    _print(context, result, present, scope, time.monotonic() - started_s)
    _require_all_checked(named, present)
    if unread is not None:
        raise unread
    return Outcome.OK if totals.ledgers == totals.ledgers_clean else Outcome.FINDINGS


def _so_far(result: _Verified, findings: str | None) -> str:
    totals = result.totals
    bad = [check.ledger_id for check in result.checks if not (check.is_clean or check.is_deleted)]
    sentence = f"stopped before the end: {counted(totals.ledgers, 'ledger')} verified ({size(totals.bytes_read)} read)"
    if not bad:
        return f"{sentence}, without findings; another run begins with the first ledger"
    ids = " ".join(map(str, sorted(bad)[:SHOWN_MAX]))
    kept = "" if findings is None else f"; {findings} has the bad copies found so far"
    number = f"{totals.ledgers - totals.ledgers_clean:,}"
    return f"{sentence}, {number} with findings{kept}; to see them: bkctl ledger verify {ids}"


def _scope(entries: str | None, sample: str | None, seed: int | None) -> CheckScope:
    if seed is not None and sample is None:
        raise InvalidArgumentError("--seed has no effect without --sample")
    first, last = parse_entry_range(entries)
    drawn = None
    if sample is not None:
        drawn = Sample(parse_share(sample), drawn_seed(seed))
    return CheckScope((EntryRange(first, ENTRY_ID_MAX if last is None else last),), drawn)


class _Verified:
    def __init__(self, *, is_all: bool) -> None:
        self.checks: list[LedgerCheck] = []
        self.totals = CheckTotals()
        self.is_truncated = False
        self.note_bad: Callable[[Iterable[CopyFinding]], None] = lambda _: None
        self.given_up: Collection[int] = ()
        self.checked_given_up: list[int] = []
        self._is_all = is_all

    def take(self, check: LedgerCheck, totals: CheckTotals) -> None:
        """Receive the result of one ledger."""
        self.totals = totals
        self.note_bad(copy_findings(check))
        if check.ledger_id in self.given_up and not check.is_deleted:
            self.checked_given_up.append(check.ledger_id)
        if not self._is_all or not (check.is_clean or check.is_deleted):
            if len(self.checks) < _ROWS_MAX:
                self.checks.append(check)
            else:
                self.is_truncated = True


async def _verify(
    context: CommandContext,
    session: Session,
    result: _Verified,
    named: Sequence[int],
    scope: CheckScope,
    bytes_per_second: int | None,
) -> None:
    client = await session.client()
    await require_access(client.ports)
    live = (await session.registrations.snapshot()).live
    pacer = SharedPacer(client.ports.clock, CopyRate(client.ports.clock, bytes_per_second))
    result.given_up = given_up = await read_given_up(RecoveryNotes(session.store, session.root))
    checker = LedgerChecker(client.ports, live, context.settings.replication, pacer, given_up=given_up)
    ids = each_of(named) if named else client.ports.ledgers.list_ids()
    async with check_progress(
        context.console, "verifying", client.ports, checker, named, scope, bytes_per_second
    ) as progress:

        def take(check: LedgerCheck, totals: CheckTotals) -> None:
            progress.totals = totals
            result.take(check, totals)

        await checker.check_all(ids, take, scope)


def _print(
    context: CommandContext, result: _Verified, checks: Sequence[LedgerCheck], scope: CheckScope, seconds: float
) -> None:
    totals, sample = result.totals, scope.sample
    rows = [_row(check) for check in checks]
    defects = [(defect.is_unknown, _defect_row(check, defect)) for check in checks for defect in check.defects]
    bad = [row for is_unknown, row in defects if not is_unknown]
    unread = [row for is_unknown, row in defects if is_unknown]
    body: dict[str, object] = {"ledgers": totals.ledgers, "ledgers_clean": totals.ledgers_clean}
    body |= msgspec.to_builtins(totals)
    body["sample"] = None if sample is None else {"share": sample.share, "seed": sample.seed}
    body["seconds"] = round(seconds, 3)
    console = context.console
    details = console.cut({"items": rows, "defects": bad, "unread": unread}, is_truncated=result.is_truncated)
    if console.form is OutputForm.NAME:
        console.rows(_TABLE, rows, is_truncated=result.is_truncated)
    else:
        show = {"bytes_read": size, "seconds": decimal, "sample.share": percent}
        console.record("LedgerVerification", body, show=show, details=details, lines=Lines(_TABLE, rows))
        console.table(_TABLE.titled("Ledgers"), rows)
        console.table(_DEFECT_TABLE, bad)
        console.table(_DEFECT_TABLE.titled("Unread copies, which may be good"), unread)
    if result.checked_given_up:
        ids = sorted(result.checked_given_up)
        console.say(f"copies whose loss was accepted are not expected: {counted(len(ids), 'ledger')}, {listed(ids)}")
    if sample is not None:
        console.say(
            f"this was a sample: {totals.entries:,} of {counted(totals.entries_total, 'entry', 'entries')} were read "
            f"(seed {sample.seed}); the others may be damaged"
        )


def _nothing_read(
    result: _Verified, present: Sequence[LedgerCheck], entries: str, *, is_all: bool
) -> NotFoundError | None:
    """The error if there is no entry in this range to verify: of a named ledger, or of all."""
    if is_all:
        is_empty = not result.totals.entries and not present
        return NotFoundError(f"no entry of any ledger is in {entries}: nothing was verified") if is_empty else None
    empty = [check.ledger_id for check in present if not check.entries and check.problem is None]
    names = ", ".join(map(str, empty))
    return NotFoundError(f"no entry of ledger {names} is in {entries}: nothing was verified") if empty else None


def _require_all_checked(named: Sequence[int], present: Sequence[LedgerCheck]) -> None:
    absent = set(named) - {check.ledger_id for check in present}
    if absent:
        raise LedgerNotFoundError(min(absent), "no such ledger")
    if refused := next((check.problem for check in present if check.is_refused), None):
        raise MetadataAuthError(refused)


def _row(check: LedgerCheck) -> dict[str, object]:
    return {
        "ledger_id": str(check.ledger_id),
        "state": check.ledger_state,
        "last_entry_id": str(check.last_entry_id) if check.last_entry_id >= 0 else None,
        "is_clean": check.is_clean,
        "entries": check.entries,
        "entries_total": check.entries_total,
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


def _defect_row(check: LedgerCheck, defect: CopyDefect) -> dict[str, object]:
    return {
        "ledger_id": str(check.ledger_id),
        "bookie_id": defect.bookie_id,
        "state": defect.state.value,
        "copies": defect.copies,
        "entries": format_ranges(defect.entries),
        "reason": defect.reason,
    }
