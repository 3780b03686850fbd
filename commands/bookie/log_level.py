"""``bkctl bookie log-level``: the log level of a running bookie."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.bookie.admin_access import DirectoryOption, IdArguments, TokenOption, open_admins
from bkctl.commands.bookie.admin_state import change_plan, joined_plan, read_state, require_own
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.safety.gate import open_change
from bkctl.commands.several import in_turn
from bkctl.runtime.admin.api import LogLevelAnswer
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.log_level import LogLevel


@command("log-level", example="bookie log-level debug --ledger-dir /data/ledgers", effect=Effect.REVERSIBLE)
async def set_log_level(
    context: CommandContext,
    level: Annotated[LogLevel, typer.Argument(metavar="LEVEL", help="debug, info, warning or error")],
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
) -> None:
    """Change the log level of running bookies.

    It lasts until the bookie restarts or the setting itself changes.
    """
    path = f"{BKCTL_API}/log-level"
    async with open_admins(context, bookie_ids, directory, token_file) as clients:
        states = [await read_state(client) for client in clients]
        for state in states:
            require_own(state, "change its log4j2 configuration")
        former = [(await client.get(path, LogLevelAnswer)).level for client in clients]
        item = {"action": "log-level", "level": level.value}
        plan = joined_plan(
            [
                change_plan(
                    state, item, summary=(f"will set the log level of bookie {state.bookie_id} to {level.value}",)
                )
                for state in states
            ]
        )
        async with open_change(context, plan):
            with in_turn(context, [state.bookie_id for state in states]) as turns:
                for client, state, was in zip(clients, states, former, strict=True):
                    with turns.turn():
                        await client.put(path, object, {"level": level.value})
                        name = state.bookie_id
                        context.console.say(f"to undo: bkctl bookie log-level {was} {name}")
                        body = {"bookie_id": name, "level": level.value, "previous": was}
                        context.console.record("BookieLogLevel", body, name="level")
