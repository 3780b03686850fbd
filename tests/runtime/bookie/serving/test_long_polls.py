"""Long polls to a bookie that listens, in frames as Java's client sends them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    ENOLEDGER,
    EOK,
    ETOOMANYREQUESTS,
    READ_ENTRY,
    VERSION_THREE,
    WRITE_LAC,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
)
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.messages import LongPollAnswer, LongPollRead
from tests.runtime.bookie.conftest import KEY
from tests.runtime.net.test_listener import Peer, peer_of
from tests.storage.engines import entry, explicit_lac
from tests.until import until

LEDGER_ID = 1_000_007
"""Far from the ids that a metadata store gives out: some bookies also serve other tests."""
LONG_MS = 600_000
POLLS = 10_000


@pytest.fixture
async def server(bookie_config: BookieConfig) -> AsyncIterator[BookieServer]:
    async with running_bookie(bookie_config) as server:
        yield server


def poll_frame(
    txn_id: int, previous_lac: int, wait_ms: int | None = LONG_MS, *, ledger_id: int = LEDGER_ID, priority: int = 0
) -> bytes:
    """As Java's client sends it."""
    request = Request()
    request.header.version, request.header.operation, request.header.txnId = VERSION_THREE, READ_ENTRY, txn_id
    if priority:
        request.header.priority = priority
    read = request.readRequest
    read.ledgerId, read.entryId, read.previousLAC, read.flag = ledger_id, -1, previous_lac, ReadRequest.ENTRY_PIGGYBACK
    if wait_ms is not None:
        read.timeOut = wait_ms
    return encode_frame(request.SerializeToString())


def add_frame(entry_id: int, lac: int, *, ledger_id: int = LEDGER_ID, payload: bytes = b"data") -> bytes:
    body = entry(ledger_id, entry_id, payload, last_add_confirmed=lac)
    return v3.encode_add_request(1_000_000 + entry_id, ledger_id, entry_id, KEY, body, False, False)


def write_lac_frame(lac: int) -> bytes:
    request = Request()
    request.header.version, request.header.operation, request.header.txnId = VERSION_THREE, WRITE_LAC, 1
    write = request.writeLacRequest
    write.ledgerId, write.lac, write.masterKey, write.body = LEDGER_ID, lac, KEY, explicit_lac(LEDGER_ID, lac)
    return encode_frame(request.SerializeToString())


async def response(peer: Peer) -> Response:
    return Response.FromString((await peer.frame())[4:])


async def polled(peer: Peer) -> ReadResponse:
    return (await response(peer)).readResponse


async def add(server: BookieServer, *frames: bytes) -> None:
    async with peer_of(server.port) as writer:
        for frame in frames:
            writer.send(frame)
            assert (await response(writer)).status == EOK


def waiting_count(server: BookieServer) -> int:
    assert server.view.listener is not None
    return server.view.listener.read_lanes.waiting_poll_count


@contextlib.asynccontextmanager
async def waiting(server: BookieServer, *frames: bytes) -> AsyncIterator[Peer]:
    """A client whose polls wait within the block."""
    async with peer_of(server.port) as peer:
        before = waiting_count(server)
        peer.send(*frames)
        await until(lambda: waiting_count(server) == before + len(frames))
        yield peer


async def test_the_add_that_moves_the_lac_answers_with_the_entry(server: BookieServer) -> None:
    """Another one leaves the poll waiting; in Java it would wait for its time from then on."""
    await add(server, add_frame(0, -1), add_frame(1, 0))
    began_ms = time.time() * 1000
    async with waiting(server, poll_frame(1, 0), poll_frame(2, 1, priority=1)) as peer:
        assert server.view.listener is not None
        assert server.view.listener.read_lanes.under_way_count == 0, "a waiting poll has no turn"
        await add(server, add_frame(2, 0), add_frame(3, 1))
        found = await polled(peer)
        assert (found.status, found.entryId, found.maxLAC) == (EOK, 1, 1)
        assert found.body == entry(LEDGER_ID, 1, last_add_confirmed=0)
        assert began_ms - 1000 < found.lacUpdateTimestamp < time.time() * 1000 + 1000
        assert waiting_count(server) == 1
        await add(server, add_frame(4, 3))
        found = await polled(peer)
        assert (found.entryId, found.maxLAC) == (2, 3)


async def test_a_poll_behind_the_lac_does_not_wait(server: BookieServer) -> None:
    await add(server, add_frame(0, -1), add_frame(1, 0), add_frame(3, 2))
    async with peer_of(server.port) as peer:
        peer.send(poll_frame(1, -1))
        found = await polled(peer)
        assert (found.entryId, found.maxLAC, found.HasField("lacUpdateTimestamp")) == (0, 2, False)
        peer.send(poll_frame(2, 1))
        found = await polled(peer)
        assert (found.status, found.entryId, found.maxLAC) == (EOK, -1, 2), "entry 2 is on another bookie"
        assert not found.HasField("body")
        peer.send(poll_frame(3, 5, None))
        found = await polled(peer)
        assert (found.status, found.entryId, found.maxLAC) == (EOK, -1, 2), "without a time it does not wait"
        peer.send(poll_frame(4, 5, ledger_id=99))
        assert (await polled(peer)).status == ENOLEDGER


