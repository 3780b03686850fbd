"""Progress of a recovery: the line that is printed without a terminal."""

from __future__ import annotations

import asyncio
import io

import msgspec

from commands.config import Settings
from commands.console import Console
from commands.progress import Progress, Silence
from commands.recovery_progress import RecoveryProgressView, recovery_progress
from runtime.replication.recovery_run import RecoveryProgress

MEBIBYTE = 1024 * 1024
MOMENT = RecoveryProgress(
    ledgers_done=2,
    ledgers_total=10,
    ledgers_failed=1,
    entries_copied=100,
    entries_planned=1000,
    bytes_copied=MEBIBYTE,
    bytes_planned=4 * MEBIBYTE,
    current_ledgers=(17, 18),
    oldest_s=42.0,
    oldest_waits_for="source b3:3181",
)


async def test_a_line_says_how_far_it_is_and_what_the_oldest_ledger_waits_for() -> None:
    view = RecoveryProgressView(Silence())
    assert view.line() is None
    view.show(MOMENT)
    line = view.line()
    assert line is not None
    assert line.startswith("2 of 10 ledgers done, 1.0 MiB of about 4.0 MiB, ")
    assert "/s, 1 failed; oldest: ledger 17, for 42 s, waits for source b3:3181, about " in line
    assert line.endswith(" left")
    waiting = msgspec.structs.replace(
        MOMENT, ledgers_done=0, bytes_copied=0, bytes_planned=0, current_ledgers=(), waiting_for_writers=3
    )
    view.show(waiting)
    assert view.line() == "0 of 10 ledgers done, 0 B, 0 B/s, 1 failed; waiting for the writers of 3 open ledgers"


class Bar(Progress):
    """Keeps what it was last given."""

    is_shown = True
    shown: tuple[float, float | None, str | None, str | None] = (0, None, None, None)

    def update(
        self, done: float, total: float | None = None, note: str | None = None, count: str | None = None
    ) -> None:
        self.shown = (done, total, note, count)


async def test_a_bar_moves_with_the_bytes_and_counts_ledgers() -> None:
    bar = Bar()
    RecoveryProgressView(bar).show(MOMENT)
    done, total, _, count = bar.shown
    assert total is not None
    assert (0.1 < done / total < 0.3, count) == (True, "2/10")
    over = msgspec.structs.replace(MOMENT, ledgers_done=10, bytes_copied=99 * MEBIBYTE)
    RecoveryProgressView(bar).show(over)
    assert bar.shown[0] == bar.shown[1], "an estimate that was too low"


class Lines(io.StringIO):
    """Tells when the second line was written."""

    def __init__(self) -> None:
        super().__init__()
        self.has_two = asyncio.Event()

    def write(self, text: str) -> int:
        count = super().write(text)
        if self.getvalue().count("\n") >= 2:
            self.has_two.set()
        return count


async def test_lines_are_printed_without_a_terminal_and_not_with_quiet() -> None:
    written = Lines()
    console = Console(Settings(), {}, io.StringIO(), written, io.StringIO())
    async with recovery_progress(console, "recovering", interval_s=0.001) as view:
        view.show(MOMENT)
        await written.has_two.wait()
    lines = written.getvalue().splitlines()
    assert all(line.startswith("recovering: 2 of 10 ledgers done, ") for line in lines)
    for settings in (Settings(is_quiet=True), Settings(has_progress=False)):
        assert not Console(settings, {}, io.StringIO(), written, io.StringIO()).prints_progress_lines
