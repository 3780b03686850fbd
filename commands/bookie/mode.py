"""``bkctl bookie state`` and ``set-mode``: the mode of a running bookie."""

from __future__ import annotations

import enum
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from bkctl.commands.bookie.admin_access import DirectoryOption, IdArguments, TokenOption, open_admin, open_admins
from bkctl.commands.bookie.admin_state import change_plan, joined_plan, read_state
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.rendering import Column, Table, time_text
from bkctl.commands.safety.gate import Change, mode_turn
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.safety.state_directory import user_name
from bkctl.commands.session import Session, open_session
from bkctl.commands.several import each_in_turn, in_turn
from bkctl.runtime.admin.api import JavaMode, Job, ModeAnswer, StateAnswer
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.errors import MetadataError
from bkctl.runtime.metadata.cluster.operation_lock import OperationLockedError, bookie_lock_path, running_operations

if TYPE_CHECKING:  # as in admin_state
    from bkctl.runtime.admin.client import AdminClient

_REASON_LENGTH_MAX = 400
_JOBS = Table(
    "Jobs",
    Column("id", "ID", is_right=True),
    Column("kind", "KIND"),
    Column("state", "STATE"),
    Column("step", "STEP"),
    Column("started", "STARTED"),
    Column("error", "ERROR", is_wide=True),
)


class Mode(enum.StrEnum):
    """The modes that an operator can set."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"


@command("state", example="bookie state --ledger-dir /data/ledgers")
async def show_state(
    context: CommandContext, bookie_ids: IdArguments = None, directory: DirectoryOption = None
) -> Outcome:
    """Show the mode of running bookies and why, and their jobs.

    Asks the bookie itself: over its admin socket on this machine, else over the HTTP port in its registration. Of a
    Java bookie only the mode is known.
    """
    return await each_in_turn(context, bookie_ids, partial(_show_state, context, directory))


async def _show_state(context: CommandContext, directory: str | None, bookie_id: str | None) -> None:
    async with open_admin(context, bookie_id, directory) as client:
        state = await read_state(client)
    jobs = [_job_row(job) for job in state.jobs]
    context.console.record("BookieState", _body(client, state), name="bookie_id", details={"jobs": jobs})
    context.console.table(_JOBS, jobs)


@command(
    "set-mode",
    example="bookie set-mode read-only --reason 'disk sdb is replaced'",
    effect=Effect.HARMFUL,
    milder_effect=Effect.REVERSIBLE,
)
async def set_mode(
    context: CommandContext,
    mode: Annotated[Mode, typer.Argument(metavar="MODE", help="read-only or writable")],
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="The reason, which state shows")
    ] = None,
) -> None:
    """Make running bookies read-only, or end that.

    A read-only bookie serves reads and recovery; writers choose other bookies. The mode lasts over restarts (on a Java
    bookie only with persistBookieStatusEnabled). A full disk or a setting may keep a bookie read-only all the same.
    """
    if reason is not None and len(reason) > _REASON_LENGTH_MAX:
        raise InvalidArgumentError(f"--reason has {len(reason)} characters: use at most {_REASON_LENGTH_MAX}")
    is_read_only = mode is Mode.READ_ONLY
    async with open_admins(context, bookie_ids, directory, token_file) as clients:

        async def examine() -> tuple[Plan, list[StateAnswer]]:
            states = [await read_state(client) for client in clients]
            if not is_read_only:
                await _require_not_leaving(context, clients[0], states)
            return joined_plan([_mode_plan(state, mode, reason) for state in states]), states

        async def settle(states: list[StateAnswer], change: Change | None = None) -> bool:
            with in_turn(context, [state.bookie_id for state in states]) as turns:
                for client, before in zip(clients, states, strict=True):
                    with turns.turn():
                        is_changed = change is not None and not is_mode_set(before, mode, reason)
                        after = await set_operator_mode(client, before, mode, reason) if is_changed else before
                        _report_mode(context, mode, after, is_changed=is_changed)
            return True

        async def apply(change: Change, states: list[StateAnswer]) -> bool:
            change.details["changed"] = True
            return await settle(states, change)

        turn = partial(_turn, context, clients[0]) if is_read_only else None
        found, is_done = await make_change(context, examine, apply, turn=turn)
        if not is_done:
            await settle(found)


def _mode_plan(state: StateAnswer, mode: Mode, reason: str | None) -> Plan:
    is_read_only = mode is Mode.READ_ONLY
    plan = change_plan(
        state,
        {"action": "set-mode", "mode": mode.value, "was": _order_of(state)},
        summary=(_summary(state.bookie_id, mode),),
        arguments={"reason": reason},
        effect=Effect.HARMFUL if is_read_only else Effect.REVERSIBLE,
    )
    if not is_mode_set(state, mode, reason):
        return plan
    has = "has already" if is_read_only else "has not"
    return plan.emptied(f"bookie {state.bookie_id}: nothing to change: an operator {has} made it read-only")


def _report_mode(context: CommandContext, mode: Mode, after: StateAnswer, *, is_changed: bool) -> None:
    name = after.bookie_id
    _explain(context, after, mode)
    if is_changed:
        undo = Mode.WRITABLE if mode is Mode.READ_ONLY else Mode.READ_ONLY
        context.console.say(f"to undo: bkctl bookie set-mode {undo} {name}")
    context.console.record("BookieMode", {"bookie_id": name, "changed": is_changed, **_mode_fields(after)}, name="mode")


@asynccontextmanager
async def _turn(context: CommandContext, client: AdminClient, change: Change) -> AsyncIterator[None]:
    """Wait until no other command makes bookies read-only; OperationLockedError.

    Without ZooKeeper the mode is set all the same: an operator may need that.
    """
    async with AsyncExitStack() as at_end:
        try:
            session = await at_end.enter_async_context(_session_of(context, client))
            await at_end.enter_async_context(mode_turn(context, session.store, session.root, change))
        except MetadataError as error:
            context.console.warn(f"another command may make other bookies read-only at the same time: {error}")
        yield


async def _require_not_leaving(context: CommandContext, client: AdminClient, states: Sequence[StateAnswer]) -> None:
    """OperationLockedError if a command moves the ledgers of one of the bookies away: it would end.

    Without ZooKeeper the mode is set all the same, as above.
    """
    read_only = {each.bookie_id for each in states if each.mode != Mode.WRITABLE.value}
    if not read_only:
        return
    try:
        async with _session_of(context, client) as session:
            root, running = session.root, await running_operations(session.store, session.root)
    except MetadataError as error:
        context.console.warn(f"it is unknown whether a command moves the ledgers of the bookie: {error}")
        return
    for holder, bookie_ids in running.items():
        if holder.moves_ledgers and (held := sorted(read_only.intersection(bookie_ids))):
            raise OperationLockedError(bookie_lock_path(root, held[0]), holder, f"is working on bookie {held[0]}")


@asynccontextmanager
async def _session_of(context: CommandContext, client: AdminClient) -> AsyncIterator[Session]:
    """A session with the cluster of a bookie on this machine, which may be another than that of the settings."""
    own_uri = "" if client.address.host else (await read_state(client)).metadata_uri
    async with open_session(context, metadata_uri=own_uri) as session:
        yield session


async def set_operator_mode(client: AdminClient, before: StateAnswer, mode: Mode, reason: str | None) -> StateAnswer:
    """Set the mode; returns the new state."""
    if before.is_java:
        java = await client.put("/api/v1/bookie/state/readonly", JavaMode, {"readOnly": mode is Mode.READ_ONLY})
        return msgspec.structs.replace(before, mode="read-only" if java.read_only else "writable")
    by = f"{user_name()}@{socket.gethostname()}"
    text = f"{reason} ({by})" if reason else by
    answer = await client.put(f"{BKCTL_API}/mode", ModeAnswer, {"mode": mode.value, "reason": text})
    return msgspec.structs.replace(before, **msgspec.structs.asdict(answer))


def is_mode_set(state: StateAnswer, mode: Mode, reason: str | None) -> bool:
    """Whether nothing would change. A reason, if given, replaces the one that is stored."""
    if state.is_java:
        return state.mode == mode.value
    is_read_only_by_operator = state.operator is not None
    return is_read_only_by_operator == (mode is Mode.READ_ONLY) and (reason is None or not is_read_only_by_operator)


def _order_of(state: StateAnswer) -> str:
    """What the change replaces: an operator's reason, or the mode."""
    return state.mode if state.operator is None else f"{state.operator.reason}, {state.operator.since_ms}"


