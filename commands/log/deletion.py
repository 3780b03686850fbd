"""``bkctl log trim`` and ``bkctl log delete``: delete the oldest ledgers of a log, or all of it."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.errors import Outcome
from bkctl.commands.log.access import CHANGES_TABLE, LogName, deletions, log_nodes, parse_log_name
from bkctl.commands.safety.gate import nothing_to_change, open_change
from bkctl.commands.session import open_session
from bkctl.runtime.client.access import require_access
from bkctl.runtime.ledger_log.deletion import ReleasedLedgers, delete_log, trim_log
from bkctl.runtime.metadata.ledger_logs.format import to_deleted, trimmed
from bkctl.storage.words import counted


@command("trim", example="log trim orders --before 1000 --dry-run", effect=Effect.DESTROYS)
async def trim(
    context: CommandContext,
    name: LogName,
    before: Annotated[
        int, typer.Option("--before", min=0, metavar="POSITION", help="Keep this position and all after it")
    ],
) -> Outcome:
    """Delete the oldest ledgers of a log permanently.

    Deletes whole ledgers, so some entries before POSITION may stay; the last ledger always stays. Positions do not
    change. Type the name of the log, or use --confirm.
    """
    parse_log_name(name)
    async with open_session(context) as session:
        client, nodes = await session.client(), log_nodes(session)
        log = (await nodes.read(name)).value
        kept = trimmed(log, before)
        items = deletions(log, kept)
        count = counted(len(items), "ledger")
        plan = session.plan(
            subject=name,
            summary=(f"will delete {count} of log {name}, which then begins at position {kept.first_position}",),
            items=items,
            arguments={"before": before},
        )
        result = ReleasedLedgers()
        if items:
            async with open_change(context, plan, session.store, table=CHANGES_TABLE):
                result = await trim_log(client, nodes, name, before)
                kept = (await nodes.read(name)).value
        else:
            nothing_to_change(context, plan.emptied(f"no ledger of log {name} is wholly before position {before}"))
    body = {
        "name": name,
        "deleted": [str(each) for each in result.deleted],
        "kept": [str(each) for each in result.kept],
        "first_position": kept.first_position,
    }
    context.console.record("LogTrim", body, name="name")
    if result.kept:
        context.console.warn(f"{counted(len(result.kept), 'ledger')} not deleted: the metadata names no log {name}")
    return Outcome.PARTIAL if result.kept else Outcome.OK


@command("delete", example="log delete orders --dry-run", effect=Effect.DESTROYS)
async def delete(context: CommandContext, name: LogName) -> None:
    """Delete a log and all its ledgers permanently, and stop its writer.

    Run it again if it was stopped. Type the name of the log, or use --confirm.
    """
    parse_log_name(name)
    async with open_session(context) as session:
        client, nodes = await session.client(), log_nodes(session)
        found = await nodes.read(name)
        items = deletions(found.value, to_deleted(found.value))
        plan = session.plan(
            subject=name,
            summary=(f"will delete log {name} with {counted(len(items), 'ledger')}",),
            items=[*items, {"action": "delete", "path": nodes.path(name)}],
        )
        await require_access(client.ports)
        async with open_change(context, plan, session.store, table=CHANGES_TABLE):
            result = await delete_log(client, nodes, name)
    body = {"name": name, "deleted": [str(each) for each in result.deleted]}
    context.console.record("LogDelete", body, name="name")
