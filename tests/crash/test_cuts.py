"""At every cut of a run, every acknowledged entry, fence and LAC is there, and nothing that was never written.

The seeds are the same in each run, so that a change is judged by the cuts that the one before it passed; others are
drawn by ``python -m tests.crash``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.battery import cut_many, trace_workload, why_not_traceable
from tests.crash.model_disk import Mode

SEED_FIRST = 20_260_801
SEED_COUNT = 14
CUT_COUNT = 190
"""In each mode: 14 workloads, two modes, 5,320 cuts."""

SLICE_SEED_COUNT = 1
"""Workloads that `make test` runs; the others are for `make battery`."""

pytestmark = pytest.mark.strace


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(SEED_FIRST + index, marks=[pytest.mark.battery] * (index >= SLICE_SEED_COUNT))
        for index in range(SEED_COUNT)
    ],
)
def test_no_cut_loses_or_invents_anything(tmp_path: Path, seed: int) -> None:
    if (reason := why_not_traceable()) is not None:
        pytest.skip(reason)
    changes = trace_workload(str(tmp_path), seed)
    print(f"seed {seed}: {len(changes)} changes, {CUT_COUNT} cuts in each mode")
    results = [result for mode in Mode for result in cut_many(changes, seed, mode, CUT_COUNT)]
    assert len(results) == 2 * CUT_COUNT
    red = [f"{result.cut}: {loss}" for result in results for loss in result.losses]
    assert not red, "\n".join(red)
