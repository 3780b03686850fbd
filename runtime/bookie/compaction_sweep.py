"""A sweep of the whole index of a ledger directory: does any row still name a log that is to be deleted?

For logs whose scan cannot be held against a map: those that were active when a bookie ended, and damaged ones. One
sweep answers for all of them. It costs about a microsecond for each row, in bounded jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

from runtime.bookie.compaction_survivors import COMPACTION_LANE
from runtime.ports import Workers
from storage.engine import LedgerDirectoryEngine
from storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId

IndexRow: TypeAlias = tuple[LedgerId, EntryId, EntryLocation]

_WITNESSES_MAX: Final = 256
"""Rows kept of each log."""


async def find_rows_naming(
    engine: LedgerDirectoryEngine, workers: Workers, log_ids: AbstractSet[EntryLogId]
) -> dict[EntryLogId, list[IndexRow]]:
    """Some rows of existing ledgers for each log that any names; a log that is not in the answer is named by none.

    No row can come to name a finished log again, so what is not found once is not there. IndexDamagedError.
    """
    found: defaultdict[EntryLogId, list[IndexRow]] = defaultdict(list)
    start: bytes | None = b""
    while start is not None:
        rows = await workers.run(COMPACTION_LANE, engine.rows_naming, log_ids, start)
        for row in rows.found:
            witnesses = found[row[2].log_id]
            if len(witnesses) < _WITNESSES_MAX and engine.ledger(row[0]) is not None:
                witnesses.append(row)
        start = rows.next_start
    return {log_id: left for log_id, rows in found.items() if (left := await _still_there(engine, workers, rows))}


async def _still_there(engine: LedgerDirectoryEngine, workers: Workers, rows: list[IndexRow]) -> list[IndexRow]:
    """Rows that nobody has changed since they were found: a ledger may have been deleted, an entry added again."""
    keys = [(ledger_id, entry_id) for ledger_id, entry_id, _ in rows]
    places = await workers.run(COMPACTION_LANE, engine.current_locations, keys)
    return [row for row, place in zip(rows, places, strict=True) if place == row[2]]
