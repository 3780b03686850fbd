"""Targets: spread, by the rules, suspects last, and bookies that have just come back."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.client.placement import Placement, rules_of
from bkctl.runtime.client.ports import SuspectBookies
from bkctl.runtime.config import PlacementConfig, PlacementPolicy
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.placement.choice import Choice, NoChoice
from bkctl.runtime.placement.rack_sources import RackTable
from bkctl.runtime.placement.rules import PlacementRule, PlacementRules
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.placement.view import BookieSpace
from bkctl.runtime.replication.config import PlacementMode
from bkctl.runtime.replication.judge.fragments import fragments_naming
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.judge.targets import CopyNeed, PlacementForecast, choose_target, stripe_bytes
from bkctl.runtime.replication.turn.bookies import LiveBookies, TargetChooser
from tests.runtime.client.fakes import segments
from tests.runtime.replication.fleet import QUICK, Fleet, length_of
from tests.runtime.replication.samples import ledger


def chooser_of(fleet: Fleet, live: LiveBookies, suspects: SuspectBookies) -> TargetChooser:
    ports = fleet.client.ports
    return TargetChooser(live, suspects, ports.clock, ports.placement)


async def choose(chooser: TargetChooser, excluded: Collection[str], entry_count: int) -> str | None:
    """The target for a copy of a dead bookie's only ledger."""
    need = CopyNeed(
        write_quorum_size=1, ensemble=("dead",), index=0, excluded=frozenset(excluded), entry_count=entry_count
    )
    found = await chooser.choose(need)
    return found.bookies[0] if isinstance(found, Choice) else None


async def test_targets_are_given_equal_shares_of_entries(fleet: Fleet) -> None:
    await fleet.start("b1", "b2", "b3", "b4")
    clock = fleet.client.ports.clock
    chooser = chooser_of(fleet, LiveBookies(fleet.registration, clock), SuspectBookies(clock, 30))
    given: Counter[str] = Counter()
    for number in range(90):
        target = await choose(chooser, {"b4"}, 1 + number % 3)
        assert target is not None
        given[target] += 1 + number % 3
    assert set(given) == {"b1", "b2", "b3"}
    assert max(given.values()) - min(given.values()) <= 3


async def test_suspects_are_taken_only_when_there_is_nobody_else(fleet: Fleet) -> None:
    await fleet.start("b1", "b2")
    clock = fleet.client.ports.clock
    suspects = SuspectBookies(clock, 30)
    suspects.add("b1")
    chooser = chooser_of(fleet, LiveBookies(fleet.registration, clock), suspects)
    assert [await choose(chooser, (), 1) for _ in range(3)] == ["b2", "b2", "b2"]
    assert await choose(chooser, {"b2"}, 1) == "b1"


async def test_before_giving_up_the_registrations_are_read_again(fleet: Fleet) -> None:
    await fleet.start("b1")
    clock = fleet.client.ports.clock
    live = LiveBookies(fleet.registration, clock)
    chooser = chooser_of(fleet, live, SuspectBookies(clock, 30))
    assert await choose(chooser, {"b1"}, 1) is None
    await fleet.start("b2")
    assert await choose(chooser, {"b1"}, 1) == "b2"
    assert "b2" in live
    assert "b3" not in live


async def test_a_read_only_bookie_is_live_and_is_never_a_target(fleet: Fleet) -> None:
    await fleet.start("b1")
    await fleet.start("b2", mode=BookieMode.READ_ONLY)
    clock = fleet.client.ports.clock
    live = LiveBookies(fleet.registration, clock)
    chooser = chooser_of(fleet, live, SuspectBookies(clock, 30))
    assert [await choose(chooser, (), 1) for _ in range(4)] == ["b1"] * 4
    assert await choose(chooser, {"b1"}, 1) is None, "not after the second look at the registrations either"
    assert "b1" in live
    assert "b2" in live


class KnownRacks(Placement):
    """Placement with racks, or free space, from a dict."""

    def __init__(self, racks: Mapping[str, str], space: Mapping[str, BookieSpace] | None = None) -> None:
        super().__init__(
            PlacementConfig(
                policy=PlacementPolicy.RACK_AWARE if racks else PlacementPolicy.RANDOM,
                rack_table_file="in memory",
                free_space_reserve_fraction=0.1 if space else 0.0,
            )
        )
        self.racks = racks
        self.space = space or {}

    async def survey(self, writable: Collection[str]) -> BookieSurvey:
        rules = rules_of(self._config, is_rack_aware=bool(self.racks))
        return BookieSurvey(
            writable=frozenset(writable), tables=(RackTable(self.racks),), space=self.space, rules=rules
        )


RACKS = {"b1": "/r1", "b2": "/r1", "b3": "/r2", "b4": "/r2", "b5": "/r3"}


def place_by(fleet: Fleet, placement: Placement) -> None:
    fleet.client.ports = dataclasses.replace(fleet.client.ports, placement=placement)


