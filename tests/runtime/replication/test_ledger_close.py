"""Closing ledgers that their writers left open, in virtual time."""

from __future__ import annotations

import asyncio
import collections
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from bkctl.runtime.errors import AnswersMissingError
from bkctl.runtime.ledger.changes import to_closed
from bkctl.runtime.ledger.metadata import LedgerMetadata, LedgerState, Segment
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.replication.close.ledger_closer import CloseOutcome, CloseResult, LedgerCloser
from bkctl.runtime.replication.judge.closability import why_not_closable, why_not_closed, why_refused
from tests.runtime.replication.samples import ledger
from tests.sim.ledger_cluster import LedgerCluster, ledger_cluster
from tests.sim.loop import run_simulated

T = TypeVar("T")
THREE = ("b1", "b2", "b3")


def open_ledger(write_quorum: int = 3, ack_quorum: int = 2, ensemble: tuple[str, ...] = THREE) -> LedgerMetadata:
    return ledger({0: ensemble}, write_quorum, ack_quorum, state=LedgerState.OPEN)


def simulate(scenario: Callable[[LedgerCluster], Awaitable[T]], *bookie_ids: str) -> T:
    async def run() -> T:
        async with ledger_cluster(*(bookie_ids or THREE)) as cluster:
            return await scenario(cluster)

    return run_simulated(run())


async def close(cluster: LedgerCluster, *ledger_ids: int, grace_s: float = 0) -> list[CloseResult]:
    closer = LedgerCloser(cluster.ports)
    return [each async for each in closer.close_all(ledger_ids, grace_s=grace_s, in_parallel=4)]


def outcomes(results: list[CloseResult]) -> list[CloseOutcome]:
    return [each.outcome for each in results]


def test_ledgers_are_closed_at_their_last_entry_and_fenced() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ids = [await cluster.create(open_ledger()) for _ in range(6)]
        for ledger_id in ids[1:]:
            await cluster.fill(ledger_id, range(5))
        results = await close(cluster, *ids)
        assert outcomes(results) == [CloseOutcome.CLOSED] * 6
        assert [each.ledger_id for each in results] == ids
        ends = [(await cluster.metadata(ledger_id)).last_entry_id for ledger_id in ids]
        assert ends == [-1, 4, 4, 4, 4, 4]
        assert all(len([place for place in cluster.fenced if place[1] == each]) >= 2 for each in ids)

    simulate(scenario)


def test_a_ledger_that_its_writer_closes_within_the_grace_time_is_left_as_it_is() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(open_ledger())
        closing = asyncio.create_task(close(cluster, ledger_id, grace_s=30))
        await cluster.ports.clock.sleep(10)
        stored = await cluster.ports.ledgers.read(ledger_id)
        await cluster.ports.ledgers.write(ledger_id, to_closed(stored.value, 7, 80), stored.version)
        [result] = await closing
        assert result.outcome is CloseOutcome.CLOSED_BY_OTHERS
        assert result.metadata is not None
        assert result.metadata.last_entry_id == 7
        assert cluster.ports.clock.monotonic_ns() < 15 * 10**9
        assert not cluster.requests

    simulate(scenario)


def test_the_grace_time_is_for_the_writer_alone_and_counts_once_for_all_ledgers() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        recovering = await cluster.create(msgspec.structs.replace(open_ledger(), state=LedgerState.IN_RECOVERY))
        assert outcomes(await close(cluster, recovering, grace_s=30)) == [CloseOutcome.CLOSED]
        assert cluster.ports.clock.monotonic_ns() < 10**9
        ids = [await cluster.create(open_ledger()) for _ in range(20)]
        assert outcomes(await close(cluster, *ids, grace_s=30)) == [CloseOutcome.CLOSED] * 20
        assert 30 * 10**9 <= cluster.ports.clock.monotonic_ns() < 35 * 10**9

    simulate(scenario)


def test_a_ledger_that_is_deleted_meanwhile_is_no_failure() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(open_ledger())
        closing = asyncio.create_task(close(cluster, ledger_id, grace_s=30))
        await cluster.ports.clock.sleep(10)
        await cluster.ports.ledgers.delete(ledger_id)
        assert outcomes(await closing) == [CloseOutcome.DELETED]

    simulate(scenario)


def test_while_too_few_bookies_are_registered_nothing_is_fenced() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(open_ledger(2, 1))
        await cluster.fill(ledger_id, range(5))
        await cluster.stop("b2")
        [result] = await close(cluster, ledger_id)
        assert result.failure is not None
        assert result.failure.missing == ("b2",)
        assert "only b2 can have (not registered); it was left as it is" in result.failure.reason
        assert result.failure.next_step == f"once b2 is registered, run bkctl ledger close {ledger_id} again"
        assert (await cluster.metadata(ledger_id)).state is LedgerState.OPEN
        assert not cluster.requests
        await cluster.register("b2")
        assert outcomes(await close(cluster, ledger_id)) == [CloseOutcome.CLOSED]
        assert (await cluster.metadata(ledger_id)).last_entry_id == 4

    simulate(scenario)


