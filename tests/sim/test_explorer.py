"""300 seeds of the explorer, and proof that it finds a write that names a bookie which has left."""

from __future__ import annotations

import pytest

from tests.sim.explorer import explore
from tests.sim.watched_cluster import Blind

SEEDS = 300
SEEDS_PER_TEST = 60
SEED_THAT_FINDS_IT = 232
"""The first of all: others are tried if a change of the simulation has moved it."""


@pytest.mark.parametrize(
    "first",
    [pytest.param(each, marks=pytest.mark.battery if each else ()) for each in range(0, SEEDS, SEEDS_PER_TEST)],
)
def test_all_promises_hold(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        outcome = explore(seed)
        assert outcome.violation is None, outcome


def test_without_a_check_of_targets_a_write_names_a_bookie_that_has_left() -> None:
    outcomes = (explore(seed, Blind.ALL) for seed in (SEED_THAT_FINDS_IT, *range(2000)))
    found = next((each for each in outcomes if each.violation is not None), None)
    assert found is not None


def test_a_seed_is_one_run() -> None:
    assert explore(7) == explore(7)
