"""What counts as progress."""

from __future__ import annotations

from bkctl.runtime.net.standstill import Standing, StandstillWatch
from bkctl.runtime.protocol.framing import READ_BYTES


def test_looks_without_progress_are_counted() -> None:
    watch = StandstillWatch()
    looks = [
        (Standing("frame", 0, 10), 0),
        (Standing("frame", 0, 10), 1),
        (Standing("frame", 0, 10 + READ_BYTES - 1), 2),
        (Standing("frame", 0, 10 + READ_BYTES), 0),
        (Standing("frame", 0, 10 + READ_BYTES), 1),
        (Standing("frame", 1, 10), 0),
        (Standing("frame", 1, 10), 1),
        (Standing("answers", 1, 10), 0),
        (Standing("answers", 1, 10), 1),
        (None, 0),
        (None, 0),
        (Standing("answers", 1, 10), 0),
    ]
    assert [watch.stalled_checks(standing) for standing, _ in looks] == [count for _, count in looks]
