"""Progress of a recovery: the line that is printed without a terminal."""

from __future__ import annotations

import asyncio
import io

import msgspec

from bkctl.commands.config import Settings
from bkctl.commands.console import Console
from bkctl.commands.outages import WorkProgress
from bkctl.commands.progress import ProgressBar, Silence
from bkctl.commands.recovery_progress import RecoveryProgressView, recovery_progress
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from tests.commands.test_progress import ManualClock

MEBIBYTE = 1024 * 1024
MOMENT = RecoveryProgress(
    ledgers_done=2,
    ledgers_total=10,
    ledgers_failed=1,
    entries_copied=100,
    bytes_copied=MEBIBYTE,
    bytes_planned=4 * MEBIBYTE,
    oldest_ledger=17,
    oldest_s=42.0,
    oldest_waits_for="source b3:3181",
)


def test_a_line_says_how_far_it_is_and_what_the_oldest_ledger_waits_for() -> None:
    watch = ManualClock()
    view = RecoveryProgressView(Silence(), watch)
    assert view.line() is None
    watch.now_s += 4
    view.show(MOMENT)
    assert view.line() == (
        "2 of 10 ledgers done, 1.0 MiB of about 4.0 MiB, 256.0 KiB/s, 1 failed; oldest: ledger 17, for 42 s, waits for "
        "source b3:3181, about 13 s left"
    )


def test_more_than_was_planned_is_not_part_of_it() -> None:
    """What was copied while ZooKeeper was gone is copied again."""
    view = RecoveryProgressView(Silence(), ManualClock())
    view.show(msgspec.structs.replace(MOMENT, bytes_copied=5 * MEBIBYTE))
    assert (view.line() or "").startswith("2 of 10 ledgers done, 5.0 MiB, ")


def test_a_line_says_why_bookies_refuse_this_client() -> None:
    view = RecoveryProgressView(Silence(), ManualClock())
    view.show(msgspec.structs.replace(MOMENT, oldest_ledger=None, refusal="bookie b4: it refuses the login"))
    line = view.line()
    assert line is not None
    assert "1 failed; refused: bookie b4: it refuses the login" in line


def test_rates_are_those_of_the_last_half_minute() -> None:
    watch = ManualClock()
    view = RecoveryProgressView(Silence(), watch)
    view.show(MOMENT)
    for _ in range(60):
        watch.now_s += 1
        view.show(MOMENT)
    line = view.line()
    assert line is not None
    assert ("0 B/s" in line, "left" in line) == (True, False), "nothing was copied in the last half minute"


def test_a_line_says_how_long_writers_are_waited_for() -> None:
    waiting = msgspec.structs.replace(
        MOMENT, bytes_copied=0, bytes_planned=0, oldest_ledger=None, waiting_for_writers=3, writers_wait_s=12.0
    )
    watch = ManualClock()
    view = RecoveryProgressView(Silence(), watch)
    view.show(msgspec.structs.replace(waiting, ledgers_done=0))
    assert view.line() == "0 of 10 ledgers done, 0 B, 0 B/s, 1 failed; waits 12 s for the writers of 3 open ledgers"
    watch.now_s += 1
    view.show(waiting)
    line = view.line()
    assert line is not None
    assert line.endswith(", about 12 s left"), "not earlier than the writers are waited for"


def test_when_only_writers_are_waited_for_the_time_left_is_their_wait() -> None:
    watch = ManualClock()
    view = RecoveryProgressView(Silence(), watch)
    watch.now_s += 4
    some_failed = msgspec.structs.replace(
        MOMENT, ledgers_done=9, oldest_ledger=None, waiting_for_writers=1, writers_wait_s=3.0
    )
    view.show(some_failed)
    line = view.line()
    assert line is not None
    assert line.endswith("waits 3 s for the writers of 1 open ledger, about 3 s left"), "failed bytes are never copied"
    work = WorkProgress(10)
    work.note(some_failed)
    assert work.sentence().endswith(" copied; 1 open ledger waits for its writer")


def test_ledgers_that_failed_are_no_progress_and_the_time_left_keeps_to_the_limit() -> None:
    """At 20 KiB/s, 2.4 MiB take two minutes, however soon ten ledgers failed."""
    watch = ManualClock()
    view = RecoveryProgressView(Silence(), watch)
    watch.now_s += 4
    moment = msgspec.structs.replace(
        MOMENT,
        ledgers_done=11,
        ledgers_total=40,
        ledgers_failed=10,
        bytes_copied=80 * 1024,
        bytes_planned=2560 * 1024,
        oldest_ledger=None,
        why_failed="mostly: no bookie to copy to",
        least_s=124.0,
    )
    view.show(moment)
    end = "20.0 KiB/s, 10 failed (mostly: no bookie to copy to), about {} left"
    assert (view.line() or "").endswith(end.format("2 min"))
    view.show(msgspec.structs.replace(moment, least_s=0.0))
    assert (view.line() or "").endswith(end.format("2 min")), "2,480 KiB and 29 ledgers, at 36 KiB/s"
    view.show(msgspec.structs.replace(moment, least_s=900.0))
    assert (view.line() or "").endswith(end.format("15 min"))


def test_a_bar_moves_with_the_bytes_and_counts_ledgers() -> None:
    watch = ManualClock()
    bar = ProgressBar("recovering", watch)
    view = RecoveryProgressView(bar, watch)
    watch.now_s += 4
    view.show(MOMENT)
    first, *others = bar.lines(160)
    assert first == f"recovering {'━' * 9}{' ' * 31} 2/10"
    assert others == [
        "elapsed 0:04, about 0:13 left; 1.0 MiB of about 4.0 MiB, 256.0 KiB/s, 1 failed; oldest: ledger 17, for 42 s, "
        "waits for source b3:3181"
    ], "the rate is that of the bytes"
    over = msgspec.structs.replace(MOMENT, ledgers_done=10, bytes_copied=99 * MEBIBYTE)
    RecoveryProgressView(bar, watch).show(over)
    assert bar.lines(160)[0] == f"recovering {'━' * 40} 10/10", "an estimate that was too low"


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
