from __future__ import annotations

import itertools

import msgspec
import pytest

from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.ledger.changes import (
    find_fault,
    find_regression,
    new_ledger,
    replace_bookies,
    replace_in_segment,
    to_closed,
    to_in_recovery,
)
from bkctl.runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment

OPEN = new_ledger(("a", "b", "c"), 3, 2, DigestType.CRC32C, b"secret")


def test_a_new_ledger() -> None:
    assert OPEN.state is LedgerState.OPEN
    assert OPEN.segments == (Segment(0, ("a", "b", "c")),)
    assert (OPEN.last_entry_id, OPEN.length) == (-1, 0)
    assert find_fault(OPEN) is None


@pytest.mark.parametrize(("write_quorum_size", "ack_quorum_size"), [(4, 2), (2, 3), (3, 0), (0, 0)])
def test_impossible_quorums_are_refused(write_quorum_size: int, ack_quorum_size: int) -> None:
    with pytest.raises(ConfigurationError, match=r"ensemble size >= write quorum >= ack quorum > 0"):
        new_ledger(("a", "b", "c"), write_quorum_size, ack_quorum_size, DigestType.CRC32C, b"")


def test_a_change_behind_confirmed_entries_appends_a_segment() -> None:
    changed = replace_bookies(OPEN, 7, {1: "d"})
    assert changed.segments == (Segment(0, ("a", "b", "c")), Segment(7, ("a", "d", "c")))


def test_a_change_at_the_start_of_the_last_segment_replaces_it() -> None:
    appended = replace_bookies(OPEN, 7, {1: "d"})
    assert replace_bookies(OPEN, 0, {0: "e", 2: "f"}).segments == (Segment(0, ("e", "b", "f")),)
    assert replace_bookies(appended, 7, {1: "e"}).segments == (Segment(0, ("a", "b", "c")), Segment(7, ("a", "e", "c")))


def test_illegal_changes_of_an_open_ledger() -> None:
    appended = replace_bookies(OPEN, 7, {1: "d"})
    with pytest.raises(ValueError, match="would precede"):
        replace_bookies(appended, 6, {0: "e"})
    with pytest.raises(ValueError, match="appear twice"):
        replace_bookies(OPEN, 7, {1: "c"})
    with pytest.raises(ValueError, match="appear twice"):
        replace_bookies(OPEN, 7, {1: "d", 2: "d"})
    with pytest.raises(ValueError, match="no index 3"):
        replace_bookies(OPEN, 7, {3: "d"})


def test_recovery_then_close() -> None:
    in_recovery = to_in_recovery(OPEN)
    assert in_recovery.state is LedgerState.IN_RECOVERY
    assert to_in_recovery(in_recovery) == in_recovery
    private = replace_bookies(in_recovery, 5, {0: "d"}).segments
    closed = to_closed(in_recovery, 9, 1234, private)
    assert (closed.state, closed.last_entry_id, closed.length) == (LedgerState.CLOSED, 9, 1234)
    assert closed.segments == private


def test_a_closed_ledger_only_moves_copies() -> None:
    closed = to_closed(replace_bookies(OPEN, 7, {1: "d"}), 9, 10)
    for change in (
        to_in_recovery,
        lambda ledger: to_closed(ledger, 9, 10),
        lambda ledger: replace_bookies(ledger, 10, {0: "e"}),
    ):
        with pytest.raises(ValueError, match="closed"):
            change(closed)
    assert replace_in_segment(closed, 0, {2: "e"}).segments == (
        Segment(0, ("a", "b", "e")),
        Segment(7, ("a", "d", "c")),
    )
    assert replace_in_segment(closed, 7, {2: "e"}).segments[1] == Segment(7, ("a", "d", "e"))
    with pytest.raises(ValueError, match="no segment starts at entry 3"):
        replace_in_segment(closed, 3, {2: "e"})


def test_the_last_segment_of_an_open_ledger_is_the_writers() -> None:
    two = replace_bookies(OPEN, 7, {1: "d"})
    assert replace_in_segment(two, 0, {2: "e"}).segments[0] == Segment(0, ("a", "b", "e"))
    with pytest.raises(ValueError, match="last segment"):
        replace_in_segment(two, 7, {2: "e"})


