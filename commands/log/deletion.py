"""``bkctl log trim`` and ``bkctl log delete``: delete the oldest ledgers of a log, or whole logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import Outcome
from bkctl.commands.ledger.changing import FAILURE_TABLE
from bkctl.commands.ledger.delete import PLAN_TABLE, deletion_item
from bkctl.commands.ledger.named import read_ledgers
from bkctl.commands.log.access import LogName, LogNames, log_nodes, parse_log_name
from bkctl.commands.safety.gate import Change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import open_session
from bkctl.commands.several import in_turn
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.client.access import require_access
from bkctl.runtime.errors import RefusedError
from bkctl.runtime.ledger_log.deletion import LedgerDeletion, ReleasedLedgers, delete_log, is_of, trim_log
from bkctl.runtime.metadata.ledger_logs.format import LedgerLog, to_deleted, trimmed
from bkctl.runtime.metadata.store import find_node
from bkctl.storage.words import counted, listed, size


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
    change. The metadata is kept in the trash. Type the name of the log, or use --confirm.
    """
    parse_log_name(name)
    async with open_session(context) as session:
        client, nodes = await session.client(), log_nodes(session)

        async def examine() -> tuple[Plan, LedgerLog]:
            log = (await nodes.read(name)).value
            kept = trimmed(log, before)
            items = await _items(client, kept.released)
            plan = session.plan(
                subject=name,
                summary=(
                    f"will delete {_amount(items)} of log {name}, which then begins at position {kept.first_position}",
                ),
                items=items,
                arguments={"before": before},
            )
            return plan if items else plan.emptied(f"no ledger of log {name} is wholly before position {before}"), kept

        async def apply(change: Change, _: LedgerLog) -> tuple[ReleasedLedgers, str | None]:
            await _keep_log(client, change, "set", nodes.path(name))
            result = await trim_log(
                client, nodes, name, before, LedgerDeletion(change.trash.keep_all, change.require_lock)
            )
            change.result = "partial" if result.failed else "done"
            return result, change.trash.path

        kept, done = await make_change(context, examine, apply, session.store, table=PLAN_TABLE)
        result, trash_path = (ReleasedLedgers(), None) if done is None else done
    failures = [{"ledger_id": str(fate.ledger_id), "reason": fate.reason} for fate in result.failed]
    body = {
        "name": name,
        "deleted": [str(each) for each in result.deleted],
        "first_position": kept.first_position,
        "trash": trash_path,
    }
    context.console.record("LogTrim", body, name="name", details={"failures": failures})
    context.console.table(FAILURE_TABLE.titled("Not deleted"), failures)
    return Outcome.PARTIAL if failures else Outcome.OK


@command("delete", example="log delete orders --dry-run", effect=Effect.DESTROYS)
async def delete(context: CommandContext, names: LogNames) -> None:
    """Delete logs and all their ledgers permanently, and stop their writers.

    If it was stopped, run it again for the logs that are left. The metadata is kept in the trash. Type the name of the
    log, of several their number, or use --confirm.
    """
    names = list(dict.fromkeys(map(parse_log_name, names)))
    async with open_session(context) as session:
        client, nodes = await session.client(), log_nodes(session)

        async def examine() -> tuple[Plan, None]:
            items = []
            for name in names:
                found = await nodes.read(name)
                items += await _items(client, to_deleted(found.value).released, log_id=found.value.log_id)
                items.append({"action": "delete", "path": nodes.path(name), "expected_version": found.version})
            ledgers = [item for item in items if "ledger_id" in item]
            plan = session.plan(
                subject=names[0] if len(names) == 1 else str(len(names)),
                summary=(f"will delete log {', '.join(names)} with {_amount(ledgers)}",),
                items=items,
            )
            await require_access(client.ports)
            return plan, None

        async def apply(change: Change, _: None) -> None:
            how = LedgerDeletion(change.trash.keep_all, change.require_lock)
            with in_turn(context, names) as turns:
                for name in names:
                    with turns.turn():
                        await _keep_log(client, change, "delete", nodes.path(name))
                        result = await delete_log(client, nodes, name, how)
                        deleted = [str(each) for each in result.deleted]
                        body = {"name": name, "deleted": deleted, "trash": change.trash.path}
                        context.console.record("LogDelete", body, name="name")

        await make_change(context, examine, apply, session.store, table=PLAN_TABLE)


async def _items(client: LedgerClient, ledger_ids: Sequence[int], *, log_id: str | None = None) -> list[dict[str, Any]]:
    """Plan items; RefusedError if the metadata of a ledger does not name the log ``log_id``."""
    items, foreign = [], []
    async with read_ledgers(client, ledger_ids, frozenset()) as ledgers:
        for ledger_id, found in zip(ledger_ids, [each async for each in ledgers], strict=True):
            if found is None:
                path = client.ports.ledgers.path(ledger_id)
                items.append(
                    {"action": "delete", "path": path, "expected_version": None, "ledger_id": str(ledger_id)}
                    | {"state": "deleted already", "length_bytes": None, "owner": None}
                )
                continue
            items.append(deletion_item(found))
            if log_id is not None and not is_of(found, log_id):
                foreign.append(ledger_id)
    if foreign:
        raise RefusedError(
            f"nothing was changed: the metadata of ledger {listed(foreign)} does not name this log; examine it with "
            "bkctl ledger show"
        )
    return items


def _amount(items: list[dict[str, Any]]) -> str:
    length_bytes = sum(item["length_bytes"] or 0 for item in items)
    return f"{counted(len(items), 'ledger')} with {size(length_bytes)} of payload"


async def _keep_log(client: LedgerClient, change: Change, action: str, path: str) -> None:
    change.require_lock()
    node = await find_node(client.store, path)
    if node is not None:
        change.trash.keep(action, path, node)
