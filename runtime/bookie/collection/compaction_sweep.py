"""A sweep of the index of a ledger directory: does any row still name a log that is to be deleted?

No log goes without it: a scan finds what a log says of itself, and an entry whose id was changed in place looks to it
like one that nobody uses. Of a log that agrees with its own map it is known which ledgers it holds, and their rows are
enough; for others (those that were active when a bookie ended, and damaged ones) it takes the whole index. One sweep
answers for many logs. It costs about a microsecond for each row, in bounded jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

from runtime.bookie.collection.compaction_survivors import COMPACTION_LANE
from runtime.ports import Workers
from storage.engine.engine import LedgerDirectoryEngine
from storage.ids import EntryId, EntryLocation, EntryLogId, LedgerId

IndexRow: TypeAlias = tuple[LedgerId, EntryId, EntryLocation]

_WITNESSES_MAX: Final = 256
"""Rows kept of each log."""


async def find_rows_naming(
    engine: LedgerDirectoryEngine,
    workers: Workers,
    log_ids: AbstractSet[EntryLogId],
    ledger_ids: AbstractSet[LedgerId] | None,
) -> dict[EntryLogId, list[IndexRow]]:
    """Some rows of existing ledgers for each log that any names; a log that is not in the answer is named by none.

    ``ledger_ids``: the only ledgers of which the logs hold anything; None: that is not known.
    No row can come to name a finished log again, so what is not found once is not there. IndexDamagedError.
    """
    found: defaultdict[EntryLogId, list[IndexRow]] = defaultdict(list)
    ordered = None if ledger_ids is None else sorted(ledger_ids)
    start: bytes | None = b""
    while start is not None:
        rows = await workers.run(COMPACTION_LANE, engine.rows_naming, log_ids, ordered, start)
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
