"""Which ledgers name a bookie: a fresh scan of all ledger metadata. Source: replication section 6 (RULE on cookies)."""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.metadata.store import MetadataStore, Versioned

IDS_KEPT_MAX = 10
_PROGRESS_STEP = 256


class BookieReferences(msgspec.Struct, frozen=True):
    """Result of one scan. Ledgers whose metadata cannot be read may name any bookie; of both kinds some ids are kept.

    ``counts`` and ``first_ledger_ids`` have an item for each bookie that was asked for.
    """

    ledgers_scanned: int
    counts: dict[str, int]
    first_ledger_ids: dict[str, tuple[int, ...]]
    unreadable_count: int
    first_unreadable_ids: tuple[int, ...]

    @property
    def counts_at_most(self) -> dict[str, int]:
        """Ledgers that name each bookie, or may: nobody can read whom they name."""
        return {bookie_id: count + self.unreadable_count for bookie_id, count in self.counts.items()}


async def find_references(
    store: MetadataStore,
    ledgers: LedgerStore,
    bookie_ids: Collection[str],
    on_progress: Callable[[int], None] = lambda _: None,
) -> BookieReferences:
    """Read every ledger and count those with a segment on these bookies; ``on_progress`` gets the ledgers so far.

    What was finished before the call is seen. MetadataUnavailableError, and the error of a part that cannot be listed.
    """
    await store.sync(ledgers.root)
    counts = dict.fromkeys(bookie_ids, 0)
    first: dict[str, list[int]] = {bookie_id: [] for bookie_id in bookie_ids}
    scanned, unreadable_count = 0, 0
    unreadable: list[int] = []
    async for ledger_id, found in ledgers.read_all():
        scanned += 1
        if scanned % _PROGRESS_STEP == 0:
            on_progress(scanned)
        if not isinstance(found, Versioned):
            unreadable_count += 1
            if len(unreadable) < IDS_KEPT_MAX:
                unreadable.append(ledger_id)
            continue
        for bookie_id in found.value.bookies().intersection(counts):
            counts[bookie_id] += 1
            if len(first[bookie_id]) < IDS_KEPT_MAX:
                first[bookie_id].append(ledger_id)
    on_progress(scanned)
    return BookieReferences(
        ledgers_scanned=scanned,
        counts=counts,
        first_ledger_ids={bookie_id: tuple(ids) for bookie_id, ids in first.items()},
        unreadable_count=unreadable_count,
        first_unreadable_ids=tuple(unreadable),
    )
