"""Progress of a recovery: a bar on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from commands.console import Console
from commands.progress import Progress
from commands.rendering import counted, duration, size

if TYPE_CHECKING:
    from runtime.replication.recovery_run import RecoveryProgress

LINE_INTERVAL_S = 10.0
LEDGER_COST_BYTES = 64 * 1024
"""Moving an empty ledger takes about as long as copying this much."""


class RecoveryProgressView:
    """Shows the progress of one run."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._started_s = asyncio.get_running_loop().time()
        self._last: RecoveryProgress | None = None

    def show(self, moment: RecoveryProgress) -> None:
        """Receive the progress of the run."""
        self._last = moment
        if self._progress.is_shown:
            count = f"{moment.ledgers_done}/{moment.ledgers_total}"
            self._progress.update(_work_done(moment), _work(moment), self._note(moment), count)

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
        elapsed_s = max(0.001, asyncio.get_running_loop().time() - self._started_s)
        of_bytes = f" of about {size(moment.bytes_planned)}" if moment.bytes_planned else ""
        note = f"{size(moment.bytes_copied)}{of_bytes}, {size(moment.bytes_copied / elapsed_s)}/s"
        if moment.ledgers_failed:
            note += f", {moment.ledgers_failed} failed"
        if moment.current_ledgers:
            note += f"; oldest: ledger {moment.current_ledgers[0]}, for {duration(moment.oldest_s)}"
            note += f", waits for {moment.oldest_waits_for}" if moment.oldest_waits_for else ""
        if moment.waiting_for_writers:
            note += f"; waiting for the writers of {counted(moment.waiting_for_writers, 'open ledger')}"
        return note

    def _left_s(self, moment: RecoveryProgress) -> float | None:
        done = _work_done(moment)
        elapsed_s = asyncio.get_running_loop().time() - self._started_s
        return elapsed_s * max(0, _work(moment) - done) / done if done else None


def _work(moment: RecoveryProgress) -> int:
    return moment.bytes_planned + moment.ledgers_total * LEDGER_COST_BYTES


def _work_done(moment: RecoveryProgress) -> int:
    return min(moment.bytes_copied, moment.bytes_planned) + moment.ledgers_done * LEDGER_COST_BYTES


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
        view = RecoveryProgressView(progress)
        printing = asyncio.create_task(print_lines()) if console.prints_progress_lines else None
        try:
            yield view
        finally:
            if printing is not None:
                printing.cancel()
