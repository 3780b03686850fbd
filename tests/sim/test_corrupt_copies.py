"""Corrupt copies on bookies that do not identify themselves as bkctl's: their stripes move to other bookies (H18)."""

from __future__ import annotations

import contextlib
import copy
import random

import pytest

from bkctl.runtime.autorecovery.config import AutorecoveryConfig, ReplicationTarget
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.close.ledger_closer import CloseOutcome, CloseResult, LedgerCloser
from bkctl.runtime.replication.config import DEFAULT_POLICY
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.plan.store import JobFile, JobRange, JobStart, JobWork, RecoveryJob
from bkctl.storage.adapters.sqlite import memory_database
from tests.runtime.client.fakes import credentials, payload
from tests.runtime.replication.samples import ledger, random_ledger
from tests.sim.autorecovery_cluster import marks_of, serving, until_unmarked, worker_on
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import RepairCluster, simulate
from tests.sim.test_in_place_repair import adds, left, plan, recover, repair_of
from tests.sim.test_replication_worker import failure_of, marked, until_failed
from tests.sim.workers import LoopWorkers

TEN = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=9, length=100)


async def start(cluster: RepairCluster, *java: str) -> None:
    """Java bookies, and then one of bkctl: b4."""
    await cluster.start(*java, software=None)
    await cluster.start("b4")


def spoil(cluster: RepairCluster, bookie_id: str, ledger_id: int, *entry_ids: int) -> None:
    for entry_id in entry_ids:
        cluster.copies[bookie_id][ledger_id][entry_id] = b"?"


@pytest.mark.parametrize("software", ["bkctl 0.1", None, "bookkeeper 4.18.0"])
def test_a_corrupt_copy_is_written_in_place_only_on_a_bookie_that_says_it_is_bkctls(software: str | None) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b2", "b3")
        await cluster.start("b1", software=software)
        ledger_id = await cluster.store(TEN)
        spoil(cluster, "b1", ledger_id, 5)
        del cluster.copies["b2"][ledger_id][7]

        report = await recover(cluster, ledger_id)

        assert report.is_complete
        in_place = [(bookie_id, entry_id) for bookie_id, entry_id in adds(cluster) if bookie_id != "b4"]
        if software == "bkctl 0.1":
            assert in_place == [("b1", 5), ("b2", 7)]
            assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3")}
        else:
            assert in_place == [("b2", 7)], "a missing copy is written in place, everywhere"
            assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}
            assert cluster.copies["b4"][ledger_id] == cluster.copies["b3"][ledger_id]
            assert (report.copies_written, report.copies_moved, report.stripes_moved) == (1, 1, 1)
            assert report.bytes_written == sum(map(len, cluster.copies["b4"][ledger_id].values())) + len(
                cluster.copies["b2"][ledger_id][7]
            )
        assert report.copies_not_needed == 0
        assert (await plan(cluster, ledger_id)).to_repair == ()
        assert await cluster.locks.read(ledger_id) is None

    simulate(scenario)


def test_the_plan_shows_the_stripes_and_their_bytes() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        metadata = ledger({0: ["b1", "b2", "b3"], 6: ["b2", "b1", "b3"]}, 2, 2, last_entry_id=11, length=120)
        ledger_id = await cluster.store(metadata)
        spoil(cluster, "b1", ledger_id, 0, 2)
        (planned,) = (await plan(cluster, ledger_id)).ledgers
        (move,) = planned.moves
        assert (planned.writes, planned.left) == ((), ())
        assert (move.bookie_id, move.first_entry_id, move.copies) == ("b1", 0, 2)
        assert (move.entries, move.stripe_entries) == ((EntryRange(0, 0), EntryRange(2, 2)), 4)
        assert move.bytes_to_copy == 4 * len(cluster.copies["b2"][ledger_id][0])

        report = await recover(cluster, ledger_id)

        assert report.is_complete
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3"), 6: ("b2", "b1", "b3")}
        assert cluster.holds("b4", ledger_id) == [0, 2, 3, 5]

    simulate(scenario)