@pytest.mark.parametrize(("last_entry_id", "length"), [(-2, 0), (0, -1), (-1, 5)])
def test_impossible_ends(last_entry_id: int, length: int) -> None:
    with pytest.raises(ValueError, match="cannot end"):
        to_closed(OPEN, last_entry_id, length)


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        ("segments", (), "no segment"),
        ("segments", (Segment(1, ("a", "b", "c")),), "starts at entry 1"),
        ("segments", (Segment(0, ("a", "b")),), "has 2 bookies, not 3"),
        ("segments", (Segment(0, ("a", "b", "c")), Segment(0, ("a", "b", "c"))), "do not ascend"),
        ("ack_quorum_size", 4, "impossible"),
        ("digest_type", None, "no digest type"),
    ],
)
def test_faults_are_found(field: str, value: object, fault: str) -> None:
    broken: LedgerMetadata = msgspec.structs.replace(OPEN, **{field: value})
    assert fault in (find_fault(broken) or "")


TWO = new_ledger(("b1", "b2"), 2, 2, DigestType.CRC32C, b"secret")
ROLLED = replace_bookies(TWO, 5, {0: "b3"})
CLOSED = to_closed(TWO, 9, 100)
CLOSED_ROLLED = to_closed(ROLLED, 9, 100)


@pytest.mark.parametrize(
    ("present", "following", "reason"),
    [
        (CLOSED, TWO, "its state is CLOSED, in F OPEN: a state never moves back"),
        (CLOSED, to_in_recovery(TWO), "its state is CLOSED, in F IN_RECOVERY: a state never moves back"),
        (to_in_recovery(TWO), TWO, "its state is IN_RECOVERY, in F OPEN: a state never moves back"),
        (CLOSED, to_closed(TWO, 8, 100), "it is closed at entry 9, but in F at 8"),
        (CLOSED, to_closed(TWO, 10, 100), "it is closed at entry 9, but in F at 10"),
        (CLOSED, to_closed(TWO, 9, 99), "it is closed with 100 bytes, but in F with 99"),
        (CLOSED_ROLLED, CLOSED, "its segments differ from those in F"),
        (CLOSED, CLOSED_ROLLED, "its segments differ from those in F"),
        (ROLLED, TWO, "its segments differ from those in F"),
        (ROLLED, CLOSED, "its segments differ from those in F"),
        (ROLLED, to_closed(TWO, 3, 10), "it has entries up to at least 4, but in F it ends at 3"),
        (ROLLED, to_closed(TWO, 4, 10), None),  # the last segment got no entry, and who closed it dropped it
        (ROLLED, to_closed(ROLLED, 4, 10), None),
        (TWO, ROLLED, None),
        (TWO, CLOSED, None),
        (TWO, CLOSED_ROLLED, None),
        (TWO, to_closed(TWO, -1, 0), None),
        (CLOSED, replace_in_segment(CLOSED, 0, {0: "b9"}), None),
        (TWO, replace_bookies(TWO, 0, {0: "b9"}), None),
        (CLOSED, msgspec.structs.replace(CLOSED, format_version=2), None),
        (CLOSED, msgspec.structs.replace(CLOSED, creator_token=7), None),
    ],
)
def test_the_rules(present: LedgerMetadata, following: LedgerMetadata, reason: str | None) -> None:
    assert find_regression(present, following, "F") == reason


@pytest.mark.parametrize(
    "other",
    [
        {"password": b"x"},
        {"digest_type": DigestType.CRC32},
        {"ctime_ms": 5},
        {"custom_metadata": (("a", b"1"),)},
        {"ack_quorum_size": 1},
    ],
)
def test_what_is_fixed_at_creation_tells_two_ledgers_of_one_id_apart(other: dict[str, object]) -> None:
    stranger = msgspec.structs.replace(CLOSED, **other)
    for present, following in [(TWO, stranger), (CLOSED, stranger), (stranger, CLOSED)]:
        assert find_regression(present, following, "F") == "F has a different ledger with the same id"


def test_two_steps_forward_are_never_one_back() -> None:
    """Whatever may follow what may follow is itself allowed, and nothing that was closed is ever open again."""
    every = [
        TWO,
        ROLLED,
        to_in_recovery(TWO),
        to_in_recovery(ROLLED),
        CLOSED,
        CLOSED_ROLLED,
        *(to_closed(ledger, last, last + 1) for ledger in (TWO, ROLLED) for last in (4, 5)),
        to_closed(TWO, -1, 0),
        replace_in_segment(CLOSED, 0, {0: "b9"}),
    ]
    allowed = {(a, b) for a, b in itertools.product(range(len(every)), repeat=2) if _may(every[a], every[b])}
    for (a, b), (c, d) in itertools.product(allowed, repeat=2):
        if b == c:
            assert (a, d) in allowed, (every[a], every[b], every[d])
    for a, b in allowed:
        assert every[b].state >= every[a].state
        if every[a].is_closed:
            assert (every[b].last_entry_id, every[b].length) == (every[a].last_entry_id, every[a].length)


def _may(present: LedgerMetadata, following: LedgerMetadata) -> bool:
    return find_regression(present, following, "F") is None
