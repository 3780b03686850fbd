"""Recoveries and drains of bookies in virtual time."""

from __future__ import annotations

import pytest

from runtime.ledger.metadata import LedgerState
from runtime.metadata.bookies.registration import BookieMode
from runtime.replication.config import OpenLedgers
from runtime.replication.recovery_report import FailureReason
from tests.runtime.replication.samples import ledger
from tests.sim.repair_cluster import RepairCluster, simulate


def test_a_drained_bookie_that_has_the_only_copy_is_the_source() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", mode=BookieMode.READ_ONLY)
        await cluster.start("b2", "b3")
        single = await cluster.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=9, length=100))
        others_lost = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100), holes=["b2"])

        report = await cluster.recover("b1", unreachable=())

        assert report.is_complete, report.failures
        assert "b1" not in (await cluster.ensembles(single))[0]
        assert await cluster.ensembles(others_lost) == {0: ("b3", "b2")}
        assert cluster.holds("b3", others_lost) == list(range(10))
        assert cluster.asked("b2", "read_lac") == []

    simulate(scenario)


def test_a_drained_bookie_is_asked_before_the_others_and_an_unreachable_one_never() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=100)
        drained, recovered = await cluster.store(metadata), await cluster.store(metadata)
        plan = await cluster.recovery.plan(["b1"], [drained], unreachable=())
        assert plan.ledgers[0].surviving_copies == 2
        assert plan.targets == ("b2", "b3")
        assert (await cluster.recovery.run(plan)).is_complete
        assert sorted(cluster.asked("b1")) == list(range(10))
        assert cluster.asked("b2") == []

        cluster.requests.clear()
        plan = await cluster.recovery.plan(["b1"], [recovered])
        assert plan.ledgers[0].surviving_copies == 1
        assert (await cluster.recovery.run(plan)).is_complete
        assert cluster.asked("b1") == []
        assert await cluster.ensembles(recovered) == {0: ("b3", "b2")}

    simulate(scenario)


@pytest.mark.parametrize("policy", OpenLedgers)
def test_an_open_segment_of_a_leaving_bookie_is_closed_only_with_consent(policy: OpenLedgers) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", mode=BookieMode.READ_ONLY)
        await cluster.start("b2", "b3", "b4")
        metadata = ledger({0: ["b1", "b2"], 5: ["b1", "b3"]}, 2, 2, state=LedgerState.OPEN)
        ledger_id = await cluster.store(metadata, entries=3)

        report = await cluster.recover("b1", unreachable=(), open_ledgers=policy)

        metadata = (await cluster.ports.ledgers.read(ledger_id)).value
        ensembles = await cluster.ensembles(ledger_id)
        assert "b1" not in ensembles[0]
        if policy is OpenLedgers.FENCE:
            assert report.is_complete
            assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 7)
            assert "b1" not in ensembles[5]
        else:
            (failure,) = report.failures
            assert failure.reason is FailureReason.OPEN
            assert failure.bare_detail == "its last segment is open and references b1"
            assert metadata.state is LedgerState.OPEN
            assert ensembles[5] == ("b1", "b3")
            assert report.fragments == 1

    simulate(scenario)