def test_the_old_member_stays_in_the_metadata_until_all_its_entries_are_on_the_other_bookie() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await cluster.store(TEN)
        spoil(cluster, "b1", ledger_id, 5)
        before = dict(cluster.copies["b1"][ledger_id])
        seen: list[bool] = []

        def look(request: BookieRequest) -> Status | None:
            if (request.kind, request.bookie_id) == ("add", "b4"):
                stored = cluster.server.nodes[cluster.ports.ledgers.path(ledger_id)].data
                seen.append(b"b1" in stored and b"b4" not in stored)
            return None

        cluster.rules.append(look)
        assert (await recover(cluster, ledger_id)).is_complete
        assert seen == [True] * 10
        assert cluster.copies["b1"][ledger_id] == before

    simulate(scenario)


def test_without_another_bookie_the_copy_is_left_and_missing_ones_are_written() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", software=None)
        ledger_id = await cluster.store(TEN)
        spoil(cluster, "b1", ledger_id, 5)
        del cluster.copies["b1"][ledger_id][7]

        found = await plan(cluster, ledger_id)
        assert [(each.reason, each.copies) for each in found.left] == [(FailureReason.NOT_ENOUGH_BOOKIES, 1)]
        report = await recover(cluster, ledger_id)

        assert adds(cluster) == [("b1", 7)]
        assert left(report) == [("b1", FailureReason.NOT_ENOUGH_BOOKIES, 1)]
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3")}

    simulate(scenario)


def test_a_bookie_that_leaves_after_the_plan_is_no_target() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await cluster.store(TEN)
        spoil(cluster, "b1", ledger_id, 5)
        found = await plan(cluster, ledger_id)
        await cluster.stop("b4")
        report = await repair_of(cluster).run(found, lambda _: None)
        assert left(report) == [("b1", FailureReason.NOT_ENOUGH_BOOKIES, 1)]
        assert "every writable bookie is already in the ensemble" in report.left[0].detail
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3")}

    simulate(scenario)


def test_entries_without_a_good_copy_stay_where_they_are_and_keep_their_stripe() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        metadata = ledger({0: ["b1", "b2", "b3"], 6: ["b2", "b1", "b3"]}, 3, 2, last_entry_id=11, length=120)
        ledger_id = await cluster.store(metadata)
        spoil(cluster, "b1", ledger_id, 1, 4, 8)
        spoil(cluster, "b2", ledger_id, 4)
        del cluster.copies["b3"][ledger_id][4]

        report = await recover(cluster, ledger_id)

        assert left(report) == [
            ("b1", FailureReason.LOST, 1),
            ("b1", FailureReason.STRIPE, 1),
            ("b2", FailureReason.LOST, 1),
            ("b3", FailureReason.LOST, 1),
        ]
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3"), 6: ("b2", "b4", "b3")}
        assert cluster.copies["b1"][ledger_id][4] == b"?"

    simulate(scenario)


def test_a_copy_that_became_corrupt_after_the_plan_moves_too() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await cluster.store(TEN)
        whole = dict(cluster.copies["b1"][ledger_id])
        del cluster.copies["b1"][ledger_id][5]
        report = await recover(cluster, ledger_id, before_run=lambda: spoil(cluster, "b1", ledger_id, 5))
        assert (left(report), report.copies_moved) == ([], 1)
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}
        assert cluster.copies["b4"][ledger_id] == whole

    simulate(scenario)


def test_a_read_only_bookie_keeps_no_corrupt_copy_and_the_open_last_segment_is_left_alone() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b2", "b3")
        await cluster.start("b1", mode=BookieMode.READ_ONLY, software=None)
        names = ["b1", "b2", "b3"]
        ledger_id = await cluster.store(ledger({0: names, 5: names}, 3, 2, state=LedgerState.OPEN), entries=4)
        spoil(cluster, "b1", ledger_id, 3, 6)
        report = await recover(cluster, ledger_id)
        assert report.is_complete
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3"), 5: ("b1", "b2", "b3")}

    simulate(scenario)


