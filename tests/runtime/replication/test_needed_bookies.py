"""How bad it is for the metadata doctor that bookies are down: by the rule of the status."""

from __future__ import annotations

from typing import Any

import pytest

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.maintenance import Maintenance
from bkctl.runtime.metadata.replication.recovery_notes import MaintenanceNote
from bkctl.runtime.replication.judge.needed_bookies import Idle, NeededBookies
from bkctl.storage.severity import Severity
from tests.runtime.replication.samples import ledger

AWAY = (Maintenance("b2", MaintenanceNote(start_ms=1, end_ms=10 * 3_600_000, user="ann")),)
TWO = ledger({0: ("b1", "b2")}, 2, 2, last_entry_id=9, length=100)


@pytest.mark.parametrize(
    ("live", "down", "more", "severity"),
    [
        ("b1", 1, {}, Severity.WARNING),
        ("b1", 2, {}, Severity.CRITICAL),
        ("", 1, {}, Severity.CRITICAL),
        ("b1", 1, {"is_repaired": False}, Severity.CRITICAL),
        ("b1", 1, {"maintenance": AWAY}, Severity.INFORMATION),
        ("", 1, {"maintenance": AWAY}, Severity.CRITICAL),
    ],
    ids=["one", "several", "no live copy", "nothing repairs", "maintenance", "no live copy in maintenance"],
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


def cure(live: str, *ledgers: LedgerMetadata, has_cookie: bool = True, **more: Any) -> str | None:
    """Of b2, while all that runs is writable."""
    references = NeededBookies(live.split(), writable=live.split(), **more)
    for ledger_id, metadata in enumerate(ledgers):
        references.needed(ledger_id, metadata)
    return references.cure("b2", has_cookie=has_cookie)


def test_the_fix_of_the_rule_holds_where_a_recovery_copies_everything() -> None:
    assert cure("b1 b3", TWO) is None
    assert cure("b1 b3", TWO, has_cookie=False) is None
    references = NeededBookies(("b1",))
    references.needed(1, TWO)
    assert references.cure("b2", has_cookie=True) is None, "which bookies are writable is unknown"


def test_a_bookie_in_maintenance_is_awaited() -> None:
    assert cure("b1 b3", TWO, maintenance=AWAY) == (
        "Nothing before its time is over: bookie b2 is in maintenance until 10:00 UTC (by ann). bkctl autorecovery "
        "maintenance list shows it."
    )
    assert (cure("b1 b3", TWO, ledger({0: ("b2",)}, 1, 1, last_entry_id=9, length=100), maintenance=AWAY) or "") == (
        "Start the bookie first: 1 ledger has entries without a live copy, which a recovery does not find either; "
        "bkctl ledger explain 1. Bookie b2 is in maintenance until 10:00 UTC (by ann)."
    ), "nothing else brings these back, whatever its time"


def test_too_few_bookies_to_copy_to() -> None:
    """By the rule of the status: no command that copies is advised."""
    assert cure("b1", TWO) == "Start the bookie, or add another: too few others are writable to take the copies."
    assert cure("b1", TWO, has_cookie=False) == (
        "Add another, because too few are writable to take the copies; then bkctl recover failed-bookie b2. If only "
        "its cookie was lost, restore its cookie with bkctl cookie create --from-config on its machine."
    )
    assert cure("b1", TWO, idle={"b2": Idle.DOWN, "b3": Idle.OPERATOR}) == (
        "Start the bookie, or make b3 writable, which an operator set read-only, or add a bookie "
        "(bkctl bookie set-mode writable b3): too few others are writable to take the copies."
    )


def test_what_has_no_live_copy_is_started_first() -> None:
    lost = ledger({0: ("b2", "b9")}, 2, 2, last_entry_id=9, length=100)
    first = "Start the bookie first: 1 ledger has entries without a live copy, which a recovery does not find either"
    assert cure("b1 b3", lost) == f"{first}; bkctl ledger explain 0."
    assert cure("b1 b3", lost, TWO) == (
        f"{first}; bkctl ledger explain 0. Once it is known that the disks are lost, bkctl recover failed-bookie b2 "
        "copies the other ledgers."
    )
    assert cure("b1", lost, TWO) == f"{first}; bkctl ledger explain 0."
    assert cure("b1 b3", lost, has_cookie=False) == (
        "Nothing to copy from: if its disks exist, restore its cookie with bkctl cookie create --from-config on its "
        "machine, and start it; or start other bookies of these ledgers: bkctl ledger explain 0."
    )
