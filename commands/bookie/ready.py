"""``bkctl bookie ready``: whether a bookie serves, for the probes of supervisors."""

from __future__ import annotations

from typing import Annotated, Final

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
from bkctl.runtime.admin.api import JavaState, StateAnswer
from bkctl.runtime.admin.calls import BKCTL_API, AdminAddress, decode_answer
from bkctl.runtime.admin.messages import AdminError, Problem
from bkctl.runtime.errors import BookieTimeoutError, BookieUnavailableError

_JAVA_STATE: Final = "/api/v1/bookie/state"


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
    readiness probe. What answers must be a bookie, with the given ID; a Java bookie does not report its ID.
    """
    limit_s = None if started_within is None else parse_duration_s(started_within)
    if not bookie_ids:
        _require_ready(context, find_target(None, directory, context), limit_s, is_id_given=False)
        return
    with in_turn(context, bookie_ids) as turns:
        for each in turns.ids:
            with turns.turn():
                _require_ready(context, find_target(each, directory, context), limit_s, is_id_given=True)


def _require_ready(context: CommandContext, target: BookieTarget, limit_s: float | None, *, is_id_given: bool) -> None:
    address = target.address
    if address is None:
        from bkctl.commands.event_loop import run_to_end

        address = run_to_end(resolve, context, target)
    state = _read_state(context, target.name, address)
    if is_id_given and state is not None and not state.may_be_of(target.name):
        raise BookieUnavailableError(target.name, f"bookie {state.bookie_id} answers at {address}")
    stage = None
    try:
        _look(context, target.name, address, "/api/v1/bookie/is_ready")
    except BookieTimeoutError:
        raise
    except BookieUnavailableError:
        stage = _young_stage(state, limit_s)
        if stage is None:
            raise
    body = {"bookie": target.name, "state": "running" if stage is None else "starting", "stage": stage}
    context.console.record("BookieReadiness", body, name="state")


def _read_state(context: CommandContext, name: str, address: AdminAddress) -> StateAnswer | None:
    """The state of a bkctl bookie; None: a Java bookie answers, which has less to say. AdminError: something else."""
    for path, kind in ((f"{BKCTL_API}/state", StateAnswer), (_JAVA_STATE, JavaState)):
        try:
            answer = decode_answer(name, _look(context, name, address, path), kind)
        except AdminError as error:
            if error.problem is not Problem.NOT_FOUND:
                raise
        else:
            return answer if isinstance(answer, StateAnswer) else None
    raise AdminError(
        Problem.NOT_FOUND, f"bookie {name}: the server at {address} is not a bookie: it has no {_JAVA_STATE}"
    )


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


def _young_stage(state: StateAnswer | None, limit_s: float | None) -> str | None:
    """The stage of its start if the bookie has been starting for less than the limit."""
    if state is None or state.uptime_s is None or limit_s is None:  # a Java bookie does not say since when it starts
        return None
    is_young = state.uptime_s < limit_s and not state.running and not state.stopping
    return state.stage if is_young else None
