"""Progress of a recovery: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bkctl.commands.console import Console
from bkctl.commands.progress import Progress, WorkPace
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from bkctl.storage.words import counted, duration, size

LINE_INTERVAL_S = 10.0
LEDGER_COST_BYTES = 64 * 1024
"""Moving an empty ledger takes about as long as copying this much."""


class RecoveryProgressView:
    """Shows the progress of one run."""

    def __init__(self, progress: Progress, now_s: Callable[[], float]) -> None:
        self._progress = progress
        self._copying, self._working = WorkPace(now_s), WorkPace(now_s)
        self._last: RecoveryProgress | None = None

    def show(self, moment: RecoveryProgress) -> None:
        """Receive the progress of the run."""
        self._last = moment
        if self._progress.is_shown:
            count = f"{moment.ledgers_done}/{moment.ledgers_total}"
            left_s = self._left_s(moment)
            self._progress.update(_work_done(moment), _work(moment), self._note(moment), count, rate="", left_s=left_s)
        self._copying.note(moment.bytes_copied)
        self._working.note(_work_done(moment))

    def line(self) -> str | None:
        """The progress so far in one line; None if there is none yet."""
        moment = self._last
        if moment is None:
            return None
        left_s = self._left_s(moment)
        left = "" if left_s is None else f", about {duration(left_s)} left"
        done = f"{moment.ledgers_done} of {counted(moment.ledgers_total, 'ledger')} done"
        return f"{done}, {self._note(moment)}{left}"

    def _note(self, moment: RecoveryProgress) -> str:
        has_more = moment.bytes_planned >= moment.bytes_copied  # what an outage left unrecorded is copied again
        of_bytes = f" of about {size(moment.bytes_planned)}" if moment.bytes_planned and has_more else ""
        note = f"{size(moment.bytes_copied)}{of_bytes}, {size(self._copying.per_second(moment.bytes_copied))}/s"
        note += moment.failed
        if moment.oldest_ledger is not None:
            note += f"; oldest: ledger {moment.oldest_ledger}, for {duration(moment.oldest_s)}"
            note += f", waits for {moment.oldest_waits_for}" if moment.oldest_waits_for else ""
        if moment.refusal:
            note += f"; refused: {moment.refusal}"
        if moment.waiting_for_writers:
            number = counted(moment.waiting_for_writers, "open ledger")
            note += f"; waits {duration(moment.writers_wait_s)} for the writers of {number}"
        return note

    def _left_s(self, moment: RecoveryProgress) -> float | None:
        if moment.waiting_for_writers and moment.ledgers_done + moment.waiting_for_writers >= moment.ledgers_total:
            return moment.writers_wait_s  # bytes that are not copied by now are those of ledgers that failed
        done = _work_done(moment)
        rate = self._working.per_second(done)
        least_s = max(moment.writers_wait_s, moment.least_s)
        return max(least_s, (_work(moment) - done) / rate) if rate > 0 else None


def _work(moment: RecoveryProgress) -> int:
    return moment.bytes_planned + (moment.ledgers_total - moment.ledgers_failed) * LEDGER_COST_BYTES


def _work_done(moment: RecoveryProgress) -> int:
    moved = moment.ledgers_done - moment.ledgers_failed  # one that failed says nothing about the time of the others
    return min(moment.bytes_copied, moment.bytes_planned) + moved * LEDGER_COST_BYTES


@asynccontextmanager
async def recovery_progress(
    console: Console, description: str, interval_s: float = LINE_INTERVAL_S
) -> AsyncIterator[RecoveryProgressView]:
    """A view of a run on stderr: a bar on a terminal, otherwise a line every ``interval_s``."""

    async def print_lines() -> None:
        while True:
            await asyncio.sleep(interval_s)
            if (line := view.line()) is not None:
                console.say(f"{description}: {line}")

    with console.progress(description) as progress:
        view = RecoveryProgressView(progress, asyncio.get_running_loop().time)
        printing = asyncio.create_task(print_lines()) if console.prints_progress_lines else None
        try:
            yield view
        finally:
            if printing is not None:
                printing.cancel()
