"""Bad copies of a stripe that are written again to their own bookie (``StripeTask.bad``)."""

from __future__ import annotations

import pytest

from bkctl.runtime.ledger.metadata import LedgerMetadata
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.copy.activity import LedgerActivity
from bkctl.runtime.replication.copy.limits import SharedPacer
from bkctl.runtime.replication.copy.reader import CopyReader
from bkctl.runtime.replication.copy.stripe import StripeRewrite
from bkctl.runtime.replication.copy.stripe_task import CopyTools, StripeOutcome, StripeTask
from bkctl.runtime.replication.judge.fragments import EntryRange, fragments_naming
from bkctl.runtime.replication.judge.ledger_result import FailureReason
from tests.runtime.client.fakes import credentials, payload
from tests.runtime.replication.samples import ledger
from tests.sim.bookies import BookieRequest
from tests.sim.repair_cluster import RepairCluster, simulate

BOOKIES = ["b1", "b2", "b3"]
TEN = ledger({0: BOOKIES}, 3, 2, last_entry_id=9, length=100)
ALL = (EntryRange(0, 9),)


class _LockGoneError(Exception):
    pass


class Rewrites:
    """Writes bad copies on b1 again; the jobs share the bookies that stopped answering."""

    def __init__(self, cluster: RepairCluster, pacer: SharedPacer | None = None) -> None:
        config = ReplicationConfig()
        copies = CopyReader(cluster.ports, config, cluster.copies.__contains__)
        self.copied: list[tuple[int, int]] = []
        self.unusable: dict[str, str] = {}
        self.requests_seen = 0
        self.lock_is_lost_after = 10**9
        self._tools = CopyTools(
            cluster.ports,
            copies,
            config,
            pacer or SharedPacer(cluster.clock),
            lambda *counts: self.copied.append(counts),
        )

    async def run(self, ledger_id: int, metadata: LedgerMetadata, *bad: EntryRange) -> StripeOutcome:
        (fragment,) = fragments_naming(metadata, ["b1"])
        (index,) = fragment.bookie_indexes
        task = StripeTask(credentials(ledger_id), metadata, fragment, index, "b1", frozenset(), bad=bad or ALL)
        activity = LedgerActivity(ledger_id, 0)
        return await StripeRewrite(self._tools, task, activity, self._require_lock, self.unusable).run()

    def _require_lock(self) -> None:
        self.requests_seen += 1
        if self.requests_seen > self.lock_is_lost_after:
            raise _LockGoneError


def added(cluster: RepairCluster) -> list[tuple[str, int]]:
    return sorted((each.bookie_id, each.entry_id) for each in cluster.requests if each.kind == "add")


def left(outcome: StripeOutcome) -> list[tuple[FailureReason, int]]:
    assert not outcome.is_complete
    return [(each.reason, each.copies) for each in outcome.left]


def test_what_is_still_bad_is_written_and_read_back_and_nothing_else_is_touched() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(TEN)
        whole = dict(cluster.copies["b2"][ledger_id])
        del cluster.copies["b1"][ledger_id][2], cluster.copies["b1"][ledger_id][8]
        cluster.copies["b1"][ledger_id][5] = b"?"
        del cluster.copies["b3"][ledger_id][5]
        rewrites = Rewrites(cluster)

        outcome = await rewrites.run(ledger_id, TEN, EntryRange(5, 6), EntryRange(1, 3))

        assert outcome.is_complete
        size_bytes = len(whole[2]) + len(whole[5])
        assert (outcome.entries, outcome.bytes_copied, rewrites.copied) == (2, size_bytes, [(2, size_bytes)])
        assert added(cluster) == [("b1", 2), ("b1", 5)]
        assert cluster.asked("b1") == [1, 2, 3, 5, 6, 2, 5]
        assert cluster.asked("b2") == [2, 5]
        assert cluster.copies["b1"][ledger_id] == {each: body for each, body in whole.items() if each != 8}

    simulate(scenario)


def test_only_the_entries_of_the_stripe_and_of_the_segment_are_asked_for() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES, 6: ["b2", "b3", "b4"]}, 2, 2, last_entry_id=9, length=100)
        ledger_id = await cluster.store(metadata, holes=["b1"])
        assert (await Rewrites(cluster).run(ledger_id, metadata)).is_complete
        assert added(cluster) == [("b1", each) for each in (0, 2, 3, 5)]

    simulate(scenario)


def test_a_bad_record_is_not_written_over_on_a_bookie_that_does_not_run_bkctl() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start("b1", software=None)
        await cluster.start("b2", "b3")
        ledger_id = await cluster.store(TEN)
        cluster.copies["b1"][ledger_id][5] = b"?"
        cluster.refuse("read", "b1", Status.IO_ERROR, 6)
        del cluster.copies["b1"][ledger_id][8]

        outcome = await Rewrites(cluster).run(ledger_id, TEN)

        assert not outcome.is_complete
        assert (outcome.must_move, outcome.must_move_count) == ((EntryRange(5, 6),), 2)
        assert (outcome.left, outcome.entries) == ((), 1)
        assert added(cluster) == [("b1", 8)]

    simulate(scenario)


