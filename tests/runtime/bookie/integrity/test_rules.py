from __future__ import annotations

import itertools

import msgspec
import pytest

from bkctl.runtime.bookie.integrity.rules import (
    LedgerNeeds,
    Miss,
    is_end_in_doubt,
    last_known_entry_id,
    miss_of,
    misses_text,
    needs_of,
    needs_recovery,
    own_stripes,
)
from bkctl.runtime.errors import AuthenticationRequiredError, BookieUnavailableError, NoSuchEntryError
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.ledger.write_set import negatives_needed, write_set

ME = "me"
OTHERS = ("a", "b")


def metadata(*segments: tuple[int, tuple[str, ...]], state: LedgerState, last_entry_id: int = -1) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum_size=2,
        ack_quorum_size=2,
        segments=tuple(Segment(first, ensemble) for first, ensemble in segments),
        state=state,
        last_entry_id=last_entry_id,
    )


@pytest.mark.parametrize("state", list(LedgerState))
@pytest.mark.parametrize("is_in_first", [True, False])
@pytest.mark.parametrize("is_in_last", [True, False])
def test_the_mark_of_every_kind_of_ledger(state: LedgerState, is_in_first: bool, is_in_last: bool) -> None:
    first = (ME, *OTHERS) if is_in_first else ("c", *OTHERS)
    last = (*OTHERS, ME) if is_in_last else (*OTHERS, "c")
    ledger = metadata((0, first), (5, last), state=state, last_entry_id=9)
    is_open = state is not LedgerState.CLOSED
    assert needs_of(ledger, ME) == LedgerNeeds(is_in_first or is_in_last, is_open and is_in_last)
    assert needs_recovery(ledger, ME) == (is_open and is_in_last), "a writer that went on without us is left alone"


def test_the_metadata_of_an_open_ledger_vouches_for_all_before_its_last_segment() -> None:
    segments = ((0, (ME, *OTHERS)), (5, (ME, "b", "c")))
    assert last_known_entry_id(metadata(*segments, state=LedgerState.OPEN)) == 4
    assert last_known_entry_id(metadata(*segments, state=LedgerState.IN_RECOVERY)) == 4
    assert last_known_entry_id(metadata(*segments, state=LedgerState.CLOSED, last_entry_id=8)) == 8


@pytest.mark.parametrize(("write_quorum_size", "ack_quorum_size"), [(3, 3), (3, 2), (3, 1), (2, 2), (2, 1), (1, 1)])
def test_the_end_is_in_doubt_where_too_few_of_some_write_set_could_deny_an_entry(
    write_quorum_size: int, ack_quorum_size: int
) -> None:
    ledger = msgspec.structs.replace(
        metadata((0, ("c", *OTHERS)), (5, (ME, *OTHERS)), state=LedgerState.IN_RECOVERY),
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
    )
    for count in range(4):
        for doubting in itertools.combinations((ME, *OTHERS), count):
            sets = [write_set(entry_id, 3, write_quorum_size) for entry_id in range(3)]
            certain = [sum((ME, *OTHERS)[index] not in doubting for index in indexes) for indexes in sets]
            expected = any(number < negatives_needed(write_quorum_size, ack_quorum_size) for number in certain)
            assert is_end_in_doubt(ledger, doubting) == expected
    assert not is_end_in_doubt(ledger, ("c",)), "of a former segment nobody asks"


def placements() -> list[tuple[str, ...]]:
    return [tuple(p) for p in itertools.permutations((ME, *OTHERS), 3)] + [("a", "b", "c")]


@pytest.mark.parametrize("last_entry_id", [-1, 0, 3, 4, 5, 11])
def test_the_stripes_are_exactly_what_the_write_sets_place_here(last_entry_id: int) -> None:
    """Every placement of two segments, closed at every kind of end; held against the write sets, entry by entry."""
    for first, second in itertools.product(placements(), repeat=2):
        ledger = metadata((0, first), (4, second), state=LedgerState.CLOSED, last_entry_id=last_entry_id)
        expected = {}
        for entry_id in range(last_entry_id + 1):
            ensemble = ledger.segment_of(entry_id).ensemble
            members = [ensemble[index] for index in write_set(entry_id, 3, 2)]
            if ME in members:
                expected[entry_id] = sorted(set(members) - {ME})
        found = {
            entry_id: sorted(stripe.peers(entry_id))
            for stripe in own_stripes(ledger, ME)
            for entry_id in stripe.entry_ids(0, 100)
        }
        assert found == expected


def test_a_window_of_a_stripe() -> None:
    ledger = metadata((0, (ME, *OTHERS)), state=LedgerState.CLOSED, last_entry_id=20)
    (stripe,) = own_stripes(ledger, ME)
    whole = list(stripe.entry_ids(0, 20))
    assert [*stripe.entry_ids(0, 6), *stripe.entry_ids(7, 13), *stripe.entry_ids(14, 20)] == whole
    assert own_stripes(msgspec.structs.replace(ledger, last_entry_id=-1), ME) == []


def test_a_refusal_is_named_first_then_the_most_frequent_reason() -> None:
    refused = AuthenticationRequiredError("b", "it refuses the login: check the user")
    silent, empty = BookieUnavailableError("a", "connection refused"), NoSuchEntryError("c", "it does not have it")
    miss = miss_of([silent, refused, empty])
    assert miss.is_refused
    assert miss.reason == (
        "bookie b: it refuses the login: check the user; bookie a: connection refused; bookie c: it does not have it"
    )
    assert miss_of([empty, silent]) == miss_of([silent, empty])
    lost = {each: miss_of([silent, empty])._replace(entry_id=each) for each in (7, 8, 9)}
    assert misses_text({7: lost[7]}) == f"1 ledger still misses entries, first ledger 7: entry 7: {lost[7].reason}"
    assert misses_text(lost) == f"3 ledgers still miss entries, first ledger 7: entry 7: {lost[7].reason}"
    assert misses_text({3: Miss("no disk space"), **lost}) == (
        f"4 ledgers still miss entries, 3 of them for this reason, first ledger 7: entry 7: {lost[7].reason}"
    )
    assert misses_text({**lost, 10: miss._replace(entry_id=4)}) == (
        f"4 ledgers still miss entries, 1 of them for this reason, first ledger 10: entry 4: {miss.reason}"
    )
