"""300 seeds of the explorer, and proof that it finds a write that names a bookie which has left."""

from __future__ import annotations

from tests.sim.explorer import explore
from tests.sim.watched_cluster import Blind

SEEDS = 300
SEEDS_UNTIL_FOUND = 300


def test_all_promises_hold() -> None:
    for seed in range(SEEDS):
        outcome = explore(seed)
        assert outcome.violation is None, outcome


def test_without_a_check_of_targets_a_write_names_a_bookie_that_has_left() -> None:
    outcomes = (explore(seed, Blind.ALL) for seed in range(SEEDS_UNTIL_FOUND))
    found = next((each for each in outcomes if each.violation is not None), None)
    assert found is not None


def test_a_seed_is_one_run() -> None:
    assert explore(7) == explore(7)
