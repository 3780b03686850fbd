"""Contents of test entries, and what is refused when they come back. The writing itself: tests/commands."""

from __future__ import annotations

import pytest

from bkctl.runtime.client.write_test import payload_of


@pytest.mark.parametrize("size_bytes", [0, 1, 30, 31, 100, 1024, 100_000])
def test_payloads_have_their_size(size_bytes: int) -> None:
    assert len(payload_of(7, size_bytes)) == size_bytes


def test_payloads_say_which_entry_they_are() -> None:
    assert payload_of(48, 1024).startswith(b"bkctl write-test, entry 48 the quick brown bookie ")
    assert len({payload_of(entry_id, 40) for entry_id in range(1000)}) == 1000
