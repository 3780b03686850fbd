from __future__ import annotations

import itertools

import msgspec
import pytest

from runtime.ledger.changes import new_ledger, replace_bookies, replace_in_segment, to_closed, to_in_recovery
from runtime.ledger.metadata import DigestType, LedgerMetadata
from runtime.ledger.succession import find_regression

OPEN = new_ledger(("b1", "b2"), 2, 2, DigestType.CRC32C, b"secret")
ROLLED = replace_bookies(OPEN, 5, {0: "b3"})
CLOSED = to_closed(OPEN, 9, 100)
CLOSED_ROLLED = to_closed(ROLLED, 9, 100)


@pytest.mark.parametrize(
    ("present", "following", "reason"),
    [
        (CLOSED, OPEN, "it is CLOSED by now, in F OPEN: a state never moves back"),
        (CLOSED, to_in_recovery(OPEN), "it is CLOSED by now, in F IN_RECOVERY: a state never moves back"),
        (to_in_recovery(OPEN), OPEN, "it is IN_RECOVERY by now, in F OPEN: a state never moves back"),
        (CLOSED, to_closed(OPEN, 8, 100), "it is closed at entry 9, in F at 8"),
        (CLOSED, to_closed(OPEN, 10, 100), "it is closed at entry 9, in F at 10"),
        (CLOSED, to_closed(OPEN, 9, 99), "it is closed with 100 bytes, in F with 99"),
        (CLOSED_ROLLED, CLOSED, "its segments went another way than in F"),
        (CLOSED, CLOSED_ROLLED, "its segments went another way than in F"),
        (ROLLED, OPEN, "its segments went another way than in F"),
        (ROLLED, CLOSED, "its segments went another way than in F"),
        (ROLLED, to_closed(OPEN, 3, 10), "it has entries up to 4 at least, in F it ends at 3"),
        (ROLLED, to_closed(OPEN, 4, 10), None),  # the last segment got no entry, and who closed it dropped it
        (ROLLED, to_closed(ROLLED, 4, 10), None),
        (OPEN, ROLLED, None),
        (OPEN, CLOSED, None),
        (OPEN, CLOSED_ROLLED, None),
        (OPEN, to_closed(OPEN, -1, 0), None),
        (CLOSED, replace_in_segment(CLOSED, 0, {0: "b9"}), None),
        (OPEN, replace_bookies(OPEN, 0, {0: "b9"}), None),
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
    for present, following in [(OPEN, stranger), (CLOSED, stranger), (stranger, CLOSED)]:
        assert find_regression(present, following, "F") == "F's is another ledger of the same id"


def test_two_steps_forward_are_never_one_back() -> None:
    """Whatever may follow what may follow is itself allowed, and nothing that was closed is ever open again."""
    every = [
        OPEN,
        ROLLED,
        to_in_recovery(OPEN),
        to_in_recovery(ROLLED),
        CLOSED,
        CLOSED_ROLLED,
        *(to_closed(ledger, last, last + 1) for ledger in (OPEN, ROLLED) for last in (4, 5)),
        to_closed(OPEN, -1, 0),
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
