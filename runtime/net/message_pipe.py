"""Messages over pipes between a process and its child processes: each is a 4-byte length and MessagePack.

The adapter that starts the autorecovery daemon of a bookie; it is not that of ``bkctl.storage.adapters``: decision 13.
A child runs ``python -P -m MODULE`` and talks to its parent through standard input and output. It ends when its parent
does, because then its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from bkctl.storage.adapters.child_protocol import LENGTH, frame

M = TypeVar("M")

_BUFFER_BYTES_MAX: Final = 1 << 26
"""Longest message. The metrics of a daemon are the longest of all, and much shorter."""


class MessagePipe(Generic[M]):
    """Sends any struct and receives messages of one type or union of types."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, message_type: Any) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(message_type)

    def send(self, message: msgspec.Struct) -> None:
        """Queue a message. Does nothing once the other side has ended: ``receive`` tells."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def receive(self) -> M | None:
        """The next message; None when the other side has ended."""
        try:
            (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return self._decoder.decode(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def flush(self) -> None:
        """Return once the queue is short again."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    def close(self) -> None:
        """End the pipe for the other side. Queued messages are still sent."""
        self._writer.close()


class ChildProcess(Generic[M]):
    """A started child and its pipe."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: MessagePipe[M]) -> None:
        self._process = process
        self.pipe = pipe

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    async def end(self, wait_s: float) -> int:
        """Close the pipe, wait until the process has ended, and kill it if it takes longer; returns its exit status."""
        self.pipe.close()
        try:
            async with asyncio.timeout(wait_s):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()

    def kill(self) -> None:
        """Kill the process, which may be halted; ``receive`` of the pipe notices."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()


async def start_child(module: str, message_type: Any) -> ChildProcess[Any]:
    """Start ``python -P -m module``; OSError. Its standard error is ours."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_BUFFER_BYTES_MAX,
        start_new_session=True,  # Ctrl-C reaches the parent only, which ends its children
    )
    assert process.stdin is not None
    assert process.stdout is not None
    return ChildProcess(process, MessagePipe(process.stdout, process.stdin, message_type))


def end_at_signals(end: Callable[[], None]) -> None:
    """Call ``end`` at SIGTERM, which systemd sends to all processes of a service, and at SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)


async def parent_pipe(message_type: Any) -> MessagePipe[Any]:
    """The pipe of a child to its parent. Whatever else the process prints goes to standard error from now on."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    output = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(output, "wb", buffering=0)
    )
    return MessagePipe(reader, asyncio.StreamWriter(transport, protocol, None, loop), message_type)
