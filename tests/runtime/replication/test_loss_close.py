"""Closing ledgers without their lost bookies, in virtual time: what goes wrong between the steps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence

import pytest

from bkctl.commands.ledger.accepted_loss import loss_row
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState
from bkctl.runtime.metadata.bookies.registration import BookieMode
from bkctl.runtime.metadata.replication.lock import ReplicationLocks
from bkctl.runtime.metadata.replication.recovery_notes import RecoveryNotes
from bkctl.runtime.metadata.store import SetNode
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.close.accepted_loss import READ_AHEAD_ENTRIES, LossClose
from bkctl.runtime.replication.close.given_up_record import GivenUpRecord
from bkctl.runtime.replication.close.ledger_closer import CloseOutcome, CloseResult, LedgerCloser, LossConsent
from bkctl.runtime.replication.config import ReplicationConfig
from bkctl.runtime.replication.judge.fragments import EntryRange
from tests.runtime.replication.samples import ledger
from tests.sim.ledger_cluster import ROOT, LedgerCluster, ledger_cluster
from tests.sim.loop import run_simulated

ALL = ("b1", "b2", "b3", "b4", "b5", "b6")
Hook = Callable[[], Awaitable[None]]


async def nothing() -> None:
    pass


async def give_up(
    cluster: LedgerCluster,
    ledger_id: int,
    *lost: str,
    before_fence: Hook = nothing,
    before_close: Hook = nothing,
    after_note: Hook = nothing,
    config: ReplicationConfig | None = None,
    read_ahead_entries: int = 100,
) -> CloseResult:
    async def keep(_: int) -> None:
        await before_fence()

    class Record(GivenUpRecord):
        async def note_close(self, ledger_id: int, bookie_ids: Collection[str], lost: Sequence[EntryRange]) -> SetNode:
            await before_close()
            noted = await super().note_close(ledger_id, bookie_ids, lost)
            await after_note()
            return noted

    consent = LossConsent(
        frozenset(lost),
        LossClose(cluster.ports, config or ReplicationConfig(), lost, read_ahead_entries),
        ReplicationLocks(cluster.store, ROOT, "this host"),
        keep,
        Record(RecoveryNotes(cluster.store, ROOT), cluster.ports.clock, "ops"),
    )
    closer = LedgerCloser(cluster.ports, consent=consent)
    [result] = [each async for each in closer.close_all([ledger_id], grace_s=0, in_parallel=1)]
    return result


def three(ack_quorum: int = 2, starts: int = 0) -> LedgerMetadata:
    segments: dict[int, Sequence[str]] = {0: ["b1", "b2", "b3"]}
    if starts:
        segments[starts] = ["b1", "b2", "b4"]
    return ledger(segments, 3, ack_quorum, state=LedgerState.OPEN)


def simulate(scenario: Callable[[LedgerCluster], Awaitable[None]], *bookie_ids: str) -> None:
    async def run() -> None:
        async with ledger_cluster(*(bookie_ids or ALL)) as cluster:
            await scenario(cluster)

    run_simulated(run())


async def stuck(cluster: LedgerCluster, count: int = 5) -> int:
    """A ledger of b1, b2 and b3, of which only b1 is left."""
    ledger_id = await cluster.create(three())
    await cluster.fill(ledger_id, range(count))
    for bookie_id in ("b2", "b3"):
        await cluster.stop(bookie_id)
    return ledger_id


def reason_of(result: CloseResult) -> str:
    assert result.outcome is CloseOutcome.FAILED
    assert result.failure is not None
    return result.failure.reason


async def require_closed(cluster: LedgerCluster, ledger_id: int, last_entry_id: int, members: set[str]) -> None:
    """Closed there, b1 was fenced before anything was copied, and each member has what b1 has."""
    kinds = [(each.bookie_id, each.is_fencing) for each in cluster.requests if each.is_fencing or each.kind == "add"]
    assert kinds[0] == ("b1", True)
    metadata = await cluster.metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, last_entry_id)
    ensemble = set(metadata.last_segment.ensemble)
    assert len(ensemble) == 3
    assert ensemble <= members
    for bookie_id in ensemble:
        assert cluster.entries[bookie_id, ledger_id] == cluster.entries["b1", ledger_id]


def test_a_member_that_does_not_answer_the_fence_stops_it() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)

        async def fall_silent() -> None:
            cluster.failing["b1", -1] = Status.TIMEOUT

        result = await give_up(cluster, ledger_id, "b2", "b3", before_fence=fall_silent)
        assert "b1" in reason_of(result)
        assert not [each for each in cluster.requests if each.kind == "add"]
        del cluster.failing["b1", -1]
        assert (await give_up(cluster, ledger_id, "b2", "b3")).outcome is CloseOutcome.CLOSED
        await require_closed(cluster, ledger_id, 4, {"b1", "b4", "b5", "b6"})

    simulate(scenario)


@pytest.mark.parametrize("status", [Status.TIMEOUT, Status.UNKNOWN_LEDGER_STATE])
def test_no_answer_for_an_entry_is_not_taken_for_a_hole(status: Status) -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        cluster.failing["b1", 3] = status
        assert "bookie b1: entry 3 may exist on it" in reason_of(await give_up(cluster, ledger_id, "b2", "b3"))
        assert (await cluster.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
        del cluster.failing["b1", 3]
        assert (await give_up(cluster, ledger_id, "b2", "b3")).outcome is CloseOutcome.CLOSED
        await require_closed(cluster, ledger_id, 4, {"b1", "b4", "b5", "b6"})

    simulate(scenario)


def test_damaged_copies_are_holes_before_the_end_and_are_named_after_it() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster, 8)
        for entry_id in (2, 6, 7):
            cluster.failing["b1", entry_id] = Status.IO_ERROR
        cluster.failing["b1", -1] = Status.NO_SUCH_ENTRY
        result = await give_up(cluster, ledger_id, "b2", "b3")
        assert result.loss is not None
        assert (result.loss.holes, result.loss.damaged) == ((EntryRange(2, 2),), (EntryRange(6, 7),))
        metadata = await cluster.metadata(ledger_id)
        assert (metadata.last_entry_id, metadata.length) == (5, 60)

        seen = await cluster.create(three())
        await cluster.fill(seen, range(8), without=["b2", "b3"])
        del cluster.failing["b1", -1]
        result = await give_up(cluster, seen, "b2", "b3")
        assert result.loss is not None
        assert (result.loss.holes, result.loss.damaged) == ((EntryRange(2, 2), EntryRange(6, 7)), ())
        metadata = await cluster.metadata(seen)
        assert (metadata.last_entry_id, metadata.length) == (7, 60), "a good copy of entry 7 was seen"

    simulate(scenario)


def test_a_member_that_cannot_read_its_last_entry_is_fenced_and_lists_what_it_has() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        cluster.failing["b1", -1] = cluster.failing["b1", 4] = Status.IO_ERROR
        cluster.failing["b1", 5] = Status.IO_ERROR  # as after a fence that failed
        assert "b1: input/output error" in reason_of(await give_up(cluster, ledger_id, "b2", "b3"))
        del cluster.failing["b1", 5]
        result = await give_up(cluster, ledger_id, "b2", "b3")
        assert result.loss is not None
        assert (result.loss.holes, result.loss.damaged) == ((EntryRange(4, 4),), ())
        metadata = await cluster.metadata(ledger_id)
        assert (metadata.last_entry_id, metadata.length) == (4, 40), "the bookie has entry 4"
        assert ("b1", ledger_id) in cluster.fenced

    simulate(scenario)


def test_entries_that_only_a_bookie_outside_of_the_ensemble_has_are_copied() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        await cluster.fill(ledger_id, [5, 6], without=["b1"])
        kept = cluster.entries["b2", ledger_id]
        await cluster.register("b7", mode=BookieMode.READ_ONLY)  # so it is no new member, which is read anyway
        cluster.entries["b7", ledger_id] = {each: kept[each] for each in (2, 5, 6)}
        del cluster.entries["b1", ledger_id][2]
        result = await give_up(cluster, ledger_id, "b2", "b3")
        assert result.loss is not None
        assert (result.loss.entries, result.loss.holes) == (7, ())
        await require_closed(cluster, ledger_id, 6, {"b1", "b4", "b5", "b6"})

    simulate(scenario)


def test_a_bookie_outside_of_the_ensemble_that_does_not_answer_stops_it_before_any_fence() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        cluster.failing["b5"] = Status.TIMEOUT
        result = await give_up(cluster, ledger_id, "b2", "b3")
        assert "bookie b5, outside of the ensemble, may have entries: " in reason_of(result)
        assert (await cluster.metadata(ledger_id)).state is LedgerState.OPEN
        assert not cluster.fenced

    simulate(scenario)


def test_the_answer_for_the_last_entry_is_not_believed() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster, 3)
        await cluster.fill(ledger_id, range(9_000, 9_002))
        cluster.failing["b1", -1] = Status.NO_SUCH_ENTRY
        result = await give_up(cluster, ledger_id, "b2", "b3", read_ahead_entries=READ_AHEAD_ENTRIES)
        assert result.loss is not None
        assert result.loss.holes == (EntryRange(3, 8_999),)
        await require_closed(cluster, ledger_id, 9_001, {"b1", "b4", "b5", "b6"})

    simulate(scenario)


def test_all_that_survivors_have_of_a_striped_ledger_is_found() -> None:
    """Two of three bookies are lost, the third has two thirds of the entries: the others are holes."""

    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(ledger({0: ["b1", "b2", "b3"]}, 2, 1, state=LedgerState.OPEN))
        await cluster.fill(ledger_id, range(300))
        for bookie_id in ("b2", "b3"):
            await cluster.stop(bookie_id)
        result = await give_up(cluster, ledger_id, "b2", "b3")
        assert result.loss is not None
        holes = [str(each) for each in range(1, 299, 3)]
        assert loss_row(ledger_id, result.loss)["holes"].split(", ") == holes
        assert (await cluster.metadata(ledger_id)).last_entry_id == 299

    simulate(scenario)


def test_the_note_of_a_ledger_without_entries_names_its_lost_bookies() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster, 0)
        assert (await give_up(cluster, ledger_id, "b2", "b3")).outcome is CloseOutcome.CLOSED
        metadata = await cluster.metadata(ledger_id)
        assert (metadata.last_entry_id, metadata.length) == (-1, 0)
        found = await RecoveryNotes(cluster.store, ROOT).given_up.find(str(ledger_id))
        assert found is not None
        assert found.value.member_since.keys() == {"b2", "b3"}

    simulate(scenario)


def test_all_holes_are_counted_if_they_are_too_many_to_be_listed() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        striped = ledger({0: ["b1", "b2"]}, 1, 1, state=LedgerState.OPEN)
        ledger_id = await cluster.create(striped)
        await cluster.fill(ledger_id, range(20_101))
        await cluster.stop("b2")
        result = await give_up(cluster, ledger_id, "b2")
        assert result.loss is not None
        assert (result.loss.entries, len(result.loss.holes), result.loss.unlisted) == (10_051, 10_000, 50)
        assert loss_row(ledger_id, result.loss)["holes"].endswith(" 19999, and 50 more entries after 19999")

    simulate(scenario)


@pytest.mark.parametrize("has_list", [True, False])
def test_an_entry_far_beyond_the_others_does_not_make_it_endless(has_list: bool) -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        await cluster.fill(ledger_id, [2**40], without=["b2", "b3"])
        if not has_list:
            cluster.silent_lists.add("b1")
        result = await give_up(cluster, ledger_id, "b2", "b3", config=ReplicationConfig(barren_entries_max=3_000))
        if has_list:
            assert result.loss is not None
            assert result.loss.holes == (EntryRange(5, 2**40 - 1),)
            await require_closed(cluster, ledger_id, 2**40, {"b1", "b4", "b5", "b6"})
        else:
            assert "no bookie has a good copy of the 30" in reason_of(result)
            assert (await cluster.metadata(ledger_id)).state is LedgerState.IN_RECOVERY

    simulate(scenario)


def test_a_new_member_that_rejects_copies_is_replaced_by_another() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        for entry_id in range(5):
            cluster.failing["b4", entry_id] = Status.NO_SUCH_ENTRY
        assert (await give_up(cluster, ledger_id, "b2", "b3")).outcome is CloseOutcome.CLOSED
        await require_closed(cluster, ledger_id, 4, {"b1", "b5", "b6"})

    simulate(scenario)


class Forgetful(dict[int, bytes]):
    """The entries of a bookie that acknowledges adds and keeps none."""

    def __setitem__(self, entry_id: int, body: bytes) -> None:
        pass


def test_a_copy_that_cannot_be_read_back_does_not_count() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        cluster.entries["b4", ledger_id] = Forgetful()
        assert (await give_up(cluster, ledger_id, "b2", "b3")).outcome is CloseOutcome.CLOSED
        await require_closed(cluster, ledger_id, 4, {"b1", "b5", "b6"})

    simulate(scenario)


def test_a_new_member_that_leaves_before_the_close_is_not_named() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        left: list[str] = []

        async def leave() -> None:
            left.append(next(each for each, of in cluster.entries if of == ledger_id and each in {"b4", "b5", "b6"}))
            await cluster.stop(left[0])

        result = await give_up(cluster, ledger_id, "b2", "b3", before_close=leave)
        assert "left the cluster, or became read-only" in reason_of(result)
        assert (await cluster.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
        assert (await give_up(cluster, ledger_id, "b2", "b3")).outcome is CloseOutcome.CLOSED
        await require_closed(cluster, ledger_id, 4, set(ALL) - {"b2", "b3", left[0]})

    simulate(scenario)


def test_a_lost_bookie_that_returns_during_the_copies_is_not_given_up() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        await cluster.fill(ledger_id, [5], without=["b1"])  # acknowledged, and only the lost bookies have it

        async def return_() -> None:
            await cluster.register("b3")

        result = await give_up(cluster, ledger_id, "b2", "b3", before_close=return_)
        assert "bookie b3 is registered, so it is not lost" in reason_of(result)
        assert await RecoveryNotes(cluster.store, ROOT).given_up.keys() == [], "it was not given up"
        [closed] = [each async for each in LedgerCloser(cluster.ports).close_all([ledger_id], grace_s=0, in_parallel=1)]
        assert closed.outcome is CloseOutcome.CLOSED
        assert (await cluster.metadata(ledger_id)).last_entry_id == 5, "the entries of the lost one are found"

    simulate(scenario)


def test_only_a_close_that_is_done_accepts_the_loss_of_entries() -> None:
    """After one that was cut off, another process may close the ledger with all entries: the lost bookies are back."""

    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id, other = await stuck(cluster), await cluster.create(three())
        await cluster.fill(other, [0])
        for each in (ledger_id, other):
            await cluster.fill(each, [6])
            await cluster.fill(each, [5], without=["b1"])
        notes = RecoveryNotes(cluster.store, ROOT).given_up

        async def cut_off() -> None:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await give_up(cluster, ledger_id, "b2", "b3", after_note=cut_off)
        left = await notes.find(str(ledger_id))
        assert left is not None
        assert left.value.member_since.keys() == {"b2", "b3"}
        assert (left.value.closed_without, left.value.lost) == ((), ())

        assert (await give_up(cluster, other, "b2", "b3")).outcome is CloseOutcome.CLOSED
        done = await notes.find(str(other))
        assert done is not None
        assert (done.value.closed_without, done.value.lost) == (("b2", "b3"), ((1, 5),))

    simulate(scenario)


def test_an_empty_last_segment_has_the_end_and_the_length_of_the_segment_before() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(three(starts=4))
        await cluster.fill(ledger_id, range(4))
        for bookie_id in ("b2", "b4"):
            await cluster.stop(bookie_id)
        cluster.failing["b1", 3] = cluster.failing["b3", 3] = Status.IO_ERROR
        result = await give_up(cluster, ledger_id, "b2", "b4")
        assert (result.outcome, result.loss is not None) == (CloseOutcome.CLOSED, True)
        metadata = await cluster.metadata(ledger_id)
        assert (metadata.last_entry_id, metadata.length) == (3, 30), "the length up to the entry that can be read"
        assert {"b2", "b4"}.isdisjoint(metadata.last_segment.ensemble)

    simulate(scenario)


def test_two_at_once_agree_on_one_end() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await stuck(cluster)
        both = await asyncio.gather(*(give_up(cluster, ledger_id, "b2", "b3") for _ in range(2)))
        assert CloseOutcome.CLOSED in {each.outcome for each in both}
        await require_closed(cluster, ledger_id, 4, {"b1", "b4", "b5", "b6"})

    simulate(scenario)
