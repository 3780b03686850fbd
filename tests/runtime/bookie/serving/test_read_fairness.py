"""A backlog of reads delays neither adds nor urgent reads, and other clients' reads by one round at most.

The bookie has its own handler, storage and lanes; a job that waits for an event holds a lane, as a slow disk would.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bkctl.runtime.bookie.disks.modes import BookieModes
from bkctl.runtime.bookie.serving.adds import AddPath
from bkctl.runtime.bookie.serving.group_commit import GroupCommit
from bkctl.runtime.bookie.serving.handler import BookieRequestHandler
from bkctl.runtime.bookie.serving.ledger_handles import LedgerHandles
from bkctl.runtime.net.host import listen_tcp
from bkctl.runtime.net.listener import BookieListener
from bkctl.runtime.net.loop import LaneWorkers, LoopClock
from bkctl.runtime.net.server_connection import ListenerLimits
from bkctl.runtime.ports import BookieInfo
from bkctl.runtime.protocol import v3
from bkctl.runtime.protocol.messages import AddAnswer, ListEntriesAnswer, ReadAnswer
from bkctl.runtime.protocol.status import Status
from bkctl.runtime.protocol.v2_batch_reads import (
    BatchReadAnswer,
    BatchReadCall,
    decode_batch_read_answer,
    encode_batch_read,
)
from bkctl.storage.config import EngineConfig
from bkctl.storage.engine.replay import checkpoint_now
from tests.runtime.net.memory_bookie import LOOPBACK
from tests.runtime.net.test_listener import Peer, peer_of
from tests.storage.engines import KEY, config_below, entry, open_storage

BACKLOG = 3000
LEDGER, FRESH_LEDGER = 1, 2


class GatedBookie:
    """A bookie with ``BACKLOG`` entries on disk and none in a cache."""

    def __init__(self, workers: LaneWorkers) -> None:
        self._workers = workers
        self._gates: list[threading.Event] = []
        self.port = 0

    def hold_reads(self) -> threading.Event:
        """The reads lane does what it was given so far, then waits for the event."""
        gate = threading.Event()
        self._gates.append(gate)
        self._workers.run("reads", gate.wait)
        return gate

    def open_gates(self) -> None:
        for gate in self._gates:
            gate.set()


async def _settle_nothing() -> None:
    """No ledger is forced here."""


@pytest.fixture
async def bookie(tmp_path: Path) -> AsyncIterator[GatedBookie]:
    engine_config = EngineConfig(memtable_bytes_max=8 * 1024 * 1024, read_ahead_count_max=0)
    config = config_below(tmp_path, engine=engine_config)
    storage = open_storage(config)
    storage.replay()
    engine = storage.engine_of(LEDGER)
    engine.rows.set_master_key(LEDGER, KEY)
    for entry_id in range(BACKLOG):
        engine.add(LEDGER, entry_id, entry(LEDGER, entry_id))
    checkpoint_now(engine)
    async with contextlib.AsyncExitStack() as undo:
        undo.callback(storage.close)
        workers = LaneWorkers()
        undo.push_async_callback(workers.close)
        bookie = GatedBookie(workers)
        journal = GroupCommit(storage.journals[0], workers, "journal-0", config.journal, on_disk_room=lambda _: None)
        handles = LedgerHandles(storage, [journal], LoopClock())
        adds = AddPath(handles, LoopClock(), 10, lambda: None)
        modes = BookieModes(is_forced_read_only=False)
        handler = BookieRequestHandler(
            storage, handles, adds, workers, lambda: BookieInfo(1, 1), modes, _settle_nothing
        )
        commits = asyncio.get_running_loop().create_task(journal.run())
        undo.push_async_callback(asyncio.wait, [commits])
        undo.callback(journal.stop)
        undo.push_async_callback(handler.drain)
        undo.callback(bookie.open_gates)
        listener = BookieListener(ListenerLimits())
        bookie.port = await listener.open(listen_tcp, LOOPBACK, 0)
        undo.push_async_callback(listener.close)
        listener.serve(handler)
        yield bookie


def read_frame(txn_id: int, entry_id: int, *, is_high_priority: bool = False, fence_with: bytes | None = None) -> bytes:
    return v3.encode_read_request(txn_id, LEDGER, entry_id, fence_with, is_high_priority)


def fresh_read_frame(txn_id: int, entry_id: int) -> bytes:
    return v3.encode_read_request(txn_id, FRESH_LEDGER, entry_id, None, False)


async def add(peer: Peer, txn_id: int) -> None:
    """Add an entry and wait for its answer: the bookie has then taken all that was sent before."""
    body = entry(FRESH_LEDGER, txn_id)
    peer.send(v3.encode_add_request(txn_id, FRESH_LEDGER, txn_id, KEY, body, False, False))
    assert await peer.answer() == AddAnswer(txn_id, Status.OK)


async def body_read(peer: Peer, txn_id: int) -> int:
    """Entry id in the body of the next answer, which must be of this request."""
    answer = await peer.answer()
    assert isinstance(answer, ReadAnswer)
    assert (answer.txn_id, answer.status) == (txn_id, Status.OK)
    assert answer.body is not None
    return int(struct.unpack_from(">8xq", answer.body)[0])


async def test_adds_and_urgent_reads_do_not_wait_for_a_backlog_of_reads(bookie: GatedBookie) -> None:
    async with peer_of(bookie.port) as greedy, peer_of(bookie.port) as other:
        await add(other, 4000)
        other.send(fresh_read_frame(4001, 4000))  # the first read of a ledger looks up its last entry on disk
        assert await body_read(other, 4001) == 4000
        bookie.hold_reads()
        greedy.send(*(read_frame(entry_id, entry_id) for entry_id in range(BACKLOG)))
        await add(greedy, 5000)  # its own reads do not stop it either
        await add(other, 5001)
        other.send(read_frame(5002, 17, is_high_priority=True))
        assert await body_read(other, 5002) == 17
        greedy.send(read_frame(5003, 18, is_high_priority=True))
        assert await body_read(greedy, 5003) == 18
        other.send(read_frame(5004, 19, fence_with=KEY))
        assert await body_read(other, 5004) == 19
        other.send(fresh_read_frame(5005, 5001))  # this entry is in memory
        assert await body_read(other, 5005) == 5001
        bookie.open_gates()
        assert [await body_read(greedy, entry_id) for entry_id in range(BACKLOG)] == list(range(BACKLOG))


async def test_batch_reads_wait_in_the_lane_of_their_priority(bookie: GatedBookie) -> None:
    ordinary = encode_batch_read(BatchReadCall(1, LEDGER, 0, 10, 1 << 20))
    urgent = bytearray(encode_batch_read(BatchReadCall(2, LEDGER, 100, 10, 1 << 20)))
    urgent[7] = 4  # the flag for high priority, in the last byte of the header
    bookie.hold_reads()
    reader, writer = await asyncio.open_connection(LOOPBACK, bookie.port)
    writer.write(ordinary)
    writer.write(urgent)
    first = await next_batch(reader)
    bookie.open_gates()
    second = await next_batch(reader)
    writer.close()
    assert (first.request_id, len(first.bodies)) == (2, 10)
    assert (second.request_id, len(second.bodies)) == (1, 10)


async def next_batch(reader: asyncio.StreamReader) -> BatchReadAnswer:
    async with asyncio.timeout(60):
        length = int.from_bytes(await reader.readexactly(4), "big")
        return decode_batch_read_answer(await reader.readexactly(length))


async def test_a_read_of_another_client_waits_for_one_round_at_most(bookie: GatedBookie) -> None:
    async with peer_of(bookie.port) as greedy, peer_of(bookie.port) as other:
        first_round = bookie.hold_reads()
        greedy.send(*(read_frame(entry_id, entry_id) for entry_id in range(BACKLOG)))
        await add(greedy, 5000)
        other.send(read_frame(5001, 2000))
        await add(other, 5002)
        second_round = bookie.hold_reads()
        first_round.set()
        answered = [await body_read(greedy, entry_id) for entry_id in range(32)]
        await add(other, 5003)  # the second round is in the lane by now
        bookie.hold_reads()
        second_round.set()
        assert await body_read(other, 5001) == 2000
        await add(other, 5004)
        bookie.open_gates()
        answered += [(await greedy.answer()).txn_id for _ in range(32, BACKLOG)]
        assert sorted(answered) == list(range(BACKLOG))


async def test_reads_and_lists_of_entries_do_not_wait_for_each_other(bookie: GatedBookie) -> None:
    """Each in its thread: a list of a large ledger takes seconds."""
    async with peer_of(bookie.port) as greedy, peer_of(bookie.port) as other:
        gate = bookie.hold_reads()
        other.send(read_frame(1, 17))
        await add(other, 4000)
        greedy.send(*(v3.encode_list_entries_request(txn_id, LEDGER) for txn_id in range(40)))
        for _ in range(40):
            answer = await greedy.answer()
            assert isinstance(answer, ListEntriesAnswer)
            assert answer.entries is not None
            assert len(answer.entries) == BACKLOG
        gate.set()
        assert await body_read(other, 1) == 17
