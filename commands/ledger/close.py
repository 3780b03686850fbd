"""``bkctl ledger close``: close ledgers that their writers left open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.ledger.accepted_loss import (
    LostBookies,
    loss_consent,
    loss_sentences,
    parse_lost,
    require_silent,
)
from bkctl.commands.ledger.close_end import CloseReport, ClosingLedgers
from bkctl.commands.ledger.named import IdsFromFile, LedgerIds, owner_sentences, read_ledgers
from bkctl.commands.ledger.rows import owner_text, state_name
from bkctl.commands.outages import reporting_interruption
from bkctl.commands.parse import all_ledger_ids, parse_duration_s
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.gate import Change, nothing_to_change, open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.access import refusals, require_access
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.replication.close.ledger_closer import LedgerCloser, LossConsent
from bkctl.runtime.replication.judge.closability import why_not_closable, why_refused
from bkctl.storage.words import counted, first_lines

_PLAN_TABLE = Table(
    "Changes",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "STATE"),
    Column("created", "CREATED", priority=2),
    Column("owner", "OWNER"),
    Column("ensemble", "LAST ENSEMBLE", priority=1),
    Column("not_registered", "NOT REGISTERED"),
)


@command("close", example="ledger close 17 18 --dry-run", effect=Effect.DESTROYS, milder_effect=Effect.HARMFUL)
async def close(
    context: CommandContext,
    ledger: LedgerIds = None,
    from_file: IdsFromFile = None,
    grace: Annotated[
        str,
        typer.Option("--grace", metavar="DURATION", help="Time for a live writer to close the ledger; 0s: none"),
    ] = "30s",
    accept_loss: LostBookies = None,
) -> Outcome:
    """Close ledgers that are open or in recovery.

    Fences each ledger, which stops its writer, and closes it at its last entry. No acknowledged entry is lost. If
    bookies that could have the last entries do not answer, it is not closed. A Java bookie with a bad copy of one
    of the last entries is replaced from there on. If the disks of bookies are lost, --accept-loss ends it with what
    all others have: type the ID, or use --confirm. Safe to repeat.
    """
    grace_s = parse_duration_s(grace, is_zero_allowed=True)
    if not ledger and from_file is None:
        raise InvalidArgumentError("specify the ledgers to close, or a file of their ids with --from-file")
    named = frozenset(all_ledger_ids(ledger))
    ledger_ids = all_ledger_ids(ledger, from_file)
    lost = parse_lost(accept_loss)
    async with open_session(context) as session:
        client = await session.client()
        await require_access(client.ports)
        report = CloseReport()
        found = await _find(client, ledger_ids, named, report)
        refusing = await refusals(client.ports, _last_members(found))
        registered = await session.registrations.snapshot()
        losses = []
        if lost:
            losses = await loss_sentences(client, context.settings.replication, found, lost, registered.live)
            await require_silent(session, client.ports, lost, [each.ledger_id for each in found])
        plan = _plan(session, found, registered, report, grace_s, losses, lost, refusing)
        if context.settings.is_dry_run and found and not lost:
            plan = msgspec.structs.replace(plan, refusal=_refusal(found, registered.live, refusing))
        if not plan.items:
            nothing_to_change(context, plan, table=_PLAN_TABLE)
        else:
            async with (
                reporting_interruption(context, ClosingLedgers(found)) as work,
                open_change(context, plan, client.store, table=_PLAN_TABLE) as change,
            ):
                work.is_begun = True
                consent = None
                if lost:
                    consent = await loss_consent(client, session, context.settings.replication, lost, change)
                await _close(context, client, change, found, grace_s, report, consent, work)
        report.print(context.console)
        return report.outcome


async def _find(
    client: LedgerClient, ledger_ids: list[int], named: frozenset[int], report: CloseReport
) -> list[StoredLedger]:
    """The ledgers that are not closed; LedgerNotFoundError for an id given directly."""
    found = []
    async with read_ledgers(client, ledger_ids, named) as ledgers:
        ids = iter(ledger_ids)  # the ledgers come in their order
        async for each in ledgers:
            ledger_id = next(ids)
            if each is None:
                report.gone.append(ledger_id)
            elif each.metadata is None:
                report.fail(each.ledger_id, each.problem, is_refused=each.node is None)
            elif each.metadata.is_closed:
                report.closed_already[each.ledger_id] = each.metadata.last_entry_id
            else:
                found.append(each)
    return found


def _plan(
    session: Session,
    found: list[StoredLedger],
    registered: Registrations,
    report: CloseReport,
    grace_s: float,
    losses: list[str],
    lost: frozenset[str],
    refusing: Mapping[str, str],
) -> Plan:
    """``losses``: what is given up with the ``lost`` bookies, in sentences. ``refusing``: as of ``why_refused``."""
    items = [_item(each, registered.live) for each in found]
    summary = [_done_already(report)] if report.closed_already or report.gone or report.failures else []
    doubtful = [] if lost else _doubtful(found, registered.live, refusing)
    if len(items) > len(doubtful):
        closable = counted(len(items) - len(doubtful), "ledger")
        summary.append(f"will fence and close {closable}, which stops the writers of those that have one")
        summary += [f"waits up to {grace_s:g} s for writers to close their ledgers themselves"] if grace_s else []
    summary += owner_sentences(items)
    summary += losses
    summary += first_lines(doubtful)
    return session.plan(
        subject=items[0]["ledger_id"] if len(items) == 1 else str(len(items)),
        summary=summary,
        items=items,
        arguments={"grace_s": grace_s} | ({"accept_loss": sorted(lost)} if lost else {}),
        tier=(Effect.DESTROYS if lost else Effect.HARMFUL).tier,
    )


def _done_already(report: CloseReport) -> str:
    groups = {"closed already": report.closed_already, "gone": report.gone, "unreadable": report.failures}
    counts = ", ".join(f"{len(group)} {what}" for what, group in groups.items() if group)
    return f"nothing to do for some ledgers: {counts}"


def _last_members(found: list[StoredLedger]) -> set[str]:
    return {bookie_id for each in found if each.metadata for bookie_id in each.metadata.last_segment.ensemble}


def _doubtful(found: list[StoredLedger], live: Collection[str], refusing: Mapping[str, str]) -> list[str]:
    """Ledgers that cannot be closed with the bookies that are registered now, and accept this client."""
    sentences = []
    for each in found:
        assert each.metadata is not None
        if (refused := why_refused(each.ledger_id, each.metadata, live, refusing)) is not None:
            why = "; ".join(refusing[bookie_id] for bookie_id in refused.missing)
        elif (failure := why_not_closable(each.ledger_id, each.metadata, live)) is not None:
            why = f"{', '.join(failure.missing)} not registered"
        else:
            continue
        sentences.append(f"ledger {each.ledger_id} cannot be closed now: {why}")
    return sentences


def _refusal(found: list[StoredLedger], live: Collection[str], refusing: Mapping[str, str]) -> str | None:
    """Why a rehearsal ends with an error: none of the ledgers can be closed now. A run waits, and asks the bookies."""
    doubtful = _doubtful(found, live, refusing)
    return f"nothing was changed: {'; '.join(first_lines(doubtful))}" if len(doubtful) == len(found) else None


def _item(ledger: StoredLedger, live: Collection[str]) -> dict[str, Any]:
    metadata = ledger.metadata
    assert metadata is not None
    assert ledger.node is not None
    ensemble = list(metadata.last_segment.ensemble)
    return {
        "action": "close",
        "path": ledger.path,
        "expected_version": ledger.node.stat.version,
        "ledger_id": str(ledger.ledger_id),
        "state": state_name(metadata),
        "created": time_text(ledger.created_ms),
        "owner": owner_text(metadata),
        "ensemble": ensemble,
        "not_registered": [each for each in ensemble if each not in live],
    }


async def _close(
    context: CommandContext,
    client: LedgerClient,
    change: Change,
    found: list[StoredLedger],
    grace_s: float,
    report: CloseReport,
    consent: LossConsent | None,
    work: ClosingLedgers,
) -> None:
    owners = {each.ledger_id: None if each.metadata is None else owner_text(each.metadata) for each in found}
    in_parallel = context.settings.replication.ledgers_in_parallel
    console, end_of_grace_ms = context.console, client.ports.clock.now_ms() + grace_s * 1000
    try:
        with console.progress("closing") as progress:

            def show() -> None:
                work.show(console, progress, closer, end_of_grace_ms)

            closer = LedgerCloser(client.ports, change.require_lock, consent, show)
            async with aclosing(closer.close_all(list(owners), grace_s=grace_s, in_parallel=in_parallel)) as results:
                async for result in results:
                    report.add(result, owners[result.ledger_id])
                    work.finish(result.ledger_id)
                    show()
    finally:
        change.details |= report.counts
        change.result = {Outcome.OK: "done", Outcome.PARTIAL: "partial"}.get(report.outcome, "failed")
