from __future__ import annotations

import msgspec
import pytest

from runtime.errors import ConfigurationError
from runtime.ledger.changes import (
    find_fault,
    new_ledger,
    replace_bookies,
    replace_in_segment,
    to_closed,
    to_in_recovery,
)
from runtime.ledger.metadata import DigestType, LedgerMetadata, LedgerState, Segment

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
