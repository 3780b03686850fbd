"""Recoveries and drains of bookies in virtual time."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from bkctl.runtime.ledger.metadata import LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.replication.given_up_note import GivenUpNote
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import CopyPace, OpenLedgers, Policy, ReplicationConfig, VerifyMode
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.copy.stripe import StripeReplicator
from bkctl.runtime.replication.copy.stripe_task import CopyTools, StripeTask
from bkctl.runtime.replication.judge.copies import CopyState
from bkctl.runtime.replication.judge.fragments import EntryRange, fragments_naming
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from bkctl.runtime.replication.judge.left_ledgers import left_groups
from bkctl.runtime.replication.run.ledgers import RecoveryProgress
from tests.runtime.client.fakes import credentials
from tests.runtime.replication.samples import failed_ledgers, ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import ROOT, RepairCluster, simulate


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


@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize("is_down", [True, False])
def test_entries_of_a_lost_bookie_that_came_back_are_kept_though_their_loss_was_accepted(
    *, is_down: bool, is_member: bool
) -> None:
    """d1 was given up, came back with the lost entries, and is a member again, or not yet. Then b1 is to be replaced,
    or d1 itself, which may be down again: what only it has is not left behind."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b3", "b4", "d1")
        first = "d1" if is_member else "b1"
        metadata = ledger({0: [first, "b2", "b3"]}, 3, 2, last_entry_id=9, length=100)
        ledger_id = await cluster.store(metadata)
        cluster.copies["d1"].setdefault(ledger_id, dict(cluster.copies["b2"][ledger_id]))
        for bookie_id in ("b1", "b2", "b3"):
            for entry_id in (2, 3, 7):
                cluster.copies[bookie_id].get(ledger_id, {}).pop(entry_id, None)
        note = GivenUpNote(written_ms=1, member_since={"d1": 1}, closed_without=("d1",), lost=((2, 3), (7, 7)))
        await RecoveryNotes(cluster.metadata_store, ROOT).given_up.put(str(ledger_id), note)
        if is_down:
            await cluster.stop(first)
        report = await cluster.recover(first, unreachable=[first] if is_down else ())

        lost_again = is_member and is_down
        assert report.is_complete is not lost_again, report.failures
        (target,) = {*(await cluster.ensembles(ledger_id))[0]} - {"b2", "b3"}
        assert lost_again == (target == first)
        if not lost_again:
            assert cluster.holds(target, ledger_id) == list(range(10))

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
        if policy is not OpenLedgers.SKIP:
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


def test_a_ledger_that_cannot_be_closed_is_not_fenced() -> None:
    """Its writer may be alive: then it replaces both lost bookies, and a fence would only stop it."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b3", "b4", "b5")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=LedgerState.OPEN), entries=3)

        report = await cluster.recover("b1")

        (failure,) = report.failures
        assert failure.reason is FailureReason.NOT_CLOSED
        assert "entries may exist that only b1 and b2 can have (not registered)" in failure.detail
        assert (await cluster.ports.ledgers.read(ledger_id)).value.state is LedgerState.OPEN
        assert cluster.asked("b3") == []

        await cluster.start("b2")
        assert (await cluster.recover("b1")).is_complete

    simulate(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_t42_every_entry_is_copied_once_however_few_a_batch_answers(seed: int) -> None:
    """The modelled bookies answer any part of a batch, in any order."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4", "b5")
        ids = [
            await cluster.store(ledger({0: ["b1", "b2"], 700: ["b1", "b3"]}, 2, 2, last_entry_id=1399, length=1)),
            await cluster.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=899, length=1)),
        ]

        report = await cluster.recover("b1")

        assert report.is_complete, report.failures
        assert report.entries == 1400 + 600
        added = [each for each in cluster.requests if each.kind == "add"]
        assert len(added) == len({(each.ledger_id, each.entry_id) for each in added}) == 2000
        (target,) = {each.bookie_id for each in added if each.ledger_id == ids[1]}
        assert cluster.holds(target, ids[1]) == [entry_id for entry_id in range(900) if entry_id % 3 != 1]

    simulate(scenario, seed=seed)


def test_no_entry_is_read_back_before_its_add_is_acknowledged() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1999, length=1))
        acknowledged: set[int] = set()

        def watch(request: BookieRequest) -> None:
            if request.bookie_id == "b3" and request.kind == "add":
                acknowledged.add(request.entry_id)
            elif request.bookie_id == "b3":
                assert request.entry_id in acknowledged

        cluster.rules.append(watch)
        assert (await cluster.recover("b1")).is_complete
        assert sorted(cluster.asked("b3")) == sorted(acknowledged) == list(range(2000))

    simulate(scenario)


