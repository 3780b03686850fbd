"""``bkctl bookie gc``: garbage collection and compaction of a running bookie."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

import typer

from bkctl.commands.bookie.admin_access import DirectoryOption, IdArguments, TokenOption, open_admin, open_admins
from bkctl.commands.bookie.admin_state import change_plan, joined_plan, read_state, require_own
from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, Outcome
from bkctl.commands.rendering import Column, Lines, Table, time_text
from bkctl.commands.safety.gate import open_change
from bkctl.commands.safety.operation import make_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.several import each_in_turn, in_turn
from bkctl.runtime.admin.api import (
    CollectionDetails,
    ConfirmedMetadata,
    ForcedCollection,
    StateAnswer,
    SuspendedCompaction,
    Truth,
)
from bkctl.runtime.admin.calls import BKCTL_API
from bkctl.runtime.admin.client import AdminClient
from bkctl.runtime.errors import ConflictError

_GC: Final = "/api/v1/bookie/gc"
_KINDS: Final = ("major", "minor")
_DIRECTORIES = Table(
    "Ledger directories",
    Column("directory", "DIRECTORY"),
    Column("running", "RUNNING"),
    Column("major_compactions", "MAJOR", is_right=True),
    Column("last_major", "LAST MAJOR", priority=1),
    Column("minor_compactions", "MINOR", is_right=True),
    Column("last_minor", "LAST MINOR", priority=1),
)

MajorOption = Annotated[bool, typer.Option("--major", help="Only major compaction")]
MinorOption = Annotated[bool, typer.Option("--minor", help="Only minor compaction")]


@command("status", example="bookie gc status")
async def show_status(
    context: CommandContext, bookie_ids: IdArguments = None, directory: DirectoryOption = None
) -> Outcome:
    """Show what garbage collection and compaction do in each ledger directory, and what is suspended."""
    return await each_in_turn(context, bookie_ids, partial(_show_status, context, directory))


async def _show_status(context: CommandContext, directory: str | None, bookie_id: str | None) -> None:
    async with open_admin(context, bookie_id, directory) as client:
        state = await read_state(client)
        forced = await client.get(_GC, ForcedCollection)
        details = await client.get("/api/v1/bookie/gc_details", tuple[CollectionDetails, ...])
        suspended = await _suspended(client)
    stopped = state.deletion_stopped
    names = itertools.chain(state.ledger_directories or (), itertools.repeat(None))  # a Java bookie does not name them
    rows = [_row(name, each) for each, name in zip(details, names, strict=False)]
    body = {
        "bookie_id": state.bookie_id,
        "forced": _is_true(forced.is_in_force_gc),
        **{f"{kind}_suspended": suspended[kind] for kind in _KINDS},
        "deletion_stopped": None if stopped is None else stopped.reason,
        "deletion_stopped_since": None if stopped is None else time_text(stopped.since_ms),
    }
    context.console.record(
        "GarbageCollection", body, name="bookie_id", details={"directories": rows}, lines=Lines(_DIRECTORIES, rows)
    )
    context.console.table(_DIRECTORIES, rows)
    if stopped is not None:
        context.console.warn(f"no ledger is deleted; to allow it: bkctl bookie gc confirm {state.bookie_id}")


@command("run", example="bookie gc run --minor", effect=Effect.REVERSIBLE)
async def run(
    context: CommandContext,
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
    major: MajorOption = False,
    minor: MinorOption = False,
) -> None:
    """Start garbage collection now: delete ledgers that are gone, then compact.

    Returns once it has begun; bkctl bookie gc status shows how it proceeds. Without --major and --minor, major
    compaction runs, and minor compaction where no log needs a major one.
    """
    kinds = _kinds(major=major, minor=minor)
    body = {f"force{kind.capitalize()}": kind in kinds for kind in _KINDS}
    async with open_admins(context, bookie_ids, directory, token_file) as clients:
        for client in clients:
            if _is_true((await client.get(_GC, ForcedCollection)).is_in_force_gc):
                context.console.warn(f"bookie {client.name} is already running a collection that was asked for")

        async def start(client: AdminClient, state: StateAnswer) -> None:
            await client.put(_GC, object, body)
            shown = {"bookie_id": state.bookie_id, "kinds": kinds}
            context.console.record("GarbageCollectionRun", shown, name="bookie_id")

        await _change_all(context, clients, {"action": "gc-run", "kinds": kinds}, start)


@command("suspend", example="bookie gc suspend --major", effect=Effect.REVERSIBLE)
async def suspend(
    context: CommandContext,
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
    major: MajorOption = False,
    minor: MinorOption = False,
) -> None:
    """Suspend compaction until it is resumed, or the bookie restarts.

    Ledgers and entry logs in which nothing is left are still deleted. Other logs keep their garbage, so the disks fill
    faster.
    """
    await _switch(context, bookie_ids, directory, token_file, "suspend", _kinds(major=major, minor=minor))


@command("resume", example="bookie gc resume", effect=Effect.REVERSIBLE)
async def resume(
    context: CommandContext,
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
    major: MajorOption = False,
    minor: MinorOption = False,
) -> None:
    """Resume compaction that was suspended."""
    await _switch(context, bookie_ids, directory, token_file, "resume", _kinds(major=major, minor=minor))


@command("confirm", example="bookie gc confirm 10.0.0.5:3181", effect=Effect.DESTROYS)
async def confirm(
    context: CommandContext,
    bookie_ids: IdArguments = None,
    directory: DirectoryOption = None,
    token_file: TokenOption = None,
) -> None:
    """Allow a bookie to delete ledgers again, although the metadata is older than it was.

    A bookie deletes no ledgers after ZooKeeper was set back, replaced, or restored from a backup: it may have entries
    of newer ledgers that the metadata no longer has. Confirm only if the newer metadata is lost: the next garbage
    collection deletes these entries. gc status shows the reason.
    """
    async with open_admins(context, bookie_ids, directory, token_file) as clients:

        async def examine() -> tuple[Plan, list[StateAnswer]]:
            states = [await read_state(client) for client in clients]
            for state in states:
                require_own(state, "it has no such protection")
            return joined_plan(list(map(_confirmation, states)), is_typed=True), states

        async def settle(states: list[StateAnswer], *, is_agreed: bool) -> bool:
            with in_turn(context, [state.bookie_id for state in states]) as turns:
                for client, state in zip(clients, states, strict=True):
                    with turns.turn():
                        reason = await _confirm(client, state) if is_agreed else None
                        body = {"bookie_id": state.bookie_id, "changed": reason is not None, "reason": reason}
                        context.console.record("GarbageCollectionConfirmed", body, name="bookie_id")
            return True

        found, is_done = await make_change(context, examine, lambda _, states: settle(states, is_agreed=True))
        if not is_done:
            await settle(found, is_agreed=False)


def _confirmation(state: StateAnswer) -> Plan:
    name, stopped = state.bookie_id, state.deletion_stopped
    if stopped is None:
        summary = f"bookie {name}: nothing to confirm: it deletes ledgers that are missing from the metadata"
        return change_plan(state, {}).emptied(summary)
    summary = (
        f"will let bookie {name} delete the entries of all ledgers that are missing from the metadata, "
        f"although {stopped.reason}"
    )
    # The reason has the present number of the metadata's last change, so it does not identify an incident.
    item = {"action": "gc-confirm", "stopped_since_ms": stopped.since_ms}
    copies = (
        "later it also deletes its copies of closed ledgers that this metadata places on other bookies: check first, "
        "with bkctl audit run, that these have them"
    )
    return change_plan(state, item, summary=(summary, copies))


async def _confirm(client: AdminClient, planned: StateAnswer) -> str | None:
    """The reason that was accepted; None if there was nothing to confirm. ConflictError: not as the plan shows it."""
    if planned.deletion_stopped is None:
        return None
    found = await read_state(client)
    since_ms = None if found.deletion_stopped is None else found.deletion_stopped.since_ms
    if (found.bookie_id, since_ms) != (planned.bookie_id, planned.deletion_stopped.since_ms):
        raise ConflictError(
            f"bookie {planned.bookie_id} was not changed: its state is not that of the plan; run the command again"
        )
    return (await client.put(f"{BKCTL_API}/gc/confirm", ConfirmedMetadata, {"confirm": True})).confirmed


async def _switch(
    context: CommandContext,
    bookie_ids: list[str] | None,
    directory: str | None,
    token_file: str | None,
    verb: str,
    kinds: list[str],
) -> None:
    body = {f"{verb}{kind.capitalize()}": True for kind in kinds}

    async def switch(client: AdminClient, state: StateAnswer) -> None:
        await client.put(f"{_GC}/{verb}_compaction", object, body)
        suspended = await _suspended(client)
        undo = "resume" if verb == "suspend" else "suspend"
        context.console.say(f"to undo: bkctl bookie gc {undo} {state.bookie_id}")
        shown = {"bookie_id": state.bookie_id, **{f"{kind}_suspended": suspended[kind] for kind in _KINDS}}
        context.console.record("GarbageCollectionSwitch", shown, name="bookie_id")
        if verb == "resume" and any(suspended[kind] for kind in kinds):
            context.console.warn("compaction is still suspended because of full disks (bkctl bookie state)")

    async with open_admins(context, bookie_ids, directory, token_file) as clients:
        await _change_all(context, clients, {"action": f"gc-{verb}", "kinds": kinds}, switch)


async def _change_all(
    context: CommandContext,
    clients: Sequence[AdminClient],
    item: dict[str, Any],
    change_one: Callable[[AdminClient, StateAnswer], Awaitable[None]],
) -> None:
    states = [await read_state(client) for client in clients]
    verb = str(item["action"]).removeprefix("gc-")
    what = (
        f"will {verb} {'garbage collection' if verb == 'run' else 'compaction'} ({', '.join(item['kinds'])}) of bookie"
    )
    plans = [change_plan(state, item, summary=(f"{what} {state.bookie_id}",)) for state in states]
    async with open_change(context, joined_plan(plans)):
        with in_turn(context, [state.bookie_id for state in states]) as turns:
            for client, state in zip(clients, states, strict=True):
                with turns.turn():
                    await change_one(client, state)


async def _suspended(client: AdminClient) -> dict[str, bool]:
    answer = await client.get(f"{_GC}/suspend_compaction", SuspendedCompaction)
    return {"major": _is_true(answer.is_major_gc_suspended), "minor": _is_true(answer.is_minor_gc_suspended)}


def _kinds(*, major: bool, minor: bool) -> list[str]:
    """The kinds that the options choose; without any, all."""
    if major and minor:
        raise InvalidArgumentError("use --major or --minor, or neither for both")
    return ["major"] if major else ["minor"] if minor else list(_KINDS)


def _is_true(value: Truth) -> bool:
    return value in {True, "true"}


def _row(directory: str | None, details: CollectionDetails) -> dict[str, object]:
    running = "major" if details.major_compacting else "minor" if details.minor_compacting else None
    return {
        "directory": directory,
        "running": running,
        "forced": details.force_compacting,
        "major_compactions": details.major_compaction_counter,
        "last_major": _time(details.major_compaction_counter, details.last_major_compaction_time),
        "minor_compactions": details.minor_compaction_counter,
        "last_minor": _time(details.minor_compaction_counter, details.last_minor_compaction_time),
    }


def _time(count: int, time_ms: int) -> str | None:
    """The time of the last compaction; both servers report the time of their start if there was none."""
    return time_text(time_ms) if count else None
