"""What a bookie keeps in memory for each ledger is small: a few requests must not be able to fill the memory."""

from __future__ import annotations

import pytest

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    ADD_ENTRY,
    READ_ENTRY,
    VERSION_THREE,
    WRITE_LAC,
    ReadRequest,
    Request,
)
from bkctl.runtime.protocol.framing import encode_frame
from bkctl.runtime.protocol.status import Status
from tests.runtime.bookie.conftest import KEY, Peer
from tests.runtime.bookie.test_measures import bookie
from tests.runtime.net.test_listener import peer_of
from tests.storage.engines import explicit_lac

LARGE = b"k" * 1_000_000
LEDGERS = range(20)


def request_of(kind: str, peer: Peer, ledger_id: int) -> Request:
    request = Request()
    request.header.version, request.header.txnId = VERSION_THREE, ledger_id
    if kind == "key of an add":
        request.header.operation = ADD_ENTRY
        add = request.addRequest
        add.ledgerId, add.entryId, add.masterKey, add.body = ledger_id, 0, LARGE, peer.body(ledger_id, 0)
    elif kind == "key of a fence":
        request.header.operation = READ_ENTRY
        read = request.readRequest
        read.ledgerId, read.entryId, read.masterKey, read.flag = ledger_id, 0, LARGE, ReadRequest.FENCE_LEDGER
    else:
        request.header.operation = WRITE_LAC
        key, lac = (LARGE, b"") if kind == "key of an explicit LAC" else (KEY, LARGE)
        write = request.writeLacRequest
        write.ledgerId, write.lac = ledger_id, 3
        write.masterKey, write.body = key, explicit_lac(ledger_id, 3) + lac
    return request


@pytest.mark.parametrize("kind", ["key of an add", "key of a fence", "key of an explicit LAC", "explicit LAC"])
async def test_a_large_key_or_explicit_lac_is_refused(bookie_config: BookieConfig, kind: str) -> None:
    async with bookie(bookie_config) as (server, peer), peer_of(server.port) as client:
        for ledger_id in LEDGERS:
            client.send(encode_frame(request_of(kind, peer, ledger_id).SerializeToString()))
            assert (await client.answer()).status is Status.BAD_REQUEST
        storage = server.view.storage
        assert storage is not None
        assert [engine.ledger_count for engine in storage.engines] == [0]
        assert await peer.add(0, 0) is Status.OK
