"""Scenarios of the auditor in virtual time. Source: replication section 14."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec
import pytest

from bkctl.runtime.autorecovery.auditor import DISABLED, REPEAT_S, Auditor
from bkctl.runtime.autorecovery.config import AutorecoveryConfig
from bkctl.runtime.autorecovery.lane import Turn
from bkctl.runtime.autorecovery.liveness import EARLY_SHARE
from bkctl.runtime.autorecovery.publisher import GROUP_BITS, MarkRequest, Publisher
from bkctl.runtime.ledger.metadata import LedgerState, Segment
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.pipeline import each_of
from bkctl.runtime.metadata.replication.directories import ForeignNames
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.marks import MarkOutcome, UnderReplicationMarks, list_marks, read_mark
from bkctl.runtime.metadata.replication.recovery_notes import LostLedgerNote, MaintenanceNote, RecoveryNotes
from bkctl.runtime.metadata.replication.switches import AuditRequest, ReplicationSwitches
from bkctl.runtime.metadata.store import Node
from bkctl.runtime.protocol.status import Status
from tests.counting_store import CountingStore
from tests.runtime.replication.samples import ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

DELAY_60 = AutorecoveryConfig(lost_bookie_delay_s=60)
NO_DELAY = AutorecoveryConfig(lost_bookie_delay_s=0)
BOOKIES = ("b1", "b2", "b3", "b4", "b5", "b6")


@contextlib.asynccontextmanager
async def auditing(cluster: RepairCluster, config: AutorecoveryConfig = DELAY_60) -> AsyncIterator[Auditor]:
    """An auditor in office. At the end all of its lanes must have worked."""
    auditor = Auditor(cluster.ports, cluster.metadata_store, config)
    serving = asyncio.ensure_future(auditor.serve())
    try:
        yield auditor
        assert not serving.done()
        assert [lane.status.error for lane in auditor.lanes if lane.status.error] == []
        assert sum(lane.status.failures for lane in auditor.lanes) == 0
    finally:
        serving.cancel()
        await asyncio.wait((serving,))


def is_alarm(auditor: Auditor) -> bool:
    return auditor.liveness.verdict.is_alarm


async def marks(cluster: RepairCluster) -> dict[int, tuple[str, ...]]:
    """All marks with the bookies that they name."""
    found = list_marks(cluster.metadata_store, ROOT, ForeignNames())
    async with contextlib.aclosing(found):
        return {each.ledger_id: each.mark.missing_bookies async for each in found if each.mark is not None}


async def losses(cluster: RepairCluster) -> dict[int, tuple[str, ...]]:
    notes = RecoveryNotes(cluster.metadata_store, ROOT).losses
    return {int(key): note.value.missing_bookies async for key, note in notes.all() if not isinstance(note, Exception)}


async def pair(cluster: RepairCluster, *ensemble: str) -> int:
    """A closed ledger with all entries on all bookies of its ensemble."""
    size = len(ensemble)
    return await cluster.store(ledger({0: list(ensemble)}, size, size, last_entry_id=9, length=100))


def test_t30_a_lost_bookie_is_marked_after_its_delay() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost, other = await pair(cluster, "b1", "b2"), await pair(cluster, "b2", "b3")
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(20)
            assert await marks(cluster) == {}
            assert auditor.marked == 0
            await cluster.clock.sleep(50)
            assert await marks(cluster) == {lost: ("b1",)}
            assert other not in await marks(cluster)
            await cluster.clock.sleep(30)
            assert auditor.marked == 1

    simulate(scenario)


def test_t30_a_bookie_that_comes_back_in_time_is_not_marked() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await pair(cluster, "b1", "b2")
        async with auditing(cluster):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(20)
            assert await RecoveryNotes(cluster.metadata_store, ROOT).deadlines.keys() == ["b1"]
            await cluster.start("b1")
            await cluster.clock.sleep(100)
            assert await marks(cluster) == {}
            assert await RecoveryNotes(cluster.metadata_store, ROOT).deadlines.keys() == []

    simulate(scenario)


@pytest.mark.parametrize(("written", "marked_after_s"), [(60, 0.1), (0, 0.1), (5, 5.1), (100, 100.1)])
def test_t30_a_write_of_the_delay(written: int, marked_after_s: float) -> None:
    """The same value and 0 audit now; another one counts from the write."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        await switches.set_recovery_delay(60)
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=1)):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(10)
            assert await marks(cluster) == {}
            await switches.set_recovery_delay(written)
            await cluster.clock.sleep(marked_after_s - 0.1)
            assert await marks(cluster) == {}
            await cluster.clock.sleep(0.2)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)


