"""``ledger read --from-bookie`` on a bookie that names a lower last entry than it has, as Java's may."""

from __future__ import annotations

import pytest

from bkctl.commands.errors import NotFoundError
from bkctl.commands.ledger.one_bookie import FoundCopies
from bkctl.runtime.client.bookie_copies import BookieCopies
from bkctl.runtime.errors import BookieIOError
from bkctl.runtime.protocol.entry_list import EntryGroup, EntryList
from bkctl.runtime.protocol.status import Status
from tests.runtime.client.fakes import credentials
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import RepairCluster, simulate
from tests.sim.test_endless_ledgers import claim, limit_requests, name_as_last, put


def has(cluster: RepairCluster, ledger_id: int, *ranges: range) -> None:
    for entry_ids in ranges:
        for entry_id in entry_ids:
            put(cluster, ledger_id, entry_id, "b1")


async def read(
    cluster: RepairCluster, ledger_id: int, first: int = 0, last: int | None = None
) -> tuple[list[int], str]:
    copies = FoundCopies(BookieCopies(cluster.ports, credentials(ledger_id), "b1"), first, last)
    entry_ids = [each.entry_id async for each in copies.entries()]
    return entry_ids, "; ".join(copies.left())


@pytest.mark.parametrize("has_list", [True, False])
def test_all_that_the_bookie_has_is_read(has_list: bool) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1")
        ledger_id = await claim(cluster, ensemble=["b1"], quorum=1, last=5)
        has(cluster, ledger_id, range(10), range(500, 600))
        name_as_last(cluster, "b1", 9)
        if not has_list:
            cluster.refuse("list", "b1", Status.TIMEOUT)

        entry_ids, left = await read(cluster, ledger_id)
        assert entry_ids == [*range(10), *range(500, 600)]
        assert left == "bookie b1: it does not have entry 10-499 of ledger 0"
        assert (await read(cluster, ledger_id, 550))[0] == [*range(550, 600)]
        entry_ids, left = await read(cluster, ledger_id, 5, 10**6)
        assert entry_ids == [*range(5, 10), *range(500, 600)]
        assert left == "bookie b1: it does not have entry 10-499, 600-1000000 of ledger 0"
        with pytest.raises(NotFoundError, match="no entry from 600 on: its last one is"):
            await read(cluster, ledger_id, 600)

    simulate(scenario)


def test_a_list_that_claims_entries_without_end_is_not_believed() -> None:
    everything = EntryList([EntryGroup(0, 0, 2**31 - 1, 0)])

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1")
        ledger_id = await claim(cluster, ensemble=["b1"], quorum=1, last=5)
        has(cluster, ledger_id, range(6))
        cluster.rules.append(lambda request: everything if request.kind == "list" else None)  # type: ignore[arg-type, return-value]
        limit_requests(cluster, 20_000)
        assert (await read(cluster, ledger_id))[0] == [*range(6)]

    simulate(scenario)


def test_a_bookie_that_can_read_nothing_beyond_its_last_entry_is_not_asked_for_ever() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1")
        ledger_id = await claim(cluster, ensemble=["b1"], quorum=1, last=5)
        has(cluster, ledger_id, range(6))
        cluster.refuse("list", "b1", Status.TIMEOUT)

        def broken(request: BookieRequest) -> None:
            if request.kind == "read" and request.entry_id > 5:
                raise BookieIOError("b1", "its disk is broken")

        cluster.rules.append(broken)
        limit_requests(cluster, 20_000)
        assert (await read(cluster, ledger_id))[0] == [*range(6)]

    simulate(scenario)
