"""The bookie's side, asked by plain sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import AsyncIterator, Callable

import pytest

from bkctl.runtime.net.host import listen_tcp
from bkctl.runtime.net.listener import BookieListener
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.messages import AddAnswer, Answer, ReadAnswer
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_batch_reads import BatchReadCall, decode_batch_read_answer, encode_batch_read
from tests.runtime.net.memory_bookie import LOOPBACK, memory_bookie
from tests.runtime.protocol.golden import rows, vectors

KEY = b"k" * 20


class Peer:
    """A client that speaks in frames and waits no longer than a test may."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def frame(self) -> bytes:
        async with asyncio.timeout(120):
            head = await self._reader.readexactly(4)
            return head + await self._reader.readexactly(struct.unpack(">I", head)[0])

    async def answer(self) -> Answer:
        return v3.decode_response((await self.frame())[4:])

    async def is_closed_by_the_bookie(self) -> bool:
        async with asyncio.timeout(120):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True


@contextlib.asynccontextmanager
async def peer_of(port: int, address: str = LOOPBACK) -> AsyncIterator[Peer]:
    """A client at ``address``, one of 127.0.0.0/8."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port, local_addr=(address, 0))
    try:
        yield Peer(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def add_frame(txn_id: int, body: bytes = b"body") -> bytes:
    return v3.encode_add_request(txn_id, 1, txn_id, KEY, body, False, False)


async def test_pipelined_requests_are_all_answered() -> None:
    async with memory_bookie() as bookie, peer_of(bookie.port) as peer:
        peer.send(*map(add_frame, range(2000)))
        assert [await peer.answer() for _ in range(2000)] == [AddAnswer(txn_id, Status.OK) for txn_id in range(2000)]
        assert bookie.entries == {(1, entry_id): b"body" for entry_id in range(2000)}


async def test_requests_may_come_byte_by_byte() -> None:
    async with memory_bookie() as bookie, peer_of(bookie.port) as peer:
        for byte in add_frame(1) + v3.encode_read_request(2, 1, 1, None, False):
            peer.send(bytes([byte]))
            await peer.writer.drain()
            await asyncio.sleep(0)
        assert await peer.answer() == AddAnswer(1, Status.OK)
        assert await peer.answer() == ReadAnswer(2, Status.OK, b"body", None)


async def test_every_operation_reaches_the_handler_and_is_answered_as_java_does() -> None:
    golden = vectors()
    by_name = {(row.name, row.direction): row.frame for row in rows("v3-bookie-4.18.0.jsonl")}
    async with memory_bookie() as bookie, peer_of(bookie.port) as peer:
        for name in (
            "force",
            "wlac-unknown-ledger",
            "rlac-explicit-only",
            "v3-starttls-not-configured",
            "v3-op12-batch",
        ):
            peer.send(by_name[name, "request"])
            assert await peer.frame() == by_name[name, "response"]
        peer.send(golden["v3 recovery add (4.18 order)"])
        assert await peer.answer() == AddAnswer(2, Status.OK)
        peer.send(golden["v3 deferred-sync add, ledger 2"])
        assert await peer.answer() == AddAnswer(9, Status.OK)
        peer.send(golden["v3 recovery read (4.18 order)"])
        assert await peer.answer() == ReadAnswer(14, Status.OK, golden["body CRC32C"], None)
        key = golden["master b'testPasswd'"]
        assert bookie.add_flags == [(key, True, True, False), (key, False, False, True)]
        assert bookie.read_flags == [(key, True)]
        assert len(bookie.forced) == 1


async def test_answers_may_come_in_any_order() -> None:
    async with memory_bookie() as bookie, peer_of(bookie.port) as peer:
        bookie.is_holding = True
        peer.send(add_frame(1), add_frame(2), v3.encode_bookie_info_request(3), add_frame(4))
        peer.send(bytes.fromhex("0000000a0a080803100c18092003"))  # the protocol answers this one itself
        assert (await peer.answer()).txn_id == 9
        bookie.release()
        assert [(await peer.answer()).txn_id for _ in range(4)] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    "junk",
    [
        struct.pack(">I", 1 << 20),  # longer than the limit below
        b"\0\0\0\0",
        encode_frame(b"\x0a\xff"),
        encode_frame(b"\x02\x02" + bytes(18)),  # a v2 read
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
async def test_junk_closes_its_connection_with_one_log_line(junk: bytes, caplog: pytest.LogCaptureFixture) -> None:
    limits = ListenerLimits(frame_bytes_max=100_000)
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as other, peer_of(bookie.port) as peer:
        with caplog.at_level(logging.WARNING):
            peer.send(add_frame(1), junk, add_frame(2))
            while not await peer.is_closed_by_the_bookie():
                pass
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert set(bookie.entries) == {(1, 1)}
        other.send(add_frame(3))
        assert await other.answer() == AddAnswer(3, Status.OK)


async def test_largest_frame_passes() -> None:
    limits = ListenerLimits(frame_bytes_max=100_000)
    overhead = len(add_frame(1, bytes(90_000))) - 90_000
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as peer:
        peer.send(add_frame(1, bytes(100_000 - overhead)))
        assert await peer.answer() == AddAnswer(1, Status.OK)
        peer.send(add_frame(2, bytes(100_001 - overhead)))
        assert await peer.is_closed_by_the_bookie()


async def test_an_entry_that_no_answer_can_hold_is_an_error_and_not_the_end_of_the_connection() -> None:
    limits = ListenerLimits(frame_bytes_max=1000)
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as peer:
        bookie.entries[1, 0] = bytes(1000)
        bookie.entries[1, 1] = bytes(900)
        peer.send(v3.encode_read_request(1, 1, 0, None, False), v3.encode_read_request(2, 1, 1, None, False))
        assert await peer.answer() == ReadAnswer(1, Status.IO_ERROR, None, None)
        assert await peer.answer() == ReadAnswer(2, Status.OK, bytes(900), None)


async def test_before_the_bookie_serves_connections_are_closed() -> None:
    listener = BookieListener(ListenerLimits())
    port = await listener.open(listen_tcp, LOOPBACK, 0)
    async with peer_of(port) as peer:
        assert await peer.is_closed_by_the_bookie()
    await listener.close()


async def test_at_the_limit_a_new_connection_replaces_the_longest_idle_one() -> None:
    async with (
        memory_bookie(ListenerLimits(connections_max=3)) as bookie,
        peer_of(bookie.port) as busy,
        peer_of(bookie.port) as idle,
        peer_of(bookie.port) as active,
    ):
        for txn_id, peer in enumerate((busy, idle, active)):
            peer.send(add_frame(txn_id))
            assert await peer.answer() == AddAnswer(txn_id, Status.OK)
        bookie.is_holding = True
        busy.send(add_frame(10))
        await bookie.holds(1)
        bookie.is_holding = False
        async with peer_of(bookie.port) as fresh:
            fresh.send(add_frame(20))
            assert await fresh.answer() == AddAnswer(20, Status.OK)
            assert await idle.is_closed_by_the_bookie()
            active.send(add_frame(30))
            assert await active.answer() == AddAnswer(30, Status.OK)
            bookie.release()
            assert await busy.answer() == AddAnswer(10, Status.OK)


async def test_a_connection_is_idle_only_since_its_last_answer() -> None:
    async with (
        memory_bookie(ListenerLimits(connections_max=2)) as bookie,
        peer_of(bookie.port) as waiting,
        peer_of(bookie.port) as idle,
    ):
        bookie.is_holding = True
        waiting.send(add_frame(1))
        await bookie.holds(1)
        bookie.is_holding = False
        idle.send(add_frame(2))
        assert await idle.answer() == AddAnswer(2, Status.OK)
        bookie.release()
        assert await waiting.answer() == AddAnswer(1, Status.OK)
        async with peer_of(bookie.port) as fresh:
            fresh.send(add_frame(3))
            assert await fresh.answer() == AddAnswer(3, Status.OK)
            waiting.send(add_frame(4))
            assert await waiting.answer() == AddAnswer(4, Status.OK)
            assert await idle.is_closed_by_the_bookie()


async def test_at_the_limit_a_new_connection_is_closed_while_all_others_are_busy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with memory_bookie(ListenerLimits(connections_max=1)) as bookie, peer_of(bookie.port) as busy:
        bookie.is_holding = True
        busy.send(add_frame(1))
        await bookie.holds(1)
        async with peer_of(bookie.port) as refused:
            assert await refused.is_closed_by_the_bookie()
        assert "no other is idle" in caplog.text
        bookie.release()
        assert await busy.answer() == AddAnswer(1, Status.OK)
        async with peer_of(bookie.port) as fresh:
            fresh.send(v3.encode_bookie_info_request(2))
            await bookie.holds(1)
            assert await busy.is_closed_by_the_bookie()


async def test_a_peer_that_reads_no_answers_is_replaced_too() -> None:
    async with memory_bookie(ListenerLimits(connections_max=1)) as bookie, peer_of(bookie.port) as peer:
        bookie.entries[1, 0] = bytes(200_000)
        peer.send(*([v3.encode_read_request(1, 1, 0, None, False)] * 300))
        assert 0 < await bookie.reads_no_more() < 300
        async with peer_of(bookie.port) as fresh:
            fresh.send(add_frame(2))
            assert await fresh.answer() == AddAnswer(2, Status.OK)


@pytest.mark.parametrize("kind", ["bookie info", "read", "add"])
async def test_a_flood_of_tiny_requests_delays_another_client_by_one_turn(kind: str) -> None:
    requests: dict[str, Callable[[int], bytes]] = {
        "bookie info": v3.encode_bookie_info_request,
        "read": lambda txn_id: v3.encode_read_request(txn_id, 1, 0, None, False),
        "add": add_frame,
    }
    limits = ListenerLimits(turn_requests_max=50)
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as greedy, peer_of(bookie.port) as other:
        for peer in (other, greedy):
            peer.send(add_frame(0))
            await peer.answer()
        # Sent within one turn of the loop: the bookie finds both at once.
        greedy.send(*(requests[kind](txn_id) for txn_id in range(1, 1001)))
        other.send(vectors()["v3 force, ledger 2"])
        while not bookie.forced:  # noqa: ASYNC110
            await asyncio.sleep(0)
        share = 50 * {"add": 8, "read": 2, "bookie info": 1}[kind]
        assert bookie.request_count <= 2 + 1 + 2 * share, "requests that came before that of the other client"
        await other.frame()
        assert [(await greedy.answer()).txn_id for _ in range(1000)] == list(range(1, 1001))


async def test_long_batches_delay_another_client_by_a_few_of_them() -> None:
    async with memory_bookie() as bookie, peer_of(bookie.port) as greedy, peer_of(bookie.port) as other:
        bookie.entries.update({(1, entry_id): bytes(1000) for entry_id in range(100)})
        other.send(add_frame(0))
        await other.answer()
        batches = [encode_batch_read(BatchReadCall(request_id, 1, 0, 100, 1 << 20)) for request_id in range(100)]
        greedy.send(batches[0])
        await greedy.frame()
        # Sent within one turn of the loop: the bookie finds both at once.
        greedy.send(*batches[1:])
        other.send(vectors()["v3 force, ledger 2"])
        while not bookie.forced:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert bookie.request_count <= 3 + 2 * 3, "batches that came before the request of the other client"
        await other.frame()
        answers = [decode_batch_read_answer((await greedy.frame())[4:]) for _ in batches[1:]]
        assert [answer.request_id for answer in answers] == list(range(1, 100))


async def test_unanswered_requests_stop_the_reading_until_they_are_answered() -> None:
    limits = ListenerLimits(unanswered_bytes_max=10_000)
    async with memory_bookie(limits) as bookie, peer_of(bookie.port) as peer:
        bookie.is_holding = True
        peer.send(*(add_frame(txn_id, bytes(1000)) for txn_id in range(1000)))
        await bookie.holds(1)
        await bookie.reads_no_more()
        assert len(bookie.held) * 1000 <= 10_000 + 1000
        seen: set[int] = set()
        while len(seen) < 1000:
            bookie.release()
            seen.add((await peer.answer()).txn_id)
            assert len(bookie.held) * 1000 <= 10_000 + 1000
        assert seen == set(range(1000))


async def test_a_transaction_id_used_twice_does_not_stop_the_connection_for_good() -> None:
    async with memory_bookie(ListenerLimits(unanswered_bytes_max=2_000)) as bookie, peer_of(bookie.port) as peer:
        for _ in range(10):
            peer.send(add_frame(7, bytes(900)), add_frame(7, bytes(900)))
            assert await peer.answer() == await peer.answer() == AddAnswer(7, Status.OK)
        assert bookie.request_count == 20


async def test_a_peer_that_takes_no_answers_is_asked_for_no_more() -> None:
    async with memory_bookie() as bookie, peer_of(bookie.port) as peer:
        bookie.entries[1, 0] = bytes(200_000)
        read = v3.encode_read_request(1, 1, 0, None, False)
        peer.send(*([read] * 300))
        assert 0 < await bookie.reads_no_more() < 300
        for _ in range(300):
            answer = await peer.answer()
            assert isinstance(answer, ReadAnswer)
            assert answer.body == bytes(200_000)


async def test_answers_to_a_connection_that_is_gone_are_dropped() -> None:
    async with memory_bookie() as bookie:
        bookie.is_holding = True
        async with peer_of(bookie.port) as peer:
            peer.send(add_frame(1))
            await bookie.holds(1)
        async with peer_of(bookie.port) as other:
            bookie.release()
            bookie.is_holding = False
            other.send(add_frame(2))
            assert await other.answer() == AddAnswer(2, Status.OK)


async def test_a_handler_that_fails_costs_its_connection_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_bookie() as bookie, peer_of(bookie.port) as other, peer_of(bookie.port) as peer:
        bookie.forced = ()  # type: ignore[assignment]  # it cannot be appended to
        peer.send(vectors()["v3 force, ledger 2"])
        assert await peer.is_closed_by_the_bookie()
        assert any(record.levelname == "ERROR" for record in caplog.records)
        other.send(add_frame(1))
        assert await other.answer() == AddAnswer(1, Status.OK)


async def test_close_sends_what_is_ready_and_turns_everybody_away() -> None:
    async with memory_bookie() as bookie:
        async with peer_of(bookie.port) as peer:
            bookie.is_holding = True
            peer.send(add_frame(1))
            await bookie.holds(1)
            bookie.release()
            await bookie.close()
            assert await peer.answer() == AddAnswer(1, Status.OK)
            assert await peer.is_closed_by_the_bookie()
        with pytest.raises(ConnectionError):
            async with peer_of(bookie.port):
                pass