def test_t29_nothing_is_marked_while_autorecovery_is_disabled() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        async with auditing(cluster, NO_DELAY) as auditor:
            await cluster.clock.sleep(1)
            await switches.disable()
            await cluster.stop("b1")
            await cluster.clock.sleep(3600)
            assert await marks(cluster) == {}
            assert auditor.lanes[1].status.result == DISABLED
            await switches.enable()
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)


def test_t29_disabled_in_the_middle_of_a_pass() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledgers = [await pair(cluster, "b1", "b2") for _ in range(100)]
        switches = ReplicationSwitches(cluster.metadata_store, ROOT)
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=0, marks_in_flight_max=1)):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            while len(await marks(cluster)) < 5:
                await cluster.clock.sleep(0.001)
            await switches.disable()
            await cluster.clock.sleep(3600)
            assert len(await marks(cluster)) < 100
            await switches.enable()
            await cluster.clock.sleep(2)
            assert sorted(await marks(cluster)) == ledgers

    simulate(scenario)


def test_t30_a_deleted_delay_does_not_make_the_auditor_deaf() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        store, switches = cluster.metadata_store, ReplicationSwitches(cluster.metadata_store, ROOT)
        await switches.set_recovery_delay(600)
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=300)):
            await cluster.clock.sleep(1)
            await store.delete(Paths(ROOT).lost_bookie_recovery_delay)
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(200)
            assert await marks(cluster) == {}
            await switches.set_recovery_delay(0)
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)


def test_t31_two_bookies_that_restart_at_the_same_time() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        await pair(cluster, "b1", "b2")
        await pair(cluster, "b1", "b3")
        await pair(cluster, "b2", "b3", "b4")
        async with auditing(cluster):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(4)
            await cluster.stop("b2")
            await cluster.clock.sleep(5)
            await cluster.start("b1")
            await cluster.clock.sleep(5)
            await cluster.start("b2")
            await cluster.clock.sleep(300)
            assert await marks(cluster) == {}
            assert await losses(cluster) == {}

    simulate(scenario)


def test_t31_two_bookies_that_stay_away() -> None:
    """A ledger that is down to one of three copies is marked early, the others after the delays."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        thin = await pair(cluster, "b1", "b2", "b3")
        first, second = await pair(cluster, "b1", "b4"), await pair(cluster, "b2", "b4")
        gone = await pair(cluster, "b1", "b2")
        async with auditing(cluster):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(10)
            await cluster.stop("b2")
            await cluster.clock.sleep(60 * EARLY_SHARE - 1)
            assert await marks(cluster) == {}
            await cluster.clock.sleep(2)
            assert await marks(cluster) == {thin: ("b1", "b2")}
            await cluster.clock.sleep(60 - 10 - 7 + 1)
            assert await marks(cluster) == {thin: ("b1", "b2"), first: ("b1",)}
            assert await losses(cluster) == {}, "b2 may still come back"
            await cluster.clock.sleep(10)
            assert await marks(cluster) == {thin: ("b1", "b2"), first: ("b1",), second: ("b2",)}
            assert await losses(cluster) == {gone: ("b1", "b2")}

    simulate(scenario)


def test_t32_a_successor_neither_restarts_nor_skips_the_delay() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        async with auditing(cluster):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(30)
        async with auditing(cluster):
            await cluster.clock.sleep(29)
            assert await marks(cluster) == {}
            await cluster.clock.sleep(2)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)


def test_t33_a_read_only_bookie_is_alive() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        async with auditing(cluster, NO_DELAY):
            await cluster.clock.sleep(1)
            await cluster.set_mode("b1", BookieMode.READ_ONLY)
            await cluster.clock.sleep(60)
            assert await marks(cluster) == {}
            await cluster.stop("b1")
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)


def test_t34_bookies_that_were_dead_before_the_first_auditor() -> None:
    """One has a cookie; the other is only named by metadata, and waits from when it was found."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledgers = [await pair(cluster, "b1", "b3"), await pair(cluster, "b2", "b4")]
        await cluster.metadata_store.delete(Paths(ROOT).cookie("b2"))
        await cluster.stop("b1")
        await cluster.stop("b2")
        async with auditing(cluster):
            await cluster.clock.sleep(55)
            assert await marks(cluster) == {}
            assert sorted(await RecoveryNotes(cluster.metadata_store, ROOT).deadlines.keys()) == ["b1", "b2"]
            await cluster.clock.sleep(10)
            assert await marks(cluster) == dict(zip(ledgers, [("b1",), ("b2",)], strict=True))

    simulate(scenario)


