"""Deletes ledgers of logs: from the front, or all with their log.

The node changes first: ledgers move from the list to ``released``, are deleted, and leave the node. So a crash leaves
no ledger that is forgotten, and the list never names a ledger that is gone. The next trim continues. A writer deletes
only ledgers without entries, because it saves nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.errors import ConflictError, LedgerNotFoundError
from bkctl.runtime.metadata.ledger_logs.format import LOG_ID_KEY, LedgerLog, to_deleted, trimmed, without_released
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.runtime.metadata.ledgers.changes import BATCH, Action, Keep, LedgerChanges, LedgerFate, Step
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, read_stored
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.request_budget import RequestBudget
from bkctl.runtime.metadata.store import Node


class LedgerDeletion(msgspec.Struct, frozen=True):
    """How to delete: ``keep`` saves nodes first, ``before_each`` may raise before a step."""

    keep: Keep
    before_each: Callable[[], None]


def _keep_nothing(_action: str, _nodes: Sequence[tuple[str, Node]]) -> None:
    """What is deleted has no entry."""


class ReleasedLedgers(msgspec.Struct, frozen=True):
    """``deleted``: ledgers that are gone now. ``failed``: those that were not deleted, with the reason."""

    deleted: tuple[int, ...] = ()
    failed: tuple[LedgerFate, ...] = ()


async def trim_log(
    client: LedgerClient, nodes: LogNodes, name: str, before: int, how: LedgerDeletion
) -> ReleasedLedgers:
    """Delete the ledgers that have only positions below ``before``; the last ledger always stays.

    LogNotFoundError, ConflictError, MetadataError. Can be repeated after an error.
    """

    def decide(log: LedgerLog) -> LedgerLog | None:
        wanted = trimmed(log, before)
        return None if wanted == log else wanted

    await nodes.change(name, decide)
    return await _delete_released(client, nodes, name, how, is_entry_allowed=True)


async def delete_empty(client: LedgerClient, nodes: LogNodes, name: str) -> None:
    """Delete the released ledgers that have no entry."""
    how = LedgerDeletion(_keep_nothing, lambda: None)
    await _delete_released(client, nodes, name, how, is_entry_allowed=False)


async def _delete_released(
    client: LedgerClient, nodes: LogNodes, name: str, how: LedgerDeletion, *, is_entry_allowed: bool
) -> ReleasedLedgers:
    """Delete the ledgers that the log has released, if their metadata names this log."""
    log = (await nodes.read(name)).value
    changes = LedgerChanges(
        client.store,
        client.ports.ledgers,
        lambda _, stored: _judge(stored, log.log_id, is_entry_allowed=is_entry_allowed),
        keep=how.keep,
        before_each=how.before_each,
        budget=RequestBudget(client.ports.clock, None, BATCH),
    )
    async with aclosing(changes.run(each_of(log.released))) as fates:
        found = [fate async for fate in fates]
    gone = frozenset(fate.ledger_id for fate in found if fate.action is not Action.FAIL)
    if gone:
        await nodes.change(name, partial(_without, gone))
    return ReleasedLedgers(tuple(sorted(gone)), tuple(fate for fate in found if fate.action is Action.FAIL))


def _judge(stored: StoredLedger | None, log_id: str, *, is_entry_allowed: bool) -> Step:
    if stored is None:
        return Step(Action.NONE, reason="already deleted")
    if stored.metadata is None:
        return Step(Action.FAIL, reason=stored.problem)
    if not is_of(stored, log_id):
        return Step(Action.FAIL, reason="its metadata does not name this log; examine it with bkctl ledger show")
    if not (is_entry_allowed or (stored.metadata.entry_count == 0)):
        return Step(Action.FAIL, reason="it has entries")
    return Step(Action.DELETE)


async def delete_log(client: LedgerClient, nodes: LogNodes, name: str, how: LedgerDeletion) -> ReleasedLedgers:
    """Delete a log and all its ledgers. From the first step on no writer can open it; one that runs is fenced.

    LogNotFoundError; errors of recovering the last ledger; ConflictError if a ledger was not deleted: then the node
    stays. Can be repeated after an error.
    """
    log = (await nodes.change(name, lambda log: None if log.is_deleted else to_deleted(log))).value
    with contextlib.suppress(LedgerNotFoundError):
        if log.released and is_of(await read_stored(client.store, client.ports.ledgers, log.released[-1]), log.log_id):
            await client.open(log.released[-1], recover=True)
    result = await _delete_released(client, nodes, name, how, is_entry_allowed=True)
    if result.failed:
        reasons = "; ".join(f"ledger {fate.ledger_id}: {fate.reason}" for fate in result.failed)
        raise ConflictError(f"log {name} is not deleted yet: {reasons}: run the command again")
    how.before_each()
    await nodes.delete(name, (await nodes.read(name)).version)
    return result


def is_of(stored: StoredLedger, log_id: str) -> bool:
    """Whether the ledger's own metadata names the log."""
    labels = {} if stored.metadata is None else dict(stored.metadata.custom_metadata)
    return labels.get(LOG_ID_KEY) == log_id.encode()


def _without(done: frozenset[int], log: LedgerLog) -> LedgerLog | None:
    return without_released(log, done) if done.intersection(log.released) else None
