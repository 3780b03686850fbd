"""An inventory asks each bookie for few lists, keeps its rates, and finds nothing that a change explains."""

from __future__ import annotations

import msgspec
import pytest

from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.ledgers.ledgers import FoundLedgers
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.cluster_audit.checked_ledgers import CheckedLedgers
from bkctl.runtime.replication.cluster_audit.inventory import InventoryTotals, InventoryWay
from bkctl.runtime.replication.config import CopyPace, ReplicationConfig
from bkctl.runtime.replication.survey.inventory import (
    CopyInventory,
    InventoryRequest,
    InventoryTurn,
    bookies_without_lists,
)
from tests.runtime.replication.samples import ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import RepairCluster, simulate

BOOKIES = ["b1", "b2", "b3"]
CLOSED = ledger({0: BOOKIES}, 3, 2, last_entry_id=9, length=100)


async def inventory(
    cluster: RepairCluster, way: InventoryWay = InventoryWay.LISTED, rate_per_bookie: int | None = None
) -> InventoryTotals:
    live = (await cluster.ports.registrations.snapshot()).live
    request = InventoryRequest(way=way, pace=CopyPace(bytes_per_s_per_bookie=rate_per_bookie))
    return await CopyInventory(cluster.ports, live, request).take(cluster.ports.ledgers.read_all())


def count(totals: InventoryTotals, name: str) -> dict[str, int]:
    return {bookie_id: getattr(row, name) for bookie_id, row in totals.bookies.items() if getattr(row, name)}


def test_a_bookie_that_never_answers_is_asked_for_one_list() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for _ in range(20):
            await cluster.store(CLOSED)
        cluster.refuse("list", "b2", Status.TIMEOUT)

        totals = await inventory(cluster)

        assert [len(cluster.asked(each, "list")) for each in BOOKIES] == [20, 1, 20]
        assert count(totals, "unknown_copies") == {"b2": 200}
        assert count(totals, "listed_copies") == {"b1": 200, "b3": 200}
        assert (count(totals, "missing_copies"), totals.bad) == ({}, [])

    simulate(scenario)


def test_a_bookie_that_stops_answering_gave_lists_before() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for _ in range(40):
            await cluster.store(CLOSED)

        async def ledgers() -> FoundLedgers:
            seen = 0
            async for found in cluster.ports.ledgers.read_all():
                seen += 1
                if seen == 30:
                    cluster.refuse("list", "b2", Status.TIMEOUT)
                yield found

        live = (await cluster.ports.registrations.snapshot()).live
        request = InventoryRequest(way=InventoryWay.LISTED, config=ReplicationConfig(ledgers_in_parallel=4))
        totals = await CopyInventory(cluster.ports, live, request).take(ledgers())

        assert totals.silent == {"b2"}
        assert count(totals, "lists_asked") == dict.fromkeys(BOOKIES, 40)
        assert 10 < count(totals, "lists_unanswered")["b2"] < 30

    simulate(scenario)


def test_processes_share_what_one_found_out_about_lists() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "idle")
        for _ in range(20):
            await cluster.store(CLOSED)
        cluster.refuse("list", "b2", Status.TIMEOUT)
        live = (await cluster.ports.registrations.snapshot()).live

        silent, times = await bookies_without_lists(cluster.ports, live)

        assert silent == {"b2"}
        assert {bookie_id: requests for bookie_id, requests, _ in times.rows()} == dict.fromkeys(BOOKIES, 1)
        assert [len(cluster.asked(each, "list")) for each in (*BOOKIES, "idle")] == [1, 1, 1, 0]
        request = InventoryRequest(way=InventoryWay.LISTED, silent=silent)
        totals = await CopyInventory(cluster.ports, live, request).take(cluster.ports.ledgers.read_all())
        assert len(cluster.asked("b2", "list")) == 1
        assert count(totals, "unknown_copies") == {"b2": 200}
        assert count(totals, "lists_unanswered") == {"b2": 20}

    simulate(scenario)


