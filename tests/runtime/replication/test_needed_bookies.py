"""How bad it is for the metadata doctor that bookies are down: by the rule of the status."""

from __future__ import annotations

from typing import Any

import pytest

from bkctl.runtime.metadata.replication.recovery_notes import GivenUpNote
from bkctl.runtime.replication.judge.needed_bookies import NeededBookies
from bkctl.storage.severity import Severity
from tests.runtime.replication.samples import ledger

TWO = ledger({0: ("b1", "b2")}, 2, 2, last_entry_id=9, length=100)


@pytest.mark.parametrize(
    ("live", "down", "more", "severity"),
    [
        ("b1", 1, {}, Severity.WARNING),
        ("b1", 2, {}, Severity.CRITICAL),
        ("", 1, {}, Severity.CRITICAL),
        ("b1", 1, {"is_repaired": False}, Severity.CRITICAL),
        ("b1", 1, {"awaited": ("b2",)}, Severity.INFORMATION),
    ],
    ids=["one", "several", "no live copy", "nothing repairs", "maintenance"],
)
def test_the_severity(live: str, down: int, more: dict[str, Any], severity: Severity) -> None:
    references = NeededBookies((live,), **more)
    assert references.needed(1, TWO) == {"b1", "b2"}
    assert references.severity("b2", down) is severity


def test_what_was_given_up_is_not_needed() -> None:
    note = GivenUpNote(written_ms=1, member_since={"b1": 1, "b2": 1})
    references = NeededBookies((), given_up={1: note})
    assert references.needed(1, TWO) == set()
    assert references.severity("b3", 1) is Severity.WARNING
    assert references.needed(2, TWO) == {"b1", "b2"}, "another ledger"
    assert references.severity("b3", 1) is Severity.CRITICAL
