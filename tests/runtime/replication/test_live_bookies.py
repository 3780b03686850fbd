"""Targets: spread, suspects last, and somebody who has just come back."""

from __future__ import annotations

from collections import Counter

from runtime.client.suspects import SuspectBookies
from runtime.metadata.registration import BookieMode
from runtime.replication.live_bookies import LiveBookies, TargetChooser
from tests.runtime.replication.stage import Stage


async def test_targets_are_given_equal_shares_of_entries(stage: Stage) -> None:
    await stage.start("b1", "b2", "b3", "b4")
    clock = stage.client.ports.clock
    chooser = TargetChooser(LiveBookies(stage.registration, clock), SuspectBookies(clock, 30), clock)
    given: Counter[str] = Counter()
    for number in range(90):
        target = await chooser.choose({"b4"}, 1 + number % 3)
        assert target is not None
        given[target] += 1 + number % 3
    assert set(given) == {"b1", "b2", "b3"}
    assert max(given.values()) - min(given.values()) <= 3


async def test_suspects_are_taken_only_when_there_is_nobody_else(stage: Stage) -> None:
    await stage.start("b1", "b2")
    clock = stage.client.ports.clock
    suspects = SuspectBookies(clock, 30)
    suspects.add("b1")
    chooser = TargetChooser(LiveBookies(stage.registration, clock), suspects, clock)
    assert [await chooser.choose((), 1) for _ in range(3)] == ["b2", "b2", "b2"]
    assert await chooser.choose({"b2"}, 1) == "b1"


async def test_before_giving_up_the_registrations_are_read_again(stage: Stage) -> None:
    await stage.start("b1")
    clock = stage.client.ports.clock
    live = LiveBookies(stage.registration, clock)
    chooser = TargetChooser(live, SuspectBookies(clock, 30), clock)
    assert await chooser.choose({"b1"}, 1) is None
    await stage.start("b2")
    assert await chooser.choose({"b1"}, 1) == "b2"
    assert live.is_live("b2")
    assert not live.is_live("b3")


async def test_a_read_only_bookie_is_live_and_is_never_a_target(stage: Stage) -> None:
    await stage.start("b1")
    await stage.start("b2", mode=BookieMode.READ_ONLY)
    clock = stage.client.ports.clock
    live = LiveBookies(stage.registration, clock)
    chooser = TargetChooser(live, SuspectBookies(clock, 30), clock)
    assert [await chooser.choose((), 1) for _ in range(4)] == ["b1"] * 4
    assert await chooser.choose({"b1"}, 1) is None, "not after the second look at the registrations either"
    assert live.is_live("b1")
    assert live.is_live("b2")
