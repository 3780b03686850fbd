"""What clients can make a bookie hold, all of them together, and what ends those that stand still."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
import tracemalloc

import pytest

from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.messages import AddAnswer, ReadAnswer
from bkctl.runtime.protocol.status import Status
from tests.runtime.net.memory_bookie import memory_bookie
from tests.runtime.net.test_listener import Peer, add_frame, peer_of

KIBIBYTE = 1024
PROMISE = struct.pack(">I", 5 * 1024 * KIBIBYTE - 4)
SHORT = ListenerLimits(stall_s_max=0.2)


@pytest.mark.parametrize("begun", [b"\0", PROMISE, PROMISE + bytes(300 * KIBIBYTE), add_frame(1, bytes(500))[:-1]])
async def test_a_frame_that_does_not_go_on_ends_its_connection(begun: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with memory_bookie(SHORT) as bookie, peer_of(bookie.port) as peer, peer_of(bookie.port) as idle:
        idle.send(add_frame(1))
        assert await idle.answer() == AddAnswer(1, Status.OK)
        peer.send(begun)
        assert await peer.is_closed_by_the_bookie()
        assert "stopped within a frame" in caplog.text
        idle.send(add_frame(2))  # silent for longer than the other was allowed to be, but between two frames
        assert await idle.answer() == AddAnswer(2, Status.OK)


async def test_a_frame_that_trickles_is_no_progress() -> None:
    async def trickle(peer: Peer) -> None:
        while True:
            peer.send(b"x")
            await asyncio.sleep(0.01)

    async with memory_bookie(SHORT) as bookie, peer_of(bookie.port) as peer:
        peer.send(PROMISE)
        trickling = asyncio.create_task(trickle(peer))
        assert await peer.is_closed_by_the_bookie()
        trickling.cancel()


async def test_a_busy_connection_always_has_an_unfinished_frame_and_goes_on() -> None:
    async with memory_bookie(SHORT) as bookie, peer_of(bookie.port) as peer:
        stream = b"".join(map(add_frame, range(50)))
        for start in range(0, len(stream), 50):  # most ends are within a frame; all takes longer than one frame may
            peer.send(stream[start : start + 50])
            await asyncio.sleep(0.01)
        for txn_id in range(50):
            assert await peer.answer() == AddAnswer(txn_id, Status.OK)


async def test_long_frames_wait_for_their_turn_and_all_get_it() -> None:
    limits = ListenerLimits(memory_bytes_max=1024 * KIBIBYTE)  # an eighth: one frame of 100 KiB at a time
    async with (
        memory_bookie(limits) as bookie,
        peer_of(bookie.port) as first,
        peer_of(bookie.port) as second,
        peer_of(bookie.port) as small,
    ):
        frames = {peer: add_frame(number, bytes(100 * KIBIBYTE)) for number, peer in enumerate((first, second))}
        first.send(add_frame(9), frames[first][:90_000])
        assert await first.answer() == AddAnswer(9, Status.OK)  # with it came the head of the long frame
        second.send(frames[second])
        small.send(*map(add_frame, range(10, 30)))  # short ones need no turn
        for txn_id in range(10, 30):
            assert await small.answer() == AddAnswer(txn_id, Status.OK)
        assert await bookie.reads_no_more() == 21
        first.send(frames[first][90_000:])
        assert await first.answer() == AddAnswer(0, Status.OK)
        assert await second.answer() == AddAnswer(1, Status.OK)


async def test_a_long_frame_that_is_given_up_makes_room() -> None:
    limits = ListenerLimits(memory_bytes_max=1024 * KIBIBYTE, stall_s_max=0.2)
    async with (
        memory_bookie(limits) as bookie,
        peer_of(bookie.port) as honest,
        peer_of(bookie.port) as gone,
        peer_of(bookie.port) as stalled,
    ):
        for peer in (gone, stalled):
            peer.send(add_frame(9), PROMISE + bytes(100))
            assert await peer.answer() == AddAnswer(9, Status.OK)  # with it came the head of the long frame
        honest.send(*(add_frame(txn_id, bytes(100 * KIBIBYTE)) for txn_id in range(3)))
        gone.writer.transport.abort()
        assert await stalled.is_closed_by_the_bookie()
        for txn_id in range(3):
            assert await honest.answer() == AddAnswer(txn_id, Status.OK)


async def test_a_connection_that_is_gone_holds_nothing_though_no_collection_runs() -> None:
    async with memory_bookie() as bookie:
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(10):
                async with peer_of(bookie.port) as gone, peer_of(bookie.port) as other:
                    gone.send(PROMISE + bytes(300 * KIBIBYTE))
                    await gone.writer.drain()
                    other.send(add_frame(1))
                    assert await other.answer() == AddAnswer(1, Status.OK)
            async with peer_of(bookie.port) as last:
                last.send(add_frame(2))
                assert await last.answer() == AddAnswer(2, Status.OK)
            assert tracemalloc.get_traced_memory()[0] < 1024 * KIBIBYTE
        finally:
            tracemalloc.stop()
            gc.enable()


async def test_a_frame_above_the_whole_share_still_comes_in() -> None:
    async with memory_bookie(ListenerLimits(memory_bytes_max=1024 * KIBIBYTE)) as bookie, peer_of(bookie.port) as peer:
        peer.send(add_frame(1, bytes(1000 * KIBIBYTE)))
        assert await peer.answer() == AddAnswer(1, Status.OK)


async def test_requests_under_way_of_all_connections_have_one_limit() -> None:
    limits = ListenerLimits(memory_bytes_max=800_000)
    async with (
        memory_bookie(limits) as bookie,
        peer_of(bookie.port) as first,
        peer_of(bookie.port) as second,
        peer_of(bookie.port) as third,
    ):
        bookie.is_holding = True
        peers = (first, second, third)
        for peer in peers:
            peer.send(*(add_frame(txn_id, bytes(10_000)) for txn_id in range(100)))
        await bookie.holds(1)
        assert await bookie.reads_no_more() * 10_000 <= 200_000 + 10_000
        answers = [asyncio.create_task(_answers(peer, 100)) for peer in peers]
        while not all(answer.done() for answer in answers):
            assert len(bookie.held) * 10_000 <= 200_000 + 10_000
            bookie.release()
            await asyncio.sleep(0)
        assert [await answer for answer in answers] == [set(range(100))] * 3


async def test_one_clients_adds_leave_room_for_the_adds_of_others() -> None:
    async with (
        memory_bookie(ListenerLimits(memory_bytes_max=8 * 1024 * KIBIBYTE)) as bookie,
        peer_of(bookie.port) as greedy,
        peer_of(bookie.port) as other,
    ):
        bookie.is_holding = True
        greedy.send(*(add_frame(txn_id, bytes(10_000)) for txn_id in range(400)))
        await bookie.holds(100)  # of 200 for which there is room
        assert await bookie.reads_no_more() * 10_000 <= 1024 * KIBIBYTE + 10_000
        held_count = len(bookie.held)
        other.send(*(add_frame(txn_id, bytes(10_000)) for txn_id in range(20)))
        await bookie.holds(held_count + 20)
        bookie.is_holding = False
        bookie.release()
        assert await _answers(other, 20) == set(range(20))
        assert await _answers(greedy, 400) == set(range(400))


async def _answers(peer: Peer, count: int) -> set[int]:
    return {(await peer.answer()).txn_id for _ in range(count)}


async def test_requests_of_a_connection_that_is_gone_count_until_they_are_answered() -> None:
    async with memory_bookie(ListenerLimits(memory_bytes_max=40_000)) as bookie:
        bookie.is_holding = True
        async with peer_of(bookie.port) as gone:
            gone.send(*(add_frame(txn_id, bytes(10_000)) for txn_id in range(10)))
            await bookie.holds(1)
        async with peer_of(bookie.port) as peer:
            peer.send(add_frame(77))
            held = len(bookie.held)
            assert await bookie.reads_no_more() == held
            bookie.is_holding = False
            bookie.release()
            assert await peer.answer() == AddAnswer(77, Status.OK)


async def test_a_handler_that_fails_uses_up_no_memory_for_ever() -> None:
    async with memory_bookie(ListenerLimits(memory_bytes_max=20_000)) as bookie:
        bookie.add_flags = ()  # type: ignore[assignment]  # it cannot be appended to
        for txn_id in range(10):
            async with peer_of(bookie.port) as peer:
                peer.send(add_frame(txn_id, bytes(5_000)))
                assert await peer.is_closed_by_the_bookie()
        bookie.add_flags = []
        async with peer_of(bookie.port) as peer:
            peer.send(add_frame(1))
            assert await peer.answer() == AddAnswer(1, Status.OK)


async def test_a_handler_that_fails_within_a_run_leaves_the_rest_of_it_uncounted() -> None:
    async with memory_bookie(ListenerLimits(memory_bytes_max=80_000)) as bookie:
        bookie.is_holding = True
        bookie.entries_max = 2
        for number in range(10):
            async with peer_of(bookie.port) as peer:
                peer.send(*(add_frame(entry_id, bytes(1_000)) for entry_id in range(5)))
                assert await peer.is_closed_by_the_bookie()
            assert len(bookie.held) == 2, number
            bookie.release()
            bookie.entries.clear()
        bookie.entries_max = None
        bookie.is_holding = False
        async with peer_of(bookie.port) as peer:
            peer.send(*(add_frame(txn_id, bytes(1_000)) for txn_id in range(30)))
            assert await _answers(peer, 30) == set(range(30))


async def test_answers_that_a_peer_does_not_take_are_limited_and_its_reads_refused() -> None:
    limits = ListenerLimits(memory_bytes_max=48 * 1024 * KIBIBYTE)  # three eighths: 18 MiB
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as peer, peer_of(bookie.port) as other:
        bookie.entries[1, 0] = body = bytes(1024 * KIBIBYTE)
        bookie.is_holding = True
        peer.send(*(v3.encode_read_request(txn_id, 1, 0, None, False) for txn_id in range(100)))
        await bookie.holds(32)  # each counted as 64 KiB when it began
        bookie.is_holding = False
        bookie.release()
        other.send(add_frame(1))
        assert await other.answer() == AddAnswer(1, Status.OK)
        answers = [await peer.answer() for _ in range(100)]
        assert all(isinstance(answer, ReadAnswer) for answer in answers)
        status_of = {answer.txn_id: answer.status for answer in answers if isinstance(answer, ReadAnswer)}
        assert set(status_of) == set(range(100))
        first = [status_of[txn_id] for txn_id in range(32)]
        assert set(first) == {Status.OK, Status.TOO_MANY_REQUESTS}
        assert first.count(Status.OK) <= 18 + 10, "what the operating system took, too"
        later = {status_of[txn_id] for txn_id in range(32, 100)}
        assert later == {Status.OK}, "reads begin only when the peer takes its answers"
        peer.send(v3.encode_read_request(100, 1, 0, None, False))
        assert await peer.answer() == ReadAnswer(100, Status.OK, body, None)


async def test_a_peer_that_takes_no_answers_at_all_is_closed() -> None:
    async with memory_bookie(SHORT) as bookie, peer_of(bookie.port) as peer, peer_of(bookie.port) as other:
        bookie.entries[1, 0] = bytes(1024 * KIBIBYTE)
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # of the test's own end
        peer.send(*(v3.encode_read_request(txn_id, 1, 0, None, False) for txn_id in range(100)))
        while not peer.writer.transport.is_closing():
            peer.send(b"\0")  # a closed end answers with a reset
            await asyncio.sleep(0.02)
        other.send(add_frame(1))
        assert await other.answer() == AddAnswer(1, Status.OK)


async def test_junk_of_one_kind_is_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with memory_bookie() as bookie:
            for junk in (
                b"GET / HTTP/1.1\r\n\r\n",
                b"HEAD / HTTP/1.1\r\n\r\n",
                b"\0\0\0\0",
                b"POST / HTTP/1.1\r\n\r\n",
            ):
                async with peer_of(bookie.port) as peer:
                    peer.send(junk)
                    while not await peer.is_closed_by_the_bookie():
                        pass
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert lines[2].startswith("2 more connections in 10 s: a frame of # bytes")
