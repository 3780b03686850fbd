"""Ledgers looked up again in ZooKeeper, when a file of older metadata has findings.

A ledger that has a finding in a file may be repaired, changed or deleted by now. Its verdict is replaced by the one on
its present metadata, so that all sums are of the same state. Of findings that leave all copies in place there may be as
many as ledgers, so their number is limited. The limit is for each piece of the file, so the result does not depend on
which executor reads it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Self, TypeAlias

from bkctl.runtime.errors import LedgerNotFoundError, MetadataFormatError
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.replication.cluster_audit.counter import AuditCounter
from bkctl.runtime.replication.judge.verdict import (
    UNDER_REPLICATED_STATES,
    LedgerVerdict,
    ReplicationState,
    WriteSetRow,
    write_set_rows,
)

LOOKUP_BATCH = 256

_ALWAYS = UNDER_REPLICATED_STATES | {ReplicationState.UNREADABLE, ReplicationState.GIVEN_UP}
"""States that are always looked up."""
_OTHERS_MAX = 5000
"""Ledgers with other findings that are looked up in one piece of a file, which has about 60,000 ledgers."""

LedgersOpener: TypeAlias = Callable[[], AbstractAsyncContextManager[LedgerStore]]


class LiveLookup:
    """Looks ledgers up in ZooKeeper, to which it connects when the first is asked for. Use it as ``async with``."""

    def __init__(self, open_live: LedgersOpener) -> None:
        self._open_live = open_live
        self._at_end = AsyncExitStack()
        self._ledgers: LedgerStore | None = None
        self._others = 0
        self.counts: Counter[str] = Counter()
        """Of the ledgers looked up, by the counts of ``AuditTotals``."""

    def start_piece(self) -> None:
        """The next ledgers are of another piece of the file."""
        self._others = 0

    def is_wanted(self, verdict: LedgerVerdict, counter: AuditCounter) -> bool:
        """Whether a ledger is to be looked up; one with a finding that is not is counted."""
        if verdict.replication in _ALWAYS:
            return True
        if not _has_finding(verdict, counter):
            return False
        if self._others >= _OTHERS_MAX:
            self.counts["not_looked_up"] += 1
            return False
        self._others += 1
        return True

    async def look_up(self, verdicts: Sequence[LedgerVerdict], counter: AuditCounter) -> list[LedgerVerdict]:
        """The verdicts on these ledgers as they are now, without those that were deleted; MetadataUnavailableError."""
        if not verdicts:
            return []
        if self._ledgers is None:
            self._ledgers = await self._at_end.enter_async_context(self._open_live())
        ledgers = self._ledgers
        found = await asyncio.gather(*(_rows_now(ledgers, each.rows[0].write_set.ledger_id) for each in verdicts))
        now = [counter.judge(rows) for rows in found if rows is not None]
        self.counts["looked_up"] += len(verdicts)
        self.counts["deleted_since"] += len(verdicts) - len(now)
        self.counts["healthy_since"] += sum(not _has_finding(verdict, counter) for verdict in now)
        for state in (ReplicationState.REPLICATED, ReplicationState.EMPTY):
            self.counts[f"{state.value}_now"] += sum(verdict.replication is state for verdict in now)
        return now

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._at_end.aclose()


def _has_finding(verdict: LedgerVerdict, counter: AuditCounter) -> bool:
    return verdict.replication in _ALWAYS or counter.has_finding(verdict)


async def _rows_now(ledgers: LedgerStore, ledger_id: int) -> list[WriteSetRow] | None:
    try:
        found = await ledgers.read(ledger_id)
    except LedgerNotFoundError:
        return None
    except MetadataFormatError as error:
        return [WriteSetRow(ledger_id, problem=str(error))]
    return write_set_rows(ledger_id, found.value, found.ctime_ms)
