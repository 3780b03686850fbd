"""A writer whose entry ids the caller chooses, in virtual time: order, duplicates, gaps, the window, failures."""

from __future__ import annotations

import asyncio
import random

import pytest

from bkctl.runtime.client.api import LedgerClient, open_ledger
from bkctl.runtime.client.writer import LedgerWriter
from bkctl.runtime.config import ClientConfig
from bkctl.runtime.errors import (
    ConfigurationError,
    DuplicateEntryError,
    LedgerClosedError,
    LedgerExistsError,
    TooManyPendingAddsError,
)
from bkctl.runtime.protocol.status import Status
from bkctl.storage.ids import ENTRY_ID_MAX
from tests.runtime.client.fakes import closed, end, payload, segments
from tests.sim.ledger_cluster import LedgerCluster, ledger_cluster
from tests.sim.loop import run_simulated

FOUR = ("b1", "b2", "b3", "b4")
WINDOW = 8


async def new_writer(
    cluster: LedgerCluster, *, ledger_id: int | None = None, deferred_sync: bool = False
) -> LedgerWriter:
    client = LedgerClient(cluster.ports, cluster.store)
    return await client.create(
        ensemble_size=3,
        write_quorum_size=3,
        ledger_id=ledger_id,
        deferred_sync=deferred_sync,
        caller_entry_ids=True,
    )


def send(writer: LedgerWriter, entry_id: int) -> asyncio.Future[int]:
    return writer.append_nowait(payload(entry_id), entry_id=entry_id)


async def read_back(cluster: LedgerCluster, writer: LedgerWriter) -> list[int]:
    reader = await open_ledger(cluster.ports, writer.ledger_id, b"", recover=True)
    entries = [entry async for entry in reader]
    assert all(entry.payload == payload(entry.entry_id) for entry in entries)
    return [entry.entry_id for entry in entries]


def test_t24_a_gap_holds_back_all_later_acknowledgements() -> None:
    async def run() -> None:
        async with ledger_cluster(*FOUR) as cluster:
            writer = await new_writer(cluster)
            adds = {entry_id: send(writer, entry_id) for entry_id in (3, 0, 2)}
            await asyncio.sleep(1)
            assert {entry_id for entry_id, add in adds.items() if add.done()} == {0}
            assert writer.last_add_confirmed == 0
            assert await send(writer, 1) == 1
            assert [adds[2].done(), adds[3].done(), writer.last_add_confirmed] == [True, True, 3]
            await writer.close()
            assert end(await cluster.metadata(writer.ledger_id)) == closed(3, 40)
            assert await read_back(cluster, writer) == [0, 1, 2, 3]

    run_simulated(run())


def test_t24_duplicates_and_calls_of_the_other_kind_are_refused_and_send_nothing() -> None:
    async def run() -> None:
        async with ledger_cluster(*FOUR) as cluster:
            writer = await new_writer(cluster)
            await send(writer, 0)
            pending = send(writer, 2)
            cluster.requests.clear()
            for entry_id in (0, 2):
                with pytest.raises(DuplicateEntryError, match=f"entry {entry_id} was appended before"):
                    send(writer, entry_id)
                with pytest.raises(DuplicateEntryError):
                    await writer.append(b"", entry_id=entry_id)
            with pytest.raises(ConfigurationError, match="need an id"):
                await writer.append(b"")
            for entry_id in (-1, ENTRY_ID_MAX + 1):
                with pytest.raises(ConfigurationError, match="is not an entry id"):
                    await writer.append(b"", entry_id=entry_id)
            ordinary = await LedgerClient(cluster.ports, cluster.store).create()
            with pytest.raises(ConfigurationError, match="its writer assigns the entry ids"):
                await ordinary.append(b"", entry_id=10**6)
            assert cluster.requests == []
            assert await send(writer, 1) == 1
            assert await pending == 2

    run_simulated(run())


def test_closing_drops_what_follows_a_gap() -> None:
    async def run() -> None:
        async with ledger_cluster(*FOUR) as cluster:
            writer = await new_writer(cluster, ledger_id=4711)
            assert writer.ledger_id == 4711
            with pytest.raises(LedgerExistsError):
                await new_writer(cluster, ledger_id=4711)
            adds = [send(writer, entry_id) for entry_id in (0, 1, 3)]
            assert [await adds[0], await adds[1]] == [0, 1]
            await writer.close()
            with pytest.raises(LedgerClosedError):
                await adds[2]
            assert end(await cluster.metadata(4711)) == closed(1, 20)
            assert await read_back(cluster, writer) == [0, 1]

    run_simulated(run())


@pytest.mark.parametrize("config", [ClientConfig(pending_adds_max=WINDOW), ClientConfig(pending_bytes_max=10 * WINDOW)])
def test_a_missing_entry_bounds_what_is_pending(config: ClientConfig) -> None:
    async def run() -> None:
        async with ledger_cluster(*FOUR, config=config) as cluster:
            writer = await new_writer(cluster)
            for entry_id in range(1, WINDOW):
                send(writer, entry_id)
            if config.pending_adds_max > WINDOW:
                send(writer, WINDOW)
            with pytest.raises(TooManyPendingAddsError, match="the first one to be acknowledged is entry 0"):
                send(writer, WINDOW + 1)
            late = asyncio.create_task(writer.append(payload(WINDOW + 1), entry_id=WINDOW + 1))
            await asyncio.sleep(10)
            assert not late.done()
            assert await send(writer, 0) == 0, "the entry that all others wait for always has room"
            if config.pending_adds_max == WINDOW:
                await send(writer, WINDOW)
            assert await late == WINDOW + 1

    run_simulated(run())


@pytest.mark.parametrize("seed", range(20))
def test_tasks_that_append_in_any_order_never_wait_for_each_other_forever(seed: int) -> None:
    """Few entries have room at once, and a bookie fails on the way."""

    async def run() -> None:
        config = ClientConfig(pending_adds_max=WINDOW, pending_bytes_max=50)
        async with ledger_cluster(*FOUR, config=config) as cluster:
            chance = random.Random(seed)
            writer = await new_writer(cluster)
            entry_ids = list(range(100))
            chance.shuffle(entry_ids)
            failing = writer.metadata.last_segment.ensemble[0]
            cluster.failing[failing, chance.choice(entry_ids)] = Status.IO_ERROR
            adds = [asyncio.create_task(writer.append(payload(i), entry_id=i)) for i in entry_ids]
            assert await asyncio.gather(*adds) == entry_ids
            await writer.close()
            stored = await cluster.metadata(writer.ledger_id)
            assert end(stored) == closed(99, 1000)
            assert len(segments(stored)) <= 2
            assert failing not in stored.last_segment.ensemble
            assert await read_back(cluster, writer) == list(range(100))

    run_simulated(run())


def test_a_force_confirms_up_to_the_first_gap() -> None:
    async def run() -> None:
        async with ledger_cluster(*FOUR) as cluster:
            writer = await new_writer(cluster, deferred_sync=True)
            adds = [send(writer, entry_id) for entry_id in (1, 0, 3)]
            assert [await adds[0], await adds[1]] == [1, 0]
            assert await writer.force() == 1
            await writer.close()
            assert end(await cluster.metadata(writer.ledger_id)) == closed(1, 20)
            assert isinstance(adds[2].exception(), LedgerClosedError)

    run_simulated(run())
