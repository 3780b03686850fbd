"""The ledgers of a plan have the same order and content in memory and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.ledger.metadata import Segment
from runtime.placement.rules import BrokenRule, PlacementRule
from runtime.replication.plan.recovery_plan import LedgerPlan, OpenLook, totals_of
from runtime.replication.plan.store import PlanStore
from storage.adapters.filesystem import OsFileSystem
from storage.ports import File

LOOK = OpenLook(Segment(7, ("b1:3181", "b2:3181")), "topic persistent://t/n/" + "long" * 200, 5)
BROKEN = BrokenRule(next(iter(PlacementRule)), "one rack")


def plan(ledger_id: int, surviving_copies: int, *, is_open: bool) -> LedgerPlan:
    return LedgerPlan(
        ledger_id=ledger_id,
        metadata_version=ledger_id % 7,
        ledger_state="open" if is_open else "closed",
        fragments=1,
        entries=10,
        bytes_to_copy=None if is_open else ledger_id % 1000,
        surviving_copies=surviving_copies,
        open_look=LOOK if is_open else None,
        broken_rules=() if is_open else (BROKEN,),
    )


def filled(store: PlanStore, plans: list[LedgerPlan]) -> PlanStore:
    for each in plans:
        store.add(each)
    store.sort()
    return store


@given(
    copies=st.dictionaries(st.integers(0, 2**62), st.tuples(st.integers(0, 3), st.booleans()), max_size=30),
    in_memory_max=st.integers(0, 31),
)
def test_order_and_content(
    tmp_path_factory: pytest.TempPathFactory, copies: dict[int, tuple[int, bool]], in_memory_max: int
) -> None:
    plans = [plan(ledger_id, each[0], is_open=each[1]) for ledger_id, each in copies.items()]
    files: list[str] = []

    def open_file() -> File:
        path = str(tmp_path_factory.mktemp("plan") / "file")
        files.append(path)
        return OsFileSystem().create(path)

    store = filled(PlanStore(open_file, in_memory_max), plans)
    assert list(store) == sorted(plans, key=lambda each: (each.surviving_copies, -each.ledger_id))
    assert (len(store), store[1:3], store.totals) == (len(plans), list(store)[1:3], totals_of(plans))
    assert len(files) == (len(plans) > in_memory_max)
    store.close()


def test_without_a_place_for_a_file_it_stays_in_memory(tmp_path: Path) -> None:
    plans = [plan(ledger_id, 1, is_open=False) for ledger_id in range(5)]
    assert list(filled(PlanStore(lambda: None, 2), plans)) == plans[::-1]
    assert list(tmp_path.iterdir()) == []
