"""``recover ledger`` in virtual time: what is written again, on which bookies, and what is left alone."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest

from bkctl.runtime.ledger.changes import replace_in_segment
from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.outage import MetadataOutage
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import CopyPace, Policy, ReplicationConfig
from bkctl.runtime.replication.judge.bad_copies import InPlacePlan
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.findings import CopyFinding, copy_findings
from bkctl.runtime.replication.judge.fragments import EntryRange
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.run.in_place_repair import InPlaceRepair, InPlaceReport
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from bkctl.runtime.replication.survey.checker import LedgerChecker
from tests.runtime.client.fakes import credentials
from tests.runtime.replication.samples import ledger, random_ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate

BOOKIES = ["b1", "b2", "b3"]
CONFIG = ReplicationConfig()


def repair_of(cluster: RepairCluster, bytes_per_second: int | None = None) -> InPlaceRepair:
    def note(_: MetadataOutage) -> None:
        """Outages are not of interest here."""

    return InPlaceRepair(
        cluster.ports, cluster.locks, Policy(config=CONFIG, pace=CopyPace(bytes_per_s=bytes_per_second)), note
    )


async def plan(cluster: RepairCluster, *ledger_ids: int) -> InPlacePlan:
    return await repair_of(cluster).plan(ledger_ids, {}, lambda *_: None)


async def recover(
    cluster: RepairCluster,
    *ledger_ids: int,
    before_run: Callable[[], None] | None = None,
    on_progress: Callable[[RecoveryProgress], None] = lambda _: None,
) -> InPlaceReport:
    """Plan and run."""
    found = await plan(cluster, *ledger_ids)
    cluster.requests.clear()
    if before_run is not None:
        before_run()
    return await repair_of(cluster).run(found, on_progress)


def adds(cluster: RepairCluster) -> list[tuple[str, int]]:
    return sorted((each.bookie_id, each.entry_id) for each in cluster.requests if each.kind == "add")


def left(report: InPlaceReport) -> list[tuple[str, FailureReason, int]]:
    return [(each.bookie_id, each.reason, each.copies) for each in report.left]


@pytest.mark.parametrize("quorum", [2, 3])
def test_t24_an_ensemble_of_all_bookies_gets_its_entries_back_on_the_one_that_came_back_empty(quorum: int) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES, 40: BOOKIES}, quorum, 2, last_entry_id=99, length=1000))
        before = {bookie_id: dict(entries[ledger_id]) for bookie_id, entries in cluster.copies.items()}
        version = (await cluster.ports.ledgers.read(ledger_id)).version
        cluster.copies["b2"].clear()

        found = await plan(cluster, ledger_id)
        (write,) = found.ledgers[0].writes
        assert (write.bookie_id, write.states, write.copies, write.sources) == (
            "b2", (CopyState.MISSING,), len(before["b2"]), ("b1", "b3"),
        )  # fmt: skip
        moments: list[RecoveryProgress] = []
        report = await recover(cluster, ledger_id, on_progress=moments.append)

        assert report.is_complete
        assert (report.copies_written, report.copies_not_needed) == (len(before["b2"]), 0)
        assert report.bytes_written == sum(map(len, before["b2"].values()))
        assert {bookie_id: entries[ledger_id] for bookie_id, entries in cluster.copies.items()} == before
        assert (await cluster.ports.ledgers.read(ledger_id)).version == version
        assert await cluster.locks.read(ledger_id) is None
        last = moments[-1]
        assert (last.ledgers_done, last.ledgers_total, last.entries_copied) == (1, 1, len(before["b2"]))
        assert (await plan(cluster, ledger_id)).to_repair == ()

    simulate(scenario)


def test_t40_only_the_missing_entry_is_written_and_only_where_it_is_missing() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=9, length=100))
        body = cluster.copies["b2"][ledger_id].pop(5)

        report = await recover(cluster, ledger_id)

        assert report.is_complete
        assert adds(cluster) == [("b2", 5)]
        assert cluster.copies["b2"][ledger_id][5] == body
        assert {each.entry_id for each in cluster.requests} == {5}, "the other entries are not read again"

    simulate(scenario)


def test_t41_entries_that_no_bookie_has_are_reported_as_lost() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=0, length=10), holes=BOOKIES)
        report = await recover(cluster, ledger_id)
        assert left(report) == [(bookie_id, FailureReason.LOST, 1) for bookie_id in BOOKIES]
        assert adds(cluster) == []

    simulate(scenario)


def test_entries_that_only_a_bookie_outside_of_the_ensemble_has_are_written_again() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "b4")
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=4, length=50))
        before = dict(cluster.copies["b1"][ledger_id])
        cluster.copies["b4"][ledger_id] = {each: before[each] for each in (1, 3)}
        for bookie_id in BOOKIES:
            del cluster.copies[bookie_id][ledger_id][1]
            del cluster.copies[bookie_id][ledger_id][2]

        report = await recover(cluster, ledger_id)

        assert adds(cluster) == [(bookie_id, 1) for bookie_id in BOOKIES]
        assert left(report) == [(bookie_id, FailureReason.LOST, 1) for bookie_id in BOOKIES]
        assert all(cluster.copies[bookie_id][ledger_id][1] == before[1] for bookie_id in BOOKIES)

    simulate(scenario)


def test_corrupt_and_failed_copies_are_written_again_and_read_back() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=3, length=40))
        good = cluster.copies["b1"][ledger_id][0]
        cluster.copies["b1"][ledger_id][0] = good[:-1] + b"?"
        damaged = {1}

        def read_error(request: BookieRequest) -> Status | None:
            if (request.bookie_id, request.entry_id) != ("b2", 1):
                return None
            if request.kind == "add":
                damaged.clear()
            return Status.IO_ERROR if damaged and request.kind == "read" else None

        cluster.rules.append(read_error)
        found = await plan(cluster, ledger_id)
        assert [(each.bookie_id, each.states) for each in found.ledgers[0].writes] == [
            ("b1", (CopyState.CORRUPT,)),
            ("b2", (CopyState.FAILED,)),
        ]

        report = await recover(cluster, ledger_id)

        assert report.is_complete
        assert adds(cluster) == [("b1", 0), ("b2", 1)]
        assert cluster.copies["b1"][ledger_id][0] == good
        assert not damaged

    simulate(scenario)


def test_a_copy_that_stays_bad_although_the_bookie_stored_it_is_reported() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=3, length=40))
        cluster.copies["b1"][ledger_id][0] = b"?"
        del cluster.copies["b1"][ledger_id][2]
        cluster.rules.append(
            lambda each: Status.OK if (each.kind, each.bookie_id, each.entry_id) == ("add", "b1", 0) else None
        )

        report = await recover(cluster, ledger_id)

        assert report.copies_written == 1
        (bad,) = report.left
        assert (bad.bookie_id, bad.reason, bad.entries) == ("b1", FailureReason.STILL_BAD, (EntryRange(0, 0),))

    simulate(scenario)


def test_copies_that_differ_are_reported_and_not_chosen_from() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=2, length=30))
        codec = credentials(ledger_id).codec
        cluster.copies["b1"][ledger_id][1] = codec.encode(1, 0, 20, b"other text")
        del cluster.copies["b3"][ledger_id][1]
        cluster.copies["b1"][ledger_id][2] = codec.encode(2, 1, 30, b"other text")  # two against one

        report = await recover(cluster, ledger_id)

        assert adds(cluster) == []
        assert left(report) == [("b1", FailureReason.DIFFERENT, 2), ("b3", FailureReason.DIFFERENT, 1)]

    simulate(scenario)


def test_a_bookie_that_does_not_answer_or_is_read_only_is_left_alone() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2")
        await cluster.start("b3", mode=BookieMode.READ_ONLY)
        metadata = ledger({0: ["b1", "b3", "gone"]}, 3, 2, last_entry_id=9, length=100)
        ledger_id = await cluster.store(metadata, holes=["b3"])
        report = await recover(cluster, ledger_id)
        assert left(report) == [("b3", FailureReason.READ_ONLY, 10), ("gone", FailureReason.UNREACHABLE, 10)]
        assert adds(cluster) == []

    simulate(scenario)


def test_an_entry_whose_other_bookie_is_silent_is_unreadable_and_not_lost() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1")
        ledger_id = await cluster.store(ledger({0: ["b1", "gone"]}, 2, 2, last_entry_id=1, length=20), holes=["b1"])
        report = await recover(cluster, ledger_id)
        assert left(report) == [("b1", FailureReason.UNREADABLE, 2), ("gone", FailureReason.UNREACHABLE, 2)]

    simulate(scenario)


def test_complete_segments_of_an_open_ledger_are_repaired_and_its_last_segment_never() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES, 5: BOOKIES}, 3, 2, state=LedgerState.OPEN)
        ledger_id = await cluster.store(metadata, entries=4)
        cluster.copies["b2"].clear()

        found = await plan(cluster, ledger_id)
        assert found.ledgers[0].open_from == 5
        report = await recover(cluster, ledger_id)

        assert report.is_complete
        assert cluster.holds("b2", ledger_id) == [0, 1, 2, 3, 4]
        assert all(each.entry_id < 5 for each in cluster.requests)

    simulate(scenario)


def test_copies_that_moved_or_became_good_meanwhile_are_not_written() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES, "b4")
        ledger_id = await cluster.store(ledger({0: BOOKIES, 5: BOOKIES}, 3, 2, last_entry_id=9, length=100))
        whole = dict(cluster.copies["b2"][ledger_id])
        cluster.copies["b2"].clear()
        found = await plan(cluster, ledger_id)
        stored = await cluster.ports.ledgers.read(ledger_id)
        await cluster.ports.ledgers.write(ledger_id, replace_in_segment(stored.value, 0, {1: "b4"}), stored.version)
        cluster.copies["b2"][ledger_id] = {7: whole[7]}
        cluster.requests.clear()

        report = await repair_of(cluster).run(found, lambda _: None)

        assert report.is_complete
        assert (report.copies_written, report.copies_not_needed) == (4, 6)
        assert cluster.holds("b2", ledger_id) == [5, 6, 7, 8, 9]
        assert cluster.copies["b4"] == {}

    simulate(scenario)


def test_a_ledger_deleted_meanwhile_is_no_failure() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=9, length=100), holes=["b2"])
        found = await plan(cluster, ledger_id, 4711)
        assert found.deleted == (4711,)
        await cluster.ports.ledgers.delete(ledger_id)
        report = await repair_of(cluster).run(found, lambda _: None)
        assert report.is_complete
        assert report.results[0].was_deleted
        assert (report.copies_not_needed, adds(cluster)) == (10, [])

    simulate(scenario)


def test_a_ledger_that_a_replication_worker_has_locked_is_left_and_the_others_are_repaired() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES}, 3, 2, last_entry_id=9, length=100)
        locked, free = [await cluster.store(metadata, holes=["b2"]) for _ in range(2)]
        async with await cluster.connect() as other:
            lock = await ReplicationLocks(other, ROOT, "java-worker").acquire(locked)
            assert lock is not None
            report = await recover(cluster, locked, free)
            assert [(each.ledger_id, each.reason, each.copies) for each in report.left] == [
                (locked, FailureReason.LOCKED, 10)
            ]
            assert "java-worker" in report.left[0].detail
            assert cluster.holds("b2", locked) == []
            assert cluster.holds("b2", free) == list(range(10))
            await lock.release()
            assert (await recover(cluster, locked, free)).is_complete

    simulate(scenario)


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNAVAILABLE])
def test_a_target_that_dies_is_left_and_not_asked_for_every_entry(status: Status) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES}, 3, 2, last_entry_id=1999, length=20_000)
        ledger_id = await cluster.store(metadata, holes=["b2"])

        def die() -> None:
            written = 0

            def rule(request: BookieRequest) -> Status | None:
                nonlocal written
                if request.bookie_id != "b2":
                    return None
                written += request.kind == "add"
                return status if written > 100 else None

            cluster.rules.append(rule)

        report = await recover(cluster, ledger_id, before_run=die)

        assert sum(each.copies for each in report.left) + report.copies_written == 2000
        assert {each.reason for each in report.left} == {FailureReason.UNREACHABLE}
        assert len(adds(cluster)) < 1500
        cluster.rules.clear()
        assert (await recover(cluster, ledger_id)).is_complete
        assert cluster.holds("b2", ledger_id) == list(range(2000))

    simulate(scenario)


def test_an_overloaded_target_is_asked_again_and_a_full_one_is_reported() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES}, 3, 2, last_entry_id=9, length=100)
        ledger_id = await cluster.store(metadata, holes=["b2"])
        cluster.refuse("add", "b2", Status.TOO_MANY_REQUESTS, times=17)
        assert (await recover(cluster, ledger_id)).is_complete

        cluster.copies["b2"].clear()
        cluster.refuse("add", "b2", Status.READ_ONLY)
        report = await recover(cluster, ledger_id)
        assert left(report) == [("b2", FailureReason.READ_ONLY, 10)]

    simulate(scenario)


@pytest.mark.parametrize("cut_after_s", [0.0, 0.002, 0.004, 0.01])
def test_an_outage_of_zookeeper_that_ends_the_session_is_waited_out(cut_after_s: float) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES}, 3, 2, last_entry_id=49, length=500)
        ids = [await cluster.store(metadata, holes=["b2"]) for _ in range(20)]

        def cut() -> None:
            cluster.clock.call_later(cut_after_s, cluster.link.cut)
            cluster.clock.call_later(100.0, cluster.link.restore)

        report = await recover(cluster, *ids, before_run=cut)

        assert report.is_complete, report.left
        assert report.seconds > 100
        assert report.copies_written + report.copies_not_needed == 1000
        for ledger_id in ids:
            assert cluster.holds("b2", ledger_id) == list(range(50))
            assert await cluster.locks.read(ledger_id) is None

    simulate(scenario)


def test_only_the_given_ranges_are_verified_and_repaired() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 3, 2, last_entry_id=99, length=1000), holes=["b2"])
        before = [
            CopyFinding(
                ledger_id=ledger_id,
                bookie_id="b2",
                state=CopyState.MISSING,
                first_entry_id=first,
                last_entry_id=last,
                copies=1,
            )
            for first, last in ((20, 29), (10, 22))
        ]
        repair = repair_of(cluster)
        found = await repair.plan([ledger_id], {ledger_id: before}, lambda *_: None)
        assert sorted({each.entry_id for each in cluster.requests}) == list(range(10, 30))
        assert (await repair.run(found, lambda _: None)).is_complete
        assert cluster.holds("b2", ledger_id) == list(range(10, 30))

    simulate(scenario)


@pytest.mark.parametrize("is_from_file", [False, True])
def test_runs_of_lost_entries_hide_no_copy_that_can_be_written(is_from_file: bool) -> None:
    """Each bookie should have two of three entries, so a run of lost entries has fewer of its copies than entries."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(ledger({0: BOOKIES}, 2, 2, last_entry_id=1199, length=12_000))
        for entry_id in range(1200):
            is_lost = entry_id < 450 or 600 <= entry_id < 1050  # the others only on b2
            for bookie_id in BOOKIES if is_lost else ["b2"]:
                cluster.copies[bookie_id][ledger_id].pop(entry_id, None)
        repair, before = repair_of(cluster), {}
        if is_from_file:
            live = frozenset(BOOKIES)
            check = await LedgerChecker(cluster.ports, live, CONFIG).check(ledger_id)
            before[ledger_id] = list(copy_findings(check))
        found = await repair.plan([ledger_id], before, lambda *_: None)
        report = await repair.run(found, lambda _: None)
        assert (found.copies, report.copies_written, report.copies_not_needed) == (200, 200, 0)
        assert left(report) == [(each, FailureReason.LOST, 600) for each in BOOKIES]

    simulate(scenario)


