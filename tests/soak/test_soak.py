"""A few rounds of the soak run; ``make soak`` runs any number."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.soak.rounds import Soak

ROUNDS = 5


@pytest.mark.battery
@pytest.mark.cluster
def test_rounds_with_kills_and_halts(tmp_path: Path) -> None:
    seed = secrets.randbelow(2**31)
    said = [f"seed {seed}"]
    with Soak(tmp_path, seed, said.append) as soak:
        for number in range(1, ROUNDS + 1):
            try:
                soak.run_round(number)
            except Exception as error:
                error.add_note("\n".join(said))
                raise
