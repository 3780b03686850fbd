"""Deletes ledgers that are not closed, under the replication lock: only if no bookie has an entry, or if it is proven
that only lost bookies, which the operator names, can know where the ledger ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import LedgerNotFoundError, RefusedError
from bkctl.runtime.metadata.ledgers.changes import Action, Decide, Step
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.metadata.replication.lock import ReplicationLock, ReplicationLocks
from bkctl.runtime.net.host import canonical_host_name
from bkctl.runtime.replication.survey.loss_proof import EntrySearch, search_entries, why_end_not_lost


async def require_empty(
    client: LedgerClient, ledger_ids: Sequence[int], lost: Collection[str] = ()
) -> dict[int, EntrySearch]:
    """The answers of the bookies for each ledger; RefusedError when a bookie has an entry of one, or may have.

    ``lost``: bookies that the operator gives up. Then entries may exist, if nothing else can know the end.
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
