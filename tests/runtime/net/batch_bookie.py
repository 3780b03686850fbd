"""A bookie that serves batch reads (wire v2) next to a ``MemoryBookie``, to which it passes all other connections."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable

from bkctl.runtime.protocol.v2_batch_reads import BatchReadCall
from tests.runtime.net.memory_bookie import LOOPBACK, MemoryBookie

_REQUEST = struct.Struct(">IqqqiQ")
_ANSWER = struct.Struct(">Iiqqq")
_HEADER = 0x02070000
_OVERHEAD_BYTES = 36
_NO_ENTRY = 2


class BatchBookie:
    """Answers as Java does (wire section 13). ``answer`` may be replaced; b"" closes the connection."""

    def __init__(self, memory: MemoryBookie) -> None:
        self.memory = memory
        self.port = 0
        self.calls: list[BatchReadCall] = []
        self.answer: Callable[[BatchReadCall], bytes | None] = self.entries
        self._changed = asyncio.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self.connection_count = 0

    def entries(self, call: BatchReadCall) -> bytes:
        """The entries from the first one on, as far as there are any and they have room."""
        bodies: list[bytes] = []
        size = _OVERHEAD_BYTES
        for entry_id in range(call.first_entry_id, call.first_entry_id + call.count_max):
            body = self.memory.entries.get((call.ledger_id, entry_id))
            size += 4 + len(body or b"")
            if body is None or (bodies and size > call.bytes_max):
                break
            bodies.append(body)
        return answer_frame(call, 0 if bodies else _NO_ENTRY, bodies)

    async def calls_are(self, count: int) -> None:
        """Wait until there have been so many calls."""
        async with asyncio.timeout(120):
            while len(self.calls) < count:
                self._changed.clear()
                await self._changed.wait()

    def send(self, frame: bytes) -> None:
        """Send bytes on the newest connection for batch reads."""
        self._writers[-1].write(frame)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            start = await reader.readexactly(5)
            if start[4] == _HEADER >> 24:
                self.connection_count += 1
                self._writers.append(writer)
                await self._serve_batches(start, reader, writer)
            else:
                inner_reader, inner_writer = await asyncio.open_connection(LOOPBACK, self.memory.port)
                inner_writer.write(start)
                await asyncio.gather(_pass(reader, inner_writer), _pass(inner_reader, writer))
        writer.close()

    async def _serve_batches(self, start: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = start + await reader.readexactly(4 + _REQUEST.size - len(start))
            _, ledger_id, first_entry_id, request_id, count_max, bytes_max = _REQUEST.unpack_from(frame, 4)
            call = BatchReadCall(request_id, ledger_id, first_entry_id, count_max, bytes_max)
            self.calls.append(call)
            self._changed.set()
            answer = self.answer(call)
            if answer == b"":
                return
            writer.write(answer or b"")
            start = b""


def answer_frame(call: BatchReadCall, code: int, bodies: list[bytes]) -> bytes:
    """A whole answer to a call."""
    head = _ANSWER.pack(_HEADER, code, call.ledger_id, call.first_entry_id, call.request_id)
    payload = head + b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    return struct.pack(">I", len(payload)) + payload


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def batch_bookie(memory: MemoryBookie) -> AsyncIterator[BatchBookie]:
    """A bookie that listens until the block ends."""
    bookie = BatchBookie(memory)
    server = await asyncio.start_server(bookie.serve, LOOPBACK, 0)
    bookie.port = server.sockets[0].getsockname()[1]
    try:
        yield bookie
    finally:
        server.close()
