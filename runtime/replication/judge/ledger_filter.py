"""Filter for ledger listings. Pure."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.ledgers.stored_ledgers import StoredLedger
from bkctl.runtime.replication.judge.verdict import ReplicationState, judge_metadata, write_set_rows


class LedgerFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that must all be true; None and empty ones always are. Times in ms since 1970, sizes in payload bytes.

    A ledger that is not closed has no size yet, so conditions on sizes are false for it. ``labels`` are custom
    metadata: a key with a value, or with None for any value. ``live``: the registered bookies, for
    only ledgers that are lost with ``bookie_ids``.
    """

    excluded_ids: Collection[int] = ()
    bookie_ids: frozenset[str] = frozenset()
    state: LedgerState | None = None
    created_before_ms: int | None = None
    created_after_ms: int | None = None
    bytes_above: int | None = None
    bytes_below: int | None = None
    labels: tuple[tuple[str, bytes | None], ...] = ()
    live: frozenset[str] | None = None

    @property
    def needs_metadata(self) -> bool:
        """Whether any condition requires the metadata."""
        return self != LedgerFilter(excluded_ids=self.excluded_ids)

    def wants_id(self, ledger_id: int) -> bool:
        """Whether the conditions on the id are true."""
        return ledger_id not in self.excluded_ids

    def wants(self, ledger: StoredLedger) -> bool:
        """Whether all conditions are true; the metadata must be readable."""
        metadata, created_ms = ledger.metadata, ledger.created_ms
        assert metadata is not None
        assert created_ms is not None
        return (
            self.wants_id(ledger.ledger_id)
            and (self.state is None or metadata.state is self.state)
            and (self.created_before_ms is None or created_ms < self.created_before_ms)
            and (self.created_after_ms is None or created_ms > self.created_after_ms)
            and self._wants_size(metadata)
            and self._wants_labels(metadata)
            and (not self.bookie_ids or any(has_entries_on(metadata, each) for each in self.bookie_ids))
            and (self.live is None or is_lost_with(metadata, self.bookie_ids, self.live))
        )

    def _wants_size(self, metadata: LedgerMetadata) -> bool:
        if self.bytes_above is None and self.bytes_below is None:
            return True
        return (
            metadata.is_closed
            and (self.bytes_above is None or metadata.length > self.bytes_above)
            and (self.bytes_below is None or metadata.length < self.bytes_below)
        )

    def _wants_labels(self, metadata: LedgerMetadata) -> bool:
        found = dict(metadata.custom_metadata)
        return all(key in found and (value is None or found[key] == value) for key, value in self.labels)


def has_entries_on(metadata: LedgerMetadata, bookie_id: str) -> bool:
    """Whether the bookie should store entries of the ledger by round robin; an open last segment always counts.

    A reference is not sufficient, because a stripe may be empty (``areEntriesOfLedgerStoredInTheBookie`` in Java).
    """
    if bookie_id not in metadata.bookies():
        return False
    return any(bookie_id in row.write_set for row in write_set_rows(0, metadata))


def is_lost_with(metadata: LedgerMetadata, bookie_ids: Collection[str], live: Collection[str]) -> bool:
    """Whether each segment with entries on these bookies has some that only they have, and they are not registered."""
    named: set[int | None] = set()
    lost: set[int | None] = set()
    for row in judge_metadata(0, metadata, live).rows:
        if not set(bookie_ids).isdisjoint(row.write_set.write_set):
            named.add(row.write_set.segment_first_entry_id)
        if row.replication is ReplicationState.UNAVAILABLE and set(row.missing_bookies).issubset(bookie_ids):
            lost.add(row.write_set.segment_first_entry_id)
    return bool(lost) and named <= lost
