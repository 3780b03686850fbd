"""What is left is grouped by what helps, and what cannot help is not advised."""

from __future__ import annotations

from collections.abc import Collection

import msgspec
import pytest

from bkctl.runtime.ledger.changes import new_ledger
from bkctl.runtime.ledger.metadata import DigestType
from bkctl.runtime.replication.judge.advice import GivenUpLedger
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason, LedgerFailure
from bkctl.runtime.replication.judge.left_ledgers import (
    LastStep,
    Left,
    Shortage,
    after_recovery,
    last_step,
    left_groups,
    what_next,
)
from bkctl.runtime.replication.judge.needed_bookies import Idle
from bkctl.runtime.replication.judge.verdict import ReplicationState
from bkctl.storage.severity import Severity

AGAIN = "bkctl again"


def failure(ledger_id: int, reason: FailureReason, *absent: str) -> LedgerFailure:
    return LedgerFailure(ledger_id, reason, (), "why", absent=absent)


def test_each_ledger_counts_once_with_its_worst_reason() -> None:
    groups = left_groups(
        [
            failure(1, FailureReason.OPEN),
            failure(1, FailureReason.LOST, "b1", "b4"),
            failure(2, FailureReason.UNREADABLE, "b1", "b4"),
            failure(3, FailureReason.OPEN),
            failure(5, FailureReason.LOCKED),
        ],
        ["b1"],
        [1, 2, 3, 5, 6],
    )
    assert [(each.left, each.ledger_ids) for each in groups] == [
        (Left.NO_LIVE_COPY, (1, 2)),
        (Left.OPEN, (3,)),
        (Left.AGAIN, (5, 6)),
    ]
    assert groups[0].sentence == "2 have entries without a live copy (start b4)"
    assert groups[0].command == "bkctl bookie show b4"
    assert groups[1].sentence == "1 waits for its writer"


def test_a_bookie_that_is_given_up_is_started_only_if_no_other_has_the_entries() -> None:
    (group,) = left_groups([failure(1, FailureReason.LOST, "b1")], ["b1"])
    assert group.sentence == "1 has entries without a live copy (start b1 if its disks exist)"
    (group,) = left_groups([failure(1, FailureReason.LOST, "b1", "b2")], ["b1", "b2"])
    assert group.sentence == "1 has entries without a live copy (start b1 or b2 if their disks exist)"
    assert (group.command, group.to_start) == ("bkctl bookie show b1 b2", ("b1",)), "any of them"


def test_only_what_was_given_up_counts_as_an_accepted_loss() -> None:
    """Entry 0 is on b1 and b2, entry 1 on b2 and b3, entry 2 on b3 and b1, and b3 serves without it."""
    metadata = new_ledger(("b1", "b2", "b3"), 2, 1, DigestType.CRC32C, b"")
    accepted = {1: GivenUpLedger(metadata, frozenset({"b1", "b2"}), ReplicationState.GIVEN_UP)}
    for entries, left in (
        ((EntryRange(0, 0), EntryRange(3, 3)), Left.ACCEPTED),
        ((EntryRange(0, 1),), Left.NO_LIVE_COPY),
        ((EntryRange(3, 3), EntryRange(5, 5)), Left.NO_LIVE_COPY),
        ((EntryRange(0, 10**15),), Left.NO_LIVE_COPY),
    ):
        lost = msgspec.structs.replace(failure(1, FailureReason.LOST, "b1"), entries=entries)
        (group,) = left_groups([lost], ["b1"], accepted=accepted)
        assert group.left is left
    accepted = {1: msgspec.structs.replace(accepted[1], gone=frozenset(metadata.bookies()))}
    (group,) = left_groups([lost], ["b1"], accepted=accepted)
    assert (group.left, group.to_start, group.command) == (Left.ACCEPTED, (), "bkctl ledger explain 1")


def test_another_bookie_that_is_down_is_started_before_one_that_is_given_up() -> None:
    """Although its start brings fewer ledgers back: the other was said to have failed."""
    lost = [failure(each, FailureReason.LOST, "b1") for each in range(5)]
    (group,) = left_groups([*lost, failure(5, FailureReason.UNREADABLE, "b1", "b4")], ["b1"])
    assert group.sentence == "6 have entries without a live copy (start b4, then start b1 if its disks exist)"
    assert group.command == "bkctl bookie show b4 b1"


def test_a_refusal_is_named_before_bookies_that_are_down() -> None:
    refused = msgspec.structs.replace(
        failure(1, FailureReason.UNREADABLE, "b2"), detail="b3: it refuses the login", is_refused=True
    )
    (group,) = left_groups([refused], ["b2"])
    assert group.sentence == "1 has no readable copy (surviving copies cannot be read: b3: it refuses the login)"
    assert group.command == "bkctl ledger verify 1"


