"""Scenarios of replication section 14 that concern the recovery of bookies, by their names there."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from bkctl.runtime.errors import BookieNotFoundError, MetadataUnavailableError, RefusedError
from bkctl.runtime.ledger.changes import replace_bookies, replace_in_segment
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.paths import Paths
from bkctl.runtime.metadata.replication.format import encode_lock
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.store import NodeWrite
from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.net.loop import LaneWorkers
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import Policy
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.judge.left_ledgers import Left, situation_of
from bkctl.runtime.replication.plan.store import JobFile, JobWork, RecoveryJob, UnfinishedJob
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from bkctl.runtime.replication.run.recovery import BookieRecovery
from bkctl.storage.adapters.sqlite import memory_database, temporary_database
from tests.runtime.client.fakes import segments
from tests.runtime.metadata.conftest import LosesSession, expire, session_of
from tests.runtime.metadata.replication_peer import holder_of
from tests.runtime.replication.fleet import QUICK, Fleet, length_of
from tests.runtime.replication.samples import failed_ledgers, ledger
from tests.runtime.replication.test_job_file import START, done
from tests.until import until


def bodies(fleet: Fleet, bookie_id: str, ledger_id: int) -> dict[int, bytes]:
    """What one bookie stores of a ledger."""
    stored = fleet.bookies[bookie_id].ledgers.get(ledger_id)
    return dict(stored.entries) if stored else {}


async def test_t1_a_dead_member_is_replaced_and_the_copies_are_good(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=length_of(10)))
    before = await fleet.read(ledger_id)

    report = await fleet.recover("b1")

    after = await fleet.read(ledger_id)
    assert after.version == before.version + 1
    expected = replace_in_segment(before.value, 0, {0: "b4"})
    assert after.value == msgspec.structs.replace(expected, creator_token=0), "a rewrite clears the creator's token"
    # The very bytes that the writer made, its last add confirmed included.
    assert bodies(fleet, "b4", ledger_id) == bodies(fleet, "b2", ledger_id)
    assert all(request.is_recovery for request in fleet.bookies["b4"].requests if request.kind == "add")
    assert (report.ledgers, report.ledgers_repaired, report.fragments, report.entries) == (1, 1, 1, 10)
    assert report.bytes_copied == sum(map(len, bodies(fleet, "b4", ledger_id).values()))
    assert report.is_complete
    assert await holder_of(fleet.locks, ledger_id) is None
    assert (await fleet.check(ledger_id)).is_clean


async def test_t2_only_the_stripe_of_the_index_is_copied(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=8, length=length_of(9)))

    await fleet.recover("b1")

    assert fleet.bookies["b4"].holds(ledger_id) == [0, 2, 3, 5, 6, 8]


async def test_t3_two_dead_members_get_distinct_targets_with_their_own_stripes(fleet: Fleet) -> None:
    await fleet.start("b3", "b4", "b5", "b6", "b7")
    ledger_id = await fleet.store(
        ledger({0: ["b1", "b2", "b3", "b4", "b5"]}, 3, 2, last_entry_id=19, length=length_of(20))
    )

    await fleet.recover("b1", "b2")

    ensemble = (await fleet.read(ledger_id)).value.last_segment.ensemble
    assert sorted(ensemble[:2]) == ["b6", "b7"]
    assert ensemble[2:] == ("b3", "b4", "b5")
    for index in (0, 1):
        expected = [entry_id for entry_id in range(20) if (index - entry_id) % 5 < 3]
        assert fleet.bookies[ensemble[index]].holds(ledger_id) == expected


async def test_t4_an_empty_ledger_costs_no_request(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2))

    report = await fleet.recover("b1")

    assert (await fleet.read(ledger_id)).value.last_segment.ensemble == ("b4", "b2", "b3")
    assert (fleet.reads(), fleet.adds()) == (0, 0)
    assert (report.fragments, report.entries) == (1, 0)


async def test_t5_an_empty_last_segment_is_rewritten_with_the_others_in_one_change(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4", "b5")
    ledger_id = await fleet.store(
        ledger({0: ["b1", "b2", "b3"], 10: ["b1", "b2", "b4"]}, 3, 2, last_entry_id=9, length=length_of(10))
    )

    report = await fleet.recover("b1")

    after = await fleet.read(ledger_id)
    assert "b1" not in after.value.bookies()
    assert report.fragments == 2
    assert after.version == 1, "one compare-and-set for all segments"


async def test_t12_an_open_ledger_is_closed_at_its_true_end_before_it_is_copied(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4", "b5")
    open_ledger = ledger({0: ["b1", "b2", "b3"]}, 2, 2, state=LedgerState.OPEN)
    ledger_id = await fleet.store(open_ledger)
    # Acknowledged by b1 and b2, b2 and b3, b3 and b1: entries 0 to 2.
    fleet.fakes.put(fleet.bookies["b2"], ledger_id, 0, lac=-1)
    fleet.fakes.put(fleet.bookies["b2"], ledger_id, 1, lac=0)
    fleet.fakes.put(fleet.bookies["b3"], ledger_id, 1, lac=0)
    fleet.fakes.put(fleet.bookies["b3"], ledger_id, 2, lac=1)

    report = await fleet.recover("b1")

    after = (await fleet.read(ledger_id)).value
    assert (after.state, after.last_entry_id, after.length) == (LedgerState.CLOSED, 2, length_of(3))
    assert "b1" not in after.bookies()
    assert report.ledgers_closed == 1
    assert report.is_complete
    assert fleet.bookies["b2"].ledgers[ledger_id].is_fenced
    assert (await fleet.check(ledger_id)).is_clean


async def test_t7_complete_segments_are_repaired_under_the_live_writer(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4", "b5")
    open_ledger = ledger({0: ["b1", "b2", "b3"], 20: ["b4", "b2", "b3"]}, 2, 2, state=LedgerState.OPEN)
    ledger_id = await fleet.store(open_ledger)

    await fleet.recover("b1")

    after = (await fleet.read(ledger_id)).value
    assert after.state is LedgerState.OPEN
    assert "b1" not in after.bookies()
    assert fleet.bookies["b5"].holds(ledger_id) or fleet.bookies["b4"].holds(ledger_id)
    assert not any(
        bookie.ledgers[ledger_id].is_fenced for bookie in fleet.bookies.values() if ledger_id in bookie.ledgers
    )


async def test_t13_one_ledger_without_a_copy_is_reported_and_the_others_are_repaired(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))) for _ in range(20)]
    lost = ids[3]
    for entry_id in (1, 2):
        del fleet.bookies["b2"].ledgers[lost].entries[entry_id]

    report = await fleet.recover("b1")

    assert report.ledgers_repaired == 19
    (failure,) = report.failures
    assert (failure.ledger_id, failure.reason, failure.entries) == (lost, FailureReason.LOST, (EntryRange(1, 2),))
    assert failed_ledgers(report) == {"no good copy is left": {lost}}
    assert str(failure) == f"ledger {lost}, entries 1-2: no good copy is left: entry 1: b2: no such entry"
    assert (await fleet.read(lost)).value.last_segment.ensemble == ("b1", "b2")

    again = await fleet.recover("b1")
    assert (again.ledgers, again.ledgers_repaired, len(again.failures)) == (1, 0, 1)


async def test_t13_a_ledger_of_one_copy_is_reported_whole(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1"]}, 1, 1, last_entry_id=99, length=1000))

    report = await fleet.recover("b1")

    assert [(failure.ledger_id, failure.entries) for failure in report.failures] == [(ledger_id, (EntryRange(0, 99),))]
    assert fleet.adds() == 0


def keep_outside(fleet: Fleet, bookie_id: str, ledger_id: int, entry_ids: Iterable[int]) -> None:
    """An earlier member that still has entries, as after a drain that was undone."""
    for entry_id in entry_ids:
        fleet.fakes.put(fleet.bookies[bookie_id], ledger_id, entry_id, lac=entry_id - 1)


@pytest.mark.parametrize("loss", ["down", "empty", "one entry"])
async def test_entries_that_only_a_bookie_outside_of_the_ensemble_has_are_copied_from_it(
    fleet: Fleet, loss: str
) -> None:
    await fleet.start("b2", "b3", "b4")
    sample = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=199, length=length_of(200))
    ledger_id = await fleet.store(sample, holes=[] if loss == "one entry" else ["b2"])
    keep_outside(fleet, "b4", ledger_id, [150] if loss == "one entry" else range(200))
    if loss == "one entry":
        del fleet.bookies["b2"].ledgers[ledger_id].entries[150]
    elif loss == "down":
        await fleet.fakes.withdraw("b2")

    report = await fleet.recover("b1")

    assert report.ledgers_repaired == 1
    assert {each.bookie_id for each in report.defects} <= {"b2"}
    target = (await fleet.read(ledger_id)).value.last_segment.ensemble[0]
    assert target in {"b3", "b4"}
    assert sorted(bodies(fleet, target, ledger_id)) == [*range(200)]


async def test_a_stripe_of_which_a_bookie_outside_of_the_ensemble_has_only_a_part_stays(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    sample = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=999, length=length_of(1000))
    ledger_id = await fleet.store(sample, holes=["b2"])
    keep_outside(fleet, "b4", ledger_id, range(300, 400))

    report = await fleet.recover("b1")

    (failure,) = report.failures
    assert (failure.reason, failure.entries) == (FailureReason.LOST, (EntryRange(0, 299), EntryRange(400, 999)))
    assert {each.bookie_id for each in report.defects} == {"b2"}
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b1", "b2")}


async def test_t14_a_ledger_deleted_before_its_turn_is_no_error(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    recovery = fleet.recovery()
    plan = await recovery.plan(["b1"])
    await fleet.ledgers.delete(ledger_id)

    report = await recovery.run(plan)

    assert (report.ledgers, report.ledgers_repaired, report.failures) == (1, 0, ())


async def test_t14_a_ledger_deleted_between_copy_and_compare_and_set_is_no_error(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    held = fleet.bookies["b3"].hold("add")
    running = asyncio.create_task(fleet.recover("b1"))
    await held.arrived()
    await fleet.ledgers.delete(ledger_id)
    held.release()

    report = await running
    assert (report.ledgers_repaired, report.failures) == (0, ())


async def test_t14_a_ledger_deleted_during_the_copy_is_not_lost(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    held = fleet.bookies["b2"].hold("read")
    running = asyncio.create_task(fleet.recover("b1"))
    await held.arrived()
    await fleet.ledgers.delete(ledger_id)
    del fleet.bookies["b2"].ledgers[ledger_id]
    held.release()

    report = await running
    assert report.failures == ()
    assert (report.ledgers, report.ledgers_deleted, report.defects) == (1, 1, ())


async def test_a_copy_that_another_process_moved_during_the_run_is_not_lost(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    held = fleet.bookies["b2"].hold("read")
    running = asyncio.create_task(fleet.recover("b1"))
    await held.arrived()
    fleet.bookies["b4"].ledgers[ledger_id] = fleet.bookies["b2"].ledgers.pop(ledger_id)
    stored = await fleet.read(ledger_id)
    await fleet.ledgers.write(ledger_id, replace_in_segment(stored.value, 0, {1: "b4"}), stored.version)
    held.release()

    report = await running
    assert report.failures == ()
    assert (report.ledgers_repaired, report.defects) == (1, ()), "b2 is right: it no longer has to hold the ledger"
    assert "b1" not in (await fleet.read(ledger_id)).value.bookies()
    assert (await fleet.check(ledger_id)).is_clean


async def test_a_ledger_that_another_process_closed_is_not_reported_as_unclosed(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, state=LedgerState.OPEN))
    for entry_id in range(5):
        fleet.fakes.put(fleet.bookies["b2"], ledger_id, entry_id, lac=entry_id - 1)
    fleet.bookies["b2"].refuse("read", Status.IO_ERROR, entry_id=-1)  # so that it cannot be fenced

    async def write(ledger_id: int, metadata: LedgerMetadata, expected_version: int, *others: NodeWrite) -> Any:
        written = await original(ledger_id, metadata, expected_version, *others)
        if metadata.state is LedgerState.IN_RECOVERY:
            await fleet.fakes.change(ledger_id, state=LedgerState.CLOSED, last_entry_id=4, length=length_of(5))
        return written

    original, fleet.ledgers.write = fleet.ledgers.write, write  # type: ignore[method-assign]
    report = await fleet.recover("b1")

    assert report.failures == ()
    assert report.ledgers_repaired == 1
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b3", "b2")}
    assert (await fleet.check(ledger_id)).is_clean


async def test_a_failure_that_the_metadata_still_supports_is_reported_once(fleet: Fleet) -> None:
    """The writer of the ledger adds a segment during the copy, which changes nothing about the lost entries."""
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"], 5: ["b2", "b3"]}, 2, 2, state=LedgerState.OPEN))
    del fleet.bookies["b2"].ledgers[ledger_id].entries[3]
    held = fleet.bookies["b2"].hold("read", 3)
    running = asyncio.create_task(fleet.recover("b1"))
    await held.arrived()
    stored = await fleet.read(ledger_id)
    await fleet.ledgers.write(ledger_id, replace_bookies(stored.value, 9, {0: "b4"}), stored.version)
    held.release()

    (failure,) = (await running).failures
    assert (failure.reason, failure.entries) == (FailureReason.LOST, (EntryRange(3, 3),))
    assert fleet.bookies["b2"].count("read", 3) == 1, "the copy was not tried again"


async def test_a_change_by_this_run_does_not_start_the_search_for_lost_entries_again(fleet: Fleet) -> None:
    await fleet.start("b3", "b4", "b5", "b6")
    metadata = ledger(
        {0: ["b3", "b4", "b5", "b6"], 1: ["b1", "b2", "b3", "b4"]}, 2, 2, last_entry_id=3, length=length_of(4)
    )
    ledger_id = await fleet.store(metadata)
    del fleet.bookies["b3"].ledgers[ledger_id].entries[1]

    report = await fleet.recover("b1", "b2")

    assert [(failure.reason, failure.entries) for failure in report.failures] == [
        (FailureReason.LOST, (EntryRange(1, 1),))
    ]
    assert report.fragments == 1
    assert (await fleet.read(ledger_id)).value.last_segment.ensemble[0] in {"b5", "b6"}
    assert fleet.bookies["b3"].count("read", 1) == 1


async def test_t15_a_plan_writes_nothing(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    for _ in range(5):
        await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=8, length=length_of(9)))
    await fleet.store(ledger({0: ["b2", "b3", "b4"]}, 2, 2, last_entry_id=8, length=length_of(9)))
    await fleet.store(ledger({0: ["b1", "b2"]}, 2, 1, state=LedgerState.OPEN))
    writes_before = fleet.client.held_store.write_count

    plan = await fleet.recovery().plan(["b1"])

    assert (plan.ledgers_scanned, len(plan.ledgers), plan.totals.fragments, plan.totals.entries) == (7, 6, 6, 30)
    assert [ledger_plan.needs_fencing for ledger_plan in plan.ledgers].count(True) == 1
    assert plan.targets == ("b2", "b3", "b4")
    assert fleet.client.held_store.write_count == writes_before
    assert (fleet.reads(), fleet.adds()) == (0, 0)


async def test_t16_two_recoveries_at_once_share_the_ledgers_and_both_add_up(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10))) for _ in range(8)]
    deleted = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    lost = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=0, length=length_of(1)), holes=["b2"])
    plan = await fleet.recovery().plan(["b1"])
    await fleet.ledgers.delete(deleted)
    patient = msgspec.structs.replace(QUICK, lock_wait_s=60.0)

    reports = await asyncio.gather(*(fleet.recovery(patient).run(plan) for _ in range(2)))

    assert sum(report.ledgers_repaired for report in reports) == len(ids)
    for report in reports:
        assert report.ledgers == len(plan.ledgers)
        assert report.ledgers_repaired + report.ledgers_repaired_by_others == len(ids)
        assert (report.ledgers_deleted, report.ledgers_failed, report.ledgers_unreadable) == (1, 1, 0)
        assert [failure.ledger_id for failure in report.failures] == [lost]
        assert report.has_progress == (report.ledgers_repaired > 0)


async def test_t16_a_ledger_locked_by_somebody_else_is_reported_and_not_touched(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2))) for _ in range(3)]
    other = await Fleet.build(fleet.fakes)
    lock = await other.locks.acquire(ids[1])
    assert lock is not None

    report = await fleet.recover("b1")

    assert failed_ledgers(report) == {"another process has the replication lock": {ids[1]}}
    assert "this-host" in report.failures[0].detail
    assert fleet.bookies["b3"].holds(ids[1]) == []
    assert await holder_of(fleet.locks, ids[1]) == "this-host", "the other one's lock is still there"
    await lock.release()
    assert (await fleet.recover("b1")).is_complete


async def test_t16_a_lock_that_is_given_back_in_time_is_waited_for(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    other = await Fleet.build(fleet.fakes)
    lock = await other.locks.acquire(ledger_id)
    assert lock is not None
    running = asyncio.create_task(fleet.recover("b1", config=msgspec.structs.replace(QUICK, lock_wait_s=60.0)))
    await asyncio.sleep(0.1)
    await lock.release()

    assert (await running).is_complete


async def test_t16_a_ledger_that_the_holder_of_its_lock_has_repaired_or_deleted_is_done(fleet: Fleet) -> None:
    """The lock outlives a holder that was killed, so the metadata is looked at during the wait."""
    await fleet.start("b2", "b3")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2))) for _ in range(2)]
    other = await Fleet.build(fleet.fakes)
    for ledger_id in ids:
        assert await other.locks.acquire(ledger_id) is not None
    recovery = fleet.recovery(msgspec.structs.replace(QUICK, lock_wait_s=3600.0))
    running = asyncio.create_task(recovery.run(await recovery.plan(["b1"])))
    moved = await other.read(ids[0])
    await other.ledgers.write(ids[0], replace_in_segment(moved.value, 0, {0: "b3"}), moved.version)
    await other.ledgers.delete(ids[1])

    async with asyncio.timeout(60):
        report = await running
    assert report.failures == ()
    assert (report.ledgers, report.ledgers_repaired_by_others, report.ledgers_deleted) == (2, 1, 1)
    assert all(other.locks.holds(ledger_id) for ledger_id in ids)


async def test_t16_the_metadata_is_read_once_more_when_the_wait_is_over(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    other = await Fleet.build(fleet.fakes)
    assert await other.locks.acquire(ledger_id) is not None
    recovery = fleet.recovery(msgspec.structs.replace(QUICK, lock_wait_s=0.0))
    plan = await recovery.plan(["b1"])
    moved = await other.read(ledger_id)
    await other.ledgers.write(ledger_id, replace_in_segment(moved.value, 0, {0: "b3"}), moved.version)

    report = await recovery.run(plan)
    assert (report.failures, report.ledgers_repaired_by_others) == ((), 1)


async def test_t16_metadata_that_becomes_unreadable_during_the_wait_is_a_failure_of_that_ledger(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2))) for _ in range(2)]
    other = await Fleet.build(fleet.fakes)
    assert await other.locks.acquire(ids[0]) is not None
    recovery = fleet.recovery()
    plan = await recovery.plan(["b1"])
    await fleet.client.store.set(fleet.ledgers.path(ids[0]), b"garbage", 0)

    report = await recovery.run(plan)
    assert failed_ledgers(report) == {"the ledger metadata cannot be read": {ids[0]}}
    assert report.ledgers_repaired == 1


async def test_t16_a_lock_that_no_session_owns_leads_to_the_doctor(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    lock = await fleet.locks.acquire(ledger_id)
    assert lock is not None
    await lock.release()
    path = Paths(fleet.ledgers.root).replication_lock(ledger_id)
    await fleet.client.store.create(path, encode_lock("gone-host"))

    (failure,) = (await fleet.recover("b1")).failures

    assert failure.reason is FailureReason.LOCKED
    assert "held by gone-host" in failure.detail
    assert f"no session owns {path}" in failure.detail
    assert "bkctl metadata doctor" in failure.detail


async def test_t16_a_ledger_whose_lock_is_lost_twice_may_be_repaired_by_then(
    fleet: Fleet, zookeeper: EmbeddedZooKeeper
) -> None:
    await fleet.start("b2", "b3")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2))) for _ in range(2)]
    tree = await fleet.locks.acquire(99)
    assert tree is not None
    await tree.release()
    losing = ReplicationLocks(LosesSession(fleet.client.held_store, zookeeper), fleet.ledgers.root, "this-host")
    one_by_one = msgspec.structs.replace(QUICK, ledgers_in_parallel=1)
    recovery = BookieRecovery(
        fleet.client.ports,
        fleet.cookies,
        losing,
        Policy(config=one_by_one),
        open_database=temporary_database,
    )
    plan = await recovery.plan(["b1"])
    other = await Fleet.build(fleet.fakes)
    moved = await other.read(ids[0])
    await other.ledgers.write(ids[0], replace_in_segment(moved.value, 0, {0: "b3"}), moved.version)

    report = await recovery.run(plan)
    assert failed_ledgers(report) == {"the replication lock was lost": {ids[1]}}
    assert report.ledgers_repaired_by_others == 1


async def test_a_ledger_costs_two_transactions_of_zookeeper(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    for _ in range(10):
        await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    recovery = fleet.recovery()
    plan = await recovery.plan(["b1"])
    lock = await fleet.locks.acquire(99)  # so that the directories exist
    assert lock is not None
    await lock.release()
    measures = fleet.client.held_store.measures

    def counts() -> list[int]:
        kinds = (measures.transactions, measures.creates, measures.gets, measures.sets, measures.deletes)
        return [kind.succeeded.count + kind.failed.count for kind in kinds]

    before = counts()
    assert (await recovery.run(plan)).is_complete

    transactions, creates, gets, sets, deletes = (after - first for first, after in zip(before, counts(), strict=True))
    assert transactions == 20, "lock and check of the metadata; compare-and-set and unlock"
    assert (creates, sets, deletes) == (0, 0, 0)
    assert gets < 20, "at most the watch of the lock for each ledger; a few for the bookies"


async def test_t17_the_lock_is_held_until_after_the_compare_and_set(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    other = await Fleet.build(fleet.fakes)
    held = fleet.bookies["b3"].hold("add")
    fleet.client.held_store.hold_writes()
    running = asyncio.create_task(fleet.recover("b1"))
    await held.arrived()
    assert await other.locks.acquire(ledger_id) is None
    held.release()
    await fleet.client.held_store.write_is_held()
    assert await other.locks.acquire(ledger_id) is None
    fleet.client.held_store.release_writes()
    await running
    assert await other.locks.acquire(ledger_id) is not None


@pytest.mark.parametrize("status", [Status.FENCED, Status.READ_ONLY])
async def test_t18_a_target_that_refuses_is_replaced_by_another(fleet: Fleet, status: Status) -> None:
    await fleet.start("b2", "b3", "b4")
    fleet.bookies["b3"].refuse("add", status)
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))) for _ in range(4)]

    report = await fleet.recover("b1")

    assert report.is_complete
    assert fleet.bookies["b3"].count("add") > 0, "the choice must have fallen on it"
    for ledger_id in ids:
        assert (await fleet.read(ledger_id)).value.last_segment.ensemble == ("b4", "b2")


async def test_t18_a_merely_fenced_target_takes_recovery_adds(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=0, length=length_of(1)))
    fleet.fakes.put(fleet.bookies["b3"], ledger_id, 7)
    fleet.bookies["b3"].ledgers[ledger_id].is_fenced = True

    assert (await fleet.recover("b1")).is_complete
    assert fleet.bookies["b3"].holds(ledger_id) == [0, 7]


async def test_t19_a_target_that_dies_in_the_middle_is_never_named(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10))) for _ in range(4)]
    for entry_id in range(5, 10):
        fleet.bookies["b3"].drop("add", entry_id)

    report = await fleet.recover("b1")

    assert report.is_complete, report.failures
    assert fleet.bookies["b3"].count("add") > 0, "the choice must have fallen on it"
    for ledger_id in ids:
        assert segments((await fleet.read(ledger_id)).value) == {0: ("b4", "b2")}
        assert fleet.bookies["b4"].holds(ledger_id) == list(range(10))


async def test_t19_a_target_that_loses_what_it_acknowledged_is_never_named(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ids = [await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5))) for _ in range(4)]
    fleet.bookies["b3"].refuse("read", Status.NO_SUCH_ENTRY)

    report = await fleet.recover("b1")

    assert report.is_complete
    assert fleet.bookies["b3"].count("add") > 0
    for ledger_id in ids:
        assert (await fleet.read(ledger_id)).value.last_segment.ensemble == ("b4", "b2")


async def test_a_target_that_serves_something_else_is_never_named(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=2, length=length_of(3)))
    for entry_id in range(3):
        fleet.fakes.put(fleet.bookies["b3"], ledger_id, entry_id, size=11)  # digests hold, payloads are others
    fleet.bookies["b3"].refuse("add", Status.OK)

    (failure,) = (await fleet.recover("b1")).failures

    assert failure.reason is FailureReason.TARGETS_FAILED
    assert "has a different entry" in failure.detail
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b1", "b2")}


async def test_no_target_left_is_reported(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    fleet.bookies["b3"].refuse("add", Status.IO_ERROR)
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5)))

    (failure,) = (await fleet.recover("b1")).failures

    assert (failure.ledger_id, failure.reason) == (ledger_id, FailureReason.TARGETS_FAILED)
    assert "b3" in failure.detail
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b1", "b2")}


async def test_one_target_for_two_dead_members_replaces_one_and_reports_the_other(fleet: Fleet) -> None:
    await fleet.start("b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=4, length=length_of(5)))

    report = await fleet.recover("b1", "b2")

    (failure,) = report.failures
    assert (failure.reason, failure.entries) == (FailureReason.NOT_ENOUGH_BOOKIES, (EntryRange(0, 4),))
    assert "already in the ensemble" in failure.detail
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b4", "b2", "b3")}
    assert fleet.bookies["b4"].holds(ledger_id) == list(range(5))

    await fleet.start("b5")
    assert (await fleet.recover("b2")).is_complete
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b4", "b5", "b3")}


@pytest.mark.parametrize("is_kept", [False, True])
async def test_without_a_live_copy_the_reason_is_not_the_missing_target(fleet: Fleet, *, is_kept: bool) -> None:
    await fleet.start("b3")
    await fleet.start("b4", mode=BookieMode.READ_ONLY)
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=5, length=length_of(6)))
    if is_kept:
        fleet.fakes.put(fleet.bookies["b4"], ledger_id, 0, lac=-1)

    failures = (await fleet.recover("b1")).failures

    [first] = failures
    if is_kept:
        assert first.reason is FailureReason.NOT_ENOUGH_BOOKIES
        return
    assert (first.reason, first.absent) == (FailureReason.UNREADABLE, ("b1", "b2"))
    assert first.bare_detail == "entry 0: b1: not registered, b2: not registered"
    assert situation_of(first) is Left.NO_LIVE_COPY


async def test_a_read_only_bookie_is_a_source_and_never_a_target(fleet: Fleet) -> None:
    await fleet.start("b2", "b4", mode=BookieMode.READ_ONLY)
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5)))
    recovery = fleet.recovery()

    plan = await recovery.plan(["b1"])
    report = await recovery.run(plan)

    assert (plan.ledgers[0].surviving_copies, plan.targets, plan.totals.ledgers_without_target) == (1, (), 1)
    assert failed_ledgers(report) == {"no bookie to copy to": {ledger_id}}
    assert fleet.adds() == 0

    await fleet.start("b3")
    assert (await recovery.run(await recovery.plan(["b1"]))).is_complete
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b3", "b2")}


async def test_t20_a_bad_copy_is_passed_over_and_reported(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(
        ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=length_of(10)), ledger_id=7
    )
    for bookie_id in ("b2", "b3"):
        fleet.bookies[bookie_id].damage(ledger_id, 4 if bookie_id == "b2" else 6)

    report = await fleet.recover("b1")

    assert report.is_complete
    assert sorted(fleet.bookies["b4"].holds(ledger_id)) == list(range(10))
    check = await fleet.check(ledger_id)
    assert [defect.bookie_id for defect in check.defects] == ["b2", "b3"]
    (defect,) = report.defects
    assert defect.state is CopyState.CORRUPT
    assert (defect.bookie_id, defect.entries) in {("b2", (EntryRange(4, 4),)), ("b3", (EntryRange(6, 6),))}


async def test_t21_an_overloaded_source_is_waited_for(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=19, length=length_of(20)))
    fleet.bookies["b2"].refuse("read", Status.TOO_MANY_REQUESTS, times=30)

    report = await fleet.recover("b1")

    assert report.is_complete
    assert report.defects == ()
    assert fleet.bookies["b3"].holds(ledger_id) == list(range(20))


async def test_silence_of_the_last_copy_is_not_loss(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    fleet.bookies["b2"].refuse("read", Status.IO_ERROR, entry_id=2)
    fleet.bookies["b2"].refuse("read", Status.TOO_MANY_REQUESTS, entry_id=4)

    (failure,) = (await fleet.recover("b1")).failures

    assert failure.reason is FailureReason.UNREADABLE
    assert failure.entries == (EntryRange(2, 2), EntryRange(4, 9))
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b1", "b2")}


async def test_a_last_copy_that_its_bookie_cannot_read_is_named_exactly_and_is_no_silence(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    fleet.bookies["b2"].refuse("read", Status.IO_ERROR, entry_id=4)

    report = await fleet.recover("b1")

    (failure,) = report.failures
    assert str(failure) == (
        f"ledger {ledger_id}, entries 4: surviving copies cannot be read: entry 4: b2: it answered: input/output error"
    )
    assert [(defect.bookie_id, defect.state, defect.entries) for defect in report.defects] == [
        ("b2", CopyState.FAILED, (EntryRange(4, 4),))
    ]
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b1", "b2")}


async def test_t22_a_bookie_that_came_in_meanwhile_is_not_named_twice(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b9")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=4, length=length_of(5)))
    held = fleet.bookies["b9"].hold("add", 0)
    running = asyncio.create_task(fleet.recover("b1"))
    await held.arrived()
    # Another repairer, without the lock, puts b9 at another index; there is one more bookie from now on.
    stored = await fleet.read(ledger_id)
    await fleet.ledgers.write(ledger_id, replace_in_segment(stored.value, 0, {1: "b9"}), stored.version)
    await fleet.start("b8")
    held.release()

    report = await running
    assert report.is_complete, report.failures
    target, *others = (await fleet.read(ledger_id)).value.last_segment.ensemble
    assert others == ["b9", "b3"]
    assert target in {"b2", "b8"}
    assert fleet.bookies[target].holds(ledger_id) == list(range(5))


async def test_t23_changes_of_the_writer_during_the_copy_are_kept(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4", "b5")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"], 5: ["b2", "b3"]}, 2, 2, state=LedgerState.OPEN))
    rival = await Fleet.build(fleet.fakes)
    turns = 0

    async def write(ledger_id: int, metadata: LedgerMetadata, expected_version: int, *others: NodeWrite) -> Any:
        nonlocal turns
        if turns < 3:
            turns += 1
            stored = await rival.read(ledger_id)
            changed = replace_bookies(stored.value, 10 * turns, {turns % 2: ["b5", "b4", "b3"][turns - 1]})
            await rival.ledgers.write(ledger_id, changed, stored.version)
        return await original(ledger_id, metadata, expected_version, *others)

    original, fleet.ledgers.write = fleet.ledgers.write, write  # type: ignore[method-assign]
    report = await fleet.recover("b1")

    assert report.is_complete
    after = segments((await fleet.read(ledger_id)).value)
    assert after.pop(0)[1] == "b2"
    assert after == {5: ("b2", "b3"), 10: ("b2", "b5"), 20: ("b4", "b5"), 30: ("b4", "b3")}
    assert report.entries == 5, "copied once"


async def test_a_ledger_that_cannot_be_closed_is_reported_and_its_old_segments_are_repaired(fleet: Fleet) -> None:
    await fleet.start("b2", "b3", "b4")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"], 5: ["b1", "gone"]}, 2, 2, state=LedgerState.OPEN))

    report = await fleet.recover("b1")

    assert [failure.reason for failure in report.failures] == [FailureReason.NOT_CLOSED]
    after = segments((await fleet.read(ledger_id)).value)
    assert after[0][1] == "b2"
    assert after[0][0] != "b1"
    assert after[5] == ("b1", "gone")


async def test_unreadable_metadata_is_reported_and_the_rest_goes_on(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    good = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=length_of(2)))
    path = f"{fleet.ledgers.root}/{fleet.ledgers.tree.ledger_path(555)}"
    await fleet.client.store.create(path, b"garbage", make_parents=True)

    report = await fleet.recover("b1")

    assert [(failure.ledger_id, failure.reason) for failure in report.failures] == [
        (555, FailureReason.METADATA_UNREADABLE)
    ]
    assert segments((await fleet.read(good)).value) == {0: ("b3", "b2")}


@pytest.mark.parametrize("mode", BookieMode)
async def test_a_bookie_that_serves_is_refused_and_one_that_is_silent_is_waited_for(
    fleet: Fleet, mode: BookieMode
) -> None:
    await fleet.start("b1", mode=mode)
    await fleet.start("b2")
    recovery = fleet.recovery()
    with pytest.raises(RefusedError, match="bookie b1 is up and serving"):
        await recovery.require_down(["b1"])
    fleet.bookies["b1"].refuse("info", Status.UNAUTHORIZED, times=1)
    with pytest.raises(RefusedError, match=r"bookie b1 is up and answers: .+; stop it first"):
        await recovery.require_down(["b1"])
    await fleet.bookies["b1"].stop()
    waited_for: list[str] = []
    with pytest.raises(RefusedError, match="still registered"):
        await recovery.require_down(["b1"], waited_for.append)
    assert waited_for == ["b1"]
    await recovery.require_down(["never-there"])


async def test_a_misspelt_bookie_is_not_found(fleet: Fleet) -> None:
    await fleet.start("b2")
    await fleet.add_cookie("b1")
    assert not (await fleet.recovery().plan(["b1"])).ledgers
    with pytest.raises(BookieNotFoundError, match="b11"):
        await fleet.recovery().plan(["b11"])


async def test_progress_ends_with_everything_done(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    for _ in range(5):
        await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    recovery = fleet.recovery()
    moments: list[RecoveryProgress] = []
    report = await recovery.run(await recovery.plan(["b1"]), moments.append)

    last = moments[-1]
    assert (last.ledgers_done, last.ledgers_total, last.ledgers_failed) == (5, 5, 0)
    assert last.entries_copied == 50
    assert last.bytes_copied == report.bytes_copied


async def test_ledgers_that_fail_leave_the_planned_bytes_with_their_reason(fleet: Fleet) -> None:
    """What is left is that of the others, and the limit says how long these take at least."""
    await fleet.start("b2", "b3")
    for _ in range(2):
        await fleet.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=length_of(10)))
    await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=9, length=length_of(10)))
    recovery = fleet.recovery(bytes_per_s=1000)
    plan = await recovery.plan(["b1"])
    per_ledger = {each.ledger_id: each.bytes_to_copy or 0 for each in plan.ledgers}
    moments: list[RecoveryProgress] = []
    report = await recovery.run(plan, moments.append)

    assert report.ledgers_failed == 2
    last = moments[-1]
    assert last.failed == ", 2 failed (no bookie to copy to)"
    failed = {each.ledger_id for each in report.failures}
    assert last.bytes_planned == sum(size for key, size in per_ledger.items() if key not in failed)
    assert last.least_s < 0.1, "all of these were copied"
    assert moments[0].least_s <= plan.totals.bytes_to_copy / 1000


async def test_t38_a_session_that_ends_during_the_copy_writes_nothing_and_the_next_one_does(
    fleet: Fleet, zookeeper: EmbeddedZooKeeper
) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=length_of(5)))
    held = fleet.bookies["b3"].hold("add")
    running = asyncio.create_task(fleet.recover("b1", config=msgspec.structs.replace(QUICK, lock_wait_s=60.0)))
    await held.arrived()
    await asyncio.to_thread(expire, session_of(fleet.client.held_store), zookeeper)
    other = await Fleet.build(fleet.fakes)
    await until_free(other, ledger_id)
    lock = await other.locks.acquire(ledger_id)
    assert lock is not None
    await until_connected(fleet, ledger_id)
    held.release()
    await asyncio.sleep(0.3)
    assert segments((await other.read(ledger_id)).value) == {0: ("b1", "b2")}, "not without the lock"
    await lock.release()

    assert (await running).is_complete
    assert segments((await fleet.read(ledger_id)).value) == {0: ("b3", "b2")}


async def until_connected(fleet: Fleet, ledger_id: int) -> None:
    """Wait until the fleet's store has a new session."""
    while True:
        with contextlib.suppress(MetadataUnavailableError):
            await fleet.read(ledger_id)
            return


