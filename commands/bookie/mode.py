"""``bkctl bookie state``: the state of a running bookie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from commands.bookie.admin_access import DirectoryOption, IdArgument, open_admin
from commands.command import command
from commands.context import CommandContext
from commands.rendering import time_text

if TYPE_CHECKING:
    from runtime.admin.client import AdminClient

_JAVA_STATE: Final = "/api/v1/bookie/state"


@command("state", example="bookie state --dir /data/ledgers")
async def show_state(context: CommandContext, bookie_id: IdArgument = None, directory: DirectoryOption = None) -> None:
    """Show the mode of a running bookie and why, since when it runs, and what it does.

    Asks the bookie itself: over its admin socket on this machine, else over the HTTP port in its registration. Of a
    Java bookie only the mode is known.
    """
    async with open_admin(context, bookie_id, directory) as client:
        state = await read_state(client)
        context.console.record("BookieState", _body(client, state), name="bookie_id")


async def read_state(client: AdminClient) -> dict[str, Any]:
    """The answer of a bkctl bookie; of a Java bookie in the same form, with what it can say."""
    from runtime.admin.calls import BKCTL_API
    from runtime.admin.messages import AdminError, Problem

    try:
        answer: dict[str, Any] = await client.get(f"{BKCTL_API}/state")
    except AdminError as error:
        if error.problem is not Problem.NOT_FOUND:
            raise
        java = await client.get(_JAVA_STATE)
        return {
            "bookie_id": client.name,
            "running": java["running"],
            "stopping": java["shuttingDown"],
            "mode": "read-only" if java["readOnly"] else "writable",
            "accepts_recovery_writes": java["availableForHighPriorityWrites"],
        }
    return answer


def _body(client: AdminClient, state: dict[str, Any]) -> dict[str, object]:
    word = "stopping" if state["stopping"] else "running" if state["running"] else "starting"
    reasons, uptime_s = state.get("reasons"), state.get("uptime_s")
    return {
        "bookie_id": state["bookie_id"],
        "state": word,
        "stage": state.get("stage") if word == "starting" else None,
        "mode": state["mode"],
        "reasons": None if reasons is None else [each["text"] for each in reasons],
        "accepts_recovery_writes": state["accepts_recovery_writes"],
        "started": time_text(state.get("started_ms")),
        "uptime_s": None if uptime_s is None else int(uptime_s),
        "version": state.get("version"),
        "answered_by": str(client.address),
        "ledger_directories": state.get("ledger_directories"),
        "repair": state.get("repair"),
    }