def test_a_former_member_with_a_corrupt_copy_gets_none_over_it() -> None:
    """It is no member any more, so the metadata does not show that a record of the entry is on its disk."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b5", software=None)
        ledger_id = await cluster.store(TEN)
        cluster.copies["b5"][ledger_id] = dict(cluster.copies["b1"][ledger_id])
        spoil(cluster, "b5", ledger_id, 8)
        spoil(cluster, "b1", ledger_id, 5)

        report = await recover(cluster, ledger_id)

        assert adds(cluster) == []
        assert left(report) == [("b1", FailureReason.TARGETS_FAILED, 1)]
        assert "b5: has a corrupt copy of entry 8" in report.left[0].detail
        await cluster.start("b4")
        assert (await recover(cluster, ledger_id)).is_complete
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}

    simulate(scenario)


def damage(cluster: RepairCluster, source: random.Random) -> None:
    """A tenth of all copies is lost, another tenth corrupt."""
    for ledgers in cluster.copies.values():
        for copies in ledgers.values():
            for entry_id in list(copies):
                share = source.random()
                if share < 0.1:
                    del copies[entry_id]
                elif share < 0.2:
                    copies[entry_id] = b"?"


def make_unreadable(cluster: RepairCluster, source: random.Random, share: float) -> list[tuple[str, int, int]]:
    """Bookies cannot read some of their records. Returns a list to which adds of these entries are added."""
    unreadable = {
        (bookie_id, ledger_id, entry_id)
        for bookie_id, ledgers in cluster.copies.items()
        for ledger_id, copies in ledgers.items()
        for entry_id in copies
        if source.random() < share
    }
    written_over: list[tuple[str, int, int]] = []

    def answer(request: BookieRequest) -> Status | None:
        key = request.bookie_id, request.ledger_id, request.entry_id
        if key not in unreadable:
            return None
        if request.kind == "add":
            written_over.append(key)
        return Status.IO_ERROR if request.kind == "read" else None

    cluster.rules.append(answer)
    return written_over


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_damaged_no_copy_on_a_java_bookie_is_written_over(seed: int) -> None:
    source = random.Random(seed)
    names = ["b1", "b2", "b3", "b4"]

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*names, software=None)
        await cluster.start("b5", "b6")
        ids = [await cluster.store(random_ledger(source, names), entries=5) for _ in range(8)]
        good = copy.deepcopy(cluster.copies)
        damage(cluster, source)
        damaged = copy.deepcopy(cluster.copies)
        written_over = make_unreadable(cluster, source, 0.05)

        for _ in range(4):  # a bookie that lost a stripe may take another one in the next run
            report = await recover(cluster, *ids)

        assert adds(cluster) == []
        assert written_over == []
        known = {
            FailureReason.LOST,
            FailureReason.UNREADABLE,
            FailureReason.STRIPE,
            FailureReason.NOT_ENOUGH_BOOKIES,
            FailureReason.TARGETS_FAILED,
        }
        assert {each.reason for each in report.left} <= known
        for bookie_id in names:
            for ledger_id, copies in damaged[bookie_id].items():
                assert copies.items() <= cluster.copies[bookie_id][ledger_id].items()
        for ledger_id in ids:
            bodies = {entry: body for each in good.values() for entry, body in each.get(ledger_id, {}).items()}
            for bookie_id in ("b5", "b6"):
                assert cluster.copies[bookie_id].get(ledger_id, {}).items() <= bodies.items()

    simulate(scenario, seed=seed)


@pytest.mark.parametrize("software", ["bkctl 0.1", None])
def test_a_copy_that_its_bookie_cannot_read_is_treated_as_a_corrupt_one(software: str | None) -> None:
    """There is a record on its disk, and an index row that names it: after another add both are there."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b2", "b3")
        await cluster.start("b1", software=software)
        ledger_id = await cluster.store(TEN)
        spoil(cluster, "b1", ledger_id, 7)
        cluster.refuse("read", "b1", Status.IO_ERROR, 5, times=3)  # the verification, the repair, and one more

        (planned,) = (await plan(cluster, ledger_id)).ledgers
        if software is not None:
            assert [(each.states, each.copies) for each in planned.writes] == [
                ((CopyState.CORRUPT,), 1),
                ((CopyState.FAILED,), 1),
            ]
            return
        (move,) = planned.moves
        assert (planned.writes, move.copies, move.entries) == ((), 2, (EntryRange(5, 5), EntryRange(7, 7)))
        assert set(move.states) == {CopyState.CORRUPT, CopyState.FAILED}
        report = await recover(cluster, ledger_id)
        assert (left(report), report.copies_moved, report.stripes_moved) == ([], 2, 1)
        assert {bookie_id for bookie_id, _ in adds(cluster)} == {"b4"}
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}

    simulate(scenario)


