from __future__ import annotations

import pytest

from runtime.ledger.write_set import is_in_write_set, write_set


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