def test_the_bytes_per_second_are_limited() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES}, 3, 2, last_entry_id=999, length=10_000)
        ledger_id = await cluster.store(metadata, holes=["b2"])
        found = await plan(cluster, ledger_id)
        report = await repair_of(cluster, 10_000).run(found, lambda _: None)
        assert report.is_complete
        # each copy is read from two bookies, written and read back
        assert report.bytes_written * 4 / report.seconds == pytest.approx(10_000, rel=0.1)

    simulate(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_every_copy_that_can_be_repaired_is_and_nothing_else_changes(seed: int) -> None:
    source = random.Random(seed)
    names = ["b1", "b2", "b3", "b4"]

    def faults(request: BookieRequest) -> Status | None:
        statuses = [Status.TIMEOUT, Status.UNAVAILABLE, Status.TOO_MANY_REQUESTS, Status.IO_ERROR]
        return source.choice(statuses) if source.random() < 0.05 else None

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*names)
        shapes = [random_ledger(source, names) for _ in range(8)]
        ids = [await cluster.store(shape, entries=5) for shape in shapes]
        stored = [await cluster.ports.ledgers.read(ledger_id) for ledger_id in ids]
        good = copy.deepcopy(cluster.copies)
        for ledgers in cluster.copies.values():
            for copies in ledgers.values():
                for entry_id in list(copies):
                    damage = source.random()
                    if damage < 0.2:
                        del copies[entry_id]
                    elif damage < 0.3:
                        copies[entry_id] = b"?"
        damaged = copy.deepcopy(cluster.copies)

        cluster.rules.append(faults)
        await recover(cluster, *ids)
        cluster.rules.clear()
        await recover(cluster, *ids)
        report = await recover(cluster, *ids)

        assert adds(cluster) == []
        assert {each.reason for each in report.left} <= {FailureReason.LOST}
        for ledger_id, versioned in zip(ids, stored, strict=True):
            assert await cluster.ports.ledgers.read(ledger_id) == versioned
            metadata = versioned.value
            end = 2**63 if metadata.is_closed else metadata.last_segment.first_entry_id
            for bookie_id in names:
                now, before = cluster.copies[bookie_id].get(ledger_id, {}), damaged[bookie_id].get(ledger_id, {})
                for entry_id, body in good[bookie_id].get(ledger_id, {}).items():
                    is_left = any(copies.get(ledger_id, {}).get(entry_id) == body for copies in damaged.values())
                    expected = body if is_left and entry_id < end else before.get(entry_id)
                    assert now.get(entry_id) == expected, (ledger_id, bookie_id, entry_id)
                assert now.keys() <= good[bookie_id].get(ledger_id, {}).keys()

    simulate(scenario, seed=seed)


