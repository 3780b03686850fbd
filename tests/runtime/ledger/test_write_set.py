from __future__ import annotations

import itertools
import re

import pytest

from bkctl.runtime.ledger.write_set import (
    AckSet,
    QuorumCoverage,
    is_in_write_set,
    negatives_needed,
    write_set,
)


def test_round_robin() -> None:
    """E=4, Qw=3."""
    sets = [write_set(entry_id, 4, 3) for entry_id in range(6)]
    assert sets == [(0, 1, 2), (1, 2, 3), (2, 3, 0), (3, 0, 1), (0, 1, 2), (1, 2, 3)]
    assert not is_in_write_set(2, 1, 4, 3)


def test_entry_ids_beyond_32_bits() -> None:
    """Entry ids above 2^31."""
    assert write_set(2**33 + 1, 3, 2) == (0, 1)
    assert write_set(2**63 - 1, 3, 2) == (1, 2)


@pytest.mark.parametrize("ensemble_size", range(1, 7))
def test_membership_agrees_with_the_set(ensemble_size: int) -> None:
    for write_quorum_size in range(1, ensemble_size + 1):
        for entry_id in range(2 * ensemble_size):
            members = {
                index
                for index in range(ensemble_size)
                if is_in_write_set(entry_id, index, ensemble_size, write_quorum_size)
            }
            assert members == set(write_set(entry_id, ensemble_size, write_quorum_size))
            assert len(members) == write_quorum_size


def test_an_index_counts_once() -> None:
    """An acknowledgement counts once per position; a failure takes it back."""
    acks = AckSet(3, 2)
    assert not acks.ack(1)
    assert not acks.ack(1)
    assert acks.ack(4)
    assert not acks.fail(4, "b4")
    assert not acks.is_complete
    assert acks.failed == {4: "b4"}


def test_impossible_once_more_failed_than_may() -> None:
    acks = AckSet(3, 2)
    assert not acks.fail(0, "b0")
    assert not acks.fail(0, "b0")
    assert acks.fail(1, "b1")
    assert acks.ack(0) is False
    assert acks.failed == {1: "b1"}


def test_unset_tells_whether_the_quorum_stands_without_it() -> None:
    acks = AckSet(3, 2)
    for index in range(3):
        acks.ack(index)
    assert acks.unset(0)
    assert not acks.unset(1)
    assert acks.ack(1)


def test_every_sequence_of_three_events_against_plain_sets() -> None:
    events = [(kind, index) for kind in ("ack", "fail", "unset") for index in range(3)]
    for sequence in itertools.product(events, repeat=3):
        acks, acked, failed = AckSet(3, 2), set[int](), set[int]()
        for kind, index in sequence:
            (acked.add if kind == "ack" else acked.discard)(index)
            (failed.add if kind == "fail" else failed.discard)(index)
            if kind == "fail":
                assert acks.fail(index, "b") == (len(failed) > 1)
            else:
                assert (acks.ack if kind == "ack" else acks.unset)(index) == (len(acked) >= 2)
        assert acks.is_complete == (len(acked) >= 2)
        assert set(acks.failed) == failed


def covered(sizes: tuple[int, int, int], known: set[int]) -> bool:
    coverage = QuorumCoverage(*sizes)
    for index in known:
        coverage.note_known(index)
    return coverage.is_covered


def test_what_is_missing_is_in_the_write_quorums_that_are_not_covered() -> None:
    coverage = QuorumCoverage(5, 2, 2)
    for index in (1, 2):
        coverage.note_known(index)
    assert coverage.missing == {3, 4, 0}
    coverage.note_known(4)
    assert coverage.missing == set()
    assert coverage.is_covered


def subsets(size: int) -> list[set[int]]:
    return [set(some) for count in range(size + 1) for some in itertools.combinations(range(size), count)]


@pytest.mark.parametrize("ensemble_size", range(1, 7))
def test_covered_means_no_ack_quorum_is_left_out(ensemble_size: int) -> None:
    """All small quorums, by the definition: no Qa members of any write quorum are all unknown."""
    for write_quorum_size in range(1, ensemble_size + 1):
        windows = [[(start + i) % ensemble_size for i in range(write_quorum_size)] for start in range(ensemble_size)]
        for ack_quorum_size in range(1, write_quorum_size + 1):
            for known in subsets(ensemble_size):
                is_some_ack_quorum_unknown = any(
                    not known & set(ack_quorum)
                    for window in windows
                    for ack_quorum in itertools.combinations(window, ack_quorum_size)
                )
                sizes = (ensemble_size, write_quorum_size, ack_quorum_size)
                assert covered(sizes, known) == (not is_some_ack_quorum_unknown), (sizes, known)


def test_spread_matters_more_than_number() -> None:
    """Fewer bookies than always suffice can cover if they are well spread."""
    assert covered((6, 3, 2), {1, 2, 4, 5})
    assert not covered((6, 3, 2), {0, 1, 2, 3})


# Ensemble, write quorum, ack quorum: negatives that end a ledger, fewest that can cover, number that always covers.
TABLE = """
1,1,1 1/1/1  2,2,1 2/2/2  2,2,2 1/1/1  3,2,1 2/3/3  3,2,2 1/2/2  4,2,1 2/4/4  3,3,1 3/3/3  3,3,2 2/2/2  3,3,3 1/1/1
4,2,2 1/2/3  4,3,2 2/3/3  4,4,2 3/3/3  4,4,3 2/2/2  4,4,4 1/1/1  5,3,2 2/4/4  5,3,3 1/2/3  5,5,3 3/3/3  6,3,2 2/4/5
"""
CASES = re.findall(r"(\d),(\d),(\d) (\d)/(\d)/(\d)", TABLE)


@pytest.mark.parametrize("case", CASES)
def test_thresholds_of_the_protocol_table(case: tuple[str, ...]) -> None:
    assert len(CASES) == 18
    ensemble_size, write_quorum_size, ack_quorum_size, negatives, best, enough = map(int, case)
    assert negatives_needed(write_quorum_size, ack_quorum_size) == negatives
    sizes = (ensemble_size, write_quorum_size, ack_quorum_size)
    by_count: dict[int, list[bool]] = {count: [] for count in range(ensemble_size + 1)}
    for known in subsets(ensemble_size):
        by_count[len(known)].append(covered(sizes, known))
    assert min(count for count, outcomes in by_count.items() if any(outcomes)) == best
    assert min(count for count, outcomes in by_count.items() if all(outcomes)) == enough
