"""``bkctl bookie stop``: a clean stop of a running bookie, over its admin interface."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import typer

from bkctl.commands.bookie.admin_access import DirectoryOption, IdArguments, TokenOption, open_admins
from bkctl.commands.bookie.admin_state import change_plan, joined_plan, read_state, require_own
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import WaitTimeoutError
from bkctl.commands.parse import parse_duration_s
from bkctl.commands.safety.gate import open_change
from bkctl.commands.session import open_session
from bkctl.commands.several import in_turn
from bkctl.runtime.admin.api import StateAnswer
from bkctl.runtime.admin.calls import BKCTL_API, CREDENTIALS_BYTES, process_of
from bkctl.runtime.admin.client import AdminClient
from bkctl.runtime.errors import BookieTimeoutError, BookieUnavailableError
from bkctl.runtime.metadata.cluster.operation_lock import moved_bookies
from bkctl.runtime.replication.judge.drained_bookies import is_drain_order
from bkctl.runtime.replication.survey.status import read_drained
from bkctl.runtime.replication.survey.stop_scan import operations_on
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import named

_POLL_S = 0.2
_ZOOKEEPER_TIMEOUT_S = 1.0


@command("stop", example="bookie stop --ledger-dir /data/ledgers --wait 10m", effect=Effect.HARMFUL)
async def stop(
    context: CommandContext,
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
    wait: Annotated[str, typer.Option("--wait", metavar="DURATION", help="How long to wait for its end")] = "5m",
) -> None:
    """Stop running bookies cleanly, one after another.

    Waits for their end. Each answers what it has accepted, writes its caches to the disks and leaves the cluster, so
    the next start replays nothing. Exits with 8 if a bookie has not ended in time; it then goes on stopping. A
    supervisor may start it again.
    """
    wait_s = parse_duration_s(wait)
    async with (
        open_admins(context, bookie_ids, directory, token_file) as clients,
        contextlib.AsyncExitStack() as at_end,
    ):
        states = [await read_state(client) for client in clients]
        for state in states:
            require_own(state, "stop it with the supervisor that started it")
        ends = [_end_of(client, at_end) for client in clients]
        drains, emptied = await _drains(context, states)
        plan = joined_plan(
            [change_plan(state, {"action": "stop"}, summary=(_effect(state.bookie_id, emptied),)) for state in states]
        )
        if len(others := [state.bookie_id for state in states if state.bookie_id not in emptied]) > 1:
            check = f"bkctl bookie restart-check {' '.join(others)}"
            together = f"ledgers with all copies on these bookies cannot be read meanwhile: {check} tells"
            plan = msgspec.structs.replace(plan, summary=(*plan.summary, together))
        plan = msgspec.structs.replace(plan, summary=(*plan.summary, *drains))
        async with open_change(context, plan):
            with in_turn(context, [state.bookie_id for state in states]) as turns:
                for client, state, ended in zip(clients, states, ends, strict=True):
                    with turns.turn():
                        await _stop(context, client, state.bookie_id, wait_s, ended)


def _effect(bookie_id: str, emptied: Mapping[str, bool]) -> str:
    if bookie_id not in emptied:
        return f"bookie {bookie_id} will end; its ledgers have one copy less until it runs again"
    if emptied[bookie_id]:
        return f"bookie {bookie_id} will end: a decommission waits for this, and no ledger references the bookie"
    return f"bookie {bookie_id} will end; no ledger references it, so no ledger has fewer copies"


async def _drains(context: CommandContext, states: Sequence[StateAnswer]) -> tuple[list[str], dict[str, bool]]:
    """What a drain does, or has left to do, with bookies that it made read-only, and those of them that it has emptied,
    with whether a decommission waits for the stop; asks ZooKeeper for a short time."""
    ids = [each.bookie_id for each in states if each.operator and is_drain_order(each.operator.reason)]
    if not ids:
        return [], {}
    said = f"a drain has made {named('bookie', ids)} read-only: bkctl status says what is left to do"
    zookeeper = msgspec.structs.replace(context.settings.zookeeper, operation_timeout_s=_ZOOKEEPER_TIMEOUT_S)
    with contextlib.suppress(BkctlError):
        async with open_session(context.with_settings(zookeeper=zookeeper), must_exist=False) as session:
            where = session.store, session.root
            _, removed = await moved_bookies(*where)
            left = await read_drained(*where, session.ledgers, ids, _ZOOKEEPER_TIMEOUT_S)
            emptied = {each: each in removed for each in ids if each in left and not left[each].is_referenced}
            running = await operations_on(*where, ids)
            return running or [said], emptied
    return [said], {}


async def _stop(
    context: CommandContext, client: AdminClient, name: str, wait_s: float, ended: Callable[[], Awaitable[Any]] | None
) -> None:
    await client.post(f"{BKCTL_API}/stop", object)
    try:
        async with asyncio.timeout(wait_s):
            await _wait(context, client, name, ended)
    except TimeoutError:
        raise WaitTimeoutError(
            f"bookie {name} has not ended within {wait_s:g} s (--wait); it is still stopping"
        ) from None
    context.console.record("BookieStop", {"bookie_id": name, "ended": True}, name="bookie_id")


async def _wait(
    context: CommandContext, client: AdminClient, bookie_id: str, ended: Callable[[], Awaitable[Any]] | None
) -> None:
    """Wait for the end of the process; of one on another machine only until it no longer answers."""
    context.console.say(f"waiting until bookie {bookie_id} has written its caches and ended")
    if ended is not None:
        await ended()
        return
    while True:
        try:
            await read_state(client)
        except BookieTimeoutError:
            pass
        except BookieUnavailableError:
            return
        await asyncio.sleep(_POLL_S)


def _end_of(client: AdminClient, at_end: contextlib.AsyncExitStack) -> Callable[[], Any] | None:
    """A function that waits for the end of the process that owns the socket; None if the process cannot be seen."""
    if not client.address.socket_path:
        return None
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(client.address.socket_path)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS_BYTES)
        process = os.pidfd_open(process_of(credentials))
    except (OSError, ValueError):
        return None
    at_end.callback(os.close, process)

    async def ended() -> None:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(process, event.set)
        try:
            await event.wait()
        finally:
            loop.remove_reader(process)

    return ended