def test_a_copy_that_is_refused_for_another_reason_is_written_in_place_everywhere() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await cluster.store(TEN)
        cluster.refuse("read", "b1", Status.UNKNOWN_LEDGER_STATE, 5, times=2)
        report = await recover(cluster, ledger_id)
        assert (left(report), adds(cluster)) == ([], [("b1", 5)])
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3")}

    simulate(scenario)


def test_a_worker_moves_the_stripe_of_a_copy_that_cannot_be_read() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await marked(cluster, TEN, "b1")
        cluster.refuse("read", "b1", Status.IO_ERROR, 5)
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        assert {bookie_id for bookie_id, _ in adds(cluster)} == {"b4"}
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}

    simulate(scenario)


def test_no_recovery_copies_over_a_copy_that_a_former_member_cannot_read() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b5", software=None)
        ledger_id = await cluster.store(TEN)
        cluster.copies["b5"][ledger_id] = dict(cluster.copies["b2"][ledger_id])
        cluster.refuse("read", "b5", Status.IO_ERROR, 8)
        report = await cluster.recover("b1")
        assert adds(cluster) == []
        assert "b5: cannot read its copy of entry 8, which stays there" in report.failures[0].detail
        await cluster.start("b4", software=None)
        assert (await cluster.recover("b1")).is_complete
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}

    simulate(scenario)


def test_no_recovery_copies_over_a_corrupt_copy_of_a_former_member() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b5", software=None)
        ledger_id = await cluster.store(TEN)
        cluster.copies["b5"][ledger_id] = dict(cluster.copies["b2"][ledger_id])
        spoil(cluster, "b5", ledger_id, 8)
        report = await cluster.recover("b1")
        assert adds(cluster) == []
        assert "b5: has a corrupt copy of entry 8" in report.failures[0].detail
        await cluster.start("b4", software=None)
        assert (await cluster.recover("b1")).is_complete
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}

    simulate(scenario)


# -- closing a ledger: the write-back of a recovery -----------------------------------------------------------------

NAMES = ["b1", "b2", "b3"]


async def abandoned(cluster: RepairCluster, quorum: int, ack_quorum: int) -> int:
    """An open ledger with the entries 0 to 4, none of which is known to be confirmed."""
    ledger_id = await cluster.store(ledger({0: NAMES}, quorum, ack_quorum, state=LedgerState.OPEN), entries=5)
    codec = credentials(ledger_id).codec
    for bookie_id in NAMES:
        for entry_id in cluster.copies[bookie_id][ledger_id]:
            body = codec.encode(entry_id, -1, 10 * (entry_id + 1), payload(entry_id))
            cluster.copies[bookie_id][ledger_id][entry_id] = body
    return ledger_id


async def close(cluster: RepairCluster, ledger_id: int) -> CloseResult:
    (result,) = [each async for each in LedgerCloser(cluster.ports).close_all([ledger_id], grace_s=0, in_parallel=1)]
    return result


