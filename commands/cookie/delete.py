"""``bkctl cookie delete``: delete the cookie of a bookie without data."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.cookie.access import (
    read_cookie_node,
    require_not_registered,
    require_unnamed,
    scan_references,
)
from bkctl.commands.effect import Effect
from bkctl.commands.safety.gate import open_change
from bkctl.commands.session import open_session
from bkctl.storage.words import counted


@command("delete", example="cookie delete b1.example.com:3181 --dry-run", effect=Effect.DESTROYS)
async def delete(
    context: CommandContext, bookie_id: Annotated[str, typer.Argument(metavar="ID", help="Bookie ID")]
) -> None:
    """Delete the cookie of a stopped bookie that no ledger references.

    All ledgers are read to verify this. If ledgers reference the bookie, use bkctl decommission. The cookie is kept in
    the trash. Type the ID, or use --confirm.
    """
    async with open_session(context) as session:
        node = await read_cookie_node(session, bookie_id)
        await require_not_registered(session, bookie_id)
        references = await scan_references(context, session, [bookie_id])
        require_unnamed(
            references, bookie_id, f"bkctl decommission {bookie_id} re-replicates them, then deletes the cookie"
        )
        path = session.cookies.path(bookie_id)
        plan = session.plan(
            subject=bookie_id,
            summary=(
                f"will delete the cookie of bookie {bookie_id} (referenced by none of "
                f"{counted(references.ledgers_scanned, 'ledger')})",
                "afterwards the bookie can only start as a new one, with empty directories",
            ),
            items=({"action": "delete", "path": path, "expected_version": node.stat.version},),
        )
        async with open_change(context, plan, session.store) as change:
            await require_not_registered(session, bookie_id)
            change.require_lock()
            change.trash.keep("delete", path, node)
            await session.cookies.delete(bookie_id, node.stat.version)
    context.console.record("CookieDeleted", {"bookie_id": bookie_id, "version": node.stat.version}, name="bookie_id")
