"""Which process is the auditor, alone and next to Pulsar's driver, and what one daemon survives, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from bkctl.runtime.autorecovery.auditor import Auditor
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.daemon import PULSAR_ABSENCE_S, AuditorOffice, AutorecoveryDaemon
from bkctl.runtime.errors import NoNodeError
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.pulsar_migration import flag_path
from bkctl.runtime.metadata.replication.recovery_notes import DaemonNote, RecoveryNotes, WorkerStatus
from bkctl.runtime.metadata.store import MetadataStore, children_of
from tests.runtime.replication.samples import ledger
from tests.sim.autorecovery_cluster import process_on
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

PATHS = Paths(ROOT)
ELECTION_S = 5.0
"""Far longer than an election takes."""


def office_of(
    cluster: RepairCluster, store: MetadataStore, name: str, *, is_beside_pulsar: bool = False
) -> AuditorOffice:
    """The office of a daemon, with an auditor that works."""

    def new_auditor() -> Auditor:
        return Auditor(cluster.ports, store, AutorecoveryConfig())

    return AuditorOffice(store, ROOT, name, cluster.clock, new_auditor, is_beside_pulsar=is_beside_pulsar)


@contextlib.asynccontextmanager
async def running(*services: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """The services run, and none of them ends by itself."""
    tasks = [asyncio.ensure_future(serve()) for serve in services]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def is_auditor(office: AuditorOffice) -> bool:
    return office.auditor is not None


async def votes(cluster: RepairCluster) -> list[str]:
    return sorted(await children_of(cluster.metadata_store, PATHS.auditor_election))


def test_t37_an_auditor_whose_vote_is_deleted_steps_down_and_exactly_one_follows() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        first_store, second_store = (await process_on(cluster))[0], (await process_on(cluster))[0]
        first, second = office_of(cluster, first_store, "first"), office_of(cluster, second_store, "second")
        async with running(first.serve):
            await cluster.clock.sleep(ELECTION_S)
            async with running(second.serve):
                await cluster.clock.sleep(ELECTION_S)
                assert (is_auditor(first), is_auditor(second)) == (True, False)
                await cluster.metadata_store.delete(f"{PATHS.auditor_election}/{(await votes(cluster))[0]}")
                await cluster.clock.sleep(0.01)
                assert not is_auditor(first), "it steps down at once"
                await cluster.clock.sleep(ELECTION_S)
                assert (is_auditor(first), is_auditor(second)) == (False, True)
                assert len(await votes(cluster)) == 2, "it stands for election again"
        assert await votes(cluster) == []

    simulate(scenario)


def test_t38_after_its_session_another_daemon_is_the_auditor() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        (first_store, link), (second_store, _) = await process_on(cluster), await process_on(cluster)
        first, second = office_of(cluster, first_store, "first"), office_of(cluster, second_store, "second")
        async with running(first.serve):
            await cluster.clock.sleep(ELECTION_S)
            async with running(second.serve):
                await cluster.clock.sleep(ELECTION_S)
                link.cut()
                await cluster.clock.sleep(60)
                assert is_auditor(second)
                link.restore()
                await cluster.clock.sleep(60)
                assert (is_auditor(first), is_auditor(second)) == (False, True)

    simulate(scenario)


def test_no_auditor_runs_next_to_pulsars_until_that_is_gone_for_long() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        pulsar = (await process_on(cluster))[0]
        office = office_of(cluster, cluster.metadata_store, "ours")

        async def elect() -> None:
            await pulsar.create(PATHS.pulsar_auditor, b"b1", is_ephemeral=True, make_parents=True)

        await elect()
        async with running(office.serve):
            await cluster.clock.sleep(ELECTION_S)
            assert not is_auditor(office)
            assert "Pulsar's metadata driver has elected one" in (office.problem or "")
            assert await votes(cluster) == []
            await pulsar.delete(PATHS.pulsar_auditor)
            await cluster.clock.sleep(PULSAR_ABSENCE_S / 2)
            assert not is_auditor(office)
            await elect()  # its next auditor
            await cluster.clock.sleep(PULSAR_ABSENCE_S)
            assert not is_auditor(office)
            await pulsar.delete(PATHS.pulsar_auditor)
            await cluster.clock.sleep(PULSAR_ABSENCE_S + ELECTION_S)
            assert (is_auditor(office), office.problem) == (True, None)
            await elect()
            await cluster.clock.sleep(0.01)
            assert not is_auditor(office), "it steps down at once"
            await cluster.clock.sleep(ELECTION_S)
            assert await votes(cluster) == []

    simulate(scenario)


def test_an_auditor_that_is_told_to_run_next_to_pulsars_holds_both_offices() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        (pulsar, _), (store, _) = await process_on(cluster), await process_on(cluster)
        office = office_of(cluster, store, "ours", is_beside_pulsar=True)
        await pulsar.create(PATHS.pulsar_auditor, b"b1", is_ephemeral=True, make_parents=True)
        async with running(office.serve):
            await cluster.clock.sleep(ELECTION_S)
            assert not is_auditor(office)
            assert "waiting for the end of the auditor of Pulsar" in (office.problem or "")
            await pulsar.delete(PATHS.pulsar_auditor)
            await cluster.clock.sleep(ELECTION_S)
            assert is_auditor(office)
            leader = await pulsar.get(PATHS.pulsar_auditor)
            assert leader.stat.ephemeral_owner == store.session_id
            await pulsar.delete(PATHS.pulsar_auditor)
            await cluster.clock.sleep(0.01)
            assert not is_auditor(office), "another process may hold that office now"
            await cluster.clock.sleep(ELECTION_S)
            assert is_auditor(office)
        assert await votes(cluster) == []
        with pytest.raises(NoNodeError):
            await pulsar.get(PATHS.pulsar_auditor)

    simulate(scenario)


class FailingWorker:
    """A worker that ends after a second, with an error."""

    def __init__(self, cluster: RepairCluster, starts: list[int]) -> None:
        self._clock = cluster.clock
        self._starts = starts

    async def serve(self) -> None:
        self._starts.append(self._clock.now_ms())
        await self._clock.sleep(1)
        raise RuntimeError("no luck")

    def status(self) -> WorkerStatus:
        return WorkerStatus(held=(), finished_ms=None, ledgers_repaired=0, ledgers_failed=0, bytes_copied=0, waiting=0)


def test_a_worker_that_fails_stops_neither_the_daemon_nor_its_auditor_and_is_started_again_after_growing_pauses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        store, starts = cluster.metadata_store, list[int]()
        daemon = daemon_of(cluster, lambda: FailingWorker(cluster, starts))
        stop = asyncio.Event()
        async with running(lambda: daemon.serve(stop)):
            await cluster.clock.sleep(20)
            pauses = [round((after - before) / 1000) for before, after in itertools.pairwise(starts)]
            assert pauses == [2, 3, 5, 9], "each worker lives for a second"
            assert daemon.office is not None
            assert is_auditor(daemon.office)
            [key] = await RecoveryNotes(store, ROOT).daemons.keys()
            note = await RecoveryNotes(store, ROOT).daemons.find(key)
            assert note is not None
            assert note.value.is_auditor
        assert await RecoveryNotes(store, ROOT).daemons.keys() == [], "the note is removed at the end"

    simulate(scenario)
    assert "the worker failed and starts again in 1 s: no luck" in caplog.text


def test_an_alarm_and_its_end_are_in_the_note_at_once() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        for each in ("b1", "b2"):
            await cluster.store(ledger({0: [each, "b3"]}, 2, 2, last_entry_id=5, length=10))
        daemons = RecoveryNotes(cluster.metadata_store, ROOT).daemons

        async def alarm() -> str | None:
            [key] = await daemons.keys()
            note = await daemons.find(key)
            assert note is not None
            return note.value.alarm

        daemon, stop = daemon_of(cluster), asyncio.Event()
        async with running(lambda: daemon.serve(stop)):
            await cluster.clock.sleep(20)
            for each in ("b1", "b2"):
                await cluster.stop(each)
            await cluster.clock.sleep(2)
            assert "2 of 3 bookies are gone" in (await alarm() or "")
            await cluster.start("b1", "b2")
            await cluster.clock.sleep(2)
            assert await alarm() is None

    simulate(scenario)


def test_while_pulsar_migrates_its_metadata_neither_auditor_nor_worker_runs() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        store, starts = cluster.metadata_store, list[int]()
        daemon = daemon_of(cluster, lambda: FailingWorker(cluster, starts))
        path = flag_path(ROOT)
        await store.create(path, json.dumps({"phase": "COPYING"}).encode(), make_parents=True)
        async with running(lambda: daemon.serve(asyncio.Event())):
            await cluster.clock.sleep(20)
            assert (starts, await votes(cluster)) == ([], [])
            assert any("auditor and worker are stopped" in each for each in daemon.all_problems)
            await store.delete(path)
            await cluster.clock.sleep(20)
            assert starts
            assert len(await votes(cluster)) == 1
            assert daemon.all_problems == ()
            await store.create(path, json.dumps({"phase": "COPYING"}).encode())
            await cluster.clock.sleep(20)
            assert (daemon.worker, await votes(cluster)) == (None, [])

    simulate(scenario)


def daemon_of(cluster: RepairCluster, new_worker: Callable[[], FailingWorker] | None = None) -> AutorecoveryDaemon:
    store = cluster.metadata_store
    who = DaemonNote(bookie_id="ours", host="h", pid=1, role="both", started_ms=0, written_ms=0, is_auditor=False)
    return AutorecoveryDaemon(
        store,
        ROOT,
        cluster.clock,
        who,
        office=office_of(cluster, store, "ours"),
        new_worker=new_worker,
    )