@pytest.mark.parametrize("mode", VerifyMode)
def test_the_choice_of_verification_determines_what_is_read_back(mode: VerifyMode) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=999, length=1))

        report = await cluster.recover("b1")

        assert report.is_complete
        assert report.verify is mode
        read_back = set(cluster.asked("b3"))
        if mode is VerifyMode.SAMPLE:
            assert {0, 999} <= read_back
            assert 10 <= len(read_back) <= 20
        else:
            assert len(read_back) == (1000 if mode is VerifyMode.ALL else 0)

    simulate(scenario, ReplicationConfig(verify=mode))


def test_t21_a_source_that_rejects_for_ten_seconds_delays_the_copy_and_nothing_is_missing() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=999, length=1))
        until_ns = cluster.clock.monotonic_ns() + 10 * 10**9

        def reject(request: BookieRequest) -> Status | None:
            is_early = request.bookie_id == "b2" and cluster.clock.monotonic_ns() < until_ns
            return Status.TOO_MANY_REQUESTS if is_early else None

        cluster.rules.append(reject)
        report = await cluster.recover("b1")

        assert report.is_complete, report.failures
        assert report.defects == ()
        assert cluster.holds("b3", ledger_id) == list(range(1000))
        assert len(cluster.asked("b2")) < 20_000

    simulate(scenario)


def test_a_source_that_lost_its_disk_is_asked_once_for_each_entry() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        metadata = ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=999, length=1)
        ledger_id = await cluster.store(metadata, holes=["b2"])

        report = await cluster.recover("b1")

        assert report.is_complete
        assert cluster.holds("b4", ledger_id) == list(range(1000))
        assert len(cluster.asked("b2")) <= 1000
        assert [(each.bookie_id, each.state) for each in report.defects] in ([], [("b2", CopyState.MISSING)])

    simulate(scenario)


def test_t41_a_ledger_of_one_entry_that_no_bookie_has_is_lost() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        await cluster.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, last_entry_id=0, length=10), holes=["b2", "b3"])

        (failure,) = (await cluster.recover("b1")).failures

        assert (failure.reason, failure.entries) == (FailureReason.LOST, (EntryRange(0, 0),))
        assert cluster.asked("b4", "add") == []

    simulate(scenario)


def test_the_progress_says_why_bookies_refuse_this_client() -> None:
    """While a ledger waits for its second attempt; not once it has its copies."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=20)
        await cluster.store(metadata)
        cluster.refuse("add", "b3", Status.AUTHENTICATION_REQUIRED, times=2)
        moments: list[RecoveryProgress] = []
        report = await cluster.recovery.run(await cluster.recovery.plan(["b1"]), moments.append)
        assert report.is_complete
        waiting = next(each for each in moments if each.oldest_waits_for == "a bookie that takes its copies")
        assert "b3" in waiting.refusal
        assert moments[-1].refusal == ""

    simulate(scenario)


@pytest.mark.parametrize(("in_parallel", "rate"), [(4, None), (40, 10_000)])
def test_a_bookie_that_falls_silent_is_named_and_what_it_would_complete_costs_no_rate(
    in_parallel: int, rate: int | None
) -> None:
    """Half of each stripe is on b3, which answers: to read it for ledgers that fail all the same would use the rate up.

    Found in a recovery with --copy-rate during which a second bookie was killed. Ledgers that wait for their turn by
    the rate by then give it back.
    """
    ledgers = 40

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        for _ in range(ledgers):
            await cluster.store(ledger({0: ["b1", "b2", "b3"]}, 2, 2, last_entry_id=98, length=99))
        plan = await cluster.recovery.plan(["b1"])
        cluster.copies.pop("b2")  # killed: it is registered until its session ends
        moments: list[RecoveryProgress] = []
        policy = Policy(config=cluster.recovery.policy.config, pace=CopyPace(bytes_per_s=rate))
        report = await cluster.recovery_by(policy).run(plan, moments.append)

        assert report.ledgers_failed == ledgers
        assert len([each for each in cluster.asked("b3") if each >= 0]) <= 4 * 33
        assert moments[-1].failed == f", {ledgers} failed (surviving copies cannot be read: b2 does not answer)"
        (group,) = left_groups(report.failures, ["b1"])
        assert group.sentence == f"{ledgers} have entries without a live copy (start b2)"

    simulate(scenario, ReplicationConfig(ledgers_in_parallel=in_parallel))


def test_nothing_is_read_for_a_target_that_has_fallen_silent() -> None:
    ledgers, entries = 20, 33

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b4", "b5")
        for _ in range(ledgers):
            for member in ("b4", "b2"):
                await cluster.store(ledger({0: ["b1", member]}, 2, 2, last_entry_id=entries - 1, length=entries))
        plan = await cluster.recovery.plan(["b1"])
        cluster.copies.pop("b4")  # a source, and as likely a target as b5
        policy = Policy(config=cluster.recovery.policy.config, pace=CopyPace(bytes_per_s=10_000))
        report = await cluster.recovery_by(policy).run(plan)

        assert report.ledgers_failed == ledgers
        assert len([each for each in cluster.asked("b2") if each >= 0]) <= (ledgers + 3) * entries

    simulate(scenario)


def test_t16_a_locked_ledger_goes_to_the_end_of_the_queue() -> None:
    """With one ledger at a time, a ledger that waited in its place would hold up all others."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=20)
        ids = [await cluster.store(metadata) for _ in range(6)]
        newest = ids[-1]
        other = await cluster.connect()
        others_locks = ReplicationLocks(other, ROOT, "other-host")
        lock = await others_locks.acquire(newest)
        assert lock is not None
        moments: list[RecoveryProgress] = []
        plan = await cluster.recovery.plan(["b1"])
        assert plan.ledgers[0].ledger_id == newest
        running = asyncio.create_task(cluster.recovery.run(plan, moments.append))
        await cluster.clock.sleep(20)
        assert [await cluster.ensembles(each) for each in ids] == [*[{0: ("b3", "b2")}] * 5, {0: ("b1", "b2")}]
        assert moments[-1].oldest_waits_for == "the lock that another process has"
        assert moments[-1].oldest_s > 15
        await lock.release()
        report = await running
        await other.close()

        assert report.is_complete
        assert report.ledgers_repaired == len(ids)
        assert report.seconds < 25

    simulate(scenario, ReplicationConfig(ledgers_in_parallel=1))