def test_t35_garbage_is_reported_by_name_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        first, bad, last = [await pair(cluster, "b1", "b2") for _ in range(3)]
        store = cluster.metadata_store
        await store.set(cluster.ports.ledgers.path(bad), b"junk", -1)
        await store.create(f"{Paths(ROOT).available}/no bookie", b"")
        await store.create(f"{Paths(ROOT).cookies}/no cookie", b"", make_parents=True)
        await store.create(f"{RecoveryNotes(store, ROOT).maintenance.path}/b3", b"junk", make_parents=True)
        async with auditing(cluster, NO_DELAY) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(100)
            assert await marks(cluster) == {first: ("b1",), last: ("b1",)}
            assert auditor.lanes[1].status.result == "3 ledgers, 2 marks written, 1 unreadable"
            assert set(auditor.liveness.lost) == {"b1"}
        assert f"ledger {bad}:" in caplog.text
        assert caplog.text.count("no bookie is not a bookie id") == 1
        assert caplog.text.count("no cookie is not a bookie id") == 1
        assert caplog.text.count("the note of the maintenance of bookie b3 is ignored") == 1
        assert "audit finished: 3 ledgers, 2 marks written, 1 unreadable" in caplog.text

    with caplog.at_level(logging.INFO):
        simulate(scenario)


def test_t36_a_second_bookie_lost_during_a_pass_is_noticed_at_once() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledgers = [await pair(cluster, "b1", "b3") for _ in range(200)]
        second = await pair(cluster, "b2", "b3")
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=0, marks_in_flight_max=1)) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            while not await marks(cluster):
                await cluster.clock.sleep(0.001)
            await cluster.stop("b2")
            await cluster.clock.sleep(0.05)
            assert auditor.lanes[1].status.is_running
            assert sorted(auditor.liveness.lost) == ["b1", "b2"]
            await cluster.clock.sleep(5)
            assert await marks(cluster) == {**dict.fromkeys(ledgers, ("b1",)), second: ("b2",)}

    simulate(scenario)


async def come_back(cluster: RepairCluster, bookie_id: str, kept: dict[int, dict[int, bytes]]) -> None:
    await cluster.start(bookie_id)
    cluster.copies[bookie_id] = kept


def test_t39_marks_that_only_waited_for_a_bookie_are_cleared_without_copying() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        for _ in range(500):
            await pair(cluster, "b1", "b2")
        kept = cluster.copies["b1"]
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(70)
            assert len(await marks(cluster)) == 500
            await come_back(cluster, "b1", kept)
            await cluster.clock.sleep(10)
            assert await marks(cluster) == {}
            assert {request.kind for request in cluster.requests} == {"read"}
            assert auditor.lanes[2].status.result == "b1: cleared 500 marks, left 0 to the workers"

    simulate(scenario)


