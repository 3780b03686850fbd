"""``bkctl recover ledger``: write bad copies of a ledger again, or move their stripes where that is not safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, CopyFlags, Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.findings_file import read_findings
from bkctl.commands.outages import WorkProgress, continuing_command, report_outage, reporting_interruption
from bkctl.commands.parse import all_ledger_ids
from bkctl.commands.recovery_job import delete_job, open_job, read_unfinished_of_ledgers, start_of, with_recorded_rates
from bkctl.commands.recovery_progress import recovery_progress
from bkctl.commands.recovery_rendering import time_to_copy
from bkctl.commands.rendering import Column, Table
from bkctl.commands.replication_access import note_end, policy_of
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.commands.shared_options import takes_copy_options
from bkctl.commands.work_end import Verdict, print_end
from bkctl.runtime.client.access import require_access
from bkctl.runtime.errors import LedgerNotFoundError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.replication.recovery_status import read_given_up
from bkctl.runtime.replication.config import CopyPace, Policy
from bkctl.runtime.replication.judge.bad_copies import BadCopies, InPlacePlan, LedgerInPlace
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.findings import CopyFinding
from bkctl.runtime.replication.judge.fragments import format_ranges
from bkctl.runtime.replication.judge.ledger_result import FailureReason, are_refusals
from bkctl.runtime.replication.plan.store import JobWork, UnfinishedJob
from bkctl.runtime.replication.run.in_place_repair import InPlaceRepair, InPlaceReport
from bkctl.storage.severity import Severity
from bkctl.storage.words import SHOWN_MAX, counted, decimal, enumerated, size

_ENTRIES_SHOWN_MAX = 60
_REPEATABLE = frozenset(
    {
        FailureReason.UNREACHABLE,
        FailureReason.REFUSES_CLIENT,
        FailureReason.NO_PERMISSION,
        FailureReason.LOCKED,
        FailureReason.LOCK_LOST,
        FailureReason.CONFLICT,
        FailureReason.TARGET_GONE,
        FailureReason.READ_ONLY,
    }
)
"""Another run may write these copies."""
_UNREAD = frozenset({FailureReason.UNREACHABLE, FailureReason.REFUSES_CLIENT, FailureReason.OPEN})
"""These copies may be good."""


def _shortened(entries: object) -> str:
    text = str(entries)
    return text if len(text) <= _ENTRIES_SHOWN_MAX else f"{text[:_ENTRIES_SHOWN_MAX].rpartition(',')[0]}, ..."


_PLAN_TABLE = Table(
    "Copies to repair",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("action", "ACTION"),
    Column("state", "COPY"),
    Column("copies", "COPIES", is_right=True),
    Column("entries", "ENTRIES", show=_shortened, priority=1),
    Column("bytes", "BYTES", size, is_right=True, priority=1),
    Column("sources", "FROM", priority=2),
)
_LEFT_TABLE = Table(
    "Copies left as they are",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("copies", "COPIES", is_right=True),
    Column("entries", "ENTRIES", show=_shortened, priority=1),
    Column("reason", "REASON"),
    Column("detail", "FIRST", priority=2),
)


@command("ledger", example="recover ledger 17 18 --dry-run", effect=Effect.HARMFUL)
@takes_copy_options
async def recover_ledger(
    context: CommandContext,
    ledgers: Annotated[list[str] | None, typer.Argument(metavar="[LEDGER]...", help="Ledger ids")] = None,
    findings: Annotated[
        str | None,
        typer.Option("--from-file", metavar="FILE", help="Only what ledger verify or audit --inventory found"),
    ] = None,
    *,
    flags: CopyFlags,
) -> Outcome:
    """Write missing, corrupt and failed copies of ledgers again, on the bookies that the metadata names.

    Verifies the ledgers first. Takes each copy from a bookie with a good one, holds the ledger's replication lock,
    and reads every copy back. Where a Java bookie has a corrupt or unreadable copy, the stripe (its entries of the
    segment) moves to another one, because Java keeps both records and may return the old one. It stays if an entry
    of it has no good copy, or no bookie can take it. The second place of a bookie in an ensemble moves, too. Changes
    no open last segment. Leaves copies that differ, that no bookie has, or whose bookie does not answer. Safe to
    interrupt and to run again; --resume does not verify again what is left.
    """
    ledger_ids = all_ledger_ids(ledgers)
    if flags.resume is not None and findings is not None:
        raise InvalidArgumentError("--resume takes the ledgers from the job file: leave out --from-file")
    if not ledger_ids and findings is None and flags.resume is None:
        raise InvalidArgumentError("specify ledger IDs, --from-file FILE, or --resume FILE")
    policy = policy_of(context.settings.replication, flags)
    async with open_session(context) as session:
        if flags.resume is not None:
            unfinished = read_unfinished_of_ledgers(flags.resume, ledger_ids, session)
            recorded = with_recorded_rates(flags, context.console)
            policy = policy_of(context.settings.replication, recorded, recorded=unfinished.start)
            repair = await _repair(context, session, policy)
            found = plan_of_unfinished(unfinished)
        else:
            before = {} if findings is None else _found_before(session, findings, ledger_ids)
            repair = await _repair(context, session, policy)
            given_up = await read_given_up(RecoveryNotes(session.store, session.root))
            found = await _verify(context, repair, ledger_ids or sorted(before), before, given_up)
            if findings is None and found.deleted:
                raise LedgerNotFoundError(found.deleted[0], "no such ledger")
        report, job_file = await _carry_out(context, session, repair, found, flags)
    _print(context, report, continuing_command(context.settings.command_line, job_file))
    return _outcome(report)


def plan_of_unfinished(unfinished: UnfinishedJob) -> InPlacePlan:
    """What an interrupted job has left. Every copy is read again before it is written."""
    ledgers = [msgspec.json.decode(plan, type=LedgerInPlace) for plan in unfinished.plans if plan is not None]
    for plan in unfinished.done_plans:  # the bad copies that the plan had left are left still
        done = msgspec.json.decode(plan, type=LedgerInPlace)
        ledgers.append(msgspec.structs.replace(done, changes=()))
    return InPlacePlan(tuple(sorted(ledgers, key=lambda ledger: ledger.ledger_id)))


def work_of_repair(found: InPlacePlan) -> Iterator[JobWork]:
    """What a job records: also what stays bad, so that a continued one reports it."""
    for ledger in found.ledgers:
        if ledger.changes or ledger.left:
            yield JobWork(0, ledger.ledger_id, msgspec.json.encode(ledger))


def _outcome(report: InPlaceReport) -> Outcome:
    if are_refusals(report.left):
        return Outcome.UNAUTHORIZED
    if report.is_complete:
        return Outcome.OK
    return Outcome.PARTIAL if report.copies_written or report.copies_moved else Outcome.FAILED


def _found_before(session: Session, path: str, ledger_ids: Sequence[int]) -> dict[int, list[CopyFinding]]:
    """The bad copies that a file lists, by ledger; only of these ledgers, if any are given."""
    found: dict[int, list[CopyFinding]] = {}
    for finding in read_findings(path, session.root, session.instance_id):
        if not ledger_ids or finding.ledger_id in ledger_ids:
            found.setdefault(finding.ledger_id, []).append(finding)
    for ledger_id in ledger_ids:
        if ledger_id not in found:
            raise InvalidArgumentError(f"{path} has no findings about ledger {ledger_id}")
    return found


async def _repair(context: CommandContext, session: Session, policy: Policy) -> InPlaceRepair:
    ports = (await session.client()).ports
    await require_access(ports)
    return InPlaceRepair(ports, await session.locks(), policy, partial(report_outage, context.console))


async def _verify(
    context: CommandContext,
    repair: InPlaceRepair,
    ledger_ids: Sequence[int],
    found_before: Mapping[int, Sequence[CopyFinding]],
    given_up: Mapping[int, GivenUpNote],
) -> InPlacePlan:
    with context.console.progress("verifying") as progress:
        return await repair.plan(
            ledger_ids,
            found_before,
            lambda done, read: progress.update(done, len(ledger_ids), f"{size(read)} read"),
            given_up,
        )


async def _carry_out(
    context: CommandContext, session: Session, repair: InPlaceRepair, found: InPlacePlan, flags: CopyFlags
) -> tuple[InPlaceReport, str | None]:
    """The report, and the job file if a later run can continue with it."""
    plan = _plan(session, repair.ports.ledgers, found, repair.policy.pace)
    if not found.to_repair:
        nothing_to_change(context, plan, table=_PLAN_TABLE, totals=_totals(found))
        if flags.resume is not None:
            delete_job(flags.resume)
        return await repair.run(found, lambda _: None), None
    targets = sorted({each.bookie_id for ledger in found.to_repair for each in ledger.changes})
    async with (
        reporting_interruption(context, WorkProgress(len(found.to_repair))) as work,
        open_change(
            context,
            plan,
            session.store,
            bookie_ids=targets,
            table=_PLAN_TABLE,
            totals=_totals(found),
            outlast=repair.outage.outlast,
        ) as change,
    ):
        work.is_begun = True
        start = start_of(context, session, repair.policy, change.operation_id)
        async with (
            open_job(context, change, flags, start, work_of_repair(found)) as opened,
            recovery_progress(context.console, "recovering") as progress,
        ):
            work.show, work.file = progress.show, opened.path
            report = await repair.run(found, work.note, opened.job)
            # A continued job reads no last segment either.
            opened.is_finished = all(each.reason is FailureReason.OPEN for each in report.left)
        note_end(change, _report_body(report), _outcome(report))
    return report, opened.kept_file


def _plan(session: Session, ledgers: LedgerStore, found: InPlacePlan, pace: CopyPace) -> Plan:
    items = []
    for ledger in found.to_repair:
        for each in ledger.changes:
            item: dict[str, object] = {
                "path": ledgers.path(ledger.ledger_id),
                "expected_version": ledger.metadata_version,
                "ledger_id": str(ledger.ledger_id),
                "bookie_id": each.bookie_id,
                "copies": each.copies,
                "entries": format_ranges(each.entries, len(each.entries)),
                "sources": list(each.sources),
                "action": "write copies" if each.first_entry_id is None else "move stripe",
                "state": ", ".join(state.value for state in each.states),
                "bytes": each.bytes_to_copy,
            }
            if each.first_entry_id is not None:
                item |= {"first_entry_id": str(each.first_entry_id), "stripe_entries": each.stripe_entries}
            items.append(item)
    ids = [str(ledger.ledger_id) for ledger in found.ledgers]
    subject = ", ".join(ids) if len(ids) <= SHOWN_MAX else counted(len(ids), "ledger")
    return session.plan(subject=subject, summary=_sentences(found, pace), items=items)


def _sentences(found: InPlacePlan, pace: CopyPace) -> list[str]:
    verified = counted(len(found.ledgers), "ledger")
    writes = [(ledger, each) for ledger in found.to_repair for each in ledger.writes]
    moves = [(ledger, each) for ledger in found.to_repair for each in ledger.moves]
    sentences = []
    if writes:
        size_bytes = sum(each.bytes_to_copy for _, each in writes)
        what = counted(sum(each.copies for _, each in writes), "copy", "copies")
        sentences.append(
            f"will write {what} (about {size(size_bytes)}) again, in {_ledger_count(writes)} of {verified}, on "
            f"{_bookies(writes)}"
        )
    for is_repeat, why in (
        (False, "corrupt and unreadable copies are written over only on bkctl's bookies"),
        (True, "an ensemble names a bookie twice, so its entries have a copy less"),
    ):
        some = [(ledger, each) for ledger, each in moves if (CopyState.REPEATED in each.states) is is_repeat]
        if some:
            size_bytes = sum(each.bytes_to_copy for _, each in some)
            sentences.append(
                f"will move {counted(len(some), 'stripe')} (about {size(size_bytes)}) from {_bookies(some)} to other "
                f"bookies, in {_ledger_count(some)} of {verified}: {why}"
            )
    targets = {each.bookie_id for _, each in writes}
    if found.to_repair:
        sentences += time_to_copy(found.bytes_estimate, pace, 0 if moves else len(targets))
    else:
        sentences.append(_why_nothing(found, verified))
    failed = sum(each.copies for _, each in writes if each.states == (CopyState.FAILED,))
    if failed:
        sentences.append(
            f"{counted(failed, 'copy', 'copies')} of these cannot be read by their bookie because of an error; it gets "
            "a new copy"
        )
    for reason in dict.fromkeys(left.reason for left in found.left):
        copies = sum(left.copies for left in found.left if left.reason is reason)
        where = len({left.ledger_id for left in found.left if left.reason is reason})
        names = ("unread copy", "unread copies") if reason in _UNREAD else ("bad copy", "bad copies")
        what = f"{counted(copies, *names)} in " if copies else ""
        sentences.append(f"will leave {what}{counted(where, 'ledger')}: {reason.value}")
    is_open = sum(ledger.open_from is not None for ledger in found.ledgers)
    if is_open:
        sentences.append(f"did not verify the open last segment of {counted(is_open, 'ledger')}: close it first")
    if found.deleted:
        sentences.append(f"{counted(len(found.deleted), 'ledger')} of the file no longer exist")
    return sentences


def _ledger_count(changes: Sequence[tuple[LedgerInPlace, BadCopies]]) -> int:
    return len({ledger.ledger_id for ledger, _ in changes})


def _bookies(changes: Sequence[tuple[LedgerInPlace, BadCopies]]) -> str:
    return ", ".join(sorted({each.bookie_id for _, each in changes}))


def _why_nothing(found: InPlacePlan, verified: str) -> str:
    if any(each.reason not in _UNREAD for each in found.left):
        return f"nothing to write: no bad copy of {verified} can be repaired"
    if found.ledgers:
        rest = ", of those that could be read" if found.left else ""
        return f"nothing to write: no bad copy was found in {verified}{rest}"
    return "nothing to write: the findings name no ledger"


def _totals(found: InPlacePlan) -> dict[str, object]:
    return {
        "ledgers_verified": len(found.ledgers),
        "ledgers": len(found.to_repair),
        "copies": found.copies,
        "stripes_to_move": sum(len(ledger.moves) for ledger in found.to_repair),
        "bytes": found.bytes_estimate,
        "copies_left": sum(left.copies for left in found.left),
    }


def _report_body(report: InPlaceReport) -> dict[str, object]:
    return {
        "ledgers_verified": len(report.plan.ledgers),
        "ledgers": len(report.plan.to_repair),
        "copies_planned": report.plan.copies,
        "copies_written": report.copies_written,
        "copies_moved": report.copies_moved,
        "stripes_moved": report.stripes_moved,
        "copies_not_needed": report.copies_not_needed,
        "copies_left": sum(left.copies for left in report.left),
        "bytes": report.bytes_written,
        "seconds": round(report.seconds, 3),
    }


def _verdict(report: InPlaceReport, again: str) -> Verdict:
    done = f"{counted(report.copies_written, 'copy', 'copies')} written again ({size(report.bytes_written)})"
    if report.stripes_moved:
        done += f", {counted(report.stripes_moved, 'stripe')} moved to other bookies"
    if not report.left:
        return Verdict(None, f"{done}, no bad copy is left{_unread_ends(report.plan)}")
    bad, unread = Counter[FailureReason](), Counter[FailureReason]()
    for each in report.left:
        (unread if each.reason in _UNREAD else bad)[each.reason] += max(1, each.copies)
    left = []
    if bad:
        number = counted(bad.total(), "bad copy is left", "bad copies are left")
        left.append(f"{number}: {', '.join(f'{count:,} ({reason.value})' for reason, count in bad.items())}")
    if unread:
        number = counted(unread.total(), "copy is unknown", "copies are unknown")
        left.append(f"{number}, not read: {', '.join(_why_unread(report, *each) for each in unread.items())}")
    helped = [reason for reason in (*bad, *unread) if reason in _REPEATABLE]
    is_lost = not bad.keys().isdisjoint({FailureReason.LOST, FailureReason.UNREADABLE})
    if helped:
        following = f"; {'then continue' if _UNREAD.issuperset(helped) else 'continue'} with: {again}"
    elif is_lost:
        following = "; find the disks or logs that had them: bkctl help lost-entries"
    elif bad:
        following = f"; see bkctl ledger explain {report.left[0].ledger_id}"
    else:
        following = ""
    severity = Severity.CRITICAL if is_lost else Severity.WARNING
    return Verdict(severity, f"{done}, {', '.join(left)}{following}")


def _unread_ends(found: InPlacePlan) -> str:
    """Open last segments, which are left alone; empty if there is none."""
    unclosed = [ledger.ledger_id for ledger in found.ledgers if ledger.open_from is not None]
    if not unclosed:
        return ""
    ids = " ".join(map(str, unclosed[:SHOWN_MAX]))
    return (
        f"; not read: the open last segment of {counted(len(unclosed), 'ledger')} (bkctl ledger verify {ids} reads it)"
    )


def _why_unread(report: InPlaceReport, reason: FailureReason, copies: int) -> str:
    found = [each for each in report.left if each.reason is reason]
    bookies = enumerated(sorted({each.bookie_id for each in found}))
    if reason is FailureReason.OPEN:
        ledger_ids = list(dict.fromkeys(each.ledger_id for each in found))
        where = f"in the open last segment of {counted(len(ledger_ids), 'ledger')}"
        ids = " ".join(map(str, ledger_ids[:SHOWN_MAX]))  # a close fails the writer, and needs enough bookies
        return f"{copies:,} {where} (bkctl ledger explain {ids} says how it ends, then bkctl recover ledger {ids})"
    if reason is FailureReason.UNREACHABLE:
        return f"{copies:,} ({reason.value}: start {bookies})"
    return f"{copies:,} ({bookies}: {found[0].bare_detail})"


def _print(context: CommandContext, report: InPlaceReport, again: str) -> None:
    left = [
        {
            "ledger_id": str(each.ledger_id),
            "bookie_id": each.bookie_id or None,
            "copies": each.copies,
            "entries": format_ranges(each.entries, len(each.entries)) or None,
            "reason": each.reason.value,
            "detail": each.detail,
        }
        for each in report.left
    ]
    print_end(
        context.console,
        "LedgerRecoveryReport",
        _report_body(report),
        _verdict(report, again),
        details={"left": left},
        show={"bytes": size, "seconds": decimal},
        tables=[(_LEFT_TABLE, left)],
    )