@pytest.mark.parametrize("software", ["bkctl 0.1", None])
def test_a_close_writes_over_a_corrupt_copy_only_on_a_bookie_of_bkctl(software: str | None) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b2", "b3")
        await cluster.start("b1", software=software)
        ledger_id = await abandoned(cluster, 3, 2)
        spoil(cluster, "b1", ledger_id, 2)
        del cluster.copies["b1"][ledger_id][4]

        result = await close(cluster, ledger_id)

        assert (result.outcome, result.corrupt_left) == (CloseOutcome.CLOSED, {})
        if software is None:
            assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3"), 2: ("b4", "b2", "b3")}
            assert cluster.copies["b1"][ledger_id][2] == b"?"
            assert cluster.holds("b4", ledger_id) == [2, 3, 4]
        else:
            assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3")}
            assert cluster.holds("b1", ledger_id) == [0, 1, 2, 3, 4]
        found = await plan(cluster, ledger_id)
        assert (found.to_repair, found.left) == ((), ())

    simulate(scenario)


@pytest.mark.parametrize("software", ["bkctl 0.1", None])
def test_a_close_writes_over_a_copy_that_cannot_be_read_only_on_a_bookie_of_bkctl(software: str | None) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b2", "b3")
        await cluster.start("b1", software=software)
        ledger_id = await abandoned(cluster, 3, 2)
        cluster.refuse("read", "b1", Status.IO_ERROR, 2)
        result = await close(cluster, ledger_id)
        assert (result.outcome, result.corrupt_left) == (CloseOutcome.CLOSED, {})
        kept = {0: ("b1", "b2", "b3")}
        moved = {0: ("b1", "b2", "b3"), 2: ("b4", "b2", "b3")}
        assert await cluster.ensembles(ledger_id) == (moved if software is None else kept)
        assert (("b1", 2) in adds(cluster)) is (software is not None)

    simulate(scenario)