def test_without_one_good_content_the_copies_are_left() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(TEN, holes=["b1"])
        codec = credentials(ledger_id).codec
        cluster.copies["b2"][ledger_id][1] = codec.encode(1, 0, 20, b"other text")
        for bookie_id in ("b2", "b3"):
            del cluster.copies[bookie_id][ledger_id][2], cluster.copies[bookie_id][ledger_id][3]
        cluster.refuse("read", "b3", Status.UNKNOWN_LEDGER_STATE, 3)

        outcome = await Rewrites(cluster).run(ledger_id, TEN)

        assert left(outcome) == [(FailureReason.DIFFERENT, 1), (FailureReason.LOST, 1), (FailureReason.UNREADABLE, 1)]
        assert outcome.left[1].entries == (EntryRange(2, 2),)
        assert "b2: no such entry" in outcome.left[1].detail
        assert added(cluster) == [("b1", each) for each in (0, *range(4, 10))]

    simulate(scenario)


@pytest.mark.parametrize(
    ("status", "times", "reason"),
    [
        (Status.TOO_MANY_REQUESTS, 35, None),
        (Status.TIMEOUT, 10, None),
        (Status.TOO_MANY_REQUESTS, -1, FailureReason.REFUSED),
        (Status.READ_ONLY, -1, FailureReason.READ_ONLY),
        (Status.IO_ERROR, -1, FailureReason.REFUSED),
        (Status.TIMEOUT, -1, FailureReason.UNREACHABLE),
        (Status.UNAVAILABLE, 1, FailureReason.UNREACHABLE),
    ],
)
def test_an_overloaded_target_is_asked_again_and_one_that_refuses_is_not(
    status: Status, times: int, reason: FailureReason | None
) -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(TEN, holes=["b1"])
        cluster.refuse("add", "b1", status, *([] if times != 1 else [4]), times=times)

        outcome = await Rewrites(cluster).run(ledger_id, TEN)

        if reason is None:
            assert outcome.is_complete
            assert cluster.copies["b1"][ledger_id] == cluster.copies["b2"][ledger_id]
        else:
            assert left(outcome) == [(reason, 1 if times == 1 else 10)]
            assert outcome.entries == (9 if times == 1 else 0)

    simulate(scenario)


def test_a_target_that_stops_answering_is_not_asked_by_other_jobs_either() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        first, second = [await cluster.store(TEN, holes=["b1"]) for _ in range(2)]
        rewrites = Rewrites(cluster)
        cluster.refuse("add", "b1", Status.UNAVAILABLE)
        await rewrites.run(first, TEN)
        cluster.rules.clear()
        cluster.requests.clear()

        outcome = await rewrites.run(second, TEN)

        assert left(outcome) == [(FailureReason.UNREACHABLE, 10)]
        assert outcome.target_failure == outcome.left[0].detail == "bookie b1: no connection"
        assert cluster.requests == []

    simulate(scenario)


def test_a_copy_that_stays_bad_or_cannot_be_read_back_is_left() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(TEN, holes=["b1"])
        other = credentials(ledger_id).codec.encode(3, 2, 40, b"other " + payload(3))

        def rule(request: BookieRequest) -> Status | None:
            if (request.kind, request.bookie_id) != ("add", "b1") or request.entry_id not in (2, 3):
                return None
            cluster.copies["b1"].setdefault(ledger_id, {})
            if request.entry_id == 3:
                cluster.copies["b1"][ledger_id][3] = other
            return Status.OK

        cluster.rules.append(rule)
        outcome = await Rewrites(cluster).run(ledger_id, TEN)
        (bad,) = outcome.left
        assert (bad.reason, bad.copies, bad.entries) == (FailureReason.STILL_BAD, 2, (EntryRange(2, 3),))
        assert bad.bookie_id == "b1"
        assert outcome.entries == 8

    simulate(scenario)


def test_without_the_lock_nothing_is_written_any_more() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        ledger_id = await cluster.store(TEN, holes=["b1"])
        rewrites = Rewrites(cluster)
        rewrites.lock_is_lost_after = 1
        cluster.refuse("add", "b1", Status.TOO_MANY_REQUESTS)
        with pytest.raises(_LockGoneError):
            await rewrites.run(ledger_id, TEN)
        assert len(added(cluster)) == 10

    simulate(scenario)


def test_a_silent_target_is_left_after_two_timeouts_and_a_late_one_is_repaired() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES}, 3, 2, last_entry_id=1999, length=20_000)
        ledger_id = await cluster.store(metadata, holes=["b1"])
        cluster.refuse("read", "b1", Status.TIMEOUT)
        outcome = await Rewrites(cluster).run(ledger_id, metadata, EntryRange(0, 1999))
        assert left(outcome) == [(FailureReason.UNREACHABLE, 2000)]
        assert added(cluster) == []
        cluster.rules.clear()
        cluster.refuse("read", "b1", Status.TIMEOUT, times=64)
        assert (await Rewrites(cluster).run(ledger_id, metadata, EntryRange(0, 1999))).is_complete
        assert cluster.copies["b1"] == cluster.copies["b2"]

    simulate(scenario)


def test_reads_and_writes_count_for_the_rate() -> None:
    async def scenario(cluster: RepairCluster) -> None:
        await cluster.start(*BOOKIES)
        metadata = ledger({0: BOOKIES}, 3, 2, last_entry_id=999, length=10_000)
        ledger_id = await cluster.store(metadata, holes=["b1"])
        pacer = SharedPacer(cluster.clock)
        pacer.change(10_000, None)
        started_ns = cluster.clock.monotonic_ns()
        outcome = await Rewrites(cluster, pacer).run(ledger_id, metadata, EntryRange(0, 999))
        assert outcome.is_complete
        seconds = (cluster.clock.monotonic_ns() - started_ns) / 1e9
        # each copy is read from two bookies, written and read back
        assert outcome.bytes_copied * 4 / seconds == pytest.approx(10_000, rel=0.1)

    simulate(scenario)
