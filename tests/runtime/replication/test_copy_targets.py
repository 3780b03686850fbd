"""Targets: spread, by the rules, suspects last, and bookies that have just come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from runtime.client.ports import SuspectBookies
from runtime.metadata.bookies.registration import BookieMode
from runtime.placement.choice import Choice
from runtime.replication.copy_targets import CopyNeed, TargetChooser
from runtime.replication.live_bookies import LiveBookies
from tests.runtime.replication.stage import Stage


def chooser_of(stage: Stage, live: LiveBookies, suspects: SuspectBookies) -> TargetChooser:
    ports = stage.client.ports
    return TargetChooser(live, suspects, ports.clock, ports.placement)


async def choose(chooser: TargetChooser, excluded: Collection[str], entry_count: int) -> str | None:
    """The target for a copy of a dead bookie's only ledger."""
    need = CopyNeed(
        write_quorum_size=1, ensemble=("dead",), index=0, excluded=frozenset(excluded), entry_count=entry_count
    )
    found = await chooser.choose(need)
    return found.bookies[0] if isinstance(found, Choice) else None


async def test_targets_are_given_equal_shares_of_entries(stage: Stage) -> None:
    await stage.start("b1", "b2", "b3", "b4")
    clock = stage.client.ports.clock
    chooser = chooser_of(stage, LiveBookies(stage.registration, clock), SuspectBookies(clock, 30))
    given: Counter[str] = Counter()
    for number in range(90):
        target = await choose(chooser, {"b4"}, 1 + number % 3)
        assert target is not None
        given[target] += 1 + number % 3
    assert set(given) == {"b1", "b2", "b3"}
    assert max(given.values()) - min(given.values()) <= 3


async def test_suspects_are_taken_only_when_there_is_nobody_else(stage: Stage) -> None:
    await stage.start("b1", "b2")
    clock = stage.client.ports.clock
    suspects = SuspectBookies(clock, 30)
    suspects.add("b1")
    chooser = chooser_of(stage, LiveBookies(stage.registration, clock), suspects)
    assert [await choose(chooser, (), 1) for _ in range(3)] == ["b2", "b2", "b2"]
    assert await choose(chooser, {"b2"}, 1) == "b1"


async def test_before_giving_up_the_registrations_are_read_again(stage: Stage) -> None:
    await stage.start("b1")
    clock = stage.client.ports.clock
    live = LiveBookies(stage.registration, clock)
    chooser = chooser_of(stage, live, SuspectBookies(clock, 30))
    assert await choose(chooser, {"b1"}, 1) is None
    await stage.start("b2")
    assert await choose(chooser, {"b1"}, 1) == "b2"
    assert live.is_live("b2")
    assert not live.is_live("b3")


async def test_a_read_only_bookie_is_live_and_is_never_a_target(stage: Stage) -> None:
    await stage.start("b1")
    await stage.start("b2", mode=BookieMode.READ_ONLY)
    clock = stage.client.ports.clock
    live = LiveBookies(stage.registration, clock)
    chooser = chooser_of(stage, live, SuspectBookies(clock, 30))
    assert [await choose(chooser, (), 1) for _ in range(4)] == ["b1"] * 4
    assert await choose(chooser, {"b1"}, 1) is None, "not after the second look at the registrations either"
    assert live.is_live("b1")
    assert live.is_live("b2")
