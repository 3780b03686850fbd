"""The judgement of stored ensembles, for reports."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.placement.isolation import IsolationDemand
from bkctl.runtime.placement.rack_sources import normal_rack
from bkctl.runtime.placement.rules import PlacementRule, PlacementRules, judge_ensemble, write_quorums
from bkctl.runtime.placement.view import ClusterView, KnownBookie, is_default_rack, region_of

RACK_OF = {"b1": "/eu/r1", "b2": "/eu/r1", "b3": "/eu/r2", "b4": "/us/r3", "b5": "/default-rack", "b6": None}
VIEW = ClusterView(
    {bookie_id: KnownBookie(rack=rack) for bookie_id, rack in RACK_OF.items()}, {"gold": frozenset({"b1", "b2"})}
)
TWO_RACKS = PlacementRules(min_racks_per_write_quorum=2)


def broken(rules: PlacementRules, *ensemble: str, quorum: int, groups: str | None = None) -> list[str]:
    isolation = None if groups is None else IsolationDemand(frozenset({groups}))
    return [str(each) for each in judge_ensemble(VIEW, rules, ensemble, quorum, isolation)]


def test_each_write_quorum_spans_the_racks_that_it_can() -> None:
    assert broken(TWO_RACKS, "b1", "b3", "b2", "b4", quorum=2) == []
    assert broken(TWO_RACKS, "b1", "b2", "b3", quorum=3) == []
    assert broken(TWO_RACKS, "b1", "b2", "b3", quorum=2) == ["racks per write quorum: b1, b2: 1 rack instead of 2"]
    assert broken(TWO_RACKS, "b1", "b2", "b3", quorum=1) == []
    assert broken(PlacementRules(), "b1", "b2", quorum=2) == []


def test_unknown_bookies_count_for_no_rack_and_the_default_rack_is_one_rack() -> None:
    assert broken(TWO_RACKS, "b1", "b5", quorum=2) == []
    assert broken(TWO_RACKS, "b1", "b6", quorum=2) == ["racks per write quorum: b1, b6: 1 rack instead of 2"]
    assert broken(TWO_RACKS, "b1", "gone", quorum=2) == ["racks per write quorum: b1, gone: 1 rack instead of 2"]
    known_only = PlacementRules(needs_known_rack=True)
    assert broken(known_only, "b1", "b5", "b6", quorum=2) == ["known racks only: without a rack: b5"]


def test_regions_are_the_first_part_of_the_rack() -> None:
    rules = PlacementRules(min_regions_per_write_quorum=2, min_racks_per_write_quorum=2)
    assert broken(rules, "b1", "b4", quorum=2) == []
    assert broken(rules, "b1", "b3", quorum=2) == ["regions per write quorum: b1, b3: 1 region instead of 2"]


def test_members_outside_the_groups_of_the_ledger_are_named_first() -> None:
    assert broken(TWO_RACKS, "b1", "b2", quorum=2, groups="gold") == [
        "racks per write quorum: b1, b2: 1 rack instead of 2"
    ]
    assert broken(TWO_RACKS, "b2", "b3", quorum=2, groups="gold") == [
        "isolation groups: not in the ledger's groups: b3"
    ]


@given(st.lists(st.sampled_from([*RACK_OF, "gone"]), min_size=1, max_size=6), st.integers(1, 6), st.integers(0, 4))
def test_the_judgement_counts_racks_in_every_window_of_consecutive_members(
    ensemble: list[str], quorum: int, minimum: int
) -> None:
    quorum = min(quorum, len(ensemble))
    windows = [
        [(ensemble * 2)[first + step] for step in range(quorum)] for first in range(len(ensemble))
    ]  # the definition of Java: consecutive, and around the end
    adheres = all(len({RACK_OF.get(each) for each in window} - {None}) >= min(minimum, quorum) for window in windows)
    judged = judge_ensemble(VIEW, PlacementRules(min_racks_per_write_quorum=minimum), ensemble, quorum)
    assert [each.rule for each in judged] == ([] if adheres else [PlacementRule.RACKS])


def test_there_is_one_write_quorum_if_every_member_has_every_entry() -> None:
    assert write_quorums(3, 3) == [(0, 1, 2)]
    assert write_quorums(3, 2) == [(0, 1), (1, 2), (0, 2)]


def test_racks_are_compared_in_one_form() -> None:
    assert [normal_rack(text) for text in ("r1", "/r1/", " /eu/r1", "", "/", None)] == [
        "/r1", "/r1", "/eu/r1", None, None, None,
    ]  # fmt: skip
    assert [region_of(rack) for rack in ("/r1", "/eu/r1", None)] == ["r1", "eu", None]
    assert [is_default_rack(rack) for rack in (None, "/default-rack", "/default-region/default-rack", "/r1")] == [
        False, True, True, False,
    ]  # fmt: skip