def test_t39_marks_that_may_be_needed_stay() -> None:
    """Of a checker, of an open ledger, of a ledger with another lost bookie, of lost first and last entries."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        checked, tail, head, other = [await pair(cluster, "b1", "b2") for _ in range(4)]
        both = await pair(cluster, "b1", "b3", "b4")
        still_open = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN), entries=5)
        kept = cluster.copies["b1"]
        del kept[tail][9], kept[head][0]
        theirs = UnderReplicationMarks(cluster.metadata_store, ROOT, cluster.clock)
        async with auditing(cluster):
            await cluster.clock.sleep(1)
            await theirs.mark(checked, ["b1"])
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.stop("b3")
            await cluster.clock.sleep(70)
            assert sorted(await marks(cluster)) == [checked, tail, head, other, both, still_open]
            await come_back(cluster, "b1", kept)
            await cluster.clock.sleep(10)
            assert sorted(await marks(cluster)) == [checked, tail, head, both, still_open]

    simulate(scenario)


def test_nothing_is_marked_while_too_many_bookies_are_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4")
        ledgers = [await pair(cluster, each, "b4") for each in ("b1", "b2", "b3")]
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            for each in ("b1", "b2", "b3"):
                await cluster.stop(each)
            await cluster.clock.sleep(3600)
            auditor.trigger()
            await cluster.clock.sleep(60)
            assert await marks(cluster) == {}
            assert "3 of 4 bookies are gone, more than 50.0 %" in auditor.lanes[0].status.result
            assert is_alarm(auditor)
            assert "no ledger is marked" in (auditor.liveness.alarm or "")
            await cluster.start("b1")
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {ledgers[1]: ("b2",), ledgers[2]: ("b3",)}
            assert not is_alarm(auditor)
            assert auditor.liveness.alarm is None
        assert caplog.text.count("ALARM: 3 of 4 bookies are gone") == 1

    simulate(scenario)


def test_dead_bookies_that_no_ledger_names_do_not_count_as_gone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        for each in ("old1", "old2", "old3", "old4"):
            await cluster.metadata_store.create(Paths(ROOT).cookie(each), b"", make_parents=True)
        await cluster.start("b1", "b2")
        lost = await pair(cluster, "b1", "b2")
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(100)
            assert not is_alarm(auditor)
            await cluster.stop("b1")
            await cluster.clock.sleep(62)
            assert await marks(cluster) == {lost: ("b1",)}
        assert "ALARM" not in caplog.text

    simulate(scenario)


def test_a_loss_is_noted_instead_of_a_mark_and_ends_when_a_copy_is_back() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost, deleted = await pair(cluster, "b1", "b2"), await pair(cluster, "b1", "b2")
        damaged = await pair(cluster, "b3", "b4")
        notes = RecoveryNotes(cluster.metadata_store, ROOT)
        await notes.losses.put(str(damaged), LostLedgerNote(found_ms=1, missing_bookies=(), reason="a check found it"))
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.stop("b2")
            await cluster.clock.sleep(70)
            assert await marks(cluster) == {}
            assert await losses(cluster) == {lost: ("b1", "b2"), deleted: ("b1", "b2"), damaged: ()}
            assert auditor.last_pass is not None
            assert auditor.last_pass.lost == 2
            runs = auditor.lanes[1].status.runs
            await cluster.stop("b6")
            await cluster.clock.sleep(5)
            await cluster.start("b6")
            await cluster.clock.sleep(5)
            assert auditor.lanes[1].status.runs == runs, "b6 was not given up, so it has no copy that was missing"
            await cluster.ports.ledgers.delete(deleted)
            await cluster.start("b1")
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {lost: ("b2",)}
            assert await losses(cluster) == {damaged: ()}

    simulate(scenario)


def test_a_bookie_in_maintenance_is_marked_after_its_end(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledgers = [await pair(cluster, "b1", "b2"), await pair(cluster, "b3", "b2")]
        notes, now_ms = RecoveryNotes(cluster.metadata_store, ROOT), cluster.clock.now_ms()
        await notes.maintenance.put("b1", MaintenanceNote(start_ms=now_ms, end_ms=now_ms + 1_800_000, user="anna"))
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.stop("b3")
            await cluster.clock.sleep(5)
            auditor.trigger()
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {ledgers[1]: ("b3",)}
            await cluster.clock.sleep(1700)
            assert await marks(cluster) == {ledgers[1]: ("b3",)}
            await cluster.clock.sleep(100)
            assert await marks(cluster) == {ledgers[0]: ("b1",), ledgers[1]: ("b3",)}

    with caplog.at_level(logging.WARNING):
        simulate(scenario)
    assert "bookie b1 is gone, in maintenance: its ledgers will be marked in 1799 s" in caplog.text
    assert "bookie b3 is gone: its ledgers will be marked in 60 s" in caplog.text


def test_a_trigger_finds_bookies_without_cookie_at_once() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        await cluster.stop("b1")
        async with auditing(cluster) as auditor:
            auditor.trigger()
            await cluster.clock.sleep(2)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)


def test_an_outage_of_zookeeper_ends_nothing() -> None:
    """The session expires; afterwards the auditor goes on."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        auditor = Auditor(cluster.ports, cluster.metadata_store, DELAY_60)
        serving = asyncio.ensure_future(auditor.serve())
        await cluster.clock.sleep(1)
        await cluster.stop("b1")
        cluster.link.cut()
        await cluster.clock.sleep(120)
        cluster.link.restore()
        await cluster.clock.sleep(180)
        assert not serving.done()
        assert await marks(cluster) == {lost: ("b1",)}
        serving.cancel()
        await asyncio.wait((serving,))

    simulate(scenario)


