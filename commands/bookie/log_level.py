"""``bkctl bookie log-level``: the log level of a running bookie."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.bookie.admin_access import DirectoryOption, IdArgument, TokenOption, open_admin
from bkctl.commands.bookie.admin_state import change_plan, read_state, require_own
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.effect import Effect
from bkctl.commands.safety.gate import open_change
from bkctl.runtime.admin.api import LogLevelAnswer
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.log_level import LogLevel


@command("log-level", example="bookie log-level debug --dir /data/ledgers", effect=Effect.REVERSIBLE)
async def set_log_level(
    context: CommandContext,
    level: Annotated[LogLevel, typer.Argument(metavar="LEVEL", help="debug, info, warning or error")],
    bookie_id: IdArgument = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
) -> None:
    """Change the log level of a running bookie.

    It lasts until the bookie restarts or the setting itself changes.
    """
    path = f"{BKCTL_API}/log-level"
    async with open_admin(context, bookie_id, directory, token_file) as client:
        state = await read_state(client)
        require_own(state, "change its log4j2 configuration")
        was = (await client.get(path, LogLevelAnswer)).level
        async with open_change(context, change_plan(state, {"action": "log-level", "level": level.value})):
            await client.put(path, object, {"level": level.value})
    name = state.bookie_id
    context.console.say(f"to undo: bkctl bookie log-level {was} {name}")
    context.console.record("BookieLogLevel", {"bookie_id": name, "level": level.value, "previous": was}, name="level")