@pytest.mark.parametrize(
    ("is_closed", "expected"),
    [(True, {("b1", "elsewhere", 0), ("b1", "after_end", 10)}), (False, {("b1", "elsewhere", 0)})],
)
def test_copies_that_the_metadata_does_not_name(is_closed: bool, expected: set[tuple[str, str, int]]) -> None:
    """Bookie b1 has entry 0, which b2 and b3 should have, and one more after the end, which is none if it is open."""
    sizes = {"last_entry_id": 9, "length": 100} if is_closed else {"state": LedgerState.OPEN}
    striped: LedgerMetadata = ledger({0: ["b2", "b3", "b1"]}, 2, 2, **sizes)

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(striped, entries=11)
        held = cluster.copies["b1"][ledger_id]
        body = held[1]
        cluster.copies["b1"][ledger_id] = {0: body, **held, 10: body}

        totals = await inventory(cluster)

        assert {(each.bookie_id, each.copy, each.first_entry_id) for each in totals.unnamed} == expected
        assert count(totals, "unnamed_copies") == {"b1": len(expected)}
        assert totals.counts["after_end_ledgers"] == int(is_closed)
        assert totals.bad == []

    simulate(scenario)


def test_a_bookie_that_does_not_know_a_ledger_misses_all_of_it() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await cluster.store(CLOSED, holes=["b3"])

        totals = await inventory(cluster)

        assert count(totals, "missing_copies") == {"b3": 10}
        assert [(each.bookie_id, each.first_entry_id, each.last_entry_id) for each in totals.bad] == [("b3", 0, 9)]

    simulate(scenario)


