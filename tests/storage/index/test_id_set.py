from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.index.id_set import IdSet

IDS = st.integers(0, 2**63 - 1) | st.integers(0, 50)


@given(st.lists(st.tuples(st.booleans(), IDS)))
def test_it_holds_what_a_set_holds(steps: list[tuple[bool, int]]) -> None:
    ids = IdSet()
    model: set[int] = set()
    for is_added, ledger_id in steps:
        (ids.add if is_added else ids.discard)(ledger_id)
        (model.add if is_added else model.discard)(ledger_id)
        assert len(ids) == len(model)
        assert all(each in ids for each in model)
    assert list(ids) == sorted(model)
    assert not any(each in ids for _, each in steps if each not in model)


def test_many_ids_in_any_order() -> None:
    """More than one chunk, filled from the end, from the start, and in between; then emptied."""
    ids, model = IdSet(), []
    for ledger_id in [*range(10_000, 20_000), *range(5_000, -1, -1), *range(40_000, 20_000, -7)]:
        ids.add(ledger_id)
        model.append(ledger_id)
    assert list(ids) == sorted(model)
    assert 5_500 not in ids
    for ledger_id in model:
        assert ledger_id in ids
        ids.discard(ledger_id)
        assert ledger_id not in ids
    assert list(ids) == []


def test_an_id_needs_few_bytes() -> None:
    ids = IdSet()
    for ledger_id in range(100_000):
        ids.add(ledger_id)
    assert sum(map(sys.getsizeof, ids._chunks)) < 100_000 * 16
