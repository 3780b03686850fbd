"""Every byte of the data directory of a bookie, damaged in turn."""

from __future__ import annotations

import pytest

from tests.corruption.battery import find_wrongs
from tests.corruption.data_directory import State

STRIDE = 20
PARTS = [range(1), range(1, 7), range(7, 13), range(13, STRIDE)]
"""Damages by their number modulo ``STRIDE``. The first part is for `make test`, the others are for `make battery`."""


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=[pytest.mark.battery] * (number > 0), id=f"part-{number}")
        for number, part in enumerate(PARTS)
    ],
)
@pytest.mark.parametrize("state", State, ids=lambda state: state.value)
def test_no_damaged_byte_makes_a_bookie_lie(state: State, part: range) -> None:
    damage_count, wrongs = find_wrongs(state, lambda number: number % STRIDE in part)
    print(f"{damage_count} damages")
    assert damage_count > 10_000 * len(part) // STRIDE
    assert not wrongs, "\n".join(wrongs[:20])