def test_t16_a_lock_is_waited_for_at_least_as_long_as_other_ledgers_are_in_progress() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        slow = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=20))
        locked = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1, length=20))
        other = await cluster.connect()
        assert await ReplicationLocks(other, ROOT, "other-host").acquire(locked) is not None
        until_ns = cluster.clock.monotonic_ns() + 5 * 10**9

        def reject(request: BookieRequest) -> Status | None:
            is_early = request.kind == "add" and cluster.clock.monotonic_ns() < until_ns
            return Status.TOO_MANY_REQUESTS if is_early else None

        cluster.rules.append(reject)
        report = await cluster.recover("b1")
        await other.close()

        assert failed_ledgers(report) == {"another process has the replication lock": {locked}}
        assert await cluster.ensembles(slow) == {0: ("b3", "b2")}
        assert report.seconds >= 4, "the lock was asked for until the other ledger was done"

    simulate(scenario, ReplicationConfig(lock_wait_s=2))


def test_t13_one_lost_ledger_is_reported_and_a_second_run_does_only_its_work() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        metadata = msgspec.structs.replace(
            ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=4, length=50), custom_metadata=(("application", b"orders"),)
        )
        ids = [await cluster.store(metadata) for _ in range(100)]
        lost = ids[2]
        for entry_id in (1, 2):
            del cluster.copies["b2"][lost][entry_id]

        report = await cluster.recover("b1")

        assert (report.ledgers, report.ledgers_repaired, report.ledgers_failed) == (100, 99, 1)
        (failure,) = report.failures
        assert (failure.ledger_id, failure.reason) == (lost, FailureReason.LOST)
        assert (failure.entries, failure.owner) == ((EntryRange(1, 2),), "application orders")

        cluster.requests.clear()
        plan = await cluster.recovery.plan(["b1"])
        assert [each.ledger_id for each in plan.ledgers] == [lost]
        report = await cluster.recovery.run(plan)
        assert (report.ledgers, report.failures) == (1, (failure,))
        assert {request.ledger_id for request in cluster.requests} == {lost}

    simulate(scenario)


def test_t6_an_old_segment_of_an_open_ledger_is_moved_although_the_last_one_has_the_same_bookies() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3", "b4")
        segments = {0: ("b1", "b2"), 5: ("b3", "b2"), 9: ("b1", "b2")}
        ledger_id = await cluster.store(ledger({**segments}, 2, 2, state=LedgerState.OPEN), entries=2)

        moments: list[RecoveryProgress] = []
        recovery = cluster.recovery_by(Policy(open_ledgers=OpenLedgers.SKIP))
        report = await recovery.run(await recovery.plan(["b1"]), moments.append)

        assert moments[-1].failed == ", 1 left to its writer"
        ensembles = await cluster.ensembles(ledger_id)
        assert ensembles[0][0] in {"b3", "b4"}
        assert (ensembles[5], ensembles[9]) == (segments[5], segments[9])
        assert [failure.reason for failure in report.failures] == [FailureReason.OPEN]

    simulate(scenario)


