"""The last bookie of a rack is lost and returns: what workers relax for the copies, what never, and where it ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import msgspec
import pytest

from bkctl.runtime.client.placement import Placement
from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.metadata.replication.recovery_notes import FailedLedgerNote
from bkctl.runtime.placement.survey import BookieSurvey
from bkctl.runtime.placement.view import BookieSpace
from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import marks_of, serving, until, until_unmarked, worker_on
from tests.sim.repair_cluster import RepairCluster, simulate
from tests.sim.test_auditor import auditing, marks
from tests.sim.test_auditor_placement import GOLD, MARKING, with_racks
from tests.sim.test_replication_worker import metadata_of, until_failed, version_of

RACKS = {"b1": "/r1", "b2": "/r1", "b3": "/r1", "b4": "/r2"}
"""b4 is the only bookie of its rack."""
DUO = ledger({0: ["b1", "b4"]}, 2, 2, last_entry_id=9, length=100)
TRIO = ledger({0: ["b1", "b4", "b2"]}, 2, 2, last_entry_id=9, length=100)
"""One of its write quorums is in one rack, whichever bookies it is on."""


@pytest.mark.parametrize("metadata", [DUO, TRIO], ids=["keeps the rules", "never keeps them"])
def test_the_copies_go_to_another_rack_and_back_once(metadata: LedgerMetadata) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        ledger_id = await cluster.store(metadata)
        worker = worker_on(cluster)
        async with auditing(cluster, MARKING), serving(worker):

            async def is_on_b4(*, wanted: bool) -> bool:
                return ("b4" in (await metadata_of(cluster, ledger_id)).bookies()) is wanted and not await marks(
                    cluster
                )

            await cluster.stop("b4")
            await until(cluster, lambda: is_on_b4(wanted=False))
            assert worker.status().copies_breaking_placement == 1
            await cluster.clock.sleep(3 * 3600)
            assert await version_of(cluster, ledger_id) == 1, "no check moves a copy within the rack that is left"
            await cluster.start("b4")
            await until(cluster, lambda: is_on_b4(wanted=True), every_s=60)
            await cluster.clock.sleep(12 * 3600)
            assert await marks(cluster) == {}
            assert await version_of(cluster, ledger_id) == 2, "nothing goes back and forth"
            assert worker.status().copies_breaking_placement == 1

    simulate(scenario)


class _Space(Placement):
    """Placement with the free space of bookies, which the modelled ones do not report."""

    def __init__(self, inner: Placement, space: dict[str, BookieSpace]) -> None:
        self._inner = inner
        self._space = space

    async def survey(self, writable: Collection[str]) -> BookieSurvey:
        survey = await self._inner.survey(writable)
        rules = msgspec.structs.replace(survey.rules, reserve_fraction=0.1)
        return msgspec.structs.replace(survey, space=self._space, rules=rules)


async def refused(cluster: RepairCluster, metadata: LedgerMetadata) -> FailedLedgerNote:
    """The note of a ledger that no worker repairs although b4 is gone and two other bookies are writable."""
    ledger_id = await cluster.store(metadata)
    await marks_of(cluster).mark(ledger_id, ["b4"])
    await cluster.stop("b4")
    worker = worker_on(cluster)
    async with serving(worker):
        note = await until_failed(cluster, ledger_id, attempts=5)
        assert await marks(cluster) == {ledger_id: ("b4",)}
    assert await version_of(cluster, ledger_id) == 0
    assert worker.status().copies_breaking_placement == 0
    return note


def test_isolation_groups_are_not_relaxed() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS, gold=("b1", "b4"))
        note = await refused(cluster, msgspec.structs.replace(DUO, custom_metadata=GOLD))
        assert note.reason == "PLACEMENT"
        assert "isolation groups: not in the ledger's groups: b" in note.detail
        assert "best-effort" not in note.detail

    simulate(scenario)


@pytest.mark.parametrize("is_reported", [True, False])
def test_the_disk_reserve_is_not_relaxed(*, is_reported: bool) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        space = dict.fromkeys(("b1", "b2", "b3"), BookieSpace(1000, 120)) if is_reported else {}
        placement = _Space(cluster.ports.placement, space)
        cluster.ports = dataclasses.replace(cluster.ports, placement=placement)
        note = await refused(cluster, DUO)
        assert ("no space above its reserve" if is_reported else "did not report its free space") in note.detail

    simulate(scenario)


def test_with_room_above_the_reserve_the_copy_goes_to_another_rack() -> None:
    """What the tests of refusals rely on: only what they say is missing."""

    async def scenario(cluster: RepairCluster) -> None:
        await with_racks(cluster, RACKS)
        space = {"b1": BookieSpace(1000, 120), "b2": BookieSpace(1000, 120), "b3": BookieSpace(1000, 220)}
        cluster.ports = dataclasses.replace(cluster.ports, placement=_Space(cluster.ports.placement, space))
        ledger_id = await cluster.store(DUO)
        await marks_of(cluster).mark(ledger_id, ["b4"])
        await cluster.stop("b4")
        worker = worker_on(cluster)
        async with serving(worker):
            await until_unmarked(cluster)
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b3")}
        assert worker.status().copies_breaking_placement == 1

    simulate(scenario)
