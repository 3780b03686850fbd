"""The list of registered bookies, after outages too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bkctl.runtime.client.bookie_software import BookieSoftware
from bkctl.runtime.metadata.bookies.registration import RegistrationClient, Registrations
from bkctl.runtime.replication.turn.bookies import LiveBookies
from tests.counting_store import CountingStore
from tests.runtime.replication.fleet import Fleet


class ListedInTurn(RegistrationClient):
    """Answers with these lists, one after the other; the last one stays."""

    def __init__(self, fleet: Fleet, *lists: tuple[str, ...]) -> None:
        super().__init__(fleet.client.store, fleet.ledgers.root)
        self.lists = list(lists)

    async def snapshot(self, on_change: Callable[[], None] | None = None) -> Registrations:
        return Registrations(writable=self.lists.pop(0) if len(self.lists) > 1 else self.lists[0], read_only=())


class ReadSlowly(ListedInTurn):
    """Keeps what is to be called after a change."""

    on_change: Callable[[], None] | None = None

    async def snapshot(self, on_change: Callable[[], None] | None = None) -> Registrations:
        self.on_change = on_change
        await asyncio.sleep(0.01)
        return await super().snapshot()


async def test_all_who_ask_for_the_latest_list_wait_for_it(fleet: Fleet) -> None:
    registration = ReadSlowly(fleet, ("b1",), ("b2",))
    live = LiveBookies(registration, fleet.client.ports.clock)
    assert (await live.latest()).writable == ("b1",)
    assert registration.on_change is not None
    registration.on_change()
    found = await asyncio.gather(live.latest(), live.latest())
    assert [each.writable for each in found] == [("b2",), ("b2",)]


@pytest.mark.parametrize(
    "after",
    [
        [("b1",), ("b1", "b2")],
        [(), ("b2",), ("b1", "b2")],
    ],
    ids=["one is late", "both are late"],
)
async def test_after_an_outage_bookies_that_were_known_are_waited_for(
    fleet: Fleet, after: list[tuple[str, ...]]
) -> None:
    registration = ListedInTurn(fleet, ("b1", "b2"), *after)
    live = LiveBookies(registration, fleet.client.ports.clock, return_wait_s=60.0)
    await live.refresh()
    live.note_outage()
    assert (await live.refresh()).writable == ("b1", "b2")


async def test_a_session_that_the_server_ends_after_its_first_answer_is_waited_for_too(fleet: Fleet) -> None:
    registration = ListedInTurn(fleet, ("b1", "b2"), ("b1", "b2"), ("b1",), ("b1", "b2"))
    live = LiveBookies(registration, fleet.client.ports.clock, return_wait_s=60.0)
    await live.refresh()
    live.note_outage()
    await live.refresh()
    assert (await live.refresh(0)).writable == ("b1", "b2")


async def test_a_list_that_was_read_before_the_outage_was_noticed_makes_no_bookie_unknown(fleet: Fleet) -> None:
    registration = ListedInTurn(fleet, ("b1", "b2"), ("b1",), ("b1",), ("b1", "b2"))
    live = LiveBookies(registration, fleet.client.ports.clock, return_wait_s=60.0)
    await live.refresh()
    assert (await live.refresh(0)).writable == ("b1",)
    live.note_outage()
    assert (await live.refresh()).writable == ("b1", "b2")


async def test_a_list_that_is_read_while_the_outage_lasts_waits_however_long_that_is(fleet: Fleet) -> None:
    registration = ListedInTurn(fleet, ("b1", "b2"), ("b1",), ("b1", "b2"))
    live = LiveBookies(registration, fleet.client.ports.clock, return_wait_s=0.0)
    await live.refresh()
    live.note_outage(is_over=False)
    assert (await live.refresh()).writable == ("b1", "b2")


async def test_bookies_known_from_the_plan_are_waited_for_when_the_run_begins_in_an_outage(fleet: Fleet) -> None:
    registration = ListedInTurn(fleet, (), ("b1",))
    live = LiveBookies(registration, fleet.client.ports.clock, return_wait_s=60.0, known=["b1"])
    live.note_outage()
    assert (await live.refresh()).writable == ("b1",)


async def test_a_bookie_that_does_not_come_back_is_given_up(fleet: Fleet) -> None:
    registration = ListedInTurn(fleet, ("b1", "b2"), ("b1",))
    live = LiveBookies(registration, fleet.client.ports.clock, return_wait_s=0.1)
    await live.refresh()
    live.note_outage()
    async with asyncio.timeout(30):
        assert (await live.refresh()).writable == ("b1",)
    assert "b2" not in live


async def test_what_many_ledgers_ask_of_a_bookie_at_once_is_read_once(fleet: Fleet) -> None:
    """The first copies of a run begin together, and all ask the same."""
    await fleet.add_cookie("b1")
    counting = CountingStore(fleet.client.store)
    registration = RegistrationClient(counting, fleet.ledgers.root)
    clock = fleet.client.ports.clock
    live, software = LiveBookies(registration, clock), BookieSoftware(registration, clock)
    with counting.counted() as counts:
        since = await asyncio.gather(*(live.member_since("b1") for _ in range(50)))
    assert sum(counts.values()) == 1, counts
    assert {*since} == {await fleet.client.ports.registrations.member_since("b1")} != {None}
    with counting.counted() as for_one:
        is_bkctl = [await software.is_bkctl("b1")]
    with counting.counted() as for_many:
        is_bkctl += await asyncio.gather(*(software.is_bkctl("b2") for _ in range(50)))
    assert {*is_bkctl} == {False}
    assert for_many == for_one, for_many
