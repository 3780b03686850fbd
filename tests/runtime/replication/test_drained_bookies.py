"""What is left on drained bookies: what a drain moves, and what waits for a writer."""

from __future__ import annotations

import re

import pytest

from bkctl.runtime.ledger.changes import new_ledger, replace_bookies, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.replication.judge.drained_bookies import (
    LEAVES_AT_RISK,
    LEAVES_CLUSTER,
    DrainedBookie,
    DrainedTally,
    closing_step,
    leaving_bookies_of,
    leaving_findings,
)
from bkctl.storage.severity import Severity

OPEN = new_ledger(("b1", "b2"), 2, 2, DigestType.CRC32C, b"")
LABELS = (("application", b"pulsar"), ("pulsar/managed-ledger", b"public/default/persistent/t1"))
MOVABLE = DrainedBookie(is_referenced=True)
WAITING = DrainedBookie(is_referenced=True, waiting=frozenset({9, 10}))
STUCK = DrainedBookie(is_referenced=True, stuck=frozenset({7}))
B = "b2:3181"


def test_open_ledgers_wait_for_their_writers_and_others_are_moved() -> None:
    tally = DrainedTally(("b1", "b2", "b3"), ("b3", "b4", "b5"))
    tally.add(4, OPEN)
    tally.add(5, OPEN)
    waiting = DrainedBookie(is_referenced=True, waiting=frozenset({4, 5}))
    assert tally.result(is_complete=True) == {"b1": waiting, "b2": waiting, "b3": DrainedBookie()}
    assert tally.result(is_complete=False) == {"b1": MOVABLE, "b2": MOVABLE}, "others may be closed"
    tally.add(6, replace_bookies(OPEN, 3, {0: "b4"}))
    assert tally.result(is_complete=True)["b1"] == MOVABLE, "its writer has left the earlier segment"
    assert not tally.is_done
    for ledger_id, metadata in ((7, to_in_recovery(OPEN)), (8, to_closed(replace_bookies(OPEN, 0, {1: "b3"}), 0, 5))):
        tally.add(ledger_id, metadata)
    assert tally.result(is_complete=True) == {"b1": MOVABLE, "b2": MOVABLE, "b3": MOVABLE}
    assert tally.is_done


def test_ledgers_without_another_bookie_are_moved_by_no_drain() -> None:
    tally = DrainedTally(("b1",), ("b1", "b2", "b3"))
    every = to_closed(new_ledger(("b1", "b2", "b3"), 2, 2, DigestType.CRC32C, b""), 9, 100)
    tally.add(4, every)
    tally.add(5, OPEN)
    tally.add_unreadable()
    left = DrainedBookie(is_referenced=True, waiting=frozenset({5}), stuck=frozenset({4}))
    assert tally.result(is_complete=True) == {"b1": left}
    (advice,) = leaving_findings(leaving_bookies_of({"b1": ""}, {"b1": left}, (), ()), is_short=False, is_at_risk=False)
    assert (advice.severity, advice.command) == (Severity.WARNING, "bkctl ledger close 5")
    assert (
        "1 ledger has no bookie to copy to (4): add a bookie, or start one; then bkctl bookie drain b1"
        in advice.sentence
    )
    tally.add(6, to_closed(OPEN, 9, 100))
    assert tally.result(is_complete=True) == {"b1": MOVABLE}
    unread = DrainedTally(("b1",), ())
    unread.add_unreadable()
    assert unread.result(is_complete=True) == {}, "whether any ledger references it is unknown"


def test_a_broker_closes_the_ledgers_of_a_topic() -> None:
    tally = DrainedTally(("b1",), ())
    tally.add(4, new_ledger(("b1",), 1, 1, DigestType.CRC32C, b"", custom_metadata=LABELS))
    found = tally.result(is_complete=True)["b1"]
    sentence, command = closing_step(sorted(found.waiting), found.topics)
    assert "pulsar-admin topics unload TOPIC" in sentence
    assert "persistent://public/default/t1" in sentence
    assert command == "bkctl ledger explain 4"
    assert closing_step([4, 5], ()) == (
        "open ledgers that have no writer are closed by bkctl ledger close 4 5",
        "bkctl ledger close 4 5",
    )


@pytest.mark.parametrize(
    ("drained", "moved", "removed", "is_short", "command"),
    [
        (DrainedBookie(), True, True, False, f"bkctl bookie stop {B}"),
        (DrainedBookie(), True, False, False, "bkctl status --watch"),
        (None, True, True, False, "bkctl status --watch"),
        (WAITING, True, True, False, "bkctl ledger close 9 10"),
        (WAITING, False, False, True, "bkctl ledger close 9 10"),
        (STUCK, False, False, False, "bkctl bookie list"),
        (DrainedBookie(), False, False, True, f"bkctl decommission {B}"),
        (MOVABLE, False, False, False, f"bkctl bookie drain {B}"),
        (MOVABLE, False, False, True, f"bkctl bookie undrain {B}"),
        (None, False, False, False, f"bkctl decommission {B}"),
    ],
)
def test_each_stage_of_a_bookie_that_leaves_has_its_step(
    *, drained: DrainedBookie | None, moved: bool, removed: bool, is_short: bool, command: str
) -> None:
    known = {} if drained is None else {B: drained}
    moving, removing = [B] if moved else [], [B] if removed else []
    leaving = leaving_bookies_of({B: f"{LEAVES_CLUSTER} (ann@h1)"}, known, moving, removing)
    (advice,) = leaving_findings(leaving, is_short=is_short, is_at_risk=False)
    assert advice.command == command
    assert ("undrain" in advice.sentence) is not moved
    (now,) = leaving_findings(leaving, is_short=is_short, is_at_risk=True)
    begun = leaving_bookies_of({B: f"{LEAVES_AT_RISK} (ann@h1)"}, known, moving, removing)
    (then,) = leaving_findings(begun, is_short=is_short, is_at_risk=False)
    why = "(--accept-risk: it is needed while others are down or ledgers are marked)"
    if drained is not None and not drained.is_referenced:
        assert then == advice, "without ledgers, only the rest of the cluster is checked"
    else:
        assert now.sentence.replace(why, "(--accept-risk: as the drain had it)") == then.sentence
        assert now.command == then.command
    is_checked = re.search(f"(bookie drain|decommission) {B}$", command) is not None
    assert now.command == f"{command} --accept-risk" if is_checked else command
    assert re.search(f"bkctl (bookie drain|decommission) {B}(?! --accept-risk)", now.sentence) is None