async def test_the_copies_of_a_recovery_go_to_another_rack(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    place_by(fleet, KnownRacks(RACKS))
    for _ in range(6):
        await fleet.store(ledger({0: ["b3", "b1"]}, 2, 2, last_entry_id=4, length=length_of(5)))
    plan = await fleet.recovery().plan(["b1"])
    assert not plan.totals.broken_rules

    report = await fleet.recover("b1")

    assert (report.failures, report.broken_rules) == ((), {})
    for ledger_id in range(6):
        assert segments((await fleet.read(ledger_id)).value) == {0: ("b3", "b2")}


async def test_a_target_that_breaks_a_rule_is_taken_only_if_that_is_accepted(fleet: Fleet) -> None:
    await fleet.start("b3", "b4")
    place_by(fleet, KnownRacks(RACKS))
    ledger_id = await fleet.store(ledger({0: ["b3", "b1"]}, 2, 2, last_entry_id=4, length=length_of(5)))
    assert (await fleet.recovery().plan(["b1"])).totals.broken_rules == {PlacementRule.RACKS: 1}

    (failure,) = (await fleet.recover("b1")).failures
    assert failure.reason is FailureReason.PLACEMENT
    assert "b3, b4: 1 rack instead of 2 (--placement best-effort accepts that)" in failure.detail
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b3", "b1")}

    accepting = msgspec.structs.replace(QUICK, placement=PlacementMode.BEST_EFFORT)
    report = await fleet.recover("b1", config=accepting)
    assert (report.failures, report.broken_rules) == ((), {"racks per write quorum": 1})
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b3", "b4")}


async def test_targets_of_one_segment_are_chosen_together(fleet: Fleet) -> None:
    """The first of two targets must not be the only bookie that the second position could have."""
    await fleet.start("b2", "b3", "b4", "b5")
    place_by(fleet, KnownRacks({"b2": "/r2", "b3": "/r1", "b4": "/r3", "b5": "/r2"}))
    ensembles: dict[int, Sequence[str]] = {0: ["b2", "b3", "b4", "b5"], 1: ["b6", "b7", "b2", "b3"]}
    for _ in range(4):
        await fleet.store(ledger(ensembles, 2, 2, last_entry_id=3, length=length_of(4)))

    report = await fleet.recover("b6", "b7")

    assert (report.failures, report.broken_rules) == ((), {})
    for ledger_id in range(4):
        assert segments((await fleet.read(ledger_id)).value)[1] == ("b5", "b4", "b2", "b3")


async def test_copies_on_their_way_count_against_the_reserve(fleet: Fleet) -> None:
    await fleet.start("b1")
    clock = fleet.client.ports.clock
    placement = KnownRacks({}, {"b1": BookieSpace(100, 50)})
    chooser = TargetChooser(LiveBookies(fleet.registration, clock), SuspectBookies(clock, 30), clock, placement)
    need = CopyNeed(write_quorum_size=1, ensemble=("dead",), index=0, bytes_needed=20)
    assert await chooser.choose(need) == Choice(("b1",))
    assert await chooser.choose(need) == Choice(("b1",))
    full = await chooser.choose(need)
    assert isinstance(full, NoChoice)
    assert full.sentence == "1 needed, 0 found (1 excluded, 1 no space above its reserve)"
    chooser.finish("b1", need)
    assert isinstance(await chooser.choose(need), NoChoice), "the bookie may not have reported the copy yet"
    placement.space = {"b1": BookieSpace(100, 51)}
    assert await chooser.choose(need) == Choice(("b1",)), "collection made room for the finished copy"


def test_the_bytes_of_a_stripe_are_its_share_of_the_ledger() -> None:
    metadata = ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=8, length=900)
    (fragment,) = fragments_naming(metadata, frozenset({"b1"}))
    assert stripe_bytes(metadata, fragment, 0) == 600
    empty = ledger({0: ["b1", "b2", "b3"]}, 2, 2)
    (fragment,) = fragments_naming(empty, frozenset({"b1"}))
    assert stripe_bytes(empty, fragment, 0) == 0


TWO_RACKS = PlacementRules(min_racks_per_write_quorum=2)
rack_tables = st.dictionaries(st.sampled_from([f"b{number}" for number in range(8)]), st.sampled_from(["/r1", "/r2"]))


@pytest.mark.parametrize("mode", PlacementMode)
@given(rack_tables, st.lists(st.sampled_from("xyz"), min_size=1, max_size=4), st.data())
def test_one_target_after_another_keeps_the_rules_if_the_forecast_does(
    mode: PlacementMode, racks: dict[str, str], dead: list[str], data: st.DataObject
) -> None:
    live = sorted(racks)[:2]
    ensemble = [f"{name}{number}" for number, name in enumerate(dead)] + live
    failed = frozenset(ensemble) - set(live)
    quorum = data.draw(st.integers(1, len(ensemble)))
    metadata = ledger({0: ensemble}, quorum, 1, last_entry_id=99, length=100)
    (fragment,) = fragments_naming(metadata, failed)
    survey = BookieSurvey(writable=frozenset(racks), tables=(RackTable(racks),), rules=TWO_RACKS)
    forecast = PlacementForecast(survey, failed, random.Random(1))
    rules = PlacementRules(min_racks_per_write_quorum=2, is_strict=mode is PlacementMode.STRICT)
    members, broken, refused = list(ensemble), 0, 0
    for index in fragment.bookie_indexes:
        need = CopyNeed(
            write_quorum_size=quorum,
            ensemble=tuple(members),
            index=index,
            pending=tuple(each for each in fragment.bookie_indexes if each > index),
            excluded=frozenset({*ensemble, *members}),
        )
        found = choose_target(survey, rules, need, random.Random(2))
        if isinstance(found, Choice):
            members[index] = found.bookies[0]
            broken += bool(found.broken)
        else:
            refused += 1
    if len(racks) - len(live) < len(dead):
        assert refused or mode is PlacementMode.BEST_EFFORT
    elif forecast.of(metadata, fragment).broken:
        assert refused if mode is PlacementMode.STRICT else broken
    else:
        assert (broken, refused) == (0, 0)