def test_a_fence_that_fails_is_no_sign_of_a_bad_copy() -> None:
    """Java answers it with an I/O error too (H10). Without a fence, the copy is good."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await abandoned(cluster, 3, 2)
        cluster.refuse("read", "b1", Status.IO_ERROR, 2, times=1)
        result = await close(cluster, ledger_id)
        assert (result.outcome, result.corrupt_left) == (CloseOutcome.CLOSED, {})
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3")}

    simulate(scenario)


def test_a_close_without_another_bookie_leaves_the_corrupt_copy_and_writes_the_other_entries() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*NAMES, software=None)
        ledger_id = await abandoned(cluster, 3, 2)
        spoil(cluster, "b1", ledger_id, 1, 3)
        del cluster.copies["b1"][ledger_id][4]
        result = await close(cluster, ledger_id)
        assert (result.outcome, result.corrupt_left) == (CloseOutcome.CLOSED, {"b1": [1, 3]})
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3")}
        assert {cluster.copies["b1"][ledger_id][each] for each in (1, 3)} == {b"?"}
        assert cluster.holds("b1", ledger_id) == [0, 1, 2, 3, 4]

    simulate(scenario)


def test_the_report_of_a_recovery_names_the_copies_that_its_close_leaves() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        names = ["b1", "b2", "b3", "b4"]
        await cluster.start(*names, software=None)
        metadata = ledger({0: names}, 4, 2, state=LedgerState.OPEN)
        ledger_id = await cluster.store(metadata, entries=5)
        codec = credentials(ledger_id).codec
        for bookie_id in names:  # none is known to be confirmed
            for entry_id in range(5):
                body = codec.encode(entry_id, -1, 10 * (entry_id + 1), payload(entry_id))
                cluster.copies[bookie_id][ledger_id][entry_id] = body
        spoil(cluster, "b1", ledger_id, 1, 3)
        await cluster.stop("b4")

        report = await cluster.recover("b4")

        assert report.ledgers_closed == 1
        assert [(each.ledger_id, each.bookie_id, each.entries) for each in report.defects] == [
            (ledger_id, "b1", (EntryRange(1, 1), EntryRange(3, 3)))
        ]
        assert [each.reason for each in report.failures] == [FailureReason.NOT_ENOUGH_BOOKIES]

    simulate(scenario)


def test_a_close_that_could_only_write_over_a_corrupt_copy_fails_until_there_is_another_bookie() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*NAMES, software=None)
        ledger_id = await abandoned(cluster, 3, 3)
        spoil(cluster, "b1", ledger_id, 1)
        result = await close(cluster, ledger_id)
        assert result.failure is not None
        assert "the copy of entry 1 on b1 is corrupt" in result.failure.reason
        assert cluster.copies["b1"][ledger_id][1] == b"?"
        await cluster.start("b4")
        assert (await close(cluster, ledger_id)).outcome is CloseOutcome.CLOSED
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3"), 1: ("b4", "b2", "b3")}

    simulate(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_damaged_a_close_writes_over_no_corrupt_copy_on_a_java_bookie(seed: int) -> None:
    source = random.Random(seed)

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*NAMES, software=None)
        await cluster.start("b4", "b5", software=None)
        ids = [await abandoned(cluster, 3, 2) for _ in range(8)]
        for ledger_id in ids:
            for entry_id in range(5):
                if source.random() < 0.5:
                    spoil(cluster, source.choice(NAMES), ledger_id, entry_id)
        damaged = copy.deepcopy(cluster.copies)
        written_over = make_unreadable(cluster, source, 0.1)
        cluster.rules.append(
            lambda each: Status.TIMEOUT if each.kind == "add" and source.random() < 0.05 else None,
        )
        for ledger_id in ids:
            await close(cluster, ledger_id)
        assert written_over == []
        for bookie_id in NAMES:
            for ledger_id in ids:
                spoilt = {key: body for key, body in damaged[bookie_id][ledger_id].items() if body == b"?"}
                assert spoilt.items() <= cluster.copies[bookie_id][ledger_id].items()

    simulate(scenario, seed=seed)


# -- the worker -----------------------------------------------------------------------------------------------------


def test_a_worker_moves_the_stripe_of_a_corrupt_copy_and_writes_missing_ones_in_place() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        corrupt, missing = [await marked(cluster, TEN, "b1") for _ in range(2)]
        whole = dict(cluster.copies["b1"][corrupt])
        spoil(cluster, "b1", corrupt, 5)
        del cluster.copies["b1"][missing][5]
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
        assert [each for each in adds(cluster) if each[0] != "b4"] == [("b1", 5)]
        assert cluster.copies["b1"][corrupt][5] == b"?"
        assert cluster.copies["b4"] == {corrupt: whole}
        assert await cluster.ensembles(corrupt) == {0: ("b4", "b2", "b3")}
        assert await cluster.ensembles(missing) == {0: ("b1", "b2", "b3")}

    simulate(scenario)


def test_a_worker_without_another_bookie_keeps_the_mark_until_one_comes() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", software=None)
        ledger_id = await marked(cluster, TEN, "b1")
        spoil(cluster, "b1", ledger_id, 5)
        async with serving(worker_on(cluster)):
            note = await until_failed(cluster, ledger_id)
            assert note.reason == FailureReason.NOT_ENOUGH_BOOKIES.name
            assert adds(cluster) == []
            await cluster.start("b4")
            await until_unmarked(cluster)
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}

    simulate(scenario)


def test_a_local_worker_leaves_a_corrupt_copy_that_its_own_bookie_cannot_take_to_others() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await marked(cluster, TEN, "b1")
        spoil(cluster, "b1", ledger_id, 5)
        config = AutorecoveryConfig(replication_target=ReplicationTarget.LOCAL)
        async with serving(worker_on(cluster, config, own_bookie="b2")):
            await cluster.clock.sleep(60)
            assert await failure_of(cluster, ledger_id) is None
        async with serving(worker_on(cluster, config, own_bookie="b4")):
            await until_unmarked(cluster)
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}

    simulate(scenario)


def test_a_worker_notices_that_a_bookie_was_handed_back_to_java() -> None:
    """A daemon runs for months; what it knew of a bookie's software before a restart is worth nothing."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b5")
        first = await marked(cluster, TEN, "b1")
        async with serving(worker_on(cluster)):
            await until_unmarked(cluster)
            assert await cluster.ensembles(first) == {0: ("b5", "b2", "b3")}
            kept = cluster.copies["b5"]
            await cluster.stop("b5")
            await cluster.clock.sleep(10)
            await cluster.start("b5", software=None)
            cluster.copies["b5"] = kept
            second = await cluster.store(TEN)
            kept[second] = dict(cluster.copies["b2"][second])
            spoil(cluster, "b5", second, 8)
            await marks_of(cluster).mark(second, ["b1"])
            note = await until_failed(cluster, second)
        assert "b5: has a corrupt copy of entry 8" in note.detail
        assert [each for each in cluster.requests if (each.kind, each.ledger_id) == ("add", second)] == []

    simulate(scenario)


