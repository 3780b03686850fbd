"""The ledgers of a plan have the same order and content in memory and in a file, and take little memory."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.ledger.metadata import Segment
from bkctl.runtime.placement.rules import BrokenRule, PlacementRule
from bkctl.runtime.replication.plan.recovery_plan import LedgerPlan, OpenSegment, totals_of
from bkctl.runtime.replication.plan.store import PlanStore
from bkctl.storage.adapters.sqlite import memory_database, temporary_database

OPEN_SEGMENT = OpenSegment(Segment(7, ("b1:3181", "b2:3181")), "topic persistent://t/n/" + "long" * 200, 5)
BROKEN = BrokenRule(next(iter(PlacementRule)), "one rack")


def plan(ledger_id: int, surviving_copies: int, *, is_open: bool = False) -> LedgerPlan:
    return LedgerPlan(
        ledger_id=ledger_id,
        metadata_version=ledger_id % 7,
        ledger_state="open" if is_open else "closed",
        fragments=1,
        entries=10,
        bytes_to_copy=None if is_open else ledger_id * 40,  # more than 64 bits if the metadata says so
        surviving_copies=surviving_copies,
        open_segment=OPEN_SEGMENT if is_open else None,
        broken_rules=() if is_open else (BROKEN,),
    )


def filled(store: PlanStore, plans: list[LedgerPlan]) -> PlanStore:
    for each in plans:
        store.add(each)
    return store


@given(
    copies=st.dictionaries(st.integers(0, 2**63 - 1), st.tuples(st.integers(0, 3), st.booleans()), max_size=30),
    is_in_file=st.booleans(),
)
def test_order_and_content(copies: dict[int, tuple[int, bool]], is_in_file: bool) -> None:
    plans = [plan(ledger_id, each[0], is_open=each[1]) for ledger_id, each in copies.items()]
    store = filled(PlanStore(temporary_database() if is_in_file else memory_database()), plans)
    in_order = sorted(plans, key=lambda each: (each.surviving_copies, -each.ledger_id))
    assert list(store) == in_order
    assert (len(store), store[1:3], store.totals) == (len(plans), in_order[1:3], totals_of(plans))
    assert [store[place] for place in range(-len(plans), len(plans))] == in_order * 2
    with pytest.raises(IndexError):
        store[len(plans)]


def test_two_runs_read_one_plan_at_the_same_time() -> None:
    store = filled(PlanStore(temporary_database()), [plan(ledger_id, 1) for ledger_id in range(1000)])
    assert [(one.ledger_id, other.ledger_id) for one, other in zip(store, store, strict=True)] == [
        (ledger_id, ledger_id) for ledger_id in range(999, -1, -1)
    ]


def test_a_full_disk_is_an_error_that_says_so() -> None:
    database = temporary_database()
    store = PlanStore(database)
    database.execute("PRAGMA max_page_count = 20")
    with pytest.raises(OSError, match="temporary database") as raised:
        filled(store, [plan(ledger_id, 1, is_open=True) for ledger_id in range(1000)])
    assert raised.value.errno == errno.ENOSPC


def test_a_large_plan_is_not_in_memory() -> None:
    """A ledger takes about 200 bytes in the file."""
    grown = subprocess.run([sys.executable, "-c", _FILL], capture_output=True, text=True, check=True).stdout
    assert int(grown) < 2 * 1024, f"100,000 ledgers need {grown} KiB of memory"


_FILL = """
from resource import RUSAGE_SELF, getrusage
from bkctl.runtime.replication.plan.store import PlanStore
from bkctl.storage.adapters.sqlite import temporary_database
from tests.runtime.replication.test_plan_store import plan

store, peaks = PlanStore(temporary_database()), []
for first in (0, 20_000):
    for ledger_id in range(first, first + 20_000 + 4 * first):
        store.add(plan(ledger_id, 1 + ledger_id % 2))
    assert sum(1 for _ in store) == len(store)
    peaks.append(getrusage(RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""
