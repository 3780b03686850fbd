"""``bkctl ledger show``: the complete metadata of ledgers."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.errors import InvalidArgumentError
from bkctl.commands.ledger.rows import ENSEMBLE_TABLE, detail, ensemble_rows
from bkctl.commands.parse import all_ledger_ids
from bkctl.commands.session import open_session
from bkctl.commands.several import in_turn
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import ConfigurationError, MetadataAuthError, MetadataFormatError
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, read_stored
from bkctl.storage.words import size

_Verdict: TypeAlias = dict[str, list[str]]


@command("show", example="ledger show 17")
async def show(
    context: CommandContext,
    ledger: Annotated[list[str], typer.Argument(metavar="LEDGER...", help="Ledger ids: decimal, 0x... or UUID")],
    raw: Annotated[bool, typer.Option("--raw", help="Print only the raw bytes of the metadata")] = False,
) -> None:
    """Show the metadata of ledgers: state, quorums, segments with their bookies, custom metadata."""
    ledger_ids = all_ledger_ids(ledger)
    if raw and len(ledger_ids) > 1:
        raise InvalidArgumentError("--raw prints one ledger; use bkctl ledger export --native for several")
    async with open_session(context, must_exist=False) as session:
        client = await session.client()
        with in_turn(context, [str(each) for each in ledger_ids]) as turns:
            for ledger_id in ledger_ids:
                with turns.turn():
                    found = await read_stored(client.store, client.ports.ledgers, ledger_id)
                    _show_one(context, found, await _broken_rules(client, found), is_raw=raw)


async def _broken_rules(client: LedgerClient, ledger: StoredLedger) -> _Verdict:
    """One more field if placement rules are set: the rules that the ledger breaks, or why they are unknown."""
    placement = client.ports.placement
    if ledger.metadata is None:
        return {}
    try:
        found = await placement.broken_rules(ledger.metadata, await client.ports.registrations.writable())
    except ConfigurationError as error:
        return {"broken_placement_rules": [f"unknown: {error}"]}
    if found is None:
        return {}
    rules = [f"from entry {first}: {each}" for first, broken in found.items() for each in broken]
    return {"broken_placement_rules": rules}


def _show_one(context: CommandContext, ledger: StoredLedger, verdict: _Verdict, *, is_raw: bool) -> None:
    if ledger.node is None:
        raise MetadataAuthError(f"ledger {ledger.ledger_id}: {ledger.problem}", ledger.path)
    if is_raw:
        context.console.raw(ledger.node.data)
        return
    if ledger.metadata is None:
        raise MetadataFormatError(f"ledger {ledger.ledger_id}: {ledger.problem} (--raw prints its bytes)", ledger.path)
    _print(context, ledger, verdict)


def _full(ledger: StoredLedger) -> dict[str, object]:
    versioned = ledger.versioned
    assert versioned is not None
    return {**detail(ledger.ledger_id, versioned), "ensembles": ensemble_rows(versioned.value)}


def _print(context: CommandContext, ledger: StoredLedger, verdict: _Verdict) -> None:
    body = _full(ledger) | verdict
    ensembles = body.pop("ensembles")
    assert isinstance(ensembles, list)
    context.console.record(
        "Ledger", body, name="ledger_id", show={"length_bytes": size}, details={"ensembles": ensembles}
    )
    context.console.table(ENSEMBLE_TABLE, ensembles)
