"""The progress of commands that read copies of ledgers, as a line on a terminal."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from bkctl.commands.console import Console
from bkctl.commands.progress import Progress, WorkPace
from bkctl.commands.recovery_progress import LEDGER_COST_BYTES
from bkctl.runtime.client.ports import ClientPorts
from bkctl.runtime.metadata.ledgers.ledgers import LedgerStore
from bkctl.runtime.metadata.store import Versioned
from bkctl.runtime.replication.judge.check_scope import CheckScope
from bkctl.runtime.replication.judge.copies import CheckTotals
from bkctl.runtime.replication.survey.checker import LedgerChecker, bytes_to_check
from bkctl.storage.errors import BkctlError
from bkctl.storage.words import counted, duration, size

_DRAW_S = 0.5


class CheckProgress:
    """Shows how far a checker is. ``ledgers`` and ``bytes_planned`` are those of all, once they are known."""

    def __init__(self, progress: Progress, ports: ClientPorts, checker: LedgerChecker, limit: int | None) -> None:
        """``limit``: bytes a second that may be read at most."""
        self._progress = progress
        self._clock = ports.clock
        self._checker = checker
        self._limit = limit
        self._reading, self._working = WorkPace(self._now_s), WorkPace(self._now_s)
        self.totals = CheckTotals()
        self.ledgers: int | None = None
        self.bytes_planned = 0

    def note_examined(self) -> None:
        """One more ledger was looked at; what was found is not shown."""
        totals = self.totals
        self.totals = msgspec.structs.replace(
            totals, ledgers=totals.ledgers + 1, ledgers_clean=totals.ledgers_clean + 1
        )

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def show(self) -> None:
        """Draw it as it is now."""
        read, ledgers = self._checker.bytes_read, self.totals.ledgers
        done = self._checker.bytes_done + ledgers * LEDGER_COST_BYTES
        self._reading.note(read)
        self._working.note(done)
        if self.ledgers is None:
            self._progress.update(done, None, self._note(read), f"{counted(ledgers, 'ledger')}", rate="")
            return
        total = max(done, self.bytes_planned + max(ledgers, self.ledgers) * LEDGER_COST_BYTES)
        pace = self._working.per_second(done)
        least_s = max(0, self.bytes_planned - self._checker.bytes_done) / self._limit if self._limit else 0.0
        left_s = max(least_s, (total - done) / pace) if pace > 0 else least_s or None
        count = f"{ledgers}/{max(ledgers, self.ledgers)}"
        self._progress.update(done, total, self._note(read), count, rate="", left_s=left_s)

    def _note(self, read: int) -> str:
        of_bytes = f" of about {size(self.bytes_planned)}" if self.ledgers is not None and self.bytes_planned else ""
        note = f"{size(read)}{of_bytes}, {size(self._reading.per_second(read))}/s"
        if bad := self.totals.ledgers - self.totals.ledgers_clean:
            note += f", {counted(bad, 'ledger')} with findings"
        if (oldest := self._checker.oldest) is not None:
            note += f"; oldest: ledger {oldest.ledger_id}, for {duration(self._now_s() - oldest.since_ns / 1e9)}"
            note += f", waits for {oldest.waits_for}" if oldest.waits_for else ""
        return note

    async def measure(self, store: LedgerStore, named: Sequence[int], scope: CheckScope) -> None:
        """Find out what there is to read; without an answer of ZooKeeper it stays unknown."""
        ledgers = planned = 0
        with contextlib.suppress(BkctlError):
            if named:
                ledgers = len(named)
                for ledger_id in named:
                    with contextlib.suppress(BkctlError):
                        planned += bytes_to_check((await store.read(ledger_id)).value, scope)
            else:
                async for _, found in store.read_all():
                    ledgers += 1
                    planned += bytes_to_check(found.value, scope) if isinstance(found, Versioned) else 0
            self.ledgers, self.bytes_planned = ledgers, planned

    async def draw(self) -> None:
        """Until it is cancelled."""
        while True:
            self.show()
            await self._clock.sleep(_DRAW_S)


@asynccontextmanager
async def check_progress(
    console: Console,
    label: str,
    ports: ClientPorts,
    checker: LedgerChecker,
    named: Sequence[int],
    scope: CheckScope,
    limit: int | None,
) -> AsyncIterator[CheckProgress]:
    """A view of a run on a terminal."""
    with console.progress(label) as progress:
        view = CheckProgress(progress, ports, checker, limit)
        work = (view.measure(ports.ledgers, named, scope), view.draw()) if progress.is_shown else ()
        tasks = [asyncio.create_task(each) for each in work]
        try:
            yield view
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
