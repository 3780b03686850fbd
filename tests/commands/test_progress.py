"""What a progress bar says, by a clock that the test sets."""

from __future__ import annotations

import pytest

from bkctl.commands.progress import ProgressBar, clock


class ManualClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_times_have_labels_and_the_rate_is_that_of_the_last_half_minute() -> None:
    now = ManualClock()
    bar = ProgressBar("verifying", now)
    assert bar.lines(80) == ["verifying", "elapsed 0:00"]
    for done in range(1, 61):
        now.now_s += 1
        bar.update(2 * done, 400, f"{done} good copies")
    assert bar.lines(80) == [
        f"verifying {'━' * 12}{' ' * 28} 120/400",
        "elapsed 1:00, about 2:20 left, 2.0/s; 60 good copies",
    ]
    for _ in range(40):
        now.now_s += 1
        bar.update(120, 400)
    assert bar.lines(80)[1] == "elapsed 1:40, nothing finished for 0:40; 60 good copies"


def test_work_without_units_shows_how_long_it_takes() -> None:
    now = ManualClock()
    bar = ProgressBar("asking the bookies", now)
    now.now_s += 3723
    assert bar.lines(80) == ["asking the bookies", "elapsed 1:02:03"]


def test_other_work_has_a_rate_of_its_own() -> None:
    now = ManualClock()
    bar = ProgressBar("rebuilding", now)
    now.now_s += 10
    bar.update(1000, 1000, "scan")
    bar.update(0, 50, "write")
    now.now_s += 5
    bar.update(10, 50, "write")
    assert bar.lines(80)[1] == "elapsed 0:15, about 0:20 left, 2.0/s; write"


@pytest.mark.parametrize("width", [40, 80, 160])
def test_lines_fit_and_break_between_words(width: int) -> None:
    bar = ProgressBar("looking for the bookie in all ledgers", ManualClock())
    note = "10.9 MiB of about 36.4 MiB, 2.0 MiB/s; oldest: ledger 40, for 9 s, waits for source b1:3181"
    bar.update(7, 9, note, "20/32")
    lines = bar.lines(width)
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).replace("━", "").split()) == (
        f"looking for the bookie in all ledgers 20/32 elapsed 0:00; {note}"
    )


def test_what_others_wrote_moves_no_cursor() -> None:
    bar = ProgressBar("checking", ManualClock())
    bar.update(1, None, "/data/k\x1b[2J\n\x9b1m")
    assert bar.lines(80) == ["checking 1", "elapsed 0:00; /data/k\\x1b[2J\\n\\x9b1m"]


def test_clock() -> None:
    assert [clock(seconds) for seconds in (0, 0.6, 59.4, 60, 3599.6, 86_400)] == [
        *("0:00", "0:01", "0:59", "1:00", "1:00:00", "24:00:00")
    ]
