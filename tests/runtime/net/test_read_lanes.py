"""Connections take turns in each lane, and waiting reads are limited for each connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from bkctl.runtime.net.read_lanes import ConnectionReads, ReadLane, ReadLanes, RequestsUnderWay
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.messages import (
    AddAnswer,
    ListEntriesCall,
    QueuedRead,
    ReadAnswer,
    ReadCall,
    ReadLacCall,
    ReadRun,
)
from bkctl.runtime.protocol.status import Status
from tests.runtime.net.memory_bookie import memory_bookie
from tests.runtime.net.test_listener import add_frame, peer_of

KIBIBYTE = 1024
ORDINARY_MAX, FENCING_MAX, LISTS_MAX = 32, 256, 4


class Lanes:
    """Lanes of 32 MiB each; ``begun`` has the reads that began, by connection and transaction id."""

    def __init__(self, lane_bytes_max: int = 32 * 1024 * KIBIBYTE) -> None:
        self._lanes = ReadLanes(lane_bytes_max)
        self.begun: list[str] = []

    def connection(self, name: str) -> ConnectionReads:
        def begin(call: QueuedRead | ReadRun) -> None:
            txn_ids = call.txn_ids if isinstance(call, ReadRun) else [call.txn_id]
            self.begun.append(name + "+".join(map(str, txn_ids)))

        return ConnectionReads(self._lanes, begin)


def read(txn_id: int, *, is_high_priority: bool = False, fence_with: bytes | None = None) -> ReadCall:
    return ReadCall(txn_id, 1, 0, fence_with, is_high_priority)


async def ticks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_connections_take_turns() -> None:
    lanes = Lanes()
    a, b, c = (lanes.connection(name) for name in "abc")
    assert all(a.submit(read(txn_id)) for txn_id in range(100))
    assert lanes.begun == [f"a{txn_id}" for txn_id in range(ORDINARY_MAX)]
    assert all(b.submit(call) for call in (read(1), ReadLacCall(2, 1)))
    assert c.submit(ReadLacCall(1, 1))
    del lanes.begun[:]
    for txn_id in range(6):
        a.end(read(txn_id))
    await ticks()
    assert lanes.begun == ["a32", "b1", "c1", "a33", "b2", "a34"]


async def test_a_new_read_does_not_overtake_those_that_wait() -> None:
    lanes = Lanes()
    a, b = lanes.connection("a"), lanes.connection("b")
    for txn_id in range(ORDINARY_MAX + 1):
        a.submit(read(txn_id))
    del lanes.begun[:]
    a.end(read(0))
    b.submit(read(1))  # there is room for one, and a was first
    await ticks()
    assert lanes.begun == [f"a{ORDINARY_MAX}"]


async def test_reads_with_a_fence_that_wait_for_the_journal_hold_up_no_other_urgent_read() -> None:
    lanes = Lanes()
    a, b = lanes.connection("a"), lanes.connection("b")
    for txn_id in range(FENCING_MAX + 10):
        assert a.submit(read(txn_id, fence_with=b"key", is_high_priority=True))
    assert len(lanes.begun) == FENCING_MAX
    b.submit(read(1, is_high_priority=True))
    assert lanes.begun[-1] == "b1"
    a.end(read(0, fence_with=b"key"))
    await ticks()
    assert lanes.begun[-1] == f"a{FENCING_MAX}"


async def test_urgent_reads_have_a_lane_of_their_own() -> None:
    lanes = Lanes()
    a, b = lanes.connection("a"), lanes.connection("b")
    for txn_id in range(100):
        a.submit(read(txn_id))
    del lanes.begun[:]
    b.submit(read(1, is_high_priority=True))
    b.submit(read(2, fence_with=b"key"))
    a.submit(read(200, is_high_priority=True))
    assert lanes.begun == ["b1", "b2", "a200"]
    a.end(read(200, is_high_priority=True))
    a.end(read(0))
    await ticks()
    assert lanes.begun == ["b1", "b2", "a200", "a32"]


async def test_lists_of_entries_delay_no_read() -> None:
    lanes = Lanes()
    a, b = lanes.connection("a"), lanes.connection("b")
    for txn_id in range(ORDINARY_MAX * 2):
        assert a.submit(ListEntriesCall(txn_id, 1))
    assert len(lanes.begun) == LISTS_MAX
    b.submit(read(1))
    a.submit(read(200))
    assert lanes.begun[LISTS_MAX:] == ["b1", "a200"]
    a.end(ListEntriesCall(0, 1))
    await ticks()
    assert lanes.begun[-1] == f"a{LISTS_MAX}"


async def test_a_connection_may_have_as_many_waiting_reads_as_it_leaves_room_for() -> None:
    lanes = Lanes(512 * 2 * 100)  # for 100 waiting reads
    a, b, c = (lanes.connection(name) for name in "abc")
    assert a.submit(read(0)), "one may always begin"

    def count_taken(reads: ConnectionReads) -> int:
        return [reads.submit(read(txn_id)) for txn_id in range(1, 200)].count(True)

    assert [count_taken(reads) for reads in (a, b, c)] == [50, 25, 13]
    a.drop()
    assert b.submit(read(500)), "what a held is free again"
    assert lanes.begun == ["a0"]


async def test_one_connection_has_10_000_waiting_reads_at_most() -> None:
    reads = Lanes().connection("a")
    taken = [reads.submit(read(txn_id)) for txn_id in range(10_100)]
    assert taken.index(False) == ORDINARY_MAX + 10_000
    taken = [reads.submit(read(txn_id, fence_with=b"key")) for txn_id in range(10_300)]
    assert taken.index(False) == FENCING_MAX + 10_000


async def test_no_read_begins_while_its_peer_takes_no_answers() -> None:
    lanes = Lanes()
    a, b = lanes.connection("a"), lanes.connection("b")
    a.hold()
    a.submit(read(1))
    b.submit(read(1))
    await ticks()
    assert lanes.begun == ["b1"]
    a.go_on()
    await ticks()
    assert lanes.begun == ["b1", "a1"]


async def test_reads_under_way_cost_as_much_as_the_last_answer() -> None:
    lanes = Lanes(2 * 1024 * KIBIBYTE)
    a, b = lanes.connection("a"), lanes.connection("b")
    a.note_answer(1000 * KIBIBYTE)
    a.submit(read(1))
    a.submit(read(2))
    b.submit(read(1))
    await ticks()
    assert lanes.begun == ["a1"]
    a.end(read(1))
    await ticks()
    assert lanes.begun == ["a1", "a2"]
    a.end(read(2))
    await ticks()
    assert lanes.begun == ["a1", "a2", "b1"]


async def test_reads_beyond_the_limit_are_refused_and_adds_go_on() -> None:
    limits = ListenerLimits(memory_bytes_max=1536 * KIBIBYTE)  # 128 reads may wait, 64 of one connection
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as greedy, peer_of(bookie.port) as other:
        bookie.entries[1, 0] = b"body"
        bookie.is_holding = True
        greedy.send(*(v3.encode_read_request(txn_id, 1, 0, None, False) for txn_id in range(100)))
        refused = [await greedy.answer() for _ in range(35)]
        assert refused == [ReadAnswer(txn_id, Status.TOO_MANY_REQUESTS, None, None) for txn_id in range(65, 100)]
        other.send(v3.encode_read_request(1, 1, 0, None, False))
        bookie.is_holding = False
        greedy.send(add_frame(1000))
        assert await greedy.answer() == AddAnswer(1000, Status.OK)
        bookie.release()
        assert await other.answer() == ReadAnswer(1, Status.OK, b"body", None)
        assert {(await greedy.answer()).txn_id for _ in range(65)} == set(range(65))


async def test_waiting_reads_of_a_connection_that_is_gone_are_forgotten() -> None:
    limits = ListenerLimits(memory_bytes_max=1536 * KIBIBYTE)  # one read under way
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as other:
        bookie.is_holding = True
        async with peer_of(bookie.port) as gone:
            gone.send(*(v3.encode_read_request(txn_id, 1, 0, None, False) for txn_id in range(60)))
            await bookie.holds(1)
            gone.writer.transport.abort()
        async with peer_of(bookie.port) as probe:  # the end of the other connection came before
            bookie.is_holding = False
            probe.send(add_frame(1))
            assert await probe.answer() == AddAnswer(1, Status.OK)
        bookie.release()
        other.send(v3.encode_read_request(1, 1, 0, None, False))
        assert await other.answer() == ReadAnswer(1, Status.NO_SUCH_ENTRY, None, None)
        assert len(bookie.read_flags) == 2


async def test_a_read_that_fails_closes_its_connection_and_holds_up_no_other() -> None:
    async with memory_bookie(ListenerLimits(memory_bytes_max=1024 * KIBIBYTE)) as bookie:
        bookie.read_flags = ()  # type: ignore[assignment]  # it cannot be appended to
        for txn_id in range(3):
            async with peer_of(bookie.port) as peer:
                peer.send(v3.encode_read_request(txn_id, 1, 0, None, False))
                assert await peer.is_closed_by_the_bookie()
        bookie.read_flags = []
        async with peer_of(bookie.port) as peer:
            peer.send(v3.encode_read_request(1, 1, 0, None, False))
            assert await peer.answer() == ReadAnswer(1, Status.NO_SUCH_ENTRY, None, None)


async def test_costs_of_ids_used_twice_are_freed_one_answer_at_a_time() -> None:
    lane = ReadLane(1000, 100)  # 500 bytes of it for reads under way
    requests = RequestsUnderWay(lane)

    def used_bytes() -> int:
        return 500 - max(room for room in range(501) if lane.may_begin(room))

    for txn_id, cost_bytes in ((1, 10), (2, 20), (1, 40), (1, 50)):
        requests.begin(txn_id, cost_bytes)
    assert used_bytes() == 120
    left = []
    for txn_id in (1, 1, 1, 2, 1, 7):
        requests.end(txn_id)
        left.append(used_bytes())
    assert left == [110, 60, 20, 0, 0, 0]


def run(entry_ids: Iterable[int]) -> ReadRun:
    """Reads of these entries, with transaction ids from 0 on."""
    ids = list(entry_ids)
    return ReadRun(0, 1, False, list(range(len(ids))), ids)


async def test_reads_that_came_together_begin_as_runs_of_consecutive_entries() -> None:
    lanes = Lanes()
    a = lanes.connection("a")
    a.note_answer(KIBIBYTE)
    assert a.submit(run([5, 6, 7, 9, 10, -1, -1, 0, 7, 6]))
    assert lanes.begun == ["a0+1+2", "a3+4", "a5", "a6", "a7", "a8", "a9"]


async def test_one_round_begins_as_many_runs_as_the_lane_has_places() -> None:
    lanes = Lanes()
    a = lanes.connection("a")
    a.note_answer(KIBIBYTE)
    a.hold()
    assert a.submit(run(range(1000)))
    a.go_on()
    await asyncio.sleep(0)
    assert [part.count("+") + 1 for part in lanes.begun] == [128] * 4
    await ticks()
    assert len(lanes.begun) == 4


async def test_reads_of_a_run_beyond_the_limit_are_left_in_it() -> None:
    lanes = Lanes(512 * 2 * 100)  # for 100 waiting reads
    a = lanes.connection("a")
    assert a.submit(read(0))
    asked = run(range(200))
    assert not a.submit(asked)
    assert asked.entry_ids == list(range(50, 200))
    assert asked.txn_ids == asked.entry_ids
    a.end(read(0))
    await ticks()
    assert lanes.begun == ["a0", "a0+1+2+3"]
