"""``bkctl ledger delete``: delete the metadata of closed ledgers; bookies drop their entries later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

import typer

from bkctl.commands.command import command
from bkctl.commands.context import CommandContext, Effect
from bkctl.commands.errors import InvalidArgumentError, NotFoundError, Outcome
from bkctl.commands.ledger.accepted_loss import LostBookies, parse_lost, require_silent
from bkctl.commands.ledger.changing import FAILURE_TABLE, Tally, change_ledgers, outcome_of
from bkctl.commands.ledger.named import IdsFromFile, LedgerIds, owner_sentences, read_ledgers
from bkctl.commands.ledger.rows import owner_text, state_name
from bkctl.commands.parse import all_ledger_ids
from bkctl.commands.rendering import Column, Table
from bkctl.commands.safety.gate import open_change
from bkctl.commands.safety.plan import Plan
from bkctl.commands.session import Session, open_session
from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import LedgerNotFoundError, MetadataAuthError, RefusedError
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.runtime.metadata.ledgers.changes import Action, Decide, Step
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, unreadable_advice
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.replication.survey.loss_proof import EntrySearch, search_entries, why_end_not_lost
from bkctl.storage.words import counted, first_lines, listed, size

PLAN_TABLE = Table(
    "Changes",
    Column("ledger_id", "LEDGER", is_right=True),
    Column("state", "STATE"),
    Column("length_bytes", "BYTES", size, is_right=True),
    Column("expected_version", "VERSION", is_right=True, priority=1),
    Column("owner", "OWNER"),
)
_UNCLOSED = {"open", "in-recovery"}


@command("delete", example="ledger delete 17 18 --dry-run", effect=Effect.DESTROYS)
async def delete(
    context: CommandContext,
    ledger: LedgerIds = None,
    from_file: IdsFromFile = None,
    unreadable: Annotated[
        bool, typer.Option("--unreadable", help="Also ledgers with empty or damaged metadata")
    ] = False,
    force_open: Annotated[
        bool,
        typer.Option("--force-open", help="Also unclosed ledgers without an entry on any bookie"),
    ] = False,
    accept_loss: LostBookies = None,
    changes_rate: Annotated[
        float | None, typer.Option("--max-per-second", metavar="N", min=0, help="At most so many deletions")
    ] = None,
) -> Outcome:
    """Delete ledgers permanently: metadata now, entries later.

    --force-open deletes open ledgers too, and stops their writers, if no registered bookie may have an entry; with
    --accept-loss also if only lost bookies can know the end. Until bookies collect garbage, ledger import restores them
    from the trash. Type the ID or count, or use --confirm.
    """
    if not ledger and from_file is None:
        raise InvalidArgumentError("specify the ledgers to delete, or a file of their ids with --from-file")
    named = frozenset(all_ledger_ids(ledger))
    lost = parse_lost(accept_loss)
    if lost and not force_open:
        raise InvalidArgumentError("--accept-loss is for ledgers that are not closed: use it with --force-open")
    ledger_ids = all_ledger_ids(ledger, from_file)
    async with open_session(context) as session:
        client = await session.client()
        found, gone = await _find(client, ledger_ids, named)
        _require_deletable(found, is_unreadable_allowed=unreadable, is_open_allowed=force_open)
        await _require_no_log(LogNodes(session.store, session.root), found)
        forced = [int(item["ledger_id"]) for item in found if item["state"] in _UNCLOSED]
        searches = await require_empty(client, forced, lost)
        if lost:
            await require_silent(session, client.ports, lost, [*searches])
        plan = _plan(
            session, found, gone, [sentence_of(*each) for each in searches.items()], lost, is_forced=force_open
        )
        versions = {int(item["ledger_id"]): item["expected_version"] for item in plan.items}
        async with (
            open_change(context, plan, client.store, table=PLAN_TABLE) as change,
            searched_again(client, searches, lost) as guarded,
        ):
            tally = await change_ledgers(
                context,
                client,
                change,
                guarded(_decision(versions)),
                each_of(versions),
                description="deleting",
                total=len(versions),
                rate=changes_rate,
            )
        _print_result(context, tally, gone, change.trash.path)
        return outcome_of(tally, "deleted")


def _print_result(context: CommandContext, tally: Tally, gone: int, trash_path: str | None) -> None:
    body = {
        "deleted": tally.changed,
        "gone_already": gone + tally.unchanged,
        "failed": tally.failed,
        "trash": trash_path,
    }
    context.console.record("LedgerDelete", body, name="deleted", details={"failures": tally.failures})
    context.console.table(FAILURE_TABLE.titled("Not deleted"), tally.failures)


async def _find(client: LedgerClient, ledger_ids: list[int], named: frozenset[int]) -> tuple[list[dict[str, Any]], int]:
    """Plan items, and how many ledgers of the file no longer exist; LedgerNotFoundError for an id given directly,
    NotFoundError for a file without ids."""
    if not ledger_ids:
        raise NotFoundError("there is no ledger id in the file")
    async with read_ledgers(client, ledger_ids, named) as ledgers:
        found = [deletion_item(each) async for each in ledgers if each is not None]
    if not found:
        raise LedgerNotFoundError(ledger_ids[0], "none of the ledgers exists")
    return found, len(ledger_ids) - len(found)


def deletion_item(ledger: StoredLedger) -> dict[str, Any]:
    """The item of a plan; MetadataAuthError without permission to read it, RefusedError if a newer release wrote it."""
    metadata = ledger.metadata
    if ledger.node is None:
        raise MetadataAuthError(f"nothing was changed: ledger {ledger.ledger_id}: {ledger.problem}", ledger.path)
    if ledger.is_newer:
        advice = unreadable_advice([ledger.ledger_id], [ledger.ledger_id])
        raise RefusedError(f"nothing was changed: ledger {ledger.ledger_id}: {ledger.problem}: {advice}")
    return {
        "action": "delete",
        "path": ledger.path,
        "expected_version": ledger.node.stat.version,
        "ledger_id": str(ledger.ledger_id),
        "state": "unreadable" if metadata is None else state_name(metadata),
        "length_bytes": metadata.length if metadata is not None and metadata.is_closed else None,
        "owner": None if metadata is None else owner_text(metadata),
        "problem": ledger.problem or None,
    }


def _require_deletable(items: list[dict[str, Any]], *, is_unreadable_allowed: bool, is_open_allowed: bool) -> None:
    refused = (set() if is_open_allowed else _UNCLOSED) | (set() if is_unreadable_allowed else {"unreadable"})
    kept = [item for item in items if item["state"] in refused]
    if not kept:
        return
    named = listed([f"ledger {item['ledger_id']} is {item['state']}" for item in kept])
    advice = (
        "a writer may be active; --force-open deletes ledgers that are not closed and have no entry on any bookie"
        if any(item["state"] != "unreadable" for item in kept)
        else "--unreadable deletes empty or damaged metadata too, and keeps its bytes in the trash"
    )
    raise RefusedError(f"nothing was changed: {named}: {advice}")


async def _require_no_log(nodes: LogNodes, items: list[dict[str, Any]]) -> None:
    """RefusedError if a log of ledgers needs one of them. Reads the logs if a ledger is of one, or may be."""
    if not any(item["state"] == "unreadable" or (item["owner"] or "").startswith("log ") for item in items):
        return
    ledger_ids = {int(item["ledger_id"]) for item in items}
    for name in await nodes.names():
        if (found := await nodes.find(name)) is None:
            continue
        for each in (each.ledger_id for each in found.value.ledgers if each.ledger_id in ledger_ids):
            end = found.value.end_of(each)
            trim = "" if end is None else f"bkctl log trim {name} --before {end} deletes all up to it, "
            raise RefusedError(
                f"nothing was changed: log {name} needs ledger {each}: {trim}bkctl log delete {name} deletes all of it"
            )


def _plan(
    session: Session,
    items: list[dict[str, Any]],
    gone: int,
    warnings: list[str],
    lost: frozenset[str],
    *,
    is_forced: bool,
) -> Plan:
    lengths = [item["length_bytes"] for item in items]
    known_bytes = sum(length for length in lengths if isinstance(length, int))
    summary = [f"will delete {counted(len(items), 'ledger')} with {size(known_bytes)} of payload"]
    summary += owner_sentences(items)
    summary += [f"already deleted: {counted(gone, 'ledger')} of the file"] if gone else []
    summary += first_lines(warnings, which="that are not closed")
    return session.plan(
        subject=str(items[0]["ledger_id"]) if len(items) == 1 else str(len(items)),
        summary=summary,
        items=items,
        arguments=({"force_open": True} if is_forced else {}) | ({"accept_loss": sorted(lost)} if lost else {}),
    )


def _decision(versions: dict[int, int]) -> Decide:
    def decide(ledger_id: int, stored: StoredLedger | None) -> Step:
        if stored is None:
            return Step(Action.NONE, reason="already deleted")
        version = None if stored.node is None else stored.node.stat.version
        if version != versions[ledger_id]:
            return Step(
                Action.FAIL, reason=f"changed since the plan: version {versions[ledger_id]} then, {version} now"
            )
        return Step(Action.DELETE)

    return decide


async def require_empty(
    client: LedgerClient, ledger_ids: Sequence[int], lost: Collection[str] = ()
) -> dict[int, EntrySearch]:
    """The answers of the bookies for each ledger; RefusedError when a bookie has an entry of one, or may have.

    ``lost``: bookies that the operator gives up. Then entries may exist, if it is proven that nothing else can know
    the end.
    """
    searches = {}
    for ledger_id in ledger_ids:
        search = await _ask_all(client, ledger_id, lost)
        if search.reason is not None:
            raise RefusedError(f"nothing was changed: ledger {ledger_id} is not closed, and {search.reason}")
        searches[ledger_id] = search
    return searches


def sentence_of(ledger_id: int, search: EntrySearch) -> str:
    """For the plan."""
    if search.is_end_lost:
        return f"ledger {ledger_id} is not closed, and only lost bookies can know its end; all its entries are deleted"
    sentence = f"ledger {ledger_id} is not closed; no registered bookie has an entry of it"
    return (
        f"{sentence}. Not asked because they are down: {', '.join(search.unreachable)}"
        if search.unreachable
        else sentence
    )


@asynccontextmanager
async def searched_again(
    client: LedgerClient, planned: Mapping[int, EntrySearch], lost: Collection[str] = ()
) -> AsyncIterator[Callable[[Decide], Decide]]:
    """Lock the ledgers and ask every bookie again, fencing; yields a function that adds the result to a decision.

    ``planned`` and ``lost``: the findings for the plan, and the lost bookies of ``require_empty``. If a bookie went
    down since then, nothing is deleted.

    The check has two steps, so that a ledger that turns out to have entries is not fenced.
    """
    if not planned:
        yield lambda decide: decide
        return
    host = await asyncio.to_thread(canonical_host_name)
    locks = ReplicationLocks(client.store, client.ports.ledgers.root, host)
    reasons: dict[int, str] = {}
    held: dict[int, ReplicationLock] = {}

    def guarded(decide: Decide) -> Decide:
        def decide_if_empty(ledger_id: int, stored: StoredLedger | None) -> Step:
            if ledger_id in held and not held[ledger_id].is_held:
                return Step(Action.FAIL, reason="its replication lock was lost: run the command again")
            if ledger_id in reasons:
                return Step(Action.FAIL, reason=reasons[ledger_id])
            return decide(ledger_id, stored)

        return decide_if_empty

    async with AsyncExitStack() as stack:
        for ledger_id, before in planned.items():
            lock = await locks.acquire(ledger_id)
            if lock is None:
                reasons[ledger_id] = "another process holds its replication lock: try again later"
                continue
            held[ledger_id] = await stack.enter_async_context(lock)
            for is_fencing in (False, True):
                search = await _ask_all(client, ledger_id, lost, is_fencing=is_fencing)
                gone = sorted(set(search.unreachable).difference(before.unreachable))
                if gone:
                    reasons[ledger_id] = (
                        f"bookie {gone[0]} answered for the plan, but is down now: run the command again"
                    )
                elif search.reason is not None:
                    reasons[ledger_id] = search.reason
                if ledger_id in reasons:
                    break
        yield guarded


async def _ask_all(
    client: LedgerClient, ledger_id: int, lost: Collection[str], *, is_fencing: bool = False
) -> EntrySearch:
    try:
        stored = await client.ports.ledgers.read(ledger_id)
    except LedgerNotFoundError:
        return EntrySearch(None, ())  # deleted meanwhile
    if stored.value.is_closed:
        return EntrySearch("it was closed during this command: delete it without --force-open", ())
    if lost:
        reason = await why_end_not_lost(client.ports, ledger_id, stored.value, lost, is_fencing=is_fencing)
        return EntrySearch(reason, (), is_end_lost=True)
    return await search_entries(client.ports, ledger_id, stored.value, is_fencing=is_fencing)