def test_a_mark_of_java_is_merged_and_a_garbage_mark_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        merged, garbage = await pair(cluster, "b1", "b2"), await pair(cluster, "b1", "b2")
        theirs = UnderReplicationMarks(cluster.metadata_store, ROOT, cluster.clock)
        await theirs.mark(merged, ["b9"])
        await theirs.mark(garbage, ["b1"])
        path = Paths(ROOT).mark(garbage)
        await cluster.metadata_store.set(path, b"\xff", -1)
        async with auditing(cluster, NO_DELAY) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(1)
            assert await marks(cluster) == {merged: ("b9", "b1")}
            assert (await cluster.metadata_store.get(path)).data == b"\xff"
            assert auditor.lanes[1].status.result == "2 ledgers, 1 mark written, 1 not marked because of an error"
        assert f"ledger {garbage} cannot be marked" in caplog.text

    simulate(scenario)


def test_reports_of_one_pass_are_limited_and_do_not_keep_later_ones_from_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        theirs = UnderReplicationMarks(cluster.metadata_store, ROOT, cluster.clock)
        for _ in range(30):
            ledger_id = await pair(cluster, "b1", "b2")
            await theirs.mark(ledger_id, ["b1"])
            await cluster.metadata_store.set(Paths(ROOT).mark(ledger_id), b"\xff", -1)
        async with auditing(cluster, NO_DELAY):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(1)
            assert caplog.text.count("cannot be marked") == 20
            await pair(cluster, "b1")
            await ReplicationSwitches(cluster.metadata_store, ROOT).set_recovery_delay(0)
            await cluster.clock.sleep(1)
            assert "no registered bookie has a copy of some entries: b1" in caplog.text

    simulate(scenario)


def test_a_bookie_that_returns_and_is_lost_again_during_a_pass_is_marked_at_its_new_deadline() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        first = [await pair(cluster, "b2", "b3") for _ in range(200)]
        last = await pair(cluster, "b1", "b3")
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=5, marks_in_flight_max=1)) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.stop("b2")
            while not await marks(cluster):
                await cluster.clock.sleep(0.001)
            await cluster.start("b1")
            await cluster.clock.sleep(0.02)
            await cluster.stop("b1")
            await cluster.clock.sleep(2)
            assert not auditor.lanes[1].status.is_running
            assert await marks(cluster) == dict.fromkeys(first, ("b2",))
            await cluster.clock.sleep(5)
            assert await marks(cluster) == {**dict.fromkeys(first, ("b2",)), last: ("b1",)}

    simulate(scenario)


def test_a_copy_that_comes_back_while_a_pass_runs_is_used() -> None:
    """The pass has met the ledger before: only one more pass can mark it."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        thin = await pair(cluster, "b1", "b2")
        others = [await pair(cluster, "b2", "b3") for _ in range(200)]
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=5, marks_in_flight_max=1)):
            await cluster.clock.sleep(1)
            await cluster.stop("b2")
            await cluster.clock.sleep(4.8)
            await cluster.stop("b1")
            while not await marks(cluster):
                await cluster.clock.sleep(0.001)
            await cluster.start("b1")
            await cluster.clock.sleep(3)
            assert await marks(cluster) == dict.fromkeys([thin, *others], ("b2",))
            assert await losses(cluster) == {}

    simulate(scenario)


def test_a_mark_that_was_cleared_too_early_is_set_again() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        theirs = UnderReplicationMarks(cluster.metadata_store, ROOT, cluster.clock)
        async with auditing(cluster, NO_DELAY):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(1)
            await theirs.clear(lost, 0)
            assert await marks(cluster) == {}
            await cluster.clock.sleep(REPEAT_S)
            assert await marks(cluster) == {lost: ("b1",)}

    simulate(scenario)


def test_a_bookie_that_is_named_twice_is_marked_again_after_each_worker_that_cannot_repair_it() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await pair(cluster, "b1", "b2", "b1")
        async with auditing(cluster) as auditor:
            for _ in range(2):
                await cluster.clock.sleep(10)
                assert await marks(cluster) == {ledger_id: ("b1",)}
                mark = await read_mark(cluster.metadata_store, ROOT, ledger_id)
                assert mark is not None
                await UnderReplicationMarks(cluster.metadata_store, ROOT, cluster.clock).clear(ledger_id, mark.version)
                auditor.trigger()

    simulate(scenario)


def test_a_decommissioned_bookie_is_forgotten() -> None:
    """Without cookie and ledgers it is no longer lost."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        notes = RecoveryNotes(cluster.metadata_store, ROOT)
        async with auditing(cluster, NO_DELAY) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(1)
            await cluster.ports.ledgers.delete(lost)
            await cluster.metadata_store.delete(Paths(ROOT).cookie("b1"))
            assert await notes.deadlines.keys() == ["b1"]
            await cluster.clock.sleep(REPEAT_S)
            assert await notes.deadlines.keys() == []
            assert auditor.liveness.verdict.counted == 5

    simulate(scenario)