def test_copies_that_moved_meanwhile_are_not_missing() -> None:
    """The metadata was read before a repair named another bookie; the old one has deleted its copies since."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "b4")
        ledger_id = await cluster.store(CLOSED)
        old = await cluster.ports.ledgers.read(ledger_id)
        cluster.copies["b4"] = {ledger_id: cluster.copies["b3"].pop(ledger_id)}
        (segment,) = old.value.segments
        segment = msgspec.structs.replace(segment, ensemble=("b1", "b2", "b4"))
        moved = msgspec.structs.replace(old.value, segments=(segment,))
        await cluster.ports.ledgers.write(ledger_id, moved, old.version)

        async def read_before() -> FoundLedgers:
            yield ledger_id, old

        live = (await cluster.ports.registrations.snapshot()).live
        listing = CopyInventory(cluster.ports, live, InventoryRequest(way=InventoryWay.LISTED))
        totals = await listing.take(read_before())

        assert (totals.bad, count(totals, "listed_copies")) == ([], {"b1": 10, "b2": 10, "b4": 10})

    simulate(scenario)


@pytest.mark.parametrize("way", [InventoryWay.LISTED, InventoryWay.ALL_ENTRIES])
def test_an_open_ledger_is_examined_to_its_confirmed_end_and_late_adds_are_awaited(way: InventoryWay) -> None:
    open_ledger: LedgerMetadata = ledger({0: BOOKIES}, 3, 2, state=LedgerState.OPEN)

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(open_ledger, entries=8)  # the last add confirmed is 6
        late = cluster.copies["b2"][ledger_id].pop(5)

        def deliver(request: BookieRequest) -> None:
            if request.bookie_id == "b2" and cluster.clock.monotonic_ns() - began_ns > 0.9e9:
                cluster.copies["b2"][ledger_id][5] = late

        began_ns = cluster.clock.monotonic_ns()
        cluster.rules.append(deliver)

        totals = await inventory(cluster, way)

        name = "listed_copies" if way is InventoryWay.LISTED else "read_copies"
        assert (totals.bad, count(totals, name)) == ([], dict.fromkeys(BOOKIES, 7))

    simulate(scenario)


def test_the_rate_of_each_bookie_is_kept_by_reads_and_lists() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for _ in range(20):
            await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=99, length=10))
        for way, bytes_of_each in ((InventoryWay.LISTED, 20 * 1024), (InventoryWay.ALL_ENTRIES, None)):
            began_ns = cluster.clock.monotonic_ns()
            totals = await inventory(cluster, way, 5000)
            seconds = (cluster.clock.monotonic_ns() - began_ns) / 1e9
            expected = bytes_of_each or totals.counts["bytes_read"] / 3
            assert expected / seconds == pytest.approx(5000, rel=0.15)

    simulate(scenario)


def test_reads_that_wait_for_a_busy_bookie_keep_none_from_others() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "other")
        for _ in range(30):
            await cluster.store(CLOSED)
        await cluster.store(ledger({0: ["other"]}, 1, 1, last_entry_id=9, length=100))

        totals = await inventory(cluster, InventoryWay.ALL_ENTRIES, 100)

        assert count(totals, "read_copies") == dict.fromkeys(BOOKIES, 300) | {"other": 10}
        before = [each.bookie_id for each in cluster.requests].index("other")
        assert before < 100, "of 900 requests to bookies that have no bytes left"

    simulate(scenario)


@pytest.mark.parametrize("way", [InventoryWay.LISTED, InventoryWay.ALL_ENTRIES])
def test_limited_time_goes_to_the_longest_unchecked(way: InventoryWay) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_ids = [await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=99, length=100)) for _ in range(40)]
        live = (await cluster.ports.registrations.snapshot()).live
        checked = CheckedLedgers(root="/ledgers", instance_id=None, way=way.value)
        seen: list[int] = []
        for _ in range(40):
            turn = InventoryTurn(2.0, checked.runs)
            config = ReplicationConfig(ledgers_in_parallel=2)
            pace = CopyPace(bytes_per_s_per_bookie=3000)
            request = InventoryRequest(way=way, pace=pace, config=config, turn=turn)
            totals = await CopyInventory(cluster.ports, live, request).take(cluster.ports.ledgers.read_all())
            assert totals.checked is not None
            part = [each for row in totals.checked for each in range(row.ledger_id, row.last_ledger_id + 1)]
            assert len(part) + totals.counts["left_out_ledgers"] == len(ledger_ids)
            assert totals.counts["inventory_ledgers"] == len(part) > 0
            checked = checked.with_run(cluster.clock.now_ms(), totals.checked)
            left = [each for each in ledger_ids if each not in seen]
            assert set(part) >= set(left[: len(part)]), "those come first that were never examined"
            seen += part
            if len(left) <= len(part):
                break
        assert set(seen) == set(ledger_ids)
        assert len(checked.runs) > 2

    simulate(scenario)


def test_ledgers_that_cannot_be_read_take_their_turn_and_not_the_time_of_all_others() -> None:
    hanging = ["h1", "h2", "h3"]

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*hanging, *BOOKIES)
        unread = [await cluster.store(ledger({0: hanging}, 3, 2, last_entry_id=9, length=100)) for _ in range(20)]
        good = [await cluster.store(CLOSED) for _ in range(20)]
        for bookie_id in hanging:
            cluster.refuse("read", bookie_id, Status.TIMEOUT)
        live = (await cluster.ports.registrations.snapshot()).live
        checked = CheckedLedgers(root="/ledgers", instance_id=None, way="all_entries")
        seen: list[int] = []
        for _ in range(30):
            request = InventoryRequest(
                way=InventoryWay.ALL_ENTRIES,
                config=ReplicationConfig(ledgers_in_parallel=1),
                turn=InventoryTurn(0.05, checked.runs),
            )
            totals = await CopyInventory(cluster.ports, live, request).take(cluster.ports.ledgers.read_all())
            assert totals.checked is not None
            examined, tried = (
                [each for row in rows for each in range(row.ledger_id, row.last_ledger_id + 1)]
                for rows in (totals.checked, totals.tried)
            )
            assert len(examined) + len(tried) == totals.counts["inventory_ledgers"] < 20
            assert (set(examined) <= set(good), set(tried) <= set(unread)) == (True, True)
            checked = checked.with_run(cluster.clock.now_ms(), totals.checked, totals.tried)
            seen += examined
            if set(seen) == set(good):
                break
        assert set(seen) == set(good)

    simulate(scenario)
