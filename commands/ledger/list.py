"""``bkctl ledger list``: all ledgers of the cluster, with what their metadata says."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from commands.cluster_access import open_client
from commands.command import command
from commands.config import OutputForm
from commands.context import CommandContext
from commands.ledger.rows import SUMMARY_COLUMNS, summary_row, unreadable_row

if TYPE_CHECKING:
    from runtime.client import LedgerClient
    from runtime.ledger.metadata import LedgerMetadata


class State(enum.StrEnum):
    """State of a ledger in its metadata."""

    OPEN = "open"
    IN_RECOVERY = "in-recovery"
    CLOSED = "closed"


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl ledger``."""
    command(app, "list", is_listing=True)(list_ledgers)


async def list_ledgers(
    context: CommandContext,
    bookie: Annotated[
        str | None, typer.Option("--bookie", metavar="ID", help="Only those with entries that belong on this bookie.")
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only those in this state.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only say how many there are.")] = False,
) -> None:
    """List ledgers, in the order of the metadata tree unless --sort is given.

    A ledger whose metadata cannot be read is listed with the reason. Filters leave such ledgers out. With -o name and
    no filter only ids are read, which is much faster.
    """
    async with open_client(context) as client:
        is_id_enough = bookie is None and state is None and (count or context.console.form is OutputForm.NAME)
        if count:
            number = await _count(client, bookie, state, is_id_enough=is_id_enough)
            context.console.record("LedgerCount", {"count": number}, name="count")
            return
        with context.console.listing("LedgerList", SUMMARY_COLUMNS, name="ledger_id") as listing:
            if is_id_enough:
                async for ledger_id in client.ports.ledgers.list_ids():
                    if listing.is_full:
                        listing.truncate()
                        break
                    listing.add({"ledger_id": str(ledger_id)})
                return
            from runtime.metadata.store import Versioned

            async for ledger_id, found in client.ports.ledgers.read_all():
                if isinstance(found, Versioned):
                    if not _is_wanted(found.value, bookie, state):
                        continue
                    row = summary_row(ledger_id, found)
                elif bookie is None and state is None:
                    row = unreadable_row(ledger_id, str(found))
                else:
                    continue
                if listing.is_full:
                    listing.truncate()
                    break
                listing.add(row)


async def _count(client: LedgerClient, bookie: str | None, state: State | None, *, is_id_enough: bool) -> int:
    from runtime.metadata.store import Versioned

    number = 0
    if is_id_enough:
        async for _ in client.ports.ledgers.list_ids():
            number += 1
        return number
    async for _, found in client.ports.ledgers.read_all():
        number += isinstance(found, Versioned) and _is_wanted(found.value, bookie, state)
    return number


def _is_wanted(metadata: LedgerMetadata, bookie: str | None, state: State | None) -> bool:
    from runtime.replication.fragments import fragments_naming

    if state is not None and metadata.state.name != state.name:
        return False
    return bookie is None or bool(fragments_naming(metadata, frozenset({bookie})))
