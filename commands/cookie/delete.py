"""``bkctl cookie delete``: delete the cookies of bookies without data."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.cookie.access import read_cookie_node, require_not_registered, require_unnamed, scan_references
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.commands.several import in_turn
from bkctl.runtime.metadata.store import Node
from bkctl.storage.words import counted


@command("delete", example="cookie delete b1.example.com:3181 --dry-run", effect=Effect.DESTROYS)
async def delete(
    context: CommandContext, bookie_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Bookie IDs")]
) -> None:
    """Delete the cookies of stopped bookies that no ledger references.

    All ledgers are read to verify this. If ledgers reference a bookie, use bkctl decommission. The cookies are kept in
    the trash. Type the ID, of several their number, or use --confirm.
    """
    ids = list(dict.fromkeys(bookie_ids))
    async with open_session(context) as session:

        async def examine() -> tuple[Plan, dict[str, Node]]:
            nodes = {bookie_id: await read_cookie_node(session, bookie_id) for bookie_id in ids}
            for bookie_id in ids:
                await require_not_registered(session, bookie_id)
            references = await scan_references(context, session, ids)
            for bookie_id in ids:
                advice = f"bkctl decommission {bookie_id} re-replicates them, then deletes the cookie"
                require_unnamed(references, bookie_id, advice)
                await require_not_registered(session, bookie_id)
            what = "cookie of bookie" if len(ids) == 1 else "cookies of bookies"
            plan = session.plan(
                subject=ids[0] if len(ids) == 1 else str(len(ids)),
                summary=(
                    f"will delete the {what} {', '.join(ids)} (referenced by none of "
                    f"{counted(references.ledgers_scanned, 'ledger')})",
                    "afterwards each bookie can only start as a new one, with empty directories",
                ),
                items=[
                    {"action": "delete", "path": session.cookies.path(bookie_id), "expected_version": node.stat.version}
                    for bookie_id, node in nodes.items()
                ],
            )
            return plan, nodes

        async def apply(change: Change, nodes: dict[str, Node]) -> None:
            with in_turn(context, ids) as turns:
                for bookie_id, node in nodes.items():
                    with turns.turn():
                        change.require_lock()
                        await require_not_registered(session, bookie_id)  # it may have started meanwhile
                        change.trash.keep("delete", session.cookies.path(bookie_id), node)
                        await session.cookies.delete(bookie_id, node.stat)
                        body = {"bookie_id": bookie_id, "version": node.stat.version}
                        context.console.record("CookieDeleted", body, name="bookie_id")

        await make_change(context, examine, apply, session.store)
