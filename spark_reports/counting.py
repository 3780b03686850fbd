"""One pass over ledgers: read, judged and summed up, by the plain audit and by each Spark executor."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import TYPE_CHECKING

from runtime.metadata.ledgers.ledgers import LedgerStore
from runtime.metadata.store import Versioned
from runtime.replication.audit import WriteSetRow, judge_ledger, write_set_rows
from runtime.replication.audit_report import AuditTotals

if TYPE_CHECKING:
    from spark_reports.rows import WriteSetFile


async def read_write_sets(ledgers: LedgerStore, subtree: str | None) -> AsyncGenerator[list[WriteSetRow], None]:
    """Rows of every ledger below a subtree (None: of all), one list per ledger.

    Metadata that cannot be read becomes a row with a ``problem``; ledgers deleted meanwhile are left out.
    """
    async with aclosing(ledgers.read_all(subtree)) as found_ledgers:
        async for ledger_id, found in found_ledgers:
            if isinstance(found, Versioned):
                yield write_set_rows(ledger_id, found.value)
            else:
                yield [WriteSetRow(ledger_id, problem=str(found))]


async def count_ledgers(
    ledger_rows: AsyncGenerator[list[WriteSetRow], None],
    live_bookies: frozenset[str],
    *,
    out_directory: str | None,
    part_number: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> AuditTotals:
    """Judge ledgers and sum them up; ``out_directory`` gets their write sets, as the part of this number."""
    totals = AuditTotals()
    ledgers_seen = 0
    with _write_set_file(out_directory, part_number) as output:
        async with aclosing(ledger_rows):
            async for write_sets in ledger_rows:
                verdict = judge_ledger(write_sets, live_bookies)
                totals.add_ledger(verdict)
                if output is not None:
                    output.add(verdict.rows)
                ledgers_seen += 1
                if on_progress is not None and ledgers_seen % 100 == 0:
                    on_progress(ledgers_seen)
    return totals


@contextmanager
def _write_set_file(out_directory: str | None, part_number: int) -> Iterator[WriteSetFile | None]:
    if out_directory is None:
        yield None
        return
    from spark_reports.rows import WriteSetFile  # noqa: PLC0415

    with closing(WriteSetFile(out_directory, part_number)) as file:
        yield file
