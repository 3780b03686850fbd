"""The check of copies in virtual time when copies cannot be read: it is not done, says so, and asks again."""

from __future__ import annotations

import itertools

import pytest

from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.copy_check import REPEATS_MAX
from bkctl.runtime.metadata.replication.recovery_notes import CopyCheckNote, LedgerCount
from bkctl.runtime.metadata.replication.switches import PeriodicCheck
from bkctl.runtime.protocol.status import Status
from tests.sim.repair_cluster import RepairCluster, simulate
from tests.sim.test_auditor import auditing, marks
from tests.sim.test_auditor_checks import BOOKIES, HOUR, last_check_ms, progress, triple

HALF_A_DAY = 43_200


def numbers(note: CopyCheckNote) -> tuple[int, int, int, int]:
    """Ledgers, copies, bad ones and unknown ones of the round, or of the last one if the next has not begun."""
    counts = note.found if note.found.ledgers or note.last is None else note.last
    return counts.ledgers, counts.copies, counts.copies_bad, counts.copies_unknown


def test_bookies_that_refuse_the_login_are_no_clean_check(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for _ in range(6):
            await triple(cluster)
        for each in BOOKIES:
            cluster.refuse("read", each, Status.UNAUTHORIZED)
        async with auditing(cluster, HOUR) as auditor:
            await cluster.clock.sleep(HALF_A_DAY)
            while not (await progress(cluster)).repeats:
                await cluster.clock.sleep(60)
            assert await last_check_ms(cluster) is None
            assert numbers(await progress(cluster)) == (6, 36, 0, 36)
            assert "36 unknown" in auditor.copies.lane.status.result
            assert await marks(cluster) == {}
            cluster.rules.clear()
            await cluster.clock.sleep(3600)
            assert await last_check_ms(cluster) is not None
        assert "ledger 0 has copies that were not read: b1 (it answered: " in caplog.text
        assert "check of copies is not complete" in caplog.text

    simulate(scenario)


def test_only_ledgers_with_unknown_copies_are_read_again_with_growing_pauses() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(3)]
        times = list[float]()
        cluster.rules.append(
            lambda request: Status.UNAUTHORIZED if (request.bookie_id, request.ledger_id) == ("b3", ids[1]) else None
        )
        async with auditing(cluster, AutorecoveryConfig(check_period_s=36_000)):
            await cluster.clock.sleep(60)
            while (await progress(cluster)).repeats < 1:
                await cluster.clock.sleep(60)
            cluster.requests.clear()
            while (await progress(cluster)).repeats < 5:
                if cluster.requests:
                    times.append(cluster.clock.monotonic_ns() / 1e9)
                    assert {request.ledger_id for request in cluster.requests} == {ids[1]}
                    cluster.requests.clear()
                await cluster.clock.sleep(10)
            pauses = [later - former for former, later in itertools.pairwise(times)]
            assert pauses == pytest.approx([600, 1200], abs=30)
            cluster.rules.clear()
            while await last_check_ms(cluster) is None:
                await cluster.clock.sleep(10)
            assert numbers(await progress(cluster)) == (3, 18, 0, 0)

    simulate(scenario)


def test_the_next_round_begins_although_a_bookie_never_answers() -> None:
    """Other ledgers are due again; the time of the last complete check stays what it was."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await triple(cluster)
        cluster.refuse("read", "b2", Status.UNAUTHORIZED)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(60)
            began_ms = (await progress(cluster)).began_ms
            while (await progress(cluster)).began_ms == began_ms:
                assert (await progress(cluster)).repeats <= REPEATS_MAX
                await cluster.clock.sleep(60)
            assert await last_check_ms(cluster) is None
            assert numbers(await progress(cluster))[3] == 2

    simulate(scenario)


def test_a_successor_knows_which_copies_were_not_read() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ids = [await triple(cluster) for _ in range(3)]
        cluster.refuse("read", "b2", Status.UNAUTHORIZED)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(60)
            while (await progress(cluster)).repeats < 1:
                await cluster.clock.sleep(10)
        cluster.rules.clear()
        assert sorted((await progress(cluster)).again) == ids
        async with auditing(cluster, HOUR):
            while await last_check_ms(cluster) is None:
                await cluster.clock.sleep(10)
            assert numbers(await progress(cluster)) == (3, 18, 0, 0)

    simulate(scenario)


def test_copies_of_a_bookie_that_is_gone_are_unknown_until_it_is_back() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await triple(cluster)
        kept = cluster.copies["b3"]
        await cluster.stop("b3")
        async with auditing(cluster, AutorecoveryConfig(check_period_s=3600, lost_bookie_delay_s=100_000)):
            await cluster.clock.sleep(600)
            assert await last_check_ms(cluster) is None
            assert numbers(await progress(cluster)) == (1, 6, 0, 2)
            await cluster.start("b3")
            cluster.copies["b3"] = kept
            await cluster.clock.sleep(3600)
            assert await last_check_ms(cluster) is not None

    simulate(scenario)


def test_bad_copies_beside_unknown_ones_are_marked_at_once_and_counted_once() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await triple(cluster)
        del cluster.copies["b2"][ledger_id][9]
        cluster.refuse("read", "b3", Status.UNAUTHORIZED)
        async with auditing(cluster, HOUR):
            await cluster.clock.sleep(1500)
            assert (await progress(cluster)).repeats > 1
            assert await marks(cluster) == {ledger_id: ("b2",)}
            assert numbers(await progress(cluster)) == (1, 6, 1, 2)
            assert (await progress(cluster)).found.marked == LedgerCount(1, (ledger_id,))

    simulate(scenario)


def test_a_count_without_some_ledgers_is_not_the_last_one() -> None:
    """The checks of metadata too: what could not be read is reported, and ends no check."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        bad = await triple(cluster)
        path = cluster.ports.ledgers.path(bad)
        good = (await cluster.metadata_store.get(path)).data
        await cluster.metadata_store.set(path, b"junk", -1)
        async with auditing(cluster, HOUR) as auditor:
            await cluster.clock.sleep(100)
            for check, lane in (
                (PeriodicCheck.REPLICAS, auditor.replicas.lane),
                (PeriodicCheck.PLACEMENT, auditor.placement.lane),
                (PeriodicCheck.ALL_LEDGERS, auditor.copies.lane),
            ):
                assert await last_check_ms(cluster, check) is None
                assert "1 could not be read" in lane.status.result
            await cluster.metadata_store.set(path, good, -1)
            await cluster.clock.sleep(3600)
            for check in PeriodicCheck:
                assert await last_check_ms(cluster, check) is not None

    simulate(scenario)
