"""Frames that no client sends, to a bookie process: only their connection suffers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from pathlib import Path

import pytest

from bkctl.runtime.metadata.zookeeper.store import ZooKeeperStore
from bkctl.runtime.protocol.status import Status
from bkctl.storage.setting import MEBIBYTE
from tests.runtime.bookie.bookie_process import BookieUnderTest
from tests.runtime.bookie.conftest import Peer
from tests.runtime.bookie.test_attacks import most_memory
from tests.runtime.net.memory_bookie import LOOPBACK
from tests.runtime.protocol.golden import rows

pytestmark = [pytest.mark.cluster, pytest.mark.battery]

FRAMES = 100_000
PER_CONNECTION = 8
WARM_UP = FRAMES // 4
CONNECTIONS_AT_ONCE = 16
BYTE_BY_BYTE_EVERY = 50
"""Connections whose bytes come one by one: 2,000 frames."""
MEMORY_MAX = 64 * MEBIBYTE
LEDGER_ID = 1 << 40
"""Beyond the ledgers of the recorded requests."""


def spoilt(frame: bytes, rng: random.Random) -> bytes:
    """A frame with a few other bytes, another length, or another end."""
    payload = bytearray(frame[4:])
    kind = rng.randrange(6)
    if kind == 0:
        return frame
    if kind == 1:
        for _ in range(rng.randint(1, 4)):
            payload[rng.randrange(len(payload))] = rng.randrange(256)
    elif kind == 2:
        del payload[rng.randrange(len(payload)) :]
    elif kind == 3:
        payload += rng.randbytes(rng.randint(1, 40))
    elif kind == 4:
        payload = bytearray(rng.randbytes(rng.randint(0, 80)))
    else:
        return struct.pack(">I", rng.choice([0, 1, 5 << 20, 1 << 31, (1 << 32) - 1])) + payload
    return struct.pack(">I", len(payload)) + payload


async def send_all(port: int, frames: list[bytes], *, is_byte_by_byte: bool) -> None:
    """On one connection, until the bookie closes it; the answers are not read."""
    _, writer = await asyncio.open_connection(LOOPBACK, port)
    with contextlib.suppress(OSError):  # not a ConnectionError from the shutdown of a socket that is closed already
        data = b"".join(frames)
        for piece in (data[at : at + 1] for at in range(len(data))) if is_byte_by_byte else [data]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.write_eof()
        await asyncio.sleep(0.001)
    writer.transport.abort()


async def work(peer: Peer, stopping: asyncio.Event) -> int:
    """Another client's adds and reads; how many there were."""
    count = 0
    while not stopping.is_set():
        assert await peer.add(LEDGER_ID, count) is Status.OK
        assert await peer.read(LEDGER_ID, count) == peer.body(LEDGER_ID, count)
        count += 1
    return count


async def test_hostile_frames_end_only_their_connection_and_fill_no_memory(
    tmp_path: Path, metadata_uri: str, store: ZooKeeperStore
) -> None:
    rng = random.Random(31)
    recorded = [row.frame for row in rows("bookie-4.18.0.jsonl") if row.direction == "request" and len(row.frame) > 4]
    bookie = BookieUnderTest(tmp_path, metadata_uri, store)
    async with bookie.running() as (process, peer):
        stopping = asyncio.Event()
        working = asyncio.ensure_future(work(peer, stopping))
        room = asyncio.Semaphore(CONNECTIONS_AT_ONCE)
        warm_bytes = 0

        async def attack(number: int) -> None:
            frames = [spoilt(rng.choice(recorded), rng) for _ in range(PER_CONNECTION)]
            async with room:
                await send_all(bookie.port, frames, is_byte_by_byte=number % BYTE_BY_BYTE_EVERY == 0)

        for first in range(0, FRAMES // PER_CONNECTION, 500):
            async with asyncio.TaskGroup() as attackers:
                for number in range(first, first + 500):
                    attackers.create_task(attack(number))
            assert not working.done(), bookie.said()
            if first * PER_CONNECTION <= WARM_UP:
                warm_bytes = most_memory(process.pid)
        stopping.set()
        assert await working > 100
        assert process.poll() is None, bookie.said()
        assert most_memory(process.pid) - warm_bytes < MEMORY_MAX
        assert "Traceback" not in bookie.said()
