"""One pass over ledgers: read, judged and summed up, by the plain audit and by each Spark executor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import TYPE_CHECKING

from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.cluster_audit.counter import AuditCounter
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.totals import AuditTotals
from bkctl.runtime.replication.judge.verdict import LedgerVerdict, WriteSetRow, judge_ledger, write_set_rows
from bkctl.spark_reports.live import LOOKUP_BATCH, LiveLookup

if TYPE_CHECKING:
    from bkctl.spark_reports.rows import WriteSetFile


async def read_write_sets(found_ledgers: FoundLedgers) -> AsyncGenerator[list[WriteSetRow], None]:
    """Rows of every ledger, one list per ledger. Metadata that cannot be read becomes a row with a ``problem``."""
    async with aclosing(found_ledgers):
        async for ledger_id, found in found_ledgers:
            if isinstance(found, Versioned):
                yield write_set_rows(ledger_id, found.value, found.ctime_ms)
            else:
                yield [WriteSetRow(ledger_id, problem=str(found))]


async def count_ledgers(
    groups: Iterable[FoundLedgers],
    facts: AuditFacts,
    *,
    out_directory: str | None,
    part_number: int = 0,
    lookup: LiveLookup | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> AuditTotals:
    """Judge ledgers and sum them up; ``out_directory`` gets their write sets, as the part of this number.

    ``groups``: of a file, one for each piece. ``lookup``: looks ledgers with findings up again, and replaces their
    verdicts. It is closed at the end.
    """
    totals, live_bookies = AuditTotals(), facts.registrations.live
    counter = AuditCounter(facts, totals)
    ledgers_seen = 0
    async with AsyncExitStack() as at_end:
        output = at_end.enter_context(_write_set_file(out_directory, part_number))

        def add(verdict: LedgerVerdict) -> None:
            counter.add(verdict)
            if output is not None:
                output.add(verdict.rows)

        found: list[LedgerVerdict] = []
        if lookup is not None:
            await at_end.enter_async_context(lookup)
        async with aclosing(_each_ledger(groups, lookup)) as ledgers:
            async for write_sets in ledgers:
                verdict = judge_ledger(write_sets, live_bookies)
                if lookup is None or not lookup.is_wanted(verdict, counter):
                    add(verdict)
                else:
                    found.append(verdict)
                    if len(found) >= LOOKUP_BATCH:
                        for each in await lookup.look_up(found, counter):
                            add(each)
                        found.clear()
                ledgers_seen += 1
                if ledgers_seen % 100 == 0:
                    await asyncio.sleep(0)  # a file never waits: without this, signals would
                    if on_progress is not None:
                        on_progress(ledgers_seen)
        if lookup is not None:
            for each in await lookup.look_up(found, counter):
                add(each)
            totals.merge(AuditTotals(counts=dict(lookup.counts)))
    return counter.totals


async def _each_ledger(
    groups: Iterable[FoundLedgers], lookup: LiveLookup | None
) -> AsyncGenerator[list[WriteSetRow], None]:
    for group in groups:
        if lookup is not None:
            lookup.start_piece()
        async with aclosing(read_write_sets(group)) as ledgers:
            async for write_sets in ledgers:
                yield write_sets


@contextmanager
def _write_set_file(out_directory: str | None, part_number: int) -> Iterator[WriteSetFile | None]:
    if out_directory is None:
        yield None
        return
    from bkctl.spark_reports.rows import WriteSetFile  # noqa: PLC0415

    with WriteSetFile(out_directory, part_number) as file:
        yield file
