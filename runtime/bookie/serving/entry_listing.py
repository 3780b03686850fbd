"""Which entries of a ledger this bookie has: in its write caches and on its disk together (storage section 5.7)."""

from __future__ import annotations

import bisect

from runtime.bookie.serving.reads import READS_LANE
from runtime.ports import Workers
from runtime.protocol.entry_list import EntryList, EntryListBuilder
from storage.engine.engine import LedgerDirectoryEngine
from storage.engine.memtable import sorted_ids

_TURN_ENTRY_COUNT_MAX = 10_000
"""Rows that one turn of the reads lane looks at: reads wait behind it."""

GROUP_COUNT_MAX = 500_000
"""Of a list that nobody could be sent anyway; beyond it the answer is given up."""


async def list_entries(
    workers: Workers,
    engine: LedgerDirectoryEngine,
    ledger_id: int,
    *,
    turn_entry_count_max: int = _TURN_ENTRY_COUNT_MAX,
) -> EntryList | None:
    """Ids of all entries that were stored when this was asked; None: too irregular to be told.

    A ledger that is deleted meanwhile may come out in part: the caller looks whether it is still there. Raises what
    the index raises: a list with less than all would deny entries.
    """
    while True:
        deleted_count = engine.delete_count
        # The caches first: a checkpoint may move entries from there to the disk, never back.
        cached = await workers.run(READS_LANE, _sorted_once, engine.list_cached_entries(ledger_id))
        builder = EntryListBuilder()
        first_entry_id: int | None = 0
        while first_entry_id is not None and builder.group_count <= GROUP_COUNT_MAX:
            first_entry_id = await workers.run(
                READS_LANE, _take_part, builder, engine, ledger_id, first_entry_id, cached, turn_entry_count_max
            )
        if builder.group_count > GROUP_COUNT_MAX:
            return None
        if deleted_count == engine.delete_count:
            return builder.finish()


def _sorted_once(entry_ids: list[int]) -> list[int]:
    return list(dict.fromkeys(sorted_ids(entry_ids)))


def _take_part(
    builder: EntryListBuilder,
    engine: LedgerDirectoryEngine,
    ledger_id: int,
    first_entry_id: int,
    cached: list[int],
    count_max: int,
) -> int | None:
    """Take the next ids, of disk and caches; returns where to go on, None at the end."""
    stored = engine.list_entries(ledger_id, first_entry_id, count_max)
    next_cached = bisect.bisect_left(cached, first_entry_id)
    part = cached[next_cached : next_cached + count_max]
    ids = sorted({*stored, *part})
    # Neither side was looked at beyond its part.
    ends = [side[-1] for side in (stored, part) if len(side) == count_max]
    if not ends:
        builder.extend(ids)
        return None
    builder.extend(ids[: bisect.bisect_right(ids, min(ends))])
    return min(ends) + 1
