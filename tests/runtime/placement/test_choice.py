"""Every choice against brute force: it breaks no more than the best of all possible choices."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.runtime.placement.choice import (
    Choice,
    NoChoice,
    PlacementNeed,
    Refusal,
    choose_ensemble,
    choose_replacements,
    refusals,
)
from bkctl.runtime.placement.isolation import IsolationDemand, admitted_bookies
from bkctl.runtime.placement.rules import PlacementRule, PlacementRules, judge_ensemble, write_quorums
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.placement.view import DEFAULT_RACK, ClusterView, KnownBookie, is_default_rack, region_of

IDS = tuple(f"b{number}" for number in range(8))
RACKS = ("/eu/r1", "/eu/r2", "/us/r3", DEFAULT_RACK)
GROUPS = ("gold", "silver")

known_bookies = st.builds(
    KnownBookie,
    is_writable=st.sampled_from([True, True, True, False]),
    rack=st.sampled_from([*RACKS, None]),
    total_bytes=st.just(100),
    free_bytes=st.sampled_from([None, 5, 50, 100]),
)


@st.composite
def views(draw: st.DrawFn) -> ClusterView:
    members = st.frozensets(st.sampled_from(IDS), max_size=5)
    groups = draw(st.dictionaries(st.sampled_from(GROUPS), members))
    return ClusterView(draw(st.dictionaries(st.sampled_from(IDS), known_bookies)), groups)


rule_sets = st.builds(
    PlacementRules,
    min_racks_per_write_quorum=st.integers(0, 3),
    min_regions_per_write_quorum=st.integers(0, 2),
    needs_known_rack=st.booleans(),
    is_weighted_by_free_space=st.booleans(),
    reserve_fraction=st.sampled_from([0.0, 0.1]),
)
demands = st.none() | st.builds(
    IsolationDemand, st.frozensets(st.sampled_from([*GROUPS, "*"])), st.frozensets(st.sampled_from(GROUPS))
)


@st.composite
def needs(draw: st.DrawFn, size: int) -> PlacementNeed:
    return PlacementNeed(
        write_quorum_size=draw(st.integers(1, size)),
        isolation=draw(demands),
        excluded=draw(st.frozensets(st.sampled_from(IDS), max_size=2)),
        last_resort=draw(st.frozensets(st.sampled_from(IDS), max_size=3)),
        bytes_needed=draw(st.sampled_from([0, 45])),
        assigned=draw(st.dictionaries(st.sampled_from(IDS), st.integers(0, 9))),
    )


def candidates(
    view: ClusterView, rules: PlacementRules, need: PlacementNeed, ensemble: Sequence[str | None]
) -> list[str]:
    """Bookies that may be chosen at all."""
    return [
        bookie_id
        for bookie_id, known in view.bookies.items()
        if known.is_writable
        and bookie_id not in need.excluded
        and bookie_id not in ensemble
        and (
            rules.reserve_fraction == 0
            or (known.free_bytes is not None and known.free_bytes - need.bytes_needed >= rules.reserve_fraction * 100)
        )
    ]


def cost(
    view: ClusterView,
    rules: PlacementRules,
    need: PlacementNeed,
    ensemble: Sequence[str | None],
    chosen: dict[int, str],
) -> tuple[int, ...]:
    """What a filling breaks, counted from scratch."""
    admitted = admitted_bookies(need.isolation, view.groups, view.writable, len(ensemble))
    missing = []
    for minimum, place_of in (
        (rules.min_regions_per_write_quorum, region_of),
        (rules.min_racks_per_write_quorum, lambda rack: rack),
    ):
        total = 0
        for quorum in write_quorums(len(ensemble), need.write_quorum_size):
            kept = {place_of(view.rack_of(str(ensemble[each]))) for each in quorum if each not in chosen} - {None}
            new = [place_of(view.rack_of(chosen[each])) for each in quorum if each in chosen]
            wanted = min(minimum, need.write_quorum_size, len(kept) + len(new))
            total += max(0, wanted - len(kept | set(new) - {None})) if new else 0
        missing.append(total)
    return (
        0 if admitted is None else sum(each not in admitted for each in chosen.values()),
        sum(rules.needs_known_rack and is_default_rack(view.rack_of(each)) for each in chosen.values()),
        *missing,
        sum(each in need.last_resort for each in chosen.values()),
    )


def fillings(ids: Sequence[str], indexes: Sequence[int]) -> Iterator[dict[int, str]]:
    for chosen in itertools.permutations(ids, len(indexes)):
        yield dict(zip(indexes, chosen, strict=True))


@settings(max_examples=50)
@given(st.data(), views(), rule_sets, st.integers())
def test_no_filling_of_positions_breaks_less(
    data: st.DataObject, view: ClusterView, rules: PlacementRules, seed: int
) -> None:
    size = data.draw(st.integers(1, 4))
    need = data.draw(needs(size))
    members = data.draw(st.lists(st.sampled_from([*IDS, "gone"]), min_size=size, max_size=size))
    indexes = data.draw(st.lists(st.sampled_from(range(size)), min_size=1, unique=True))
    ensemble = [None if data.draw(st.booleans()) and index in indexes else members[index] for index in range(size)]
    found = choose_replacements(view, rules, need, ensemble, indexes, random.Random(seed))
    ids = candidates(view, rules, need, ensemble)
    if len(ids) < len(indexes):
        assert isinstance(found, NoChoice)
        assert (found.wanted, found.candidates, found.best) == (len(indexes), len(ids), None)
        assert found.refused.keys() == view.bookies.keys() - set(ids)
        return
    assert isinstance(found, Choice)
    assert len(set(found.bookies)) == len(indexes)
    assert set(found.bookies) <= set(ids)
    costs = cost(view, rules, need, ensemble, dict(zip(indexes, found.bookies, strict=True)))
    assert costs == min(cost(view, rules, need, ensemble, filling) for filling in fillings(ids, indexes))
    order = (PlacementRule.ISOLATION, PlacementRule.KNOWN_RACK, PlacementRule.REGIONS, PlacementRule.RACKS)
    assert [each.rule for each in found.broken] == [rule for rule, count in zip(order, costs, strict=False) if count]


@settings(max_examples=50)
@given(st.data(), views(), rule_sets, st.integers())
def test_a_new_ensemble_breaks_what_its_judgement_says(
    data: st.DataObject, view: ClusterView, rules: PlacementRules, seed: int
) -> None:
    size = data.draw(st.integers(1, 4))
    need = data.draw(needs(size))
    found = choose_ensemble(view, rules, need, size, random.Random(seed))
    if isinstance(found, Choice):
        judged = judge_ensemble(view, rules, found.bookies, need.write_quorum_size, need.isolation)
        assert found.broken == judged
        again = ClusterView(dict(reversed(list(view.bookies.items()))), view.groups)
        assert choose_ensemble(again, rules, need, size, random.Random(seed)) == found


@settings(max_examples=50)
@given(st.data(), views(), rule_sets, st.integers())
def test_strict_rules_refuse_what_breaks_one(
    data: st.DataObject, view: ClusterView, rules: PlacementRules, seed: int
) -> None:
    size = data.draw(st.integers(1, 4))
    need = data.draw(needs(size))
    lenient = choose_ensemble(view, rules, need, size, random.Random(seed))
    strict = PlacementRules(**{name: getattr(rules, name) for name in rules.__struct_fields__} | {"is_strict": True})
    found = choose_ensemble(view, strict, need, size, random.Random(seed))
    if isinstance(lenient, Choice) and lenient.broken:
        assert isinstance(found, NoChoice)
        assert found.best == lenient
        assert all(str(each) in found.sentence for each in lenient.broken)
    else:
        assert found == lenient


def racks(**rack_of: str) -> ClusterView:
    return ClusterView({bookie_id: KnownBookie(rack=rack) for bookie_id, rack in rack_of.items()})


TWO_RACKS = PlacementRules(min_racks_per_write_quorum=2)


def test_the_copies_of_a_failed_bookie_leave_the_rack_that_has_the_others() -> None:
    view = racks(b1="/r1", b2="/r1", b3="/r1", b4="/r2")
    need = PlacementNeed(write_quorum_size=2)
    for seed in range(20):
        found = choose_replacements(view, TWO_RACKS, need, ("b1", "gone"), [1], random.Random(seed))
        assert found == Choice(("b4",))


def test_a_choice_that_breaks_a_rule_says_which() -> None:
    view = racks(b1="/r1", b2="/r1")
    found = choose_replacements(
        view, TWO_RACKS, PlacementNeed(write_quorum_size=2), ("b1", "gone"), [1], random.Random(1)
    )
    assert isinstance(found, Choice)
    assert [str(each) for each in found.broken] == ["racks per write quorum: b1, b2: 1 rack instead of 2"]


def test_a_rule_that_the_rest_of_the_ensemble_breaks_does_not_count_against_the_target() -> None:
    view = racks(b1="/r1", b2="/r1", b3="/r2")
    three_racks = PlacementRules(min_racks_per_write_quorum=3, is_strict=True)
    need = PlacementNeed(write_quorum_size=3)
    found = choose_replacements(view, three_racks, need, ("b1", "b2", "gone"), [2], random.Random(1))
    assert found == Choice(("b3",))
    assert [each.rule for each in judge_ensemble(view, three_racks, ("b1", "b2", "b3"), 3)] == [PlacementRule.RACKS]


def test_a_bookie_that_is_down_counts_for_its_rack() -> None:
    view = ClusterView(
        {
            "down": KnownBookie(is_writable=False, rack="/r1"),
            "b2": KnownBookie(rack="/r1"),
            "b3": KnownBookie(rack="/r2"),
        }
    )
    found = choose_replacements(
        view, TWO_RACKS, PlacementNeed(write_quorum_size=2), ("down", "gone"), [1], random.Random(1)
    )
    assert found == Choice(("b3",))


def test_no_target_falls_below_its_reserve() -> None:
    view = ClusterView({f"b{free}": KnownBookie(total_bytes=100, free_bytes=free) for free in (10, 29, 30, 31)})
    rules = PlacementRules(reserve_fraction=0.2)
    need = PlacementNeed(write_quorum_size=1, bytes_needed=10)
    chosen: set[str] = set()
    for seed in range(30):
        found = choose_ensemble(view, rules, need, 1, random.Random(seed))
        assert isinstance(found, Choice)
        chosen.update(found.bookies)
    assert chosen == {"b30", "b31"}
    silent = ClusterView({"silent": KnownBookie(total_bytes=None)})
    nothing = choose_ensemble(silent, rules, need, 1, random.Random(1))
    assert isinstance(nothing, NoChoice)
    assert nothing.sentence == "1 needed, 0 found (1 did not report its free space)"
    none_left = choose_ensemble(view, rules, need, 3, random.Random(1))
    assert isinstance(none_left, NoChoice)
    assert none_left.refused == {"b10": Refusal.NO_ROOM, "b29": Refusal.NO_ROOM}
    assert none_left.sentence == "3 needed, 2 found (2 no space above its reserve)"


def test_free_space_is_a_weight_of_at_most_three_medians() -> None:
    gibibyte = 1 << 30
    free = {"small": 1, "median": 10, "other": 10, "huge": 1000, "unknown": None}
    view = ClusterView(
        {
            bookie_id: KnownBookie(total_bytes=2000 * gibibyte, free_bytes=None if size is None else size * gibibyte)
            for bookie_id, size in free.items()
        }
    )
    rules = PlacementRules(is_weighted_by_free_space=True)
    counts: Counter[str] = Counter()
    source = random.Random(1)
    for _ in range(6000):
        found = choose_ensemble(view, rules, PlacementNeed(write_quorum_size=1), 1, source)
        assert isinstance(found, Choice)
        counts.update(found.bookies)
    unit = 6000 / 6.1
    expected = {"small": 0.1, "median": 1, "other": 1, "huge": 3, "unknown": 1}
    for bookie_id, weight in expected.items():
        assert counts[bookie_id] == pytest.approx(weight * unit, rel=0.2, abs=40), bookie_id


def test_work_is_shared_in_proportion_to_the_weights() -> None:
    view = ClusterView({"b1": KnownBookie(free_bytes=100), "b2": KnownBookie(free_bytes=200)})
    rules = PlacementRules(is_weighted_by_free_space=True)
    assigned: Counter[str] = Counter()
    for _ in range(90):
        need = PlacementNeed(write_quorum_size=1, assigned=assigned)
        found = choose_ensemble(view, rules, need, 1, random.Random(1))
        assert isinstance(found, Choice)
        assigned.update(found.bookies)
    assert assigned["b2"] == pytest.approx(2 * assigned["b1"], abs=3)


def test_random_placement_gives_every_bookie_its_share() -> None:
    view, source = BookieSurvey(writable=frozenset(IDS)).view(), random.Random(1)
    counts: Counter[str] = Counter()
    for _ in range(1000):
        found = choose_ensemble(view, PlacementRules(), PlacementNeed(write_quorum_size=2), 3, source)
        assert isinstance(found, Choice)
        counts.update(found.bookies)
    assert min(counts.values()) > 320


def test_large_ensembles_in_uneven_racks_are_found() -> None:
    sizes = {"/r1": 100, "/r2": 6, "/r3": 2}
    names = [(f"{rack}-{number}", rack) for rack, size in sizes.items() for number in range(size)]
    view = ClusterView({bookie_id.strip("/"): KnownBookie(rack=rack) for bookie_id, rack in names})
    need = PlacementNeed(write_quorum_size=2)
    for seed in range(20):
        found = choose_ensemble(view, TWO_RACKS, need, 15, random.Random(seed))
        assert isinstance(found, Choice)
        assert found.broken == ()


@settings(max_examples=50)
@given(st.data(), views(), rule_sets, st.integers(1, 4))
def test_a_bookie_without_a_refusal_is_what_a_strict_choice_takes(
    data: st.DataObject, view: ClusterView, rules: PlacementRules, size: int
) -> None:
    ensemble = data.draw(st.lists(st.sampled_from(IDS), min_size=size, max_size=size, unique=True))
    index = data.draw(st.integers(0, size - 1))
    need = data.draw(needs(size))
    strict = msgspec.structs.replace(rules, is_strict=True)
    refused = refusals(view, strict, need, ensemble, index)
    assert refused.keys() == view.bookies.keys()
    accepted = {bookie_id for bookie_id, reasons in refused.items() if not reasons}
    found = choose_replacements(view, strict, need, ensemble, (index,), random.Random(1))
    if isinstance(found, Choice):
        assert found.bookies[0] in accepted
    else:
        assert not accepted
