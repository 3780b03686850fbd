"""Which ledgers break placement rules, and which of them another bookie would improve."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from bkctl.runtime.autorecovery.metadata_check import PlacementJudge, PlacementVerdict
from bkctl.runtime.metadata.bookies.registration import Registrations
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from tests.runtime.replication.samples import ledger

RACKS = {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2", "b5": "/r2", "b6": "/r3"}
REGIONS = {"b1": "/east/r1", "b2": "/east/r2", "b3": "/east/r3", "b4": "/west/r1"}
TWO_RACKS = PlacementRules(min_racks_per_write_quorum=2)
THREE_RACKS = PlacementRules(min_racks_per_write_quorum=3)
KEPT = PlacementVerdict(is_broken=False, is_improvable=False)
IMPROVABLE = PlacementVerdict(is_broken=True, is_improvable=True)
STUCK = PlacementVerdict(is_broken=True, is_improvable=False)


def judge(
    racks: dict[str, str],
    rules: PlacementRules,
    writable: Sequence[str] | None = None,
    read_only: Sequence[str] = (),
) -> PlacementJudge:
    registrations = Registrations(tuple(racks if writable is None else writable), tuple(read_only))
    survey = BookieSurvey(writable=frozenset(registrations.writable), tables=(RackTable(racks),), rules=rules)
    return PlacementJudge(survey, registrations, random.Random(1))


def verdict(
    judging: PlacementJudge, *ensemble: str, write_quorum: int | None = None, last_entry_id: int = 9
) -> PlacementVerdict:
    quorum = write_quorum or len(ensemble)
    return judging.verdict_on(ledger({0: ensemble}, quorum, quorum, last_entry_id=last_entry_id, length=100))


@pytest.mark.parametrize(
    ("ensemble", "write_quorum", "expected"),
    [
        (["b1", "b4"], 2, KEPT),
        (["b1", "b2"], 2, IMPROVABLE),
        (["b1", "b4", "b2", "b5"], 2, KEPT),
        (["b1", "b2", "b4", "b5"], 2, IMPROVABLE),  # the first two are a write quorum
        (["b1"], 1, KEPT),
    ],
)
def test_each_write_quorum_should_span_two_racks(
    ensemble: list[str], write_quorum: int, expected: PlacementVerdict
) -> None:
    assert verdict(judge(RACKS, TWO_RACKS), *ensemble, write_quorum=write_quorum) == expected


def test_a_better_place_is_an_improvement_even_if_it_does_not_keep_the_rule() -> None:
    two_racks = {bookie_id: rack for bookie_id, rack in RACKS.items() if rack != "/r3"}
    judging = judge(two_racks, THREE_RACKS)
    assert verdict(judging, "b1", "b2", "b3") == IMPROVABLE
    assert verdict(judging, "b1", "b2", "b4") == STUCK


def test_only_writable_bookies_take_copies_and_all_members_must_be_registered() -> None:
    without_targets = judge(RACKS, TWO_RACKS, ["b1", "b2", "b3"], ["b4", "b5", "b6"])
    assert verdict(without_targets, "b1", "b2") == STUCK
    lost_member = judge(RACKS, TWO_RACKS, ["b1", "b3", "b4"])
    assert verdict(lost_member, "b1", "b2") == STUCK
    assert verdict(lost_member, "b1", "b3") == IMPROVABLE


def test_a_rule_counts_only_if_the_registered_bookies_can_keep_it() -> None:
    strict = PlacementRules(min_racks_per_write_quorum=2, needs_known_rack=True, is_strict=True)
    assert verdict(judge(RACKS, strict, ["b1", "b2", "b3"]), "b1", "b2") == KEPT
    assert verdict(judge({}, strict, ["b1", "b2"]), "b1", "b2") == KEPT
    regions = PlacementRules(min_racks_per_write_quorum=2, min_regions_per_write_quorum=2)
    assert verdict(judge(REGIONS, regions), "b1", "b2") == IMPROVABLE
    assert verdict(judge(REGIONS, regions, ["b1", "b2", "b3"]), "b1", "b2") == KEPT


def test_a_bookie_without_a_rack_is_replaced_if_racks_are_enforced() -> None:
    racks = {"b1": "/r1", "b4": "/r2", "b5": "/r2"}
    enforced = PlacementRules(min_racks_per_write_quorum=2, needs_known_rack=True, is_strict=True)
    registered = [*racks, "new"]
    assert verdict(judge(racks, enforced, registered), "b1", "new") == IMPROVABLE
    assert verdict(judge(racks, TWO_RACKS, registered), "b1", "new") == KEPT


def test_segments_without_entries_do_not_count() -> None:
    judging = judge(RACKS, TWO_RACKS)
    assert verdict(judging, "b1", "b2", last_entry_id=-1) == KEPT
    metadata = ledger({0: ["b1", "b4"], 10: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
    assert judging.verdict_on(metadata) == KEPT


def test_the_verdict_agrees_with_the_rules_for_any_ensemble() -> None:
    """An ensemble is broken exactly if some write quorum spans one rack only."""
    source = random.Random(4)
    judging = judge(RACKS, TWO_RACKS)
    for _ in range(200):
        ensemble = source.sample(sorted(RACKS), source.randint(2, 5))
        quorum = source.randint(2, len(ensemble))
        windows = [
            {RACKS[ensemble[(first + offset) % len(ensemble)]] for offset in range(quorum)}
            for first in range(len(ensemble))
        ]
        is_broken = any(len(racks) < 2 for racks in windows)
        assert verdict(judging, *ensemble, write_quorum=quorum).is_broken == is_broken
