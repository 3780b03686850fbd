"""Shared by the commands that give up lost bookies of unclosed ledgers: the option, checks, plan, records, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import typer

from bkctl.commands.parse import parse_bookie_id
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.state_directory import user_name
from bkctl.commands.session import ANSWER_TIMEOUT_S, Session
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.ports import ClientPorts, credentials_of
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.net.loop import LoopClock
from bkctl.runtime.replication.close.accepted_loss import AcceptedLoss, LossClose
from bkctl.runtime.replication.close.given_up_record import GivenUpRecord
from bkctl.runtime.replication.close.ledger_closer import LossConsent
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.closability import why_not_closable
from bkctl.runtime.replication.judge.fragments import format_ranges
from bkctl.runtime.replication.survey.loss_proof import last_entry_on, why_not_given_up
from bkctl.storage.ids import INVALID_ENTRY_ID
from bkctl.storage.words import counted, enumerated, first_lines

LostBookies = Annotated[
    list[str] | None,
    typer.Option("--accept-loss", metavar="ID", help="A lost bookie to give up; repeatable"),
]
LOSS_TABLE = Table(
    "Given up",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("bookies", "BOOKIES"),
    Column("entries", "ENTRIES FOUND", is_right=True),
    Column("holes", "MISSING BEFORE THE END"),
    Column("damaged", "DAMAGED AFTER IT", priority=1),
)


def parse_lost(texts: list[str] | None) -> frozenset[str]:
    """The ids of the lost bookies; InvalidArgumentError."""
    return frozenset(map(parse_bookie_id, texts or ()))


def require_lost(ledgers: Sequence[StoredLedger], lost: Collection[str], live: Collection[str]) -> None:
    """RefusedError unless the bookies can be given up for these ledgers, by the registrations."""
    for each in ledgers:
        assert each.metadata is not None
        reason = why_not_given_up(each.metadata, lost, live)
        if reason is not None:
            raise RefusedError(f"nothing was changed: ledger {each.ledger_id}: {reason}")
    members = {bookie_id for each in ledgers if each.metadata for bookie_id in each.metadata.last_segment.ensemble}
    if ledgers and members.isdisjoint(lost):
        names = ", ".join(sorted(lost))
        raise RefusedError(f"nothing was changed: {names}: in the last segment of none of these ledgers")


async def require_silent(
    session: Session, ports: ClientPorts, lost: Collection[str], ledger_ids: Sequence[int]
) -> None:
    """RefusedError if one of the lost bookies serves, though it is not registered, and may have entries of a ledger."""
    direct = dataclasses.replace(ports, bookies=session.bookies(timeout_max_s=ANSWER_TIMEOUT_S))
    for bookie_id in sorted(await session.find_serving(lost)):
        for ledger_id in ledger_ids:
            metadata = (await ports.ledgers.read(ledger_id)).value
            if await last_entry_on(direct, bookie_id, credentials_of(ledger_id, metadata)) != INVALID_ENTRY_ID:
                raise RefusedError(
                    f"nothing was changed: bookie {bookie_id} is not registered, but it serves and may have entries of "
                    f"ledger {ledger_id}; bkctl bookie state {bookie_id} says why"
                )


async def loss_sentences(
    client: LedgerClient,
    config: ReplicationConfig,
    ledgers: Sequence[StoredLedger],
    lost: frozenset[str],
    live: Collection[str],
) -> list[str]:
    """What will be given up, for the plan; RefusedError when a member does not answer, or none can replace the lost.

    Fences nothing.
    """
    require_lost(ledgers, lost, live)
    closing = LossClose(client.ports, config, lost)
    sentences = []
    for each in ledgers:
        metadata = each.metadata
        assert metadata is not None
        if why_not_closable(each.ledger_id, metadata, live) is None:
            sentences.append(f"ledger {each.ledger_id} can probably be closed without a loss, which is tried first")
            continue
        known = await closing.examine(each.ledger_id, metadata)
        if isinstance(known, str):
            raise RefusedError(f"nothing was changed: ledger {each.ledger_id}: {known}")
        end = f"entry {known} is the highest" if known >= 0 else "no entry is known"
        names = enumerated(closing.lost_members(metadata))
        sentences.append(
            f"ledger {each.ledger_id}: what only {names} may have is given up; {end} that the other bookies report"
        )
    return first_lines(sentences)


def given_up_record(session: Session) -> GivenUpRecord:
    """What this operator gives up."""
    return GivenUpRecord(RecoveryNotes(session.store, session.root), LoopClock(), user_name())


async def loss_consent(
    client: LedgerClient, session: Session, config: ReplicationConfig, lost: frozenset[str], change: Change
) -> LossConsent:
    """The consent that the operator gave by confirming the plan of ``change``."""

    async def keep(ledger_id: int) -> None:
        path = client.ports.ledgers.path(ledger_id)
        node = await session.store.get(path)
        change.require_lock()
        change.trash.keep("close", path, node)

    closing: LossClose = LossClose(client.ports, config, lost)
    return LossConsent(lost, closing, await session.locks(), keep, given_up_record(session))


def loss_row(ledger_id: int, loss: AcceptedLoss) -> dict[str, Any]:
    """One ledger that was closed without its lost bookies."""
    more = f", and {counted(loss.unlisted, 'more entry')} after {loss.holes[-1].last_entry_id}" if loss.unlisted else ""
    return {
        "ledger_id": str(ledger_id),
        "bookies": list(loss.bookie_ids),
        "entries": loss.entries,
        "holes": format_ranges(loss.holes, len(loss.holes)) + more or None,
        "damaged": format_ranges(loss.damaged, len(loss.damaged)) or None,
    }
