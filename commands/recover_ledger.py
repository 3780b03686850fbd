"""``bkctl recover ledger``: write bad copies of a ledger again, on the bookies that its metadata names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from commands.command import command
from commands.context import CommandContext
from commands.effect import Effect
from commands.errors import InvalidArgumentError, Outcome
from commands.findings_file import read_findings
from commands.outages import OutageMax, report_outage, told_when_cut_off
from commands.parse import all_ledger_ids, parse_bytes_per_second, parse_duration_s
from commands.recovery_progress import recovery_progress
from commands.rendering import Column, Table, counted, decimal, size
from commands.replication_access import note_end
from commands.session import Session, open_session

if TYPE_CHECKING:
    from commands.safety.plan import Plan
    from runtime.metadata.ledgers.ledgers import LedgerStore
    from runtime.replication.fragments import EntryRange
    from runtime.replication.in_place_plan import InPlacePlan, InPlaceReport
    from runtime.replication.in_place_repair import InPlaceRepair

_IDS_SHOWN_MAX = 5
_ENTRIES_SHOWN_MAX = 60


def _shortened(entries: object) -> str:
    text = str(entries)
    return text if len(text) <= _ENTRIES_SHOWN_MAX else f"{text[:_ENTRIES_SHOWN_MAX].rpartition(',')[0]}, ..."


_PLAN_TABLE = Table(
    "Copies to write",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookie_id", "BOOKIE"),
    Column("state", "COPY"),
    Column("copies", "COPIES", is_right=True),
    Column("entries", "ENTRIES", show=_shortened, priority=1),
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
async def recover_ledger(
    context: CommandContext,
    ledgers: Annotated[list[str] | None, typer.Argument(metavar="[LEDGER]...", help="Ledger ids")] = None,
    findings: Annotated[
        str | None, typer.Option("--findings", metavar="FILE", help="Only what bkctl ledger verify --findings found")
    ] = None,
    copy_rate: Annotated[
        str | None, typer.Option("--copy-rate", metavar="RATE", help="Read and write at most this, like 200MiB/s")
    ] = None,
    outage_max: OutageMax = None,
) -> Outcome:
    """Write missing, corrupt and failed copies of ledgers again, on the bookies that the metadata names.

    Verifies the ledgers first. Takes each copy from a bookie with a good one, holds the ledger's replication lock, and
    reads every copy back. Changes no metadata and no open last segment. Leaves copies that differ, that no bookie has,
    or whose bookie does not answer. Safe to interrupt and to run again.
    """
    ledger_ids = all_ledger_ids(ledgers)
    if not ledger_ids and findings is None:
        raise InvalidArgumentError("specify ledger IDs, or --findings FILE")
    bytes_per_second = None if copy_rate is None else parse_bytes_per_second(copy_rate)
    outage_max_s = None if outage_max is None else parse_duration_s(outage_max)
    async with open_session(context) as session:
        ranges: dict[int, list[EntryRange]] = {}
        if findings is not None:
            ranges = _found_before(session, findings, ledger_ids)
        repair = await _repair(context, session, bytes_per_second, outage_max_s)
        found = await _verify(context, repair, ledger_ids or sorted(ranges), ranges)
        if findings is None:
            _require_all_found(found)
        report = await _carry_out(context, session, repair, found)
    _print(context, report)
    return _outcome(report)


def _outcome(report: InPlaceReport) -> Outcome:
    return Outcome.OK if report.is_complete else Outcome.PARTIAL


def _found_before(session: Session, path: str, ledger_ids: Sequence[int]) -> dict[int, list[EntryRange]]:
    """The entries with bad copies that a file lists, by ledger; only of these ledgers, if any are given."""
    ranges: dict[int, list[EntryRange]] = {}
    for finding in read_findings(path, session.root, session.instance_id):
        if not ledger_ids or finding.ledger_id in ledger_ids:
            ranges.setdefault(finding.ledger_id, []).append(finding.entries)
    for ledger_id in ledger_ids:
        if ledger_id not in ranges:
            raise InvalidArgumentError(f"{path} has no findings about ledger {ledger_id}")
    return ranges


async def _repair(
    context: CommandContext, session: Session, bytes_per_second: int | None, outage_max_s: float | None
) -> InPlaceRepair:
    from runtime.metadata.replication.lock import ReplicationLocks
    from runtime.net.host import canonical_host_name
    from runtime.replication.copy_rate import CopyRate
    from runtime.replication.in_place_repair import InPlaceRepair

    config = context.settings.replication
    if outage_max_s is not None:
        config = msgspec.structs.replace(config, metadata_outage_max_s=outage_max_s)
    ports = (await session.client()).ports
    locks = ReplicationLocks(session.store, session.root, await asyncio.to_thread(canonical_host_name))
    rate = CopyRate(ports.clock, bytes_per_second)
    return InPlaceRepair(ports, locks, config, rate, partial(report_outage, context.console))


async def _verify(
    context: CommandContext,
    repair: InPlaceRepair,
    ledger_ids: Sequence[int],
    ranges: Mapping[int, Sequence[EntryRange]],
) -> InPlacePlan:
    with context.console.progress("verifying") as progress:
        return await repair.plan(
            ledger_ids, ranges, lambda done, read: progress.update(done, len(ledger_ids), f"{size(read)} read")
        )


def _require_all_found(found: InPlacePlan) -> None:
    from runtime.errors import LedgerNotFoundError

    if found.deleted:
        raise LedgerNotFoundError(found.deleted[0], "no such ledger")


async def _carry_out(
    context: CommandContext, session: Session, repair: InPlaceRepair, found: InPlacePlan
) -> InPlaceReport:
    from commands.safety.gate import nothing_to_change, open_change

    plan = _plan(session, repair.ports.ledgers, found)
    if not found.to_write:
        nothing_to_change(context, plan, table=_PLAN_TABLE, totals=_totals(found))
        return await repair.run(found, lambda _: None)
    targets = sorted({each.bookie_id for ledger in found.to_write for each in ledger.writes})
    async with (
        told_when_cut_off(context, len(found.to_write)) as job,
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
        async with recovery_progress(context.console, "recovering") as progress:
            job.show = progress.show
            report = await repair.run(found, job.note)
        note_end(change, _report_body(report), _outcome(report))
    return report


def _plan(session: Session, ledgers: LedgerStore, found: InPlacePlan) -> Plan:
    from runtime.replication.fragments import format_ranges

    items = [
        {
            "action": "write copies",
            "path": ledgers.path(ledger.ledger_id),
            "expected_version": ledger.metadata_version,
            "ledger_id": str(ledger.ledger_id),
            "bookie_id": each.bookie_id,
            "state": each.state.value,
            "copies": each.copies,
            "entries": format_ranges(each.entries, len(each.entries)),
            "bytes": each.copies * ledger.entry_bytes,
            "sources": list(each.sources),
        }
        for ledger in found.to_write
        for each in ledger.writes
    ]
    ids = [str(ledger.ledger_id) for ledger in found.ledgers]
    subject = ", ".join(ids) if len(ids) <= _IDS_SHOWN_MAX else counted(len(ids), "ledger")
    return session.plan(subject=subject, summary=_sentences(found), items=items)


def _sentences(found: InPlacePlan) -> list[str]:
    from runtime.replication.copies import CopyState

    sentences = []
    verified = counted(len(found.ledgers), "ledger")
    if found.to_write:
        targets = sorted({each.bookie_id for ledger in found.to_write for each in ledger.writes})
        sentences.append(
            f"will write {counted(found.copies, 'copy', 'copies')} (about {size(found.bytes_estimate)}) again, in "
            f"{len(found.to_write)} of {verified}, on {', '.join(targets)}"
        )
    elif found.left:
        sentences.append(f"nothing to write: no bad copy of {verified} can be repaired in place")
    elif found.ledgers:
        sentences.append(f"nothing to write: no bad copy was found in {verified}")
    else:
        sentences.append("nothing to write: the findings name no ledger")
    failed = sum(each.copies for ledger in found.to_write for each in ledger.writes if each.state is CopyState.FAILED)
    if failed:
        sentences.append(
            f"{counted(failed, 'copy', 'copies')} of these cannot be read by their bookie because of an error; it gets "
            "a new copy"
        )
    for reason in dict.fromkeys(left.reason for left in found.left):
        copies = sum(left.copies for left in found.left if left.reason is reason)
        where = len({left.ledger_id for left in found.left if left.reason is reason})
        what = f"{counted(copies, 'bad copy', 'bad copies')} in " if copies else ""
        sentences.append(f"will leave {what}{counted(where, 'ledger')}: {reason.value}")
    is_open = sum(ledger.open_from is not None for ledger in found.ledgers)
    if is_open:
        sentences.append(f"did not verify the open last segment of {counted(is_open, 'ledger')}: close it first")
    if found.deleted:
        sentences.append(f"{counted(len(found.deleted), 'ledger')} of the file no longer exist")
    return sentences


def _totals(found: InPlacePlan) -> dict[str, object]:
    return {
        "ledgers_verified": len(found.ledgers),
        "ledgers": len(found.to_write),
        "copies": found.copies,
        "bytes": found.bytes_estimate,
        "copies_left": sum(left.copies for left in found.left),
    }


def _report_body(report: InPlaceReport) -> dict[str, object]:
    return {
        "ledgers_verified": len(report.plan.ledgers),
        "ledgers": len(report.plan.to_write),
        "copies_planned": report.plan.copies,
        "copies_written": report.copies_written,
        "copies_not_needed": report.copies_not_needed,
        "copies_left": sum(left.copies for left in report.left),
        "bytes": report.bytes_written,
        "seconds": round(report.seconds, 3),
    }


def _print(context: CommandContext, report: InPlaceReport) -> None:
    from runtime.replication.fragments import format_ranges

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
    show = {"bytes": size, "seconds": decimal}
    context.console.record("LedgerRecoveryReport", _report_body(report), show=show, details={"left": left})
    context.console.table(_LEFT_TABLE, left)
