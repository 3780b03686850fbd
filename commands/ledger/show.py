"""``bkctl ledger show``: all that the metadata store keeps of a ledger."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.cluster_access import open_client
from commands.command import command
from commands.context import CommandContext
from commands.ledger.rows import ENSEMBLE_COLUMNS, detail, ensemble_rows
from commands.parse import parse_ledger_id
from commands.rendering import size


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl ledger``."""
    command(app, "show")(show)


async def show(
    context: CommandContext,
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="Ledger id: decimal, 0x..., or UUID.")],
) -> None:
    """Show a ledger's metadata: state, quorums, segments with their bookies, custom metadata."""
    ledger_id = parse_ledger_id(ledger)
    async with open_client(context) as client:
        found = await client.ports.ledgers.read(ledger_id)
        body = detail(ledger_id, found)
        ensembles = ensemble_rows(found.value)
        context.console.record(
            "Ledger", body, name="ledger_id", show={"length_bytes": size}, details={"ensembles": ensembles}
        )
        context.console.table("Ensembles", ENSEMBLE_COLUMNS, ensembles)
