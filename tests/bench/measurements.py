"""What is measured: adds to one bookie, and the two things that bound them, the disk's sync and a loopback round trip.

All measure in the same process and on the same directory, one after another, so that the numbers may stand side by
side.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from bkctl.runtime.client import LedgerClient, LedgerWriter

PAYLOAD_BYTES = 1024
PIPELINE_BATCH_COUNT = 1000
"""Adds sent without waiting; two such batches are in flight."""


class Round(msgspec.Struct, frozen=True):
    """One round of all measurements; latencies are medians within the round, in microseconds."""

    sync_us: float
    echo_us: float
    one_in_flight_us: float
    two_in_flight_us: float
    adds_per_s: float


class Workload(msgspec.Struct, frozen=True):
    """How much each round does."""

    sync_count: int = 500
    echo_count: int = 1000
    latency_add_count: int = 1000
    pipelined_add_count: int = 60_000


def measure_sync_us(directory: str, count: int) -> float:
    """Median time of appending one entry's bytes to a file and making them durable, as a journal does."""
    path = os.path.join(directory, "sync-probe")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, count * PAYLOAD_BYTES)  # journals are allocated ahead, too
        os.fsync(descriptor)
        payload = os.urandom(PAYLOAD_BYTES)
        times_ns = []
        for index in range(count):
            begin = time.perf_counter_ns()
            os.pwrite(descriptor, payload, index * PAYLOAD_BYTES)
            os.fdatasync(descriptor)
            times_ns.append(time.perf_counter_ns() - begin)
        return statistics.median(times_ns) / 1000
    finally:
        os.close(descriptor)
        os.remove(path)


class EchoServer:
    """A process that sends back what it receives, on uvloop: the floor under any request to a bookie."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.echo"], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


class _EchoClient(asyncio.Protocol):
    def __init__(self) -> None:
        self._missing_bytes = 0
        self._answered: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        self._missing_bytes -= len(data)
        if self._missing_bytes == 0 and self._answered is not None:
            self._answered.set_result(None)

    def ask(self, payload: bytes) -> asyncio.Future[None]:
        assert self._transport is not None
        self._missing_bytes = len(payload)
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(payload)
        return self._answered


async def measure_echo_us(port: int, count: int) -> float:
    """Median round trip of one entry's bytes to another process and back."""
    transport, protocol = await asyncio.get_running_loop().create_connection(_EchoClient, "127.0.0.1", port)
    try:
        payload = bytes(PAYLOAD_BYTES)
        return await _median_us(lambda: protocol.ask(payload), count, in_flight=1)
    finally:
        transport.close()


async def measure_latency_us(writer: LedgerWriter, count: int, *, in_flight: int) -> float:
    """Median time from handing over an add to its acknowledgement, with so many on the way at a time."""
    payload = os.urandom(PAYLOAD_BYTES)
    return await _median_us(lambda: writer.append(payload), count, in_flight=in_flight)


async def measure_adds_per_s(writer: LedgerWriter, count: int) -> float:
    """Acknowledged adds per second with a deep pipeline."""
    payload = os.urandom(PAYLOAD_BYTES)
    previous: asyncio.Future[int] | None = None
    begin = time.perf_counter()
    for _ in range(0, count, PIPELINE_BATCH_COUNT):
        futures = [writer.append_nowait(payload) for _ in range(PIPELINE_BATCH_COUNT)]
        if previous is not None:
            await previous
        previous = futures[-1]  # acknowledgements come in order: the last one stands for the batch
    assert previous is not None
    last_entry_id = await previous
    elapsed_s = time.perf_counter() - begin
    assert last_entry_id == writer.last_add_confirmed
    return count / elapsed_s


async def _median_us(request: Callable[[], Awaitable[object]], count: int, *, in_flight: int) -> float:
    times_ns: list[int] = []

    async def lane() -> None:
        for _ in range(count // in_flight):
            begin = time.perf_counter_ns()
            await request()
            times_ns.append(time.perf_counter_ns() - begin)

    await asyncio.gather(*(lane() for _ in range(in_flight)))
    return statistics.median(times_ns) / 1000


async def measure_round(client: LedgerClient, echo_port: int, directory: str, workload: Workload) -> Round:
    """All measurements once, on a fresh ledger."""
    sync_us = measure_sync_us(directory, workload.sync_count)
    echo_us = await measure_echo_us(echo_port, workload.echo_count)
    async with await client.create(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as writer:
        one_us = await measure_latency_us(writer, workload.latency_add_count, in_flight=1)
        two_us = await measure_latency_us(writer, workload.latency_add_count, in_flight=2)
        adds_per_s = await measure_adds_per_s(writer, workload.pipelined_add_count)
    return Round(sync_us, echo_us, one_us, two_us, adds_per_s)