def test_an_alarm_forgets_lost_bookies_that_ledgers_no_longer_name() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        repaired = [await pair(cluster, each, "b6") for each in ("b1", "b2")]
        lost = [await pair(cluster, each, "b6") for each in ("b3", "b4")]
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.stop("b2")
            await cluster.clock.sleep(70)
            for each in repaired:
                await cluster.ports.ledgers.delete(each)
            await cluster.stop("b3")
            await cluster.stop("b4")
            await cluster.clock.sleep(65)
            assert not is_alarm(auditor)
            found = await marks(cluster)
            assert {each: found[each] for each in lost} == {lost[0]: ("b3",), lost[1]: ("b4",)}

    simulate(scenario)


@pytest.mark.parametrize("is_accepted", [True, False], ids=["accepted", "only without cookies"])
def test_bookies_that_were_removed_with_an_accepted_loss_do_not_count_as_gone(*, is_accepted: bool) -> None:
    """Also those that are removed during an alarm. Ledgers whose loss was not accepted keep a bookie without cookie."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "b7")
        stuck = await cluster.store(ledger({0: ("b1", "b2", "b3")}, 2, 2, last_entry_id=5))
        healthy = await pair(cluster, "b4", "b6")
        await pair(cluster, "b5", "b6")
        notes = RecoveryNotes(cluster.metadata_store, ROOT)
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            for each in ("b1", "b2", "b3", "b4"):
                await cluster.stop(each)
            await cluster.clock.sleep(70)
            assert is_alarm(auditor)
            if is_accepted:
                await notes.given_up.put(str(stuck), GivenUpNote(written_ms=1, member_since={"b1": 1, "b2": 1}))
            for each in ("b1", "b2"):
                await cluster.metadata_store.delete(Paths(ROOT).cookie(each))
            await cluster.clock.sleep(20)
            assert is_alarm(auditor) is not is_accepted
            assert await notes.deadlines.keys() == (["b3", "b4"] if is_accepted else ["b1", "b2", "b3", "b4"])
            assert await marks(cluster) == ({healthy: ("b4",)} if is_accepted else {})
            if not is_accepted:
                return
            await cluster.stop("b5")
            await cluster.clock.sleep(70)
            assert is_alarm(auditor), "3 of 5"

    simulate(scenario)


def test_a_trigger_is_one_pass() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost = await pair(cluster, "b1", "b2")
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(1)
            runs = auditor.lanes[1].status.runs
            await AuditRequest(cluster.metadata_store, ROOT).send()
            await cluster.clock.sleep(30)
            assert await marks(cluster) == {lost: ("b1",)}
            assert auditor.lanes[1].status.runs == runs + 1

    simulate(scenario)


def test_a_trigger_during_the_look_of_another_one_is_not_lost() -> None:
    """It comes after the bookies were listed, while the first deadline is stored."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        deadlines = RecoveryNotes(cluster.metadata_store, ROOT).deadlines
        stopping: list[asyncio.Future[None]] = []

        def on_deadline(node: Node | None) -> None:
            if node is not None and not stopping:
                stopping.append(asyncio.ensure_future(cluster.stop("b3")))
                auditor.trigger()

        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            cluster.metadata_store.watch_node(deadlines.path_of("b1"), on_deadline)
            await asyncio.gather(cluster.stop("b1"), cluster.stop("b2"))
            auditor.trigger()
            await cluster.clock.sleep(30)
            await asyncio.gather(*stopping)
            note = await deadlines.find("b3")
            assert note is not None
            assert note.value.due_ms == note.value.lost_ms

    simulate(scenario)