def _summary(bookie_id: str, mode: Mode) -> str:
    if mode is Mode.WRITABLE:
        return f"bookie {bookie_id} will accept writes again, unless its disks or settings forbid it"
    return (
        f"bookie {bookie_id} will refuse writes until it is set writable, also after a restart; writers choose other "
        "bookies, and fail if there are not enough"
    )


def reasons_text(state: StateAnswer) -> str:
    """Why it has its mode, in the words of the bookie."""
    return ", ".join(each.text for each in state.reasons or ()) or "the bookie does not say why"


def _explain(context: CommandContext, state: StateAnswer, mode: Mode) -> None:
    """Warn if the bookie is not, or not yet, what was asked for."""
    if state.mode != mode.value:
        context.console.warn(f"bookie {state.bookie_id} is still {state.mode}: {reasons_text(state)}")
    elif state.registered is False:
        context.console.warn(
            f"bookie {state.bookie_id} is {mode}, but ZooKeeper has not registered it as such yet: "
            f"bkctl bookie state {state.bookie_id} shows why"
        )


def _mode_fields(state: StateAnswer) -> dict[str, object]:
    reasons, operator = state.reasons, state.operator
    return {
        "mode": state.mode,
        "reasons": None if reasons is None else [each.text for each in reasons],
        "registered": state.registered,
        "set_since": None if operator is None else time_text(operator.since_ms),
        "set_reason": None if operator is None else operator.reason or None,
    }


def _body(client: AdminClient, state: StateAnswer) -> dict[str, object]:
    word = "stopping" if state.stopping else "running" if state.running else "starting"
    directories = state.ledger_directories
    return {
        "bookie_id": state.bookie_id,
        "state": word,
        "stage": state.stage if word == "starting" else None,
        **_mode_fields(state),
        "troubles": [f"{each.text}, since {time_text(each.since_ms)}" for each in state.troubles],
        "accepts_recovery_writes": state.accepts_recovery_writes,
        "started": time_text(state.started_ms),
        "uptime_s": None if state.uptime_s is None else int(state.uptime_s),
        "version": state.version,
        "answered_by": str(client.address),
        "ledger_directories": None if directories is None else list(directories),
        "repair": None if state.repair is None else msgspec.to_builtins(state.repair),
    }


def _job_row(job: Job) -> dict[str, object]:
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state.value,
        "step": job.progress.step or None,
        "done": job.progress.done,
        "total": job.progress.total,
        "started": time_text(job.started_ms),
        "ended": time_text(job.ended_ms),
        "error": job.error,
    }
