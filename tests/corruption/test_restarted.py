"""Every byte of the folder of a bookie that was restarted, damaged in turn."""

from __future__ import annotations

from tests.corruption.battery import find_wrongs
from tests.corruption.data_folder import State


def test_no_damaged_byte_makes_a_bookie_lie() -> None:
    damage_count, wrongs = find_wrongs(State.RESTARTED)
    print(f"{damage_count} damages")
    assert damage_count > 10_000
    assert not wrongs, "\n".join(wrongs[:20])
