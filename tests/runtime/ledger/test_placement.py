from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from runtime.ledger.placement import choose_ensemble, choose_replacement

bookies = st.lists(st.sampled_from("abcdefgh"))


@given(bookies, bookies, st.integers(1, 9), st.integers())
def test_an_ensemble_is_distinct_writable_and_not_excluded(
    writable: list[str], exclude: list[str], size: int, seed: int
) -> None:
    chosen = choose_ensemble(writable, size, exclude, random.Random(seed))
    candidates = set(writable) - set(exclude)
    if len(candidates) < size:
        assert chosen is None
    else:
        assert chosen is not None
        assert len(set(chosen)) == len(chosen) == size
        assert set(chosen) <= candidates
        assert chosen == choose_ensemble(reversed(writable), size, exclude, random.Random(seed))


@given(bookies, bookies, bookies, st.integers())
def test_a_replacement_is_new_to_the_ensemble(
    writable: list[str], ensemble: list[str], exclude: list[str], seed: int
) -> None:
    chosen = choose_replacement(writable, ensemble, exclude, random.Random(seed))
    candidates = set(writable) - set(ensemble) - set(exclude)
    assert chosen in candidates if candidates else chosen is None


def test_every_bookie_gets_its_share() -> None:
    source = random.Random(1)
    counts = dict.fromkeys("abcde", 0)
    for _ in range(1000):
        for bookie_id in choose_ensemble("abcde", 2, (), source) or ():
            counts[bookie_id] += 1
    assert min(counts.values()) > 320