def test_a_bookie_that_does_not_answer_the_fence_is_named_until_it_does() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(open_ledger(2, 1))
        await cluster.fill(ledger_id, range(5))
        cluster.failing["b2"] = Status.TIMEOUT
        [result] = await close(cluster, ledger_id)
        assert result.failure is not None
        assert (result.failure.missing, result.failure.fenced) == (("b2",), ("b1", "b3"))
        assert result.failure.next_step == (
            f"once b2 is able to give a valid answer, run bkctl ledger close {ledger_id} again"
        )
        assert (await cluster.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
        del cluster.failing["b2"]
        assert outcomes(await close(cluster, ledger_id)) == [CloseOutcome.CLOSED]
        assert (await cluster.metadata(ledger_id)).last_entry_id == 4

    simulate(scenario)


def test_an_entry_in_doubt_is_named_with_the_bookies_that_may_have_it() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(open_ledger())
        await cluster.fill(ledger_id, range(5))
        for bookie_id in ("b2", "b3"):
            cluster.failing[bookie_id, 5] = Status.IO_ERROR
        [result] = await close(cluster, ledger_id)
        assert result.failure is not None
        assert result.failure.reason.startswith("entry 5 may exist on b2 (")
        assert result.failure.missing == ("b2", "b3")
        assert len(result.failure.fenced) >= 2
        assert "once b2 or b3 is" in result.failure.next_step
        del cluster.failing["b3", 5]
        assert outcomes(await close(cluster, ledger_id)) == [CloseOutcome.CLOSED]

    simulate(scenario)


def test_entries_that_cannot_be_stored_again_are_a_failure_with_the_reason() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        failed, good = [await cluster.create(open_ledger(3, 3)) for _ in range(2)]
        await cluster.fill(failed, range(2))
        answer = cluster.entries
        answer["b1", failed].pop(1)
        cluster.failing["b1", 1] = Status.READ_ONLY
        results = await close(cluster, failed, good)
        assert outcomes(results) == [CloseOutcome.FAILED, CloseOutcome.CLOSED]
        assert results[0].failure is not None
        assert "bookie" in results[0].failure.reason
        assert not results[0].failure.reason.startswith("ledger")

    simulate(scenario)


def test_a_copy_that_is_moved_at_the_same_time_is_kept() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        metadata = ledger({0: ("b1", "b9"), 3: ("b1", "b2")}, 2, 2, state=LedgerState.OPEN)
        ledger_id = await cluster.create(metadata)
        await cluster.fill(ledger_id, range(3, 5))
        cluster.failing["b1", -1] = Status.TIMEOUT
        closing = asyncio.create_task(close(cluster, ledger_id))
        while not cluster.requests:
            await cluster.ports.clock.sleep(0.0001)
        stored = await cluster.ports.ledgers.read(ledger_id)
        moved = msgspec.structs.replace(stored.value, segments=(Segment(0, ("b1", "b3")), stored.value.last_segment))
        await cluster.ports.ledgers.write(ledger_id, moved, stored.version)
        assert outcomes(await closing) == [CloseOutcome.CLOSED]
        closed = await cluster.metadata(ledger_id)
        assert closed.segments == (Segment(0, ("b1", "b3")), Segment(3, ("b1", "b2")))
        assert closed.last_entry_id == 4

    simulate(scenario)


def test_two_closers_agree() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(open_ledger())
        await cluster.fill(ledger_id, range(5))
        both = await asyncio.gather(close(cluster, ledger_id), close(cluster, ledger_id))
        ends = {each.metadata.last_entry_id for results in both for each in results if each.metadata is not None}
        assert ends == {4}

    simulate(scenario)


def test_bookies_that_begin_to_refuse_this_client_while_the_writer_has_time() -> None:
    """The ledger is not fenced. Each bookie is asked once for all ledgers, and once more when the time is over."""

    async def scenario(cluster: LedgerCluster) -> None:
        fenced_soon = await cluster.create(msgspec.structs.replace(open_ledger(), state=LedgerState.IN_RECOVERY))
        ids = [await cluster.create(open_ledger()) for _ in range(5)]
        closing = asyncio.create_task(close(cluster, fenced_soon, *ids, grace_s=30))
        await cluster.ports.clock.sleep(10)
        cluster.refusing |= {"b2", "b3"}
        first, *others = await closing
        assert first.outcome is CloseOutcome.CLOSED
        for each in others:
            assert each.failure is not None
            assert (each.failure.missing, each.failure.is_refused) == (("b2", "b3"), True)
            assert (await cluster.metadata(each.ledger_id)).state is LedgerState.OPEN
        assert {place[1] for place in cluster.fenced} == {fenced_soon}
        assert cluster.infos == collections.Counter(dict.fromkeys(THREE, 2))

    simulate(scenario)


def test_a_refusal_that_is_found_only_after_the_fence() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await cluster.create(open_ledger())
        await cluster.fill(ledger_id, range(2))
        for bookie_id in ("b1", "b2"):
            cluster.failing[bookie_id] = Status.AUTHENTICATION_REQUIRED
        [result] = await close(cluster, ledger_id)
        assert result.failure is not None
        assert (result.failure.missing, result.failure.is_refused) == (("b1", "b2"), True)
        assert "or b2 is able to accept this client, run bkctl ledger close" in result.failure.next_step
        assert "b1 (it serves only clients that use TLS or log in" in result.failure.reason
        del cluster.failing["b2"]
        assert outcomes(await close(cluster, ledger_id)) == [CloseOutcome.CLOSED]
        assert (await cluster.metadata(ledger_id)).last_entry_id == 1

    simulate(scenario)


@pytest.mark.parametrize(
    ("quorums", "live", "refusing", "needed"),
    [
        ((3, 2), "b1 b2 b3", "", ""),
        ((3, 2), "b1 b2 b3", "b3", ""),
        ((3, 2), "b1 b2 b3", "b2 b3", "b2 b3"),
        ((3, 2), "b1 b3", "b3", "b3"),
        ((3, 3), "b1 b2 b3", "b2", "b2"),
        ((3, 1), "b1 b2 b3", "b2", "b2"),
        ((2, 2), "b1 b2", "b2", "b2"),
        ((2, 2), "b1 b2 b3", "b4", ""),
    ],
)
def test_which_refusals_make_a_close_impossible(
    quorums: tuple[int, int], live: str, refusing: str, needed: str
) -> None:
    """It needs answers of Qw - Qa + 1 members of each write set, and Qa of them for the last entries."""
    reasons = {each: f"bookie {each}: it refuses the login" for each in refusing.split()}
    failure = why_refused(7, open_ledger(*quorums), frozenset(live.split()), reasons)
    assert ("" if failure is None else " ".join(failure.missing)) == needed
    if failure is not None:
        assert failure.is_refused
        assert failure.reason == f"{'; '.join(reasons[each] for each in failure.missing)}; it was left as it is"
        assert failure.next_step.endswith("able to accept this client, run bkctl ledger close 7 again")


@pytest.mark.parametrize(
    ("quorums", "live", "missing", "helps"),
    [
        ((3, 2), "b1 b2", "", ""),
        ((3, 2), "b1", "b2 b3", "b2 or b3 is"),
        ((3, 2), "", "b1 b2 b3", "b1, b2 and b3 are"),
        ((3, 1), "b1", "b2 b3", "b2 and b3 are"),
        ((2, 2), "b3", "b1 b2", "b1 or b2 is"),
        ((3, 3), "b3", "", ""),
    ],
)
def test_which_registrations_make_a_close_possible(
    quorums: tuple[int, int], live: str, missing: str, helps: str
) -> None:
    failure = why_not_closable(7, open_ledger(*quorums), frozenset(live.split()))
    if not missing:
        assert failure is None
        return
    assert failure is not None
    assert failure.missing == tuple(missing.split())
    assert failure.next_step == f"once {helps} registered, run bkctl ledger close 7 again"


def test_the_bookies_that_help_do_help() -> None:
    """All small quorums: with those that the sentence names, or one of them if it says "or", a close is possible."""
    names = ("b1", "b2", "b3", "b4")
    for write_quorum in range(1, 5):
        for ack_quorum in range(1, write_quorum + 1):
            metadata = open_ledger(write_quorum, ack_quorum, names)
            for count in range(5):
                for live in itertools.combinations(names, count):
                    failure = why_not_closable(7, metadata, live)
                    if failure is None:
                        continue
                    named = [each for each in names if each in failure.next_step]
                    helping = [{each} for each in named] if " or " in failure.next_step else [set(named)]
                    assert not set(named) & set(live)
                    for some in helping:
                        assert why_not_closable(7, metadata, {*live, *some}) is None


def test_without_any_fence_the_writer_may_go_on() -> None:
    error = AnswersMissingError(7, "no answer", missing={"b1": "timeout", "b2": "timeout", "b3": "timeout"})
    failure = why_not_closed(7, open_ledger(), error)
    assert "no bookie has fenced it: a live writer may still add entries" in failure.reason
    assert "once b1, b2 and b3 are able" in failure.next_step