async def until_free(fleet: Fleet, ledger_id: int) -> None:
    """Wait until the lock has gone with its session."""

    async def is_free() -> bool:
        return await holder_of(fleet.locks, ledger_id) is None

    await until(is_free)


@pytest.mark.parametrize("is_of_ledgers", [False, True])
async def test_the_end_of_a_continued_job_finds_ledgers_that_were_not_in_its_plan(
    fleet: Fleet, is_of_ledgers: bool
) -> None:
    await fleet.start("b2", "b3")
    planned = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2))
    start = msgspec.structs.replace(START, bookie_ids=("b1",), is_of_ledgers=is_of_ledgers)
    late = await fleet.store(ledger({0: ["b2", "b1"]}, 2, 2))
    recovery = fleet.recovery()

    report = await recovery.run(await recovery.plan_unfinished(UnfinishedJob(start, (planned,))))

    assert segments((await fleet.read(planned)).value) == {0: ("b3", "b2")}
    if is_of_ledgers:
        assert report.is_complete
        return
    (failure,) = report.failures
    assert (failure.ledger_id, failure.reason) == (late, FailureReason.NOT_PLANNED)
    assert failure.detail == "it references b1: run the command again without --resume"
    assert (report.ledgers, report.ledgers_repaired, report.ledgers_failed) == (2, 1, 1)
    assert (await recovery.run(await recovery.plan(["b1"]))).is_complete
    assert (await recovery.run(await recovery.plan_unfinished(UnfinishedJob(start, (planned, late))))).is_complete


async def test_a_full_disk_ends_the_record_of_a_job_and_not_the_run(fleet: Fleet) -> None:
    await fleet.start("b2", "b3")
    ledger_id = await fleet.store(ledger({0: ["b1", "b2"]}, 2, 2))
    database, workers, warnings = memory_database(), LaneWorkers(), list[str]()
    job_file = JobFile.create(database, START, [JobWork(1, ledger_id)])
    (pages,) = next(database.execute("PRAGMA page_count"))
    database.execute(f"PRAGMA max_page_count = {pages}")
    for other in range(10_000):
        job_file.append(done(other))
    recovery = fleet.recovery()

    report = await recovery.run(
        await recovery.plan(["b1"]), job=RecoveryJob(job_file, workers, lambda: None, warnings.append)
    )

    await workers.close()
    assert report.is_complete
    assert warnings == ["cannot write the job file, so --resume cannot continue this run: No space left on device"]
    assert job_file.unfinished.ledger_ids == (ledger_id,)
