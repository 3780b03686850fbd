"""Which marks may be cleared when bookies come back."""

from __future__ import annotations

import pytest

from bkctl.runtime.autorecovery.returned_bookies import Absence, waited_only
from bkctl.runtime.metadata.replication.format import UnderReplicationMark
from bkctl.runtime.metadata.replication.marks import ListedMark

ABSENCES = {"b1": Absence(100, 200), "b2": Absence(150, 180)}


def mark(*missing: str, marked_ms: int = 160, version: int = 0) -> ListedMark:
    return ListedMark(7, UnderReplicationMark(missing, marked_ms), version, changed_ms=marked_ms)


@pytest.mark.parametrize(
    ("listed", "is_cleared"),
    [
        (mark("b1"), True),
        (mark("b1", marked_ms=100), True),
        (mark("b1", marked_ms=200), True),
        (mark("b1", "b2"), True),
        (mark("b1", marked_ms=99), False),  # a check found it before the loss
        (mark("b1", marked_ms=201), False),  # a check found it after the return
        (mark("b1", "b2", marked_ms=149), False),
        (mark("b1", "b2", marked_ms=190), False),
        (mark("b1", "b3"), False),
        (mark("b1", version=1), False),  # it was renewed, for whatever reason
        (mark(), False),  # placement
        (ListedMark(7, None, 0, 160), False),
    ],
)
def test_a_mark(listed: ListedMark, is_cleared: bool) -> None:
    assert waited_only(listed, ABSENCES) is is_cleared