@pytest.mark.parametrize(
    ("failures", "end"),
    [
        ([failure(1, FailureReason.UNREADABLE, "b4")], "; then continue with: bkctl again"),
        ([failure(1, FailureReason.UNREADABLE, "b4"), failure(2, FailureReason.OPEN)], "; continue with: bkctl again"),
        ([failure(1, FailureReason.NOT_ENOUGH_BOOKIES)], "; then continue with: bkctl again"),
        ([failure(7, FailureReason.LOST)], "; see bkctl ledger explain 7"),
        ([failure(7, FailureReason.LOST), failure(8, FailureReason.LOCKED)], "; continue with: bkctl again"),
        ([failure(7, FailureReason.METADATA_UNREADABLE)], "; see bkctl metadata doctor"),
        ([], ""),
    ],
)
def test_the_same_command_is_advised_only_where_it_can_help(failures: list[LedgerFailure], end: str) -> None:
    assert what_next(left_groups(failures, ["b1"]), AGAIN) == end


LOST_WITH_B1 = failure(7, FailureReason.LOST, "b1")


@pytest.mark.parametrize(
    ("bookie_ids", "failures", "end"),
    [
        ("b1", [LOST_WITH_B1], "once b1 serves, nothing is left to recover; if it cannot come back, see {explain}"),
        (
            "b1",
            [LOST_WITH_B1, failure(8, FailureReason.LOCKED)],
            "once b1 serves, nothing is left to recover; if it cannot come back, continue with: again b1",
        ),
        (
            "b1 b2",
            [LOST_WITH_B1, failure(8, FailureReason.LOCKED)],
            "if b1 cannot come back, see {explain}; once b1 serves, continue with: again b2",
        ),
        (
            "b1 b2",
            [LOST_WITH_B1, failure(8, FailureReason.LOST, "b2")],
            "once b1 and b2 serve, nothing is left to recover; if they cannot come back, see {explain}",
        ),
        ("b1", [failure(7, FailureReason.LOST, "b1", "b4")], "then continue with: again b1"),
        (
            "b1",
            [LOST_WITH_B1, failure(8, FailureReason.UNREADABLE, "b1", "b4"), failure(9, FailureReason.LOST, "b1")],
            "only b1 can have 2 of these: see {explain}; once b4 serves, continue with: again b1",
        ),
    ],
)
def test_a_recovery_does_not_continue_with_bookies_that_are_to_be_started(
    bookie_ids: str, failures: list[LedgerFailure], end: str
) -> None:
    """They would be refused, because they serve; and what references them is complete."""
    ids = bookie_ids.split()

    def again(without: Collection[str]) -> str:
        return " ".join(["again", *(each for each in ids if each not in without)])

    found = after_recovery(left_groups(failures, ids), ids, again, LastStep())
    assert found == f"; {end.format(explain='bkctl ledger explain 7')}"


ACCEPTS_B1 = (
    "if the disks of b1 are lost, this accepts the loss: {} > lost-ledgers && bkctl decommission b1 --accept-loss b1 "
    "--from-file lost-ledgers"
)


def test_the_last_step_accepts_what_only_the_lost_bookies_can_have() -> None:
    others = [failure(9, FailureReason.LOST, "b1", "b4"), failure(10, FailureReason.LOST)]
    found = last_step([LOST_WITH_B1, *others], ["b1", "b2"])
    assert found == LastStep((7,), ACCEPTS_B1.format("bkctl ledger list --bookie b1 --state lost -o name"))
    on_live = msgspec.structs.replace(failure(5, FailureReason.LOST, "b1"), has_live_member=True)
    found = last_step([LOST_WITH_B1, on_live], ["b1"])
    assert found == LastStep((5, 7), ACCEPTS_B1.format("printf '%s\\n' 5 7")), "metadata does not show that 5 is lost"
    assert last_step(others, ["b1"]) == LastStep()
    metadata = new_ledger(("b1",), 1, 1, DigestType.CRC32C, b"")
    accepted = {7: GivenUpLedger(metadata, frozenset({"b1"}), ReplicationState.GIVEN_UP)}
    lost = msgspec.structs.replace(LOST_WITH_B1, entries=(EntryRange(0, 1),))
    assert last_step([lost], ["b1"], accepted) == LastStep()


def test_ledgers_that_are_not_closed_come_before_the_last_step() -> None:
    """A loss is accepted only of closed ones. What needs another bookie in the place of a lost one is not closed."""
    unclosed = failure(8, FailureReason.NOT_CLOSED, "b1")
    closes = LastStep(
        (7, 8), "if the disks of b1 are lost, bkctl ledger close 8 --accept-loss b1 closes those that are not closed"
    )
    assert last_step([LOST_WITH_B1, failure(8, FailureReason.LOST, "b1"), unclosed], ["b1", "b2"]) == closes
    stuck = msgspec.structs.replace(unclosed, lacks_bookies=True)
    assert last_step([LOST_WITH_B1, stuck], ["b1"]).ledger_ids == (7,)
    each_alone = (unclosed, stuck, failure(8, FailureReason.NOT_CLOSED))
    severities = [left_groups([each], ["b1"])[0].severity for each in each_alone]
    assert severities == [Severity.CRITICAL, Severity.WARNING, Severity.WARNING], "its end has no live copy"
    assert last_step([failure(8, FailureReason.NOT_CLOSED, "b1", "b4")], ["b1"]) == LastStep()


