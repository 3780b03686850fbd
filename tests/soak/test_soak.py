"""A few rounds of the soak run; ``make soak`` and ``make soak-autorecovery`` run any number."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.soak.recovery_rounds import RecoverySoak
from tests.soak.rounds import Soak
from tests.soak.soak_cluster import SoakCluster


@pytest.mark.battery
@pytest.mark.cluster
@pytest.mark.parametrize(("kind", "rounds"), [(Soak, 5), (RecoverySoak, 3)])
def test_rounds_with_kills_and_halts(tmp_path: Path, kind: type[SoakCluster], rounds: int) -> None:
    seed = secrets.randbelow(2**31)
    said = [f"seed {seed}"]
    with kind(tmp_path, seed, said.append) as soak:
        for number in range(1, rounds + 1):
            try:
                soak.run_round(number)
            except Exception as error:
                error.add_note("\n".join(said))
                raise
