"""Shared by the commands for ledgers that are named on the command line or in a file: options, reading, owners."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Annotated, Any

import typer

from bkctl.runtime.client import LedgerClient
from bkctl.runtime.errors import LedgerNotFoundError
from bkctl.runtime.metadata.ledgers.ledgers import WINDOW
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger, read_stored
from bkctl.runtime.metadata.pipeline import each_of, pipelined
from bkctl.storage.words import counted

LedgerIds = Annotated[
    list[str] | None, typer.Argument(metavar="[LEDGER]...", help="Ledger ids: decimal, 0x... or UUID")
]
IdsFromFile = Annotated[
    str | None,
    typer.Option(
        "--from-file", metavar="FILE", help="Ledger ids, a line each (-: stdin); those of no ledger are ignored"
    ),
]
SHOWN_MAX = 5


def read_ledgers(
    client: LedgerClient, ledger_ids: Sequence[int], named: frozenset[int]
) -> AbstractAsyncContextManager[AsyncIterator[StoredLedger | None]]:
    """The ledgers; None for one of the file that does not exist, LedgerNotFoundError for an id given directly."""

    async def read(ledger_id: int) -> StoredLedger | None:
        try:
            return await read_stored(client.store, client.ports.ledgers, ledger_id)
        except LedgerNotFoundError:
            if ledger_id in named:
                raise
            return None

    return aclosing(pipelined(each_of(ledger_ids), read, WINDOW))


def owner_sentences(items: Sequence[dict[str, Any]]) -> list[str]:
    """The owners of the ledgers of a plan, for its summary."""
    owners = sorted({str(item["owner"]) for item in items if item["owner"] is not None})
    more = len(owners) - SHOWN_MAX
    return [f"owner: {owner}" for owner in owners[:SHOWN_MAX]] + (
        [f"and {counted(more, 'more owner')}"] if more > 0 else []
    )
