"""``bkctl bookie ready``: whether a bookie serves, for the probes of supervisors."""

from __future__ import annotations

from typing import Annotated

import typer

from bkctl.commands.bookie.admin_access import (
    BookieTarget,
    DirectoryOption,
    IdArguments,
    find_target,
    read_credentials,
    resolve,
)
from bkctl.commands.bookie.probe import probe
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.several import in_turn
from bkctl.runtime.admin.api import StateAnswer
from bkctl.runtime.admin.calls import BKCTL_API, AdminAddress, decode_answer
from bkctl.runtime.admin.messages import AdminError
from bkctl.runtime.errors import BookieTimeoutError, BookieUnavailableError


# A probe runs every few seconds: this command imports neither an event loop nor an HTTP library.
@command("ready", example="bookie ready --ledger-dir /data/ledgers --started-within 10m", has_tables=False)
def ready(
    context: CommandContext,
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    started_within: Annotated[
        str | None,
        typer.Option("--started-within", metavar="DURATION", help="Accept a bookie that has been starting for less"),
    ] = None,
) -> None:
    """Exit with 0 if these bookies serve requests, with 7 if not.

    A read-only bookie serves reads and is ready. With --started-within, a bookie that is still starting (for example
    replays its journals) passes for that long: use this for a liveness probe, and the command without it for a
    readiness probe.
    """
    limit_s = None if started_within is None else parse_duration_s(started_within)
    if not bookie_ids:
        _require_ready(context, find_target(None, directory, context), limit_s)
        return
    with in_turn(context, bookie_ids) as turns:
        for each in turns.ids:
            with turns.turn():
                _require_ready(context, find_target(each, directory, context), limit_s)


def _require_ready(context: CommandContext, target: BookieTarget, limit_s: float | None) -> None:
    address = target.address
    if address is None:
        from bkctl.commands.event_loop import run_to_end

        address = run_to_end(resolve, context, target)
    stage = None
    try:
        _look(context, target.name, address, "/api/v1/bookie/is_ready")
    except BookieTimeoutError:
        raise
    except BookieUnavailableError:
        if limit_s is None:
            raise
        stage = _young_stage(context, target.name, address, limit_s)
        if stage is None:
            raise
    body = {"bookie": target.name, "state": "running" if stage is None else "starting", "stage": stage}
    context.console.record("BookieReadiness", body, name="state")


def _look(context: CommandContext, name: str, address: AdminAddress, path: str) -> bytes:
    """The body of the answer to a GET; errors as ``AdminClient.request``."""
    if not address.is_https:
        return probe(name, address, path, context.settings.timeout_s)
    # Only a registration names an address with HTTPS: the event loop is imported already.
    from bkctl.commands.event_loop import run_to_end

    return run_to_end(_look_over_https, context, name, address, path)


async def _look_over_https(context: CommandContext, name: str, address: AdminAddress, path: str) -> bytes:
    from bkctl.runtime.admin.client import AdminClient

    credentials = read_credentials(context, None)
    async with AdminClient(name, address, credentials=credentials, timeout_s=context.settings.timeout_s) as client:
        return (await client.request("GET", path)).body


def _young_stage(context: CommandContext, name: str, address: AdminAddress, limit_s: float) -> str | None:
    """The stage of its start if the bookie has been starting for less than the limit."""
    try:
        state = decode_answer(name, _look(context, name, address, f"{BKCTL_API}/state"), StateAnswer)
    except AdminError:  # a Java bookie does not say since when it starts
        return None
    is_young = state.uptime_s is not None and state.uptime_s < limit_s and not state.running and not state.stopping
    return state.stage if is_young else None