@pytest.mark.parametrize("is_found_by_check", [True, False])
def test_t39_a_mark_that_is_needed_again_while_it_is_judged_stays(*, is_found_by_check: bool) -> None:
    """A check of copies asks for the same mark, which does not change it; or a bookie joins the ledger."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        lost, other = await pair(cluster, "b1", "b2"), await pair(cluster, "b1", "b2")
        kept, tasks = cluster.copies["b1"], list[asyncio.Future[object]]()
        async with auditing(cluster) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(70)

            async def need() -> object:
                if is_found_by_check:
                    request = MarkRequest(lost, ("b1",))
                    return await auditor.publisher.publish(each_of([request]), Turn(cluster.clock))
                found = await cluster.ports.ledgers.read(lost)
                changed = msgspec.structs.replace(found.value, segments=(Segment(0, ("b3", "b4")),))
                return await cluster.ports.ledgers.write(lost, changed, found.version)

            def begin(request: BookieRequest) -> Status | None:
                if not tasks and (request.bookie_id, request.ledger_id) == ("b1", lost):
                    tasks.append(asyncio.ensure_future(need()))
                return None

            cluster.rules.append(begin)
            await come_back(cluster, "b1", kept)
            await cluster.clock.sleep(10)
            assert tasks[0].done()
            assert await marks(cluster) == {lost: ("b1",)}
            assert other not in await marks(cluster)

    simulate(scenario)


def test_an_alarm_stops_a_running_pass_and_its_end_repeats_it() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledgers = [await pair(cluster, "b1", "b6") for _ in range(200)]
        kept = {each: cluster.copies[each] for each in ("b2", "b3", "b4")}
        for each in kept:
            await pair(cluster, each, "b6")
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=60, marks_in_flight_max=1)):
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            await cluster.clock.sleep(59)
            while not await marks(cluster):
                await cluster.clock.sleep(0.001)
            for each in kept:
                await cluster.stop(each)
            await cluster.clock.sleep(5)
            marked = len(await marks(cluster))
            assert marked < 200
            await cluster.clock.sleep(30)
            assert len(await marks(cluster)) == marked
            for each, copies in kept.items():
                await come_back(cluster, each, copies)
            await cluster.clock.sleep(5)
            assert await marks(cluster) == dict.fromkeys(ledgers, ("b1",))

    simulate(scenario)


def test_t36_a_bookie_lost_during_a_pass_is_marked_by_it_and_by_the_next_one() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledgers = [await pair(cluster, "b1", "b2", "b3") for _ in range(200)]
        async with auditing(cluster, AutorecoveryConfig(lost_bookie_delay_s=0, marks_in_flight_max=1)) as auditor:
            await cluster.clock.sleep(1)
            await cluster.stop("b1")
            while not await marks(cluster):
                await cluster.clock.sleep(0.001)
            await cluster.stop("b2")
            while ("b1", "b2") not in (found := await marks(cluster)).values():
                await cluster.clock.sleep(0.001)
            assert auditor.lanes[1].status.is_running
            assert found[ledgers[0]] == ("b1",)
            await cluster.clock.sleep(5)
            assert await marks(cluster) == dict.fromkeys(ledgers, ("b1", "b2"))

    simulate(scenario)


def test_the_first_mark_of_a_directory_creates_it_for_the_others() -> None:
    """Otherwise all that begin together would fail, with the common transactions that they are in."""

    async def scenario(cluster: RepairCluster) -> None:
        store = CountingStore(cluster.metadata_store)
        publisher = Publisher(cluster.ports, store, NO_DELAY)
        requests = [MarkRequest(group + number, ("b1",)) for group in (0, 1 << GROUP_BITS) for number in range(100)]
        tally = await publisher.publish(each_of(requests[:100]), Turn(cluster.clock))
        assert tally == {MarkOutcome.CREATED: 100}
        assert store.counts["transaction"] == 101
        tally = await publisher.publish(each_of(requests), Turn(cluster.clock))
        assert tally == {MarkOutcome.CREATED: 100, MarkOutcome.UNCHANGED: 100}
        assert store.counts["transaction"] == 101 + 100 + 101

    simulate(scenario)
