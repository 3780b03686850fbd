"""What a plan knows about each ledger before a recovery begins."""

from __future__ import annotations

import random
import tracemalloc

import msgspec
import pytest

from bkctl.runtime.ledger.metadata import LedgerState, Segment
from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata, encode_ledger_metadata
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.replication.judge.targets import PlacementForecast
from bkctl.runtime.replication.plan.recovery_plan import (
    ENTRY_HEAD_BYTES,
    LedgerPlan,
    OpenSegment,
    plan_ledger,
    totals_of,
)
from tests.runtime.replication.samples import ledger


def test_a_plan_counts_survivors_of_the_worst_entry() -> None:
    closed = ledger({0: ["b1", "b2", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100)
    plan = plan_ledger(3, closed, 0, frozenset({"b1"}), frozenset({"b2", "b3"}))
    # Entries 3 and 7 are on b4 and b1 alone.
    assert plan.surviving_copies == 0
    assert plan_ledger(3, closed, 0, frozenset({"b1"}), frozenset({"b2", "b3", "b4"})).surviving_copies == 1
    assert (plan.fragments, plan.entries) == (1, 5)


def test_a_plan_counts_ledgers_that_nobody_can_take_over() -> None:
    failed, live = frozenset({"b1", "b2"}), frozenset({"b3", "b4"})
    ledgers = {
        1: ledger({0: ["b1", "b3"]}, 2, 2, last_entry_id=9, length=100),
        2: ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100),
        3: ledger({0: ["b1", "b3", "b9"], 5: ["b1", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100),
        4: ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=9, length=100),
    }

    survey = BookieSurvey(writable=live)
    forecast = PlacementForecast(survey, failed, random.Random(1))

    def blocked(*ledger_ids: int) -> list[int]:
        plans = [plan_ledger(key, ledgers[key], 0, failed, live, forecast.of) for key in ledger_ids]
        assert totals_of(plans).ledgers_without_target == sum(plan.why_no_target is not None for plan in plans)
        return [plan.ledger_id for plan in plans if plan.why_no_target is not None]

    assert blocked(1, 2) == []
    assert blocked(3) == [3], "every bookie is in its second segment"
    assert blocked(4) == [4], "two are to be replaced, by b4 alone"
    assert blocked(1, 2, 3, 4) == [3, 4]
    only = PlacementForecast(survey, failed, random.Random(1), ["b3"])
    assert plan_ledger(1, ledgers[1], 0, failed, live, only.of).why_no_target == (
        "1 needed, 0 found (2 already in the ensemble, 1 excluded)"
    )


def test_bytes_are_the_share_of_the_entries() -> None:
    metadata = ledger({0: ["b1", "b2", "b3"], 30: ["b4", "b2", "b3"]}, 2, 2, last_entry_id=59, length=6000)
    plan = plan_ledger(1, metadata, 0, frozenset({"b1"}), frozenset({"b2", "b3", "b4"}))
    assert (plan.fragments, plan.entries, plan.bytes_to_copy) == (1, 20, 20 * (100 + ENTRY_HEAD_BYTES))
    unclosed = msgspec.structs.replace(metadata, state=LedgerState.OPEN)
    assert plan_ledger(1, unclosed, 0, frozenset({"b1"}), frozenset({"b2"})).bytes_to_copy is None


@pytest.mark.parametrize("state", LedgerState)
def test_an_open_last_segment_is_remembered_with_owner_and_age(state: LedgerState) -> None:
    metadata = msgspec.structs.replace(
        ledger({0: ["b1", "b2"], 10: ["b1", "b3"]}, 2, 2, state=state, last_entry_id=19, length=100),
        custom_metadata=(("application", b"pulsar"), ("pulsar/schemaId", b"t/n/a")),
    )
    plan = plan_ledger(1, metadata, 4, frozenset({"b1"}), frozenset({"b2", "b3"}), created_ms=1234)
    if state is LedgerState.CLOSED:
        assert (plan.open_segment, plan.fragments, plan.entries) == (None, 2, 20)
        return
    assert plan.open_segment == OpenSegment(Segment(10, ("b1", "b3")), "schema of t/n/a", 1234)
    assert (plan.fragments, plan.entries, plan.may_have_writer) == (2, 10, state is LedgerState.OPEN)
    stored = msgspec.structs.replace(metadata, ctime_ms=99)
    segment = plan_ledger(1, stored, 4, frozenset({"b1"}), frozenset(), created_ms=1234).open_segment
    assert segment is not None
    assert segment.created_ms == 99
    elsewhere = plan_ledger(1, metadata, 4, frozenset({"b2"}), frozenset({"b1", "b3"}))
    assert (elsewhere.needs_fencing, elsewhere.fragments) == (False, 1)


def test_a_planned_ledger_takes_little_memory() -> None:
    """Plans may have millions of ledgers."""
    encoded = encode_ledger_metadata(ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=9999, length=10**8))
    count = 500

    def planned(ledger_id: int) -> LedgerPlan:
        return plan_ledger(ledger_id, decode_ledger_metadata(encoded), 0, frozenset({"b1"}), frozenset({"b2"}))

    for each in range(3 * count):  # Python keeps some freed objects for later
        planned(each)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        plans = [planned(10**7 + each) for each in range(count)]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(plans) == count
    assert (after - before) / count < 300