def test_a_bookie_that_is_back_is_neither_to_be_started_nor_lost() -> None:
    (group,) = left_groups([LOST_WITH_B1, failure(8, FailureReason.NOT_CLOSED, "b1")], ["b1"], back=["b1"])
    assert group.sentence == "2 have entries on bookies that are back"
    assert (group.to_start, group.severity) == ((), Severity.INFORMATION)


def test_a_recovery_explains_no_ledger_whose_loss_the_next_line_accepts() -> None:
    failures = [LOST_WITH_B1, failure(8, FailureReason.LOCKED)]
    for bookie_ids, end in (
        ("b1", "; once b1 serves, nothing is left to recover; if it cannot come back, continue with: again"),
        ("b1 b2", "; once b1 serves, continue with: again"),
    ):
        ids = bookie_ids.split()
        last = last_step(failures, ids)
        assert after_recovery(left_groups(failures, ids), ids, lambda _: "again", last) == end
    alone = left_groups([LOST_WITH_B1], ["b1"])
    assert after_recovery(alone, ["b1"], lambda _: "again", last) == "; once b1 serves, nothing is left to recover"


def test_bookies_that_failed_as_targets_are_named_with_their_reason() -> None:
    cause = "bookie b3: it rejects the certificate of this client: expired"
    (group,) = left_groups([LedgerFailure(1, FailureReason.TARGETS_FAILED, (), cause)], ["b1"])
    assert group.sentence == f"1 has no bookie to copy to (every other writable bookie failed: {cause})"
    assert what_next([group], AGAIN) == f"; then continue with: {AGAIN}"
    short = [failure(1, FailureReason.NOT_ENOUGH_BOOKIES)]
    kept = "keep b5, which a drain made read-only and no command empties now"
    set_by = "make b5 writable, which an operator set read-only"
    idle: dict[str, Idle]
    for idle, remedy, command in (
        ({}, "add a bookie", "bkctl bookie list"),
        ({"b5": Idle.DOWN}, "start b5, or add a bookie", "bkctl bookie show b5"),
        ({"b5": Idle.DOWN, "b1": Idle.DOWN}, "start b1 or b5, or add a bookie", "bkctl bookie show b1 b5"),
        ({"b5": Idle.DRAIN, "b1": Idle.DOWN}, f"{kept}, or add a bookie", "bkctl bookie undrain b5"),
        ({"b5": Idle.OPERATOR, "b4": Idle.LEAVING}, f"{set_by}, or add a bookie", "bkctl bookie set-mode writable b5"),
        ({"b1": Idle.DRAIN, "b4": Idle.OTHER}, "add a bookie", "bkctl bookie list"),
    ):
        groups = left_groups(short, ["b1"], shortage=Shortage(idle))
        assert [(each.remedy, each.command) for each in groups] == [(remedy, command)]
        assert after_recovery(groups, ["b1"], lambda _: AGAIN, LastStep()) == f"; then continue with: {AGAIN}"
    groups = left_groups(short, ["b1"], shortage=Shortage({"b1": Idle.DOWN}))
    end = "; once b1 serves, nothing is left to recover; if it cannot come back, add a bookie, then continue with: "
    assert after_recovery(groups, ["b1"], lambda _: AGAIN, LastStep()) == end + AGAIN


def test_too_few_targets_are_as_bad_as_in_the_status() -> None:
    failures = [failure(1, FailureReason.NOT_ENOUGH_BOOKIES), failure(2, FailureReason.OPEN)]
    for severity in (Severity.CRITICAL, Severity.WARNING, Severity.INFORMATION):
        no_target, waits = left_groups(failures, ["b1"], shortage=Shortage(severity=severity))
        assert no_target.severity is max(severity, Severity.WARNING), "the ledgers miss copies"
        assert waits.severity is Severity.WARNING


def test_named_targets_that_cannot_take_the_copies_are_named_and_no_bookie_is_to_be_added() -> None:
    short = [failure(1, FailureReason.NOT_ENOUGH_BOOKIES)]
    groups = left_groups(short, ["b1"], shortage=Shortage({"b1": Idle.DOWN}, only_to=("b3", "b2")))
    remedy = "b2 and b3 cannot take them: name others with --to, or leave it out"
    assert [(each.remedy, each.command, each.to_start) for each in groups] == [(remedy, "bkctl bookie list", ())]
    assert after_recovery(groups, ["b1"], lambda _: AGAIN, LastStep()) == f"; then continue with: {AGAIN}"
    unread = LedgerFailure(2, FailureReason.LOST, (EntryRange(0, 1),), "no copy", absent=("b1",))
    both = left_groups([*short, unread], ["b1"], shortage=Shortage(only_to=("b3", "b2")))
    end = f"; once b1 serves, nothing is left to recover; if it cannot come back, continue with: {AGAIN}"
    assert after_recovery(both, ["b1"], lambda _: AGAIN, LastStep()) == end
