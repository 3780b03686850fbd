"""One pass over ledgers: read, judged and summed up, by the plain audit and by each Spark executor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias

from bkctl.runtime.errors import MetadataAuthError, MetadataFormatError
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.cluster_audit.counter import AuditCounter
from bkctl.runtime.replication.cluster_audit.facts import AuditFacts
from bkctl.runtime.replication.cluster_audit.inventory import InventoryTotals
from bkctl.runtime.replication.cluster_audit.totals import AuditTotals
from bkctl.runtime.replication.judge.verdict import LedgerVerdict, WriteSetRow, write_set_rows
from bkctl.spark_reports.live import LOOKUP_BATCH, LiveLookup

if TYPE_CHECKING:
    from bkctl.spark_reports.rows import WriteSetFile


FoundLedger: TypeAlias = tuple[int, Versioned[LedgerMetadata] | MetadataFormatError | MetadataAuthError]
"""A ledger with its metadata, or the reason why that cannot be read."""


class Examination(Protocol):
    """What else is done with each ledger, after it was judged: an inventory of its copies."""

    async def take(self, ledgers: FoundLedgers) -> InventoryTotals:
        """Examine all ledgers; some at the same time."""


async def read_write_sets(found_ledgers: FoundLedgers) -> AsyncGenerator[list[WriteSetRow], None]:
    """Rows of every ledger, one list per ledger. Metadata that cannot be read becomes a row with a ``problem``."""
    async with aclosing(found_ledgers):
        async for found in found_ledgers:
            yield _rows_of(found)


def _rows_of(ledger: FoundLedger) -> list[WriteSetRow]:
    ledger_id, found = ledger
    if isinstance(found, Versioned):
        return write_set_rows(ledger_id, found.value, found.ctime_ms)
    return [WriteSetRow(ledger_id, problem=str(found))]


async def count_ledgers(
    groups: Iterable[FoundLedgers],
    facts: AuditFacts,
    *,
    out_directory: str | None,
    part_number: int = 0,
    lookup: LiveLookup | None = None,
    on_progress: Callable[[int], None] | None = None,
    inventory: Examination | None = None,
) -> tuple[AuditTotals, InventoryTotals | None]:
    """Judge ledgers and sum them up; ``out_directory`` gets their write sets, as the part of this number.

    ``groups``: of a file, one for each piece. ``lookup``: looks ledgers with findings up again, and replaces their
    verdicts. It is closed at the end. ``inventory``: examines each ledger by the metadata that was judged.
    """
    totals, held = AuditTotals(), None
    counter = AuditCounter(facts, totals)
    async with AsyncExitStack() as at_end:
        output = at_end.enter_context(_write_set_file(out_directory, part_number))
        if lookup is not None:
            await at_end.enter_async_context(lookup)
        judging = _judge_each(groups, counter, lookup, output, on_progress or (lambda _: None))
        async with aclosing(judging) as judged:
            if inventory is None:
                async for _ in judged:
                    pass
            else:
                held = await inventory.take(judged)
        if lookup is not None:
            totals.merge(AuditTotals(counts=dict(lookup.counts)))
    return counter.totals, held


async def _judge_each(
    groups: Iterable[FoundLedgers],
    counter: AuditCounter,
    lookup: LiveLookup | None,
    output: WriteSetFile | None,
    on_progress: Callable[[int], None],
) -> FoundLedgers:
    """Pass every ledger on when it was judged, or its lookup was noted."""

    def add(verdict: LedgerVerdict) -> None:
        counter.add(verdict)
        if output is not None:
            output.add(verdict.rows)

    waiting: list[LedgerVerdict] = []
    ledgers_seen = 0
    async with aclosing(_each_ledger(groups, lookup)) as ledgers:
        async for found in ledgers:
            verdict = counter.judge(_rows_of(found))
            if lookup is None or not lookup.is_wanted(verdict, counter):
                add(verdict)
            else:
                waiting.append(verdict)
                if len(waiting) >= LOOKUP_BATCH:
                    for each in await lookup.look_up(waiting, counter):
                        add(each)
                    waiting.clear()
            yield found
            ledgers_seen += 1
            if ledgers_seen % 100 == 0:
                await asyncio.sleep(0)  # a file never waits: without this, signals would
                on_progress(ledgers_seen)
    if lookup is not None:
        for each in await lookup.look_up(waiting, counter):
            add(each)


async def _each_ledger(groups: Iterable[FoundLedgers], lookup: LiveLookup | None) -> FoundLedgers:
    for group in groups:
        if lookup is not None:
            lookup.start_piece()
        async with aclosing(group) as ledgers:
            async for found in ledgers:
                yield found


@contextmanager
def _write_set_file(out_directory: str | None, part_number: int) -> Iterator[WriteSetFile | None]:
    if out_directory is None:
        yield None
        return
    from bkctl.spark_reports.rows import WriteSetFile  # noqa: PLC0415

    with WriteSetFile(out_directory, part_number) as file:
        yield file
