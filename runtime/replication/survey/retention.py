"""What is left on bookies that wait until retention has deleted their ledgers. The tally is pure."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import aclosing

import msgspec

from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.ledger.owner import owner_of
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.judge.verdict import bytes_on, write_set_rows

NO_OWNER = "no known owner"


class OwnerShare(msgspec.Struct):
    """Ledgers of one owner on the bookies; ``bytes_on_them``: their payload there, as far as it is known."""

    ledgers: int = 0
    bytes_on_them: int = 0
    oldest_ms: int | None = None

    def add(self, bytes_on_them: int, created_ms: int | None) -> None:
        """Count one ledger."""
        self.ledgers += 1
        self.bytes_on_them += bytes_on_them
        if created_ms is not None and created_ms >= 0:
            self.oldest_ms = created_ms if self.oldest_ms is None else min(self.oldest_ms, created_ms)


class RetentionTally:
    """Counts the ledgers that reference the bookies; add every ledger of the cluster."""

    def __init__(self, bookie_ids: Collection[str]) -> None:
        self._ids = frozenset(bookie_ids)
        self.ledgers_scanned = 0
        self.open_ledgers = 0
        self.unreadable: list[int] = []
        """Ledgers whose metadata cannot be read, so that they may be on the bookies."""
        self.total = OwnerShare()
        self.by_owner: dict[str, OwnerShare] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no ledger can be on the bookies."""
        return not self.total.ledgers and not self.unreadable

    def add(self, ledger_id: int, metadata: LedgerMetadata, created_ms: int | None) -> None:
        """One ledger; ``created_ms``: of its node, if its metadata has no time."""
        self.ledgers_scanned += 1
        if self._ids.isdisjoint(metadata.bookies()):
            return
        count = bytes_on(write_set_rows(ledger_id, metadata), self._ids)
        self.open_ledgers += not metadata.is_closed
        owner = owner_of(dict(metadata.custom_metadata)) or NO_OWNER
        for share in (self.total, self.by_owner.setdefault(owner, OwnerShare())):
            share.add(count, metadata.created_ms(created_ms))

    def add_unreadable(self, ledger_id: int) -> None:
        """A ledger whose metadata cannot be read."""
        self.ledgers_scanned += 1
        self.unreadable.append(ledger_id)


async def scan_for_retention(ports: ClientPorts, bookie_ids: Collection[str]) -> RetentionTally:
    """What is left on the bookies, by one scan of all ledger metadata; MetadataError."""
    tally = RetentionTally(bookie_ids)
    async with aclosing(ports.ledgers.read_all(window=256)) as ledgers:
        async for ledger_id, found in ledgers:
            if isinstance(found, Versioned):
                tally.add(ledger_id, found.value, found.ctime_ms)
            else:
                tally.add_unreadable(ledger_id)
    return tally
