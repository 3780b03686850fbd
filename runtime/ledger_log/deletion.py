"""Deletes ledgers of logs: from the front, or all with their log.

The node changes first: ledgers move from the list to ``released``, are deleted, and leave the node. So a crash leaves
no ledger that is forgotten, and the list never names a ledger that is gone. The next trim or writer continues.
"""

from __future__ import annotations

import contextlib
from functools import partial

import msgspec

from bkctl.runtime.client.api import LedgerClient
from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.ledger_logs.format import (
    LOG_ID_KEY,
    LedgerLog,
    to_deleted,
    trimmed,
    without_released,
)
from bkctl.runtime.metadata.ledger_logs.nodes import LogNodes
from bkctl.storage.words import listed


class ReleasedLedgers(msgspec.Struct, frozen=True):
    """``deleted``: ledgers that are gone now. ``kept``: those whose metadata does not name this log."""

    deleted: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


async def trim_log(client: LedgerClient, nodes: LogNodes, name: str, before: int) -> ReleasedLedgers:
    """Delete the ledgers that have only positions below ``before``; the last ledger always stays.

    LogNotFoundError, ConflictError, MetadataError. Can be repeated after an error.
    """

    def decide(log: LedgerLog) -> LedgerLog | None:
        wanted = trimmed(log, before)
        return None if wanted == log else wanted

    await nodes.change(name, decide)
    return await delete_released(client, nodes, name)


async def delete_released(client: LedgerClient, nodes: LogNodes, name: str) -> ReleasedLedgers:
    """Delete the ledgers that the log has released. A ledger whose metadata does not name this log is kept."""
    log = (await nodes.read(name)).value
    deleted, kept = [], []
    for ledger_id in log.released:
        if await _is_of(client, ledger_id, log.log_id):
            await client.delete(ledger_id)
            deleted.append(ledger_id)
        else:
            kept.append(ledger_id)
    done = frozenset(deleted)
    if done:
        await nodes.change(name, partial(_without, done))
    return ReleasedLedgers(tuple(deleted), tuple(kept))


def _without(done: frozenset[int], log: LedgerLog) -> LedgerLog | None:
    return without_released(log, done) if done.intersection(log.released) else None


async def _is_of(client: LedgerClient, ledger_id: int, log_id: str) -> bool:
    """Whether the ledger's own metadata names the log; an absent ledger counts as deleted."""
    try:
        metadata = (await client.ports.ledgers.read(ledger_id)).value
    except LedgerNotFoundError:
        return True
    except MetadataFormatError:
        return False
    return dict(metadata.custom_metadata).get(LOG_ID_KEY) == log_id.encode()


async def delete_log(client: LedgerClient, nodes: LogNodes, name: str) -> ReleasedLedgers:
    """Delete a log and all its ledgers. From the first step on no writer can open it; one that runs is fenced.

    LogNotFoundError; errors of recovering the last ledger; MetadataFormatError if a ledger does not name this log: then
    the node stays. Can be repeated after an error.
    """
    log = (await nodes.change(name, lambda log: None if log.is_deleted else to_deleted(log))).value
    if log.released and await _is_of(client, log.released[-1], log.log_id):
        with contextlib.suppress(LedgerNotFoundError):
            await client.open(log.released[-1], recover=True)
    result = await delete_released(client, nodes, name)
    if result.kept:
        raise MetadataFormatError(
            f"log {name}: the metadata of ledger {listed(result.kept)} does not name this log, so it is not deleted; "
            "examine it with bkctl ledger show",
            nodes.path(name),
        )
    await nodes.delete(name, (await nodes.read(name)).version)
    return result
