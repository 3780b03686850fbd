"""Many reads in one socket read: each gets the answer that it would get alone, whether or not it is like the others."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator

import pytest

from bkctl.runtime.bookie.boot.process import running_bookie
from bkctl.runtime.bookie.boot.server import BookieServer
from bkctl.runtime.config import BookieConfig
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import EFENCED, ENOENTRY, ENOLEDGER, EOK, Response
from tests.runtime.bookie.conftest import KEY
from tests.runtime.net.test_listener import peer_of
from tests.storage.engines import entry

LEDGER_ID, OTHER_ID, UNKNOWN_ID = 1_000_021, 1_000_022, 1_000_023
SIZES = (10, 20_000, 30, 40_000, 0, 100, 70_000, 1, 1, 1)
"""Together more than what is encoded together, and one larger than a socket read."""


@pytest.fixture
async def server(bookie_config: BookieConfig) -> AsyncIterator[BookieServer]:
    async with running_bookie(bookie_config) as server:
        yield server


def body_of(ledger_id: int, entry_id: int) -> bytes:
    payload = bytes([entry_id]) * SIZES[entry_id]
    return entry(ledger_id, entry_id, payload, last_add_confirmed=entry_id - 1)


async def fill(server: BookieServer) -> None:
    async with peer_of(server.port) as writer:
        for ledger_id in (LEDGER_ID, OTHER_ID):
            for entry_id in range(len(SIZES)):
                body = body_of(ledger_id, entry_id)
                writer.send(v3.encode_add_request(entry_id + 1, ledger_id, entry_id, KEY, body, False, False))
                assert Response.FromString((await writer.frame())[4:]).status == EOK


async def test_v3_reads_that_come_together(server: BookieServer) -> None:
    await fill(server)
    ids = [(LEDGER_ID, n) for n in range(len(SIZES))]
    ids += [(LEDGER_ID, 77), (OTHER_ID, 3), (LEDGER_ID, -1), (UNKNOWN_ID, 0), (OTHER_ID, 4), (LEDGER_ID, 5)]
    wanted = dict(enumerate(ids * 3, 1))
    async with peer_of(server.port) as peer:
        peer.send(b"".join(v3.encode_read_request(n, *pair, None, n % 7 == 0) for n, pair in wanted.items()))
        for _ in range(len(wanted)):
            answer = Response.FromString((await peer.frame())[4:])
            ledger_id, entry_id = wanted.pop(answer.header.txnId)
            read = answer.readResponse
            assert (read.ledgerId, read.entryId, read.status) == (ledger_id, entry_id, answer.status)
            if ledger_id == UNKNOWN_ID or entry_id == 77:
                assert (answer.status, read.body) == (ENOLEDGER if ledger_id == UNKNOWN_ID else ENOENTRY, b"")
            else:
                assert answer.status == EOK
                assert read.body == body_of(ledger_id, entry_id % len(SIZES))
                assert read.maxLAC == len(SIZES) - 2
    assert not wanted


async def test_v2_reads_that_come_together(server: BookieServer) -> None:
    await fill(server)
    ids = [*range(len(SIZES)), 77, 3] * 3
    async with peer_of(server.port) as peer:
        peer.send(b"".join(struct.pack(">IIqq", 20, 2 << 24 | 2 << 16, LEDGER_ID, entry_id) for entry_id in ids))
        answers: dict[int, list[bytes]] = {}
        for _ in ids:
            frame = await peer.frame()
            header, code, ledger_id, entry_id = struct.unpack_from(">IIqq", frame, 4)
            assert (header, code, ledger_id) == (2 << 24 | 2 << 16, 2 if entry_id == 77 else 0, LEDGER_ID)
            answers.setdefault(entry_id, []).append(frame[28:])
    assert answers.pop(77) == [b""] * 3
    assert answers == {n: [body_of(LEDGER_ID, n)] * ids.count(n) for n in range(len(SIZES))}


async def test_a_fencing_read_among_others_fences(server: BookieServer) -> None:
    await fill(server)
    async with peer_of(server.port) as peer:
        reads = [v3.encode_read_request(n + 1, LEDGER_ID, n, KEY if n == 2 else None, False) for n in range(5)]
        peer.send(b"".join(reads))
        answers = [Response.FromString((await peer.frame())[4:]) for _ in reads]
        assert sorted((answer.header.txnId, answer.status) for answer in answers) == [(n + 1, EOK) for n in range(5)]
        body = entry(LEDGER_ID, 10, b"", last_add_confirmed=9)
        peer.send(v3.encode_add_request(9, LEDGER_ID, 10, KEY, body, False, False))
        assert Response.FromString((await peer.frame())[4:]).status == EFENCED


async def test_the_measures_count_each_read(server: BookieServer) -> None:
    await fill(server)
    assert server.view.listener is not None
    measures = server.view.listener.measures
    async with peer_of(server.port) as peer:
        reads = [v3.encode_read_request(n + 1, LEDGER_ID, n % 3, None, False) for n in range(30)]
        peer.send(b"".join(reads))
        for _ in reads:
            await peer.frame()
    assert measures.reads.succeeded.count == measures.begun_reads.succeeded.count == len(reads)
    assert measures.read_bytes.succeeded.total == sum(len(body_of(LEDGER_ID, n % 3)) for n in range(30))
