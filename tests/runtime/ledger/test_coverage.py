from __future__ import annotations

import itertools
import re

import pytest

from runtime.ledger.coverage import QuorumCoverage, negatives_needed


def covered(sizes: tuple[int, int, int], known: set[int]) -> bool:
    coverage = QuorumCoverage(*sizes)
    for index in known:
        coverage.mark_known(index)
    return coverage.is_covered


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
