"""What is left on drained bookies: what a drain moves, and what waits for a writer."""

from __future__ import annotations

from bkctl.runtime.ledger.changes import new_ledger, replace_bookies, to_closed, to_in_recovery
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.replication.judge.drained_bookies import DrainedBookie, DrainedTally, closing_step

OPEN = new_ledger(("b1", "b2"), 2, 2, DigestType.CRC32C, b"")
LABELS = (("application", b"pulsar"), ("pulsar/managed-ledger", b"public/default/persistent/t1"))
MOVABLE = DrainedBookie(is_referenced=True)


def test_open_ledgers_wait_for_their_writers_and_others_are_moved() -> None:
    tally = DrainedTally(("b1", "b2", "b3"))
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


def test_a_broker_closes_the_ledgers_of_a_topic() -> None:
    tally = DrainedTally(("b1",))
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
