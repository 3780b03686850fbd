"""Targets: spread, suspects last, and somebody who has just come back."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from runtime.client.ports import SuspectBookies
from runtime.metadata.bookies.registration import BookieMode, RegistrationClient, Registrations
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


class ListedInTurn(RegistrationClient):
    """Answers with these lists, one after the other; the last one stays."""

    def __init__(self, stage: Stage, *lists: tuple[str, ...]) -> None:
        super().__init__(stage.client.store, stage.ledgers.root)
        self.lists = list(lists)

    async def snapshot(self) -> Registrations:
        return Registrations(writable=self.lists.pop(0) if len(self.lists) > 1 else self.lists[0], read_only=())


@pytest.mark.parametrize(
    "after",
    [
        [("b1",), ("b1", "b2")],
        [(), ("b2",), ("b1", "b2")],
    ],
    ids=["one is late", "both are late"],
)
async def test_after_an_outage_bookies_that_were_known_are_waited_for(
    stage: Stage, after: list[tuple[str, ...]]
) -> None:
    registration = ListedInTurn(stage, ("b1", "b2"), *after)
    live = LiveBookies(registration, stage.client.ports.clock, return_wait_s=60.0)
    await live.refresh()
    live.note_outage()
    assert (await live.refresh()).writable == ("b1", "b2")


async def test_a_session_that_the_server_ends_after_its_first_answer_is_waited_for_too(stage: Stage) -> None:
    registration = ListedInTurn(stage, ("b1", "b2"), ("b1", "b2"), ("b1",), ("b1", "b2"))
    live = LiveBookies(registration, stage.client.ports.clock, return_wait_s=60.0)
    await live.refresh()
    live.note_outage()
    await live.refresh()
    assert (await live.refresh(0)).writable == ("b1", "b2")


async def test_a_list_that_was_read_before_the_outage_was_noticed_makes_no_bookie_unknown(stage: Stage) -> None:
    registration = ListedInTurn(stage, ("b1", "b2"), ("b1",), ("b1",), ("b1", "b2"))
    live = LiveBookies(registration, stage.client.ports.clock, return_wait_s=60.0)
    await live.refresh()
    assert (await live.refresh(0)).writable == ("b1",)
    live.note_outage()
    assert (await live.refresh()).writable == ("b1", "b2")


async def test_a_list_that_is_read_while_the_outage_lasts_waits_however_long_that_is(stage: Stage) -> None:
    registration = ListedInTurn(stage, ("b1", "b2"), ("b1",), ("b1", "b2"))
    live = LiveBookies(registration, stage.client.ports.clock, return_wait_s=0.0)
    await live.refresh()
    live.note_outage(is_over=False)
    assert (await live.refresh()).writable == ("b1", "b2")


async def test_bookies_known_from_the_plan_are_waited_for_when_the_run_begins_in_an_outage(stage: Stage) -> None:
    registration = ListedInTurn(stage, (), ("b1",))
    live = LiveBookies(registration, stage.client.ports.clock, return_wait_s=60.0, known=["b1"])
    live.note_outage()
    assert (await live.refresh()).writable == ("b1",)


async def test_a_bookie_that_does_not_come_back_is_given_up(stage: Stage) -> None:
    registration = ListedInTurn(stage, ("b1", "b2"), ("b1",))
    live = LiveBookies(registration, stage.client.ports.clock, return_wait_s=0.1)
    await live.refresh()
    live.note_outage()
    async with asyncio.timeout(30):
        assert (await live.refresh()).writable == ("b1",)
    assert not live.is_live("b2")