TWICE = ledger({0: ["b1", "b2", "b2"], 40: ["b3", "b1", "b2"]}, 3, 2, last_entry_id=99, length=1000)
"""As two tools leave it that replace two dead bookies of a ledger at the same time, without a compare-and-set."""


def test_the_second_place_of_a_bookie_in_an_ensemble_moves_to_one_that_is_not_in_it() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(TWICE)
        before = dict(cluster.copies["b2"][ledger_id])

        found = await plan(cluster, ledger_id)
        (move,) = found.ledgers[0].moves
        assert (move.bookie_id, move.states, move.copies) == ("b2", (CopyState.REPEATED,), 40)
        assert (move.first_entry_id, move.stripe_entries) == (0, 40)
        assert not found.left

        report = await recover(cluster, ledger_id)
        assert report.is_complete
        assert (report.copies_moved, report.stripes_moved, report.copies_written) == (40, 1, 0)
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3"), 40: ("b3", "b1", "b2")}
        assert adds(cluster) == [("b3", entry_id) for entry_id in range(40)]
        assert cluster.copies["b3"][ledger_id] == before
        assert not (await plan(cluster, ledger_id)).to_repair

    simulate(scenario)


def test_a_second_place_stays_while_no_bookie_outside_of_the_ensemble_is_writable() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2")
        await cluster.start("b3", mode=BookieMode.READ_ONLY)
        ledger_id = await cluster.store(TWICE)
        assert left(await recover(cluster, ledger_id)) == [("b2", FailureReason.NOT_ENOUGH_BOOKIES, 40)]
        await cluster.set_mode("b3", BookieMode.WRITABLE)
        found = await plan(cluster, ledger_id)
        await cluster.set_mode("b3", BookieMode.READ_ONLY)
        report = await repair_of(cluster).run(found, lambda _: None)
        assert left(report) == [("b2", FailureReason.NOT_ENOUGH_BOOKIES, 40)]
        assert "has two places in the ensemble" in report.left[0].detail

    simulate(scenario)


def test_bad_copies_of_a_bookie_that_is_named_twice_are_written_and_its_second_place_moves() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(TWICE)
        del cluster.copies["b2"][ledger_id][7]
        report = await recover(cluster, ledger_id)
        assert report.is_complete
        assert (report.copies_moved, report.copies_written) == (40, 1)
        assert await cluster.ensembles(ledger_id) == {0: ("b1", "b2", "b3"), 40: ("b3", "b1", "b2")}
        assert 7 in cluster.copies["b2"][ledger_id]

    simulate(scenario)


def test_a_bookie_of_java_with_a_bad_record_that_is_named_twice_leaves_both_places() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b3", "b4")
        await cluster.start("b2", software=None)
        ledger_id = await cluster.store(ledger({0: ["b1", "b2", "b2"]}, 3, 2, last_entry_id=9, length=100))
        body = cluster.copies["b2"][ledger_id][7]
        cluster.copies["b2"][ledger_id][7] = body[:-1] + bytes([body[-1] ^ 1])
        assert (await recover(cluster, ledger_id)).is_complete
        ((_, ensemble),) = (await cluster.ensembles(ledger_id)).items()
        assert sorted(ensemble) == ["b1", "b3", "b4"]

    simulate(scenario)