async def test_its_time_ends_a_poll(server: BookieServer) -> None:
    await add(server, add_frame(0, -1))
    async with waiting(server, poll_frame(1, 0, 300)) as peer:
        found = await polled(peer)
        assert (found.status, found.entryId, found.maxLAC) == (EOK, -1, -1)
        assert not found.HasField("lacUpdateTimestamp")
    assert waiting_count(server) == 0


async def test_an_explicit_lac_a_fence_and_the_deletion_of_the_ledger_end_polls(server: BookieServer) -> None:
    await add(server, add_frame(0, -1), add_frame(1, 0))
    async with waiting(server, poll_frame(1, 0), poll_frame(2, 5), poll_frame(3, 6)) as peer:
        await add(server, write_lac_frame(1))
        found = await polled(peer)
        assert (found.entryId, found.maxLAC, found.HasField("lacUpdateTimestamp")) == (1, 1, True)
        async with peer_of(server.port) as recoverer:
            recoverer.send(v3.encode_read_request(1, LEDGER_ID, -1, KEY, True))
            assert (await polled(recoverer)).status == EOK
        for _ in range(2):
            found = await polled(peer)
            assert (found.status, found.entryId, found.maxLAC) == (EOK, -1, 1)
            assert not found.HasField("lacUpdateTimestamp")
    assert server.view.storage is not None
    assert server.view.path is not None
    async with waiting(server, poll_frame(1, 5)) as peer:
        server.view.storage.engine_of(LEDGER_ID).delete_ledger(LEDGER_ID)
        server.view.path.handles.forget(LEDGER_ID)
        assert (await polled(peer)).status == ENOLEDGER


async def test_a_lost_connection_takes_its_polls_along(server: BookieServer) -> None:
    await add(server, add_frame(0, -1))
    async with waiting(server, *(poll_frame(each, 0) for each in range(100))):
        pass
    await until(lambda: waiting_count(server) == 0)
    await add(server, add_frame(1, 0), add_frame(2, 1))


async def test_ten_thousand_polls_wait_and_no_read_waits_for_them(server: BookieServer) -> None:
    await add(server, add_frame(0, -1), add_frame(1, 0))
    async with (
        waiting(server, *(poll_frame(each, 0) for each in range(POLLS // 2))) as one,
        waiting(server, *(poll_frame(each, 0) for each in range(POLLS // 2))) as two,
        peer_of(server.port) as reader,
    ):
        reader.send(v3.encode_read_request(1, LEDGER_ID, 0, None, False))
        assert (await polled(reader)).status == EOK
        await add(server, add_frame(2, 1))
        for peer in (one, two):
            answered = {(await response(peer)).header.txnId for _ in range(POLLS // 2)}
            assert answered == set(range(POLLS // 2))
    assert waiting_count(server) == 0


async def test_more_polls_than_may_wait_are_answered_at_once(server: BookieServer) -> None:
    assert server.view.listener is not None
    server.view.listener.read_lanes.waiting_polls_max = 20
    await add(server, add_frame(0, -1))
    async with peer_of(server.port) as greedy:
        greedy.send(*(poll_frame(each, 0) for each in range(30)))
        for _ in range(20):
            found = await polled(greedy)
            assert (found.status, found.entryId) == (EOK, -1)
        assert waiting_count(server) == 10
        async with waiting(server, poll_frame(1, 0)):
            assert waiting_count(server) == 11, "there is room for another client"


async def test_a_peer_that_does_not_read_gets_a_bounded_number_of_entries(server: BookieServer) -> None:
    payload = bytes(100_000)
    await add(server, add_frame(0, -1), add_frame(1, 0, payload=payload))
    async with waiting(server, *(poll_frame(each, 0) for each in range(2000))) as peer:
        await add(server, add_frame(2, 1))
        for _ in range(2000):
            found = await polled(peer)
            assert (found.status, found.entryId) in [(EOK, 1), (ETOOMANYREQUESTS, -1)]


async def test_a_poll_that_fails_ends_its_connection_and_no_other_poll(
    server: BookieServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await add(server, add_frame(0, -1), add_frame(1, 0))
    assert server.view.path is not None
    handler = server.view.path.handler
    poll_memory = handler.poll_memory
    failed: list[LongPollRead] = []

    def fail_once(call: LongPollRead) -> LongPollAnswer | None:
        if not failed:
            failed.append(call)
            raise ValueError("a defect")
        return poll_memory(call)

    async with waiting(server, poll_frame(1, 0)) as one, waiting(server, poll_frame(2, 0), poll_frame(3, 0)) as two:
        monkeypatch.setattr(handler, "poll_memory", fail_once)
        await add(server, add_frame(2, 1))
        assert await one.is_closed_by_the_bookie()
        assert {(await polled(two)).entryId for _ in range(2)} == {1}
        await until(lambda: waiting_count(server) == 0)
    async with waiting(server, poll_frame(4, 1)) as later:
        await add(server, add_frame(3, 2))
        assert (await polled(later)).entryId == 2


async def test_a_bookie_with_waiting_polls_stops_at_once(bookie_config: BookieConfig) -> None:
    async with contextlib.AsyncExitStack() as peers:
        async with running_bookie(bookie_config) as server:
            await add(server, add_frame(0, -1))
            peer = await peers.enter_async_context(waiting(server, poll_frame(1, 0), poll_frame(2, 0)))
        assert await peer.is_closed_by_the_bookie()
