"""What v3 has beyond reads and adds, asked in the same frames of a Java bookie and of a bkctl bookie: same answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from bkctl.runtime.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.bookkeeper_wire_pb2 import (
    FORCE_LEDGER,
    READ_LAC,
    VERSION_THREE,
    OperationType,
    Request,
    Response,
)
from bkctl.runtime.protocol.framing import encode_frame
from tests.interop.java_cluster import JavaCluster
from tests.processes import DevCluster
from tests.runtime.bookie.conftest import KEY
from tests.runtime.bookie.serving.test_long_polls import LEDGER_ID, add_frame, poll_frame, response, write_lac_frame
from tests.runtime.net.test_listener import Peer, peer_of
from tests.storage.engines import entry


def request(operation: OperationType, ledger_id: int = LEDGER_ID) -> bytes:
    message = Request()
    message.header.version, message.header.operation, message.header.txnId = VERSION_THREE, operation, 77
    inner = message.readLacRequest if operation == READ_LAC else message.forceLedgerRequest
    inner.ledgerId = ledger_id
    return encode_frame(message.SerializeToString())


def deferred_add_frame(entry_id: int, lac: int) -> bytes:
    body = entry(LEDGER_ID, entry_id, last_add_confirmed=lac)
    message = Request.FromString(v3.encode_add_request(5, LEDGER_ID, entry_id, KEY, body, False, False)[4:])
    message.addRequest.writeFlags = 1
    return encode_frame(message.SerializeToString())


async def answers(client: Peer, poller: Peer) -> AsyncIterator[Response]:
    """One after another; a poll that waits is sent before what wakes it."""

    async def ask(peer: Peer, frame: bytes) -> Response:
        peer.send(frame)

        return await response(peer)

    yield await ask(poller, poll_frame(1, -1, 1000))  # no such ledger
    for frame in (
        add_frame(0, -1),
        add_frame(1, 0),
        # Until something asks Java for the LAC it knows none, and a poll waits for its time.
        v3.encode_read_request(2, LEDGER_ID, 0, None, False),
        poll_frame(2, -1),
        poll_frame(3, 5, 200),
        poll_frame(4, 5, None),
    ):
        yield await ask(client, frame)
    for txn_id, previous_lac, waking in (
        (5, 0, add_frame(2, 1)),
        (6, 1, write_lac_frame(2)),
        (7, 2, deferred_add_frame(3, 3)),
        (8, 9, v3.encode_read_request(9, LEDGER_ID, -1, KEY, True)),
    ):
        poller.send(poll_frame(txn_id, previous_lac))
        yield await ask(client, poll_frame(100, 100, 200))  # the other one waits by then
        yield await ask(client, waking)
        yield await response(poller)
    for frame in (
        request(READ_LAC),
        request(FORCE_LEDGER),
        request(FORCE_LEDGER, 99),
        deferred_add_frame(4, 3),
        v3.encode_read_request(9, LEDGER_ID + 1, -1, KEY, True),
        poll_frame(10, -1, 200, ledger_id=LEDGER_ID + 1),
    ):
        yield await ask(client, frame)


async def all_answers(port: int) -> list[str]:
    """With 1 for the time of the change."""
    found = []
    async with peer_of(port) as client, peer_of(port) as poller:
        async for answer in answers(client, poller):
            if answer.readResponse.HasField("lacUpdateTimestamp"):
                answer.readResponse.lacUpdateTimestamp = 1
            answer.header.ClearField("priority")
            found.append(str(answer))
    return found


async def test_a_bkctl_bookie_answers_as_a_java_bookie(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper, bkctl_bookies: DevCluster
) -> None:
    uri = f"zk+hierarchical://{zookeeper.connect_string}/waiting-requests"
    with JavaCluster(str(tmp_path), uri) as cluster:
        (java_id,) = cluster.start_bookies(1)
        of_java = await all_answers(int(java_id.rpartition(":")[2]))
    assert await all_answers(bkctl_bookies.bookies[0].port) == of_java
    assert len(of_java) == 25
