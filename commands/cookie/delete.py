"""``bkctl cookie delete``: delete the cookie of a bookie without data."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.cookie.access import read_cookie_node, require_unused
from bkctl.commands.effect import Effect
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.runtime.metadata.store import Node
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
        path = session.cookies.path(bookie_id)

        async def examine() -> tuple[Plan, Node]:
            node = await read_cookie_node(session, bookie_id)
            advice = f"bkctl decommission {bookie_id} re-replicates them, then deletes the cookie"
            references = await require_unused(context, session, bookie_id, advice)
            plan = session.plan(
                subject=bookie_id,
                summary=(
                    f"will delete the cookie of bookie {bookie_id} (referenced by none of "
                    f"{counted(references.ledgers_scanned, 'ledger')})",
                    "afterwards the bookie can only start as a new one, with empty directories",
                ),
                items=({"action": "delete", "path": path, "expected_version": node.stat.version},),
            )
            return plan, node

        async def apply(change: Change, node: Node) -> None:
            change.require_lock()
            change.trash.keep("delete", path, node)
            await session.cookies.delete(bookie_id, node.stat.version)

        node, _ = await make_change(context, examine, apply, session.store)
    context.console.record("CookieDeleted", {"bookie_id": bookie_id, "version": node.stat.version}, name="bookie_id")