def test_t11_an_open_ledger_that_was_never_written_is_closed_and_moved() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", "b2", "b4")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2", "b3"]}, 3, 2, state=LedgerState.OPEN))

        assert (await cluster.recover("b3")).is_complete

        metadata = (await cluster.ports.ledgers.read(ledger_id)).value
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, -1)
        assert metadata.bookies() == {"b1", "b2", "b4"}

    simulate(scenario)


def test_an_earlier_part_of_a_copy_is_verified_again_and_only_bad_entries_are_copied_again() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1023, length=1)
        ledger_id = await cluster.store(metadata)
        earlier = dict(list(cluster.copies["b2"][ledger_id].items())[:512])
        del earlier[7]
        earlier[300] = earlier[300][:-1] + b"?"
        cluster.copies["b3"][ledger_id] = earlier
        verified: list[int] = []
        config = ReplicationConfig()
        tools = CopyTools(
            cluster.ports,
            CopyReader(cluster.ports, config, lambda _: True),
            config,
            SharedPacer(cluster.clock),
            lambda *_: None,
            lambda _, entry_id: verified.append(entry_id),
        )
        (fragment,) = fragments_naming(metadata, ["b1"])
        keys = credentials(ledger_id)
        task = StripeTask(keys, metadata, fragment, 0, "b3", frozenset({"b1"}), copied_until=511)

        outcome = await StripeReplicator(tools, task, LedgerActivity(ledger_id, 0)).run()

        assert outcome.is_complete
        assert sorted(cluster.asked("b3", "add")) == [7, 300, *range(512, 1024)]
        assert cluster.copies["b3"][ledger_id] == cluster.copies["b2"][ledger_id]
        assert verified == sorted(verified)
        assert verified[-1] == 1023

    simulate(scenario)


@pytest.mark.parametrize(
    ("copied_until", "passes"), [(-1, 2), (1023, 1)], ids=["copied now", "copied by an earlier run"]
)
def test_what_is_read_back_counts_for_the_rate_of_the_bookie(copied_until: int, passes: int) -> None:
    """Without it a continued job would read all earlier copies from their target at full speed."""

    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        metadata = ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=1023, length=1)
        ledger_id = await cluster.store(metadata)
        if copied_until >= 0:
            cluster.copies["b3"][ledger_id] = dict(cluster.copies["b2"][ledger_id])
        size_bytes = sum(map(len, cluster.copies["b2"][ledger_id].values()))
        pacer = SharedPacer(cluster.clock)
        pacer.change(None, size_bytes // 20)
        config = ReplicationConfig()
        tools = CopyTools(
            cluster.ports,
            CopyReader(cluster.ports, config, lambda _: True),
            config,
            pacer,
        )
        (fragment,) = fragments_naming(metadata, ["b1"])
        task = StripeTask(credentials(ledger_id), metadata, fragment, 0, "b3", frozenset({"b1"}), copied_until)
        started_ns = cluster.clock.monotonic_ns()

        assert (await StripeReplicator(tools, task, LedgerActivity(ledger_id, 0)).run()).is_complete

        # The last batches are paid for after the end: 256 of 1,024 entries each.
        assert (cluster.clock.monotonic_ns() - started_ns) / 1e9 >= 20 * (passes - 0.5)

    simulate(scenario)


@pytest.mark.parametrize("is_same_payload", [True, False])
def test_a_copy_that_is_read_back_may_differ_in_its_last_add_confirmed_only(is_same_payload: bool) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b2", "b3")
        ledger_id = await cluster.store(ledger({0: ["b1", "b2"]}, 2, 2, last_entry_id=299, length=3000))
        codec = credentials(ledger_id).codec

        def store_another(request: BookieRequest) -> Status | None:
            if (request.kind, request.bookie_id) != ("add", "b3"):
                return None
            entry = codec.decode(request.entry_id, request.body)
            text = entry.payload if is_same_payload or entry.entry_id != 260 else b"?" * len(entry.payload)
            stored = cluster.copies["b3"].setdefault(ledger_id, {})
            stored[entry.entry_id] = codec.encode(entry.entry_id, -1, entry.length, text)
            return Status.OK

        cluster.rules.append(store_another)
        report = await cluster.recover("b1")
        assert report.is_complete == is_same_payload
        attempts = 1 if is_same_payload else 2  # a target that failed is tried again
        reads = cluster.asked("b3")
        assert len(reads) <= 301 * attempts, "one for each entry, and one patient one for what differs"
        if not is_same_payload:
            assert "has a different entry 260" in report.failures[0].detail

    simulate(scenario)