@pytest.mark.parametrize("cut_after_s", [3.0, 8.0, 16.0])
@pytest.mark.parametrize("outage_s", [20.0, 100.0])
def test_an_outage_while_missing_copies_are_written_does_not_end_the_turn_before_its_move(
    cut_after_s: float, outage_s: float
) -> None:
    """The list of bookies is read again between the writes in place and the move of the corrupt copy's stripe."""

    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=4999, length=50_000))
        spoil(cluster, "b1", ledger_id, 5)
        for entry_id in [each for each in cluster.copies["b1"][ledger_id] if each > 20]:
            del cluster.copies["b1"][ledger_id][entry_id]
        found = await plan(cluster, ledger_id)
        cluster.clock.call_later(cut_after_s, cluster.link.cut)
        cluster.clock.call_later(cut_after_s + outage_s, cluster.link.restore)

        report = await repair_of(cluster, 40_000).run(found, lambda _: None)

        assert report.is_complete, report.left
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}
        assert (report.copies_moved, report.stripes_moved) == (1, 1)
        assert await cluster.locks.read(ledger_id) is None

    simulate(scenario)


def test_a_continued_job_does_not_copy_again_what_the_target_has() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await start(cluster, "b1", "b2", "b3")
        ledger_id = await cluster.store(TEN)
        spoil(cluster, "b1", ledger_id, 5)
        found = await plan(cluster, ledger_id)
        whole = cluster.copies["b2"][ledger_id] | cluster.copies["b3"][ledger_id]
        cluster.copies["b4"][ledger_id] = {each: whole[each] for each in cluster.holds("b1", ledger_id)}
        policy = DEFAULT_POLICY
        begun = JobStart(
            job_id="a1",
            command="recover ledger",
            root="/ledgers",
            instance_id=None,
            is_of_ledgers=True,
            open_ledgers=policy.open_ledgers,
            placement=policy.config.placement,
            verify=policy.config.verify,
            started_ms=1,
        )
        database = memory_database()
        with contextlib.closing(JobFile.create(database, begun, [JobWork(0, ledger_id)])) as job_file:
            job_file.append(
                JobRange(ledger_id=ledger_id, first_entry_id=0, ensemble_index=0, target="b4", last_entry_id=9)
            )
            job_file.write()
            job = RecoveryJob(JobFile(database), LoopWorkers(), lambda: None, pytest.fail)

            report = await repair_of(cluster).run(found, lambda _: None, job)

        assert report.is_complete
        assert await cluster.ensembles(ledger_id) == {0: ("b4", "b2", "b3")}
        assert adds(cluster) == []

    simulate(scenario)


def test_an_overload_does_not_hide_a_corrupt_copy_that_the_target_has() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3")
        await cluster.start("b4", software=None)
        metadata = ledger({0: ["b4", "b2", "b3"], 6: ["b1", "b2", "b3"]}, 3, 3, last_entry_id=9, length=100)
        ledger_id = await cluster.store(metadata)
        spoil(cluster, "b4", ledger_id, 8)
        cluster.refuse("read", "b4", Status.TOO_MANY_REQUESTS, 6, 7, times=2)
        await cluster.stop("b1")

        assert not (await cluster.recover("b1")).is_complete

        assert (cluster.copies["b4"][ledger_id][8], adds(cluster)) == (b"?", [])

    simulate(scenario)
