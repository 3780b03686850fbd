"""A writer with deferred sync in virtual time: lost answers, failures, crashes. No forced entry is ever lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable

import pytest

from bkctl.runtime.client.api import LedgerClient, open_ledger
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.errors import (
    BookieError,
    BookieTimeoutError,
    LedgerClosedError,
    LedgerFencedError,
    LedgerReadError,
    NotEnoughBookiesError,
)
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.protocol.status import Status
from tests.runtime.client.fakes import closed, end, payload, segments
from tests.sim.ledger_cluster import LedgerCluster, ledger_cluster
from tests.sim.loop import run_simulated

SEEDS = 80


async def new_writer(cluster: LedgerCluster, *, deferred_sync: bool = True, ensemble_size: int = 3) -> LedgerWriter:
    client = LedgerClient(cluster.ports, cluster.store)
    return await client.create(
        ensemble_size=ensemble_size, write_quorum_size=3, ack_quorum_size=2, deferred_sync=deferred_sync
    )


async def append(writer: LedgerWriter, count: int) -> None:
    first = writer.last_add_confirmed + 1
    assert [await writer.append(payload(first + i)) for i in range(count)] == list(range(first, first + count))


def simulate(scenario: Callable[[LedgerCluster], Awaitable[None]], *bookie_ids: str) -> None:
    async def run() -> None:
        async with ledger_cluster(*(bookie_ids or ("b1", "b2", "b3", "b4"))) as cluster:
            await scenario(cluster)

    run_simulated(run())


def test_t25_only_a_force_confirms_and_the_ledger_ends_there() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster)
        assert await writer.force() == -1
        assert not any(request.kind == "force" for request in cluster.requests)
        await append(writer, 5)
        assert writer.last_add_confirmed == -1
        assert await writer.force() == 4
        assert [await writer.append(payload(i)) for i in (5, 6)] == [5, 6]
        assert (writer.last_add_confirmed, writer.length) == (4, 70)
        await writer.close()
        assert end(await cluster.metadata(writer.ledger_id)) == closed(4, 50)
        with pytest.raises(LedgerClosedError):
            await writer.force()

    simulate(scenario)


def test_a_force_goes_to_all_of_the_ensemble_and_confirms_what_was_acknowledged_when_it_was_sent() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster, ensemble_size=4)
        await append(writer, 1)
        forcing = asyncio.create_task(writer.force())
        await asyncio.sleep(0)
        later = writer.append_nowait(payload(1))
        assert await forcing == 0
        assert await later == 1
        assert {each.bookie_id for each in cluster.requests if each.kind == "force"} == {"b1", "b2", "b3", "b4"}
        assert writer.last_add_confirmed == 0

    simulate(scenario)


def test_a_lost_answer_confirms_nothing_and_the_next_force_does() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster)
        await append(writer, 3)
        lost = (writer.metadata.last_segment.ensemble[1], "force")
        cluster.muted.add(lost)
        with pytest.raises(BookieTimeoutError, match=lost[0]):
            await writer.force()
        assert (writer.last_add_confirmed, writer.is_open) == (-1, True)
        cluster.muted.clear()
        assert await writer.force() == 2

    simulate(scenario)


@pytest.mark.parametrize("failure", [Status.TIMEOUT, Status.READ_ONLY, Status.UNAVAILABLE])
def test_t25_a_failed_add_ends_the_writer_and_no_bookie_is_replaced(failure: Status) -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster)
        await append(writer, 2)
        await writer.force()
        for bookie_id in writer.metadata.last_segment.ensemble[:2]:
            cluster.failing[bookie_id] = failure
        with pytest.raises(NotEnoughBookiesError, match="deferred sync keeps its bookies: it ends at entry 1"):
            await writer.append(payload(2))
        await writer.close()
        stored = await cluster.metadata(writer.ledger_id)
        assert end(stored) == closed(1, 20)
        assert len(segments(stored)) == 1

    simulate(scenario)


def test_an_ensemble_change_in_the_middle_of_a_force() -> None:
    """Without deferred sync a bookie is replaced; the force fails, because it went to the former ensemble."""

    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster, deferred_sync=False)
        await append(writer, 2)
        replaced = writer.metadata.last_segment.ensemble[0]
        cluster.failing[replaced] = Status.UNAVAILABLE
        forcing = asyncio.create_task(writer.force())
        await asyncio.sleep(0)
        assert await writer.append(payload(2)) == 2
        with pytest.raises(BookieError, match=replaced):
            await forcing
        while replaced in writer.metadata.last_segment.ensemble:
            await writer.append(payload(writer.last_add_confirmed + 1))
        cluster.requests.clear()
        assert await writer.force() == writer.last_add_confirmed
        assert {each.bookie_id for each in cluster.requests} == set(writer.metadata.last_segment.ensemble)
        await writer.close()
        assert end(await cluster.metadata(writer.ledger_id))[0] is LedgerState.CLOSED

    simulate(scenario)


def test_a_close_in_the_middle_of_a_force_ends_the_ledger_before_it() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster)
        await append(writer, 2)
        forcing = asyncio.create_task(writer.force())
        await asyncio.sleep(0)
        await writer.close()
        with pytest.raises(LedgerClosedError, match="closed at entry -1"):
            await forcing
        assert end(await cluster.metadata(writer.ledger_id)) == closed(-1, 0)

    simulate(scenario)


@pytest.mark.parametrize("is_during_the_force", [False, True])
def test_a_bookie_that_restarted_proves_nothing(is_during_the_force: bool) -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster)
        await append(writer, 3)
        assert await writer.force() == 2
        assert [await writer.append(payload(i)) for i in (3, 4)] == [3, 4]
        restarted = writer.metadata.last_segment.ensemble[0]
        if not is_during_the_force:
            cluster.crash(restarted)
        forcing = asyncio.create_task(writer.force())
        await asyncio.sleep(0)
        if is_during_the_force:
            cluster.crash(restarted)
        with pytest.raises(NotEnoughBookiesError, match=f"the connection to {restarted} was lost"):
            await forcing
        await writer.close()
        assert end(await cluster.metadata(writer.ledger_id)) == closed(2, 30)

    simulate(scenario)


def test_a_lost_connection_with_everything_confirmed_does_no_harm() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        writer = await new_writer(cluster)
        for first in (0, 2):
            await append(writer, 2)
            assert await writer.force() == first + 1
            cluster.crash(writer.metadata.last_segment.ensemble[0])
            assert await writer.force() == first + 1

    simulate(scenario)


class Run:
    """One seed: appends, forces, crashes and lost answers in any order, at last a crash of all, and a recovery."""

    def __init__(self, cluster: LedgerCluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self.confirmed = -1
        self.refusals = 0

    async def run(self) -> None:
        writer = await new_writer(self._cluster, ensemble_size=self._chance.choice((3, 4)))
        ensemble = writer.metadata.last_segment.ensemble
        pending: list[asyncio.Future[int]] = []
        for _ in range(self._chance.randint(5, 40)):
            drawn = self._chance.random()
            if drawn < 0.5:
                with contextlib.suppress(LedgerClosedError):
                    pending.append(writer.append_nowait(payload(len(pending))))
            elif drawn < 0.8:
                await self._force(writer)
            elif drawn < 0.83:
                self._cluster.crash(self._chance.choice(ensemble))
            elif drawn < 0.86:
                for bookie_id in ensemble:
                    self._cluster.crash(bookie_id)
            elif drawn < 0.9:
                self._cluster.muted = {(self._chance.choice(ensemble), "force")}
            else:
                self._cluster.muted = set()
            await asyncio.sleep(self._chance.choice((0.0, 0.001, 0.02)))
        is_closing = self._chance.random() < 0.5
        if is_closing:
            await writer.close()
        for bookie_id in ensemble:
            self._cluster.crash(bookie_id)
        self._cluster.muted = set()
        await self._check(writer)
        if not is_closing:
            await self._force(writer)  # the ledger was recovered meanwhile
            await self._check(writer)
            writer.abandon()
        await asyncio.gather(*pending, return_exceptions=True)

    async def _force(self, writer: LedgerWriter) -> None:
        try:
            self.confirmed = max(self.confirmed, await writer.force())
        except (BookieError, LedgerClosedError, LedgerFencedError, NotEnoughBookiesError):
            self.refusals += 1

    async def _check(self, writer: LedgerWriter) -> None:
        reader = await open_ledger(self._cluster.ports, writer.ledger_id, b"", recover=True)
        assert reader.last_add_confirmed >= self.confirmed, "a confirmed entry is not part of the ledger"
        for entry in await reader.read(0, self.confirmed) if self.confirmed >= 0 else ():
            assert entry.payload == payload(entry.entry_id)


def explore(seeds: range, *, is_blind: bool = False) -> tuple[list[int], int]:
    """Confirmed entries of each seed, and how many forces were refused. ``is_blind``: no lost connection is seen."""
    confirmed: list[int] = []
    refusals = 0
    for seed in seeds:

        async def scenario(cluster: LedgerCluster, seed: int = seed) -> None:
            nonlocal refusals
            if is_blind:
                patch.setattr(cluster.ports.bookies, "losses", lambda _: 0)
            run = Run(cluster, seed)
            await run.run()
            confirmed.append(run.confirmed)
            refusals += run.refusals

        with pytest.MonkeyPatch.context() as patch:
            simulate(scenario)
    return confirmed, refusals


def test_what_a_force_confirmed_survives_every_crash() -> None:
    confirmed, refusals = explore(range(SEEDS))
    assert sum(each >= 0 for each in confirmed) > SEEDS / 2
    assert refusals > SEEDS / 2


def test_without_a_look_at_lost_connections_confirmed_entries_are_lost() -> None:
    with pytest.raises(LedgerReadError, match="no such entry"):
        explore(range(SEEDS), is_blind=True)
