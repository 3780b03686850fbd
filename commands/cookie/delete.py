"""``bkctl cookie delete``: forget a bookie that holds nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from commands.command import command
from commands.context import CommandContext
from commands.cookie.access import (
    open_cookies,
    read_cookie_node,
    require_not_registered,
    require_unnamed,
    scan_references,
)


def register(app: typer.Typer) -> None:
    """Add the command to ``bkctl cookie``."""
    command(app, "delete", planned_tier=3)(delete)


async def delete(
    context: CommandContext, bookie_id: Annotated[str, typer.Argument(metavar="ID", help="Any bookie id.")]
) -> None:
    """Delete the cookie of a bookie that is stopped and that no ledger names.

    All ledgers are read to make sure. A bookie that ledgers name is removed by bkctl decommission. What was stored is
    kept in the trash. The id must be typed, or given by --confirm.
    """
    from commands.safety.change import open_change
    from commands.safety.confirmation import settle_plan
    from commands.safety.plan import Plan

    async with open_cookies(context) as access:
        node = await read_cookie_node(access, bookie_id)
        await require_not_registered(access, bookie_id)
        references = await scan_references(context, access, [bookie_id])
        require_unnamed(
            references, bookie_id, f"bkctl decommission {bookie_id} copies them away, then deletes the cookie"
        )
        path = access.path(bookie_id)
        plan = Plan(
            command="cookie delete",
            tier=3,
            root=access.uri.root,
            instance_id=access.instance_id,
            subject=bookie_id,
            summary=(
                f"will delete the cookie of bookie {bookie_id} (referenced by none of "
                f"{references.ledgers_scanned} ledgers)",
                "afterwards the bookie can only start as a new one, with empty directories",
            ),
            items=({"action": "delete", "path": path, "expected_version": node.stat.version},),
        )
        if not await settle_plan(context, plan):
            return
        async with open_change(context, access.store, plan) as change:
            await require_not_registered(access, bookie_id)
            change.require_lock()
            change.trash.keep("delete", path, node)
            await access.cookies.delete(bookie_id, node.stat.version)
    context.console.record("CookieDeleted", {"bookie_id": bookie_id, "version": node.stat.version}, name="bookie_id")
