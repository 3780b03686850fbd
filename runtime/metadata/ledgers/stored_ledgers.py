"""Ledgers as the store has them: bytes, version and times, with what the bytes mean where they mean something.

For tools that list, keep and bring back ledgers: one that cannot be read is a row with the reason, never the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator

import msgspec

from runtime.errors import LedgerNotFoundError, MetadataAuthError, MetadataFormatError, NoNodeError
from runtime.ledger.metadata import LedgerMetadata
from runtime.ledger.metadata_format import decode_ledger_metadata
from runtime.metadata.ledgers.ledgers import WINDOW, LedgerStore
from runtime.metadata.pipeline import pipelined
from runtime.metadata.store import MetadataStore, Node, Versioned


class StoredLedger(msgspec.Struct, frozen=True):
    """One ledger's node. ``node`` None: this session may not read it. ``metadata`` None: ``problem`` says why."""

    ledger_id: int
    path: str
    node: Node | None
    metadata: LedgerMetadata | None = None
    problem: str = ""

    @property
    def versioned(self) -> Versioned[LedgerMetadata] | None:
        """Metadata with its version; None if unreadable."""
        if self.node is None or self.metadata is None:
            return None
        return Versioned(self.metadata, self.node.stat.version, self.node.stat.ctime_ms)

    @property
    def created_ms(self) -> int | None:
        """Creation time: the stored one, else that of the node (metadata section 6.6); -1 counts as not stored."""
        if self.metadata is not None and self.metadata.ctime_ms is not None and self.metadata.ctime_ms >= 0:
            return self.metadata.ctime_ms
        return None if self.node is None else self.node.stat.ctime_ms


async def read_stored(store: MetadataStore, ledgers: LedgerStore, ledger_id: int) -> StoredLedger:
    """One ledger; LedgerNotFoundError, RefusedError."""
    path = ledgers.path(ledger_id)
    try:
        node = await store.get(path)
    except NoNodeError:
        raise LedgerNotFoundError(ledger_id, "there is no such ledger") from None
    except MetadataAuthError as error:
        return StoredLedger(ledger_id, path, None, problem=str(error))
    return describe_stored(ledger_id, path, node)


def describe_stored(ledger_id: int, path: str, node: Node) -> StoredLedger:
    """What a ledger's node means."""
    try:
        return StoredLedger(ledger_id, path, node, decode_ledger_metadata(node.data))
    except MetadataFormatError as error:
        return StoredLedger(ledger_id, path, node, problem=str(error))


async def scan_stored(
    store: MetadataStore, ledgers: LedgerStore, *, window: int = WINDOW
) -> AsyncGenerator[StoredLedger, None]:
    """Every ledger, ascending, with at most ``window`` reads under way; what is deleted meanwhile is left out."""

    async def read(ledger_id: int) -> StoredLedger | None:
        try:
            return await read_stored(store, ledgers, ledger_id)
        except LedgerNotFoundError:
            return None

    ids = ledgers.list_ids(window=window)
    found = pipelined(ids, read, window)
    async with contextlib.aclosing(ids), contextlib.aclosing(found):
        async for ledger in found:
            if ledger is not None:
                yield ledger
