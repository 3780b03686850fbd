"""What kazoo's connection thread reads, writes and waits for: many requests and answers with one system call each.

Each system call of this thread hands the interpreter over to the event loop and waits to get it back. Kazoo makes about
ten of them per request, which costs more than all the rest.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
import ssl
import time

_BUFFER_BYTES = 64 * 1024
"""Longer than a record of TLS, so that TLS keeps nothing back that the system does not report as readable."""
_WAITS_FOR_SOCKET = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ServerSocket:
    """A connection to a server. ``send`` only queues; ``wait_readable`` sends what is queued before it waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = b""
        self._place = 0
        self._unsent = bytearray()

    def setblocking(self, is_blocking: int) -> None:
        """As of a socket."""
        self._connection.setblocking(bool(is_blocking))

    def fileno(self) -> int:
        """As of a socket."""
        return self._connection.fileno()

    def close(self) -> None:
        """As of a socket."""
        self._connection.close()

    def pending(self) -> int:
        """Bytes that were received and not yet returned by ``recv``."""
        return len(self._received) - self._place

    def recv(self, size_bytes: int) -> bytes:
        """As of a socket that does not block."""
        if self._place == len(self._received):
            self._received, self._place = self._connection.recv(_BUFFER_BYTES), 0
        part = self._received[self._place : self._place + size_bytes]
        self._place += len(part)
        return part

    def send(self, data: bytes | memoryview) -> int:
        """Queue all of it."""
        self._unsent += data
        if not self.has_room:
            self.flush()
        return len(data)

    @property
    def has_room(self) -> bool:
        """Whether so little is queued that more may be."""
        return len(self._unsent) < _BUFFER_BYTES

    @property
    def has_unsent(self) -> bool:
        """Whether anything is queued."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send as much of the queue as the system takes now; OSError."""
        while self._unsent:
            try:
                sent_bytes = self._connection.send(self._unsent)
            except _WAITS_FOR_SOCKET:
                return
            del self._unsent[:sent_bytes]


class RequestSignal:
    """Both ends of the pair of sockets by which kazoo counts the requests in its queue and wakes its thread.

    Only a thread that waits is woken by a system call.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._requests: collections.deque[None] = collections.deque()
        self._is_awaited = False

    def send(self, _: bytes) -> int:
        """A request is in the queue. For any thread."""
        self._requests.append(None)
        if self._is_awaited:  # set before the thread looks for requests a last time, so this or that look finds one
            self._is_awaited = False
            with contextlib.suppress(BlockingIOError):  # full of wake-ups
                self._sender.send(b"\0")
        return 1

    def recv(self, _: int) -> bytes:
        """A request was taken from the queue; BlockingIOError if there was none."""
        try:
            self._requests.pop()
        except IndexError:
            raise BlockingIOError from None
        return b"\0"

    def close(self) -> None:
        """End both ends; can be repeated."""
        self._receiver.close()
        self._sender.close()

    @property
    def has_requests(self) -> bool:
        """Whether any request is in the queue."""
        return bool(self._requests)

    def fileno(self) -> int:
        """Becomes readable when a request comes after ``begin_wait``."""
        return self._receiver.fileno()

    def begin_wait(self) -> None:
        """From now on, a request wakes the thread; then look at ``has_requests`` again."""
        self._is_awaited = True

    def end_wait(self) -> None:
        """The thread is awake."""
        self._is_awaited = False
        with contextlib.suppress(BlockingIOError):
            self._receiver.recv(_BUFFER_BYTES)


def wait_readable(
    server: ServerSocket, signal: RequestSignal | None, timeout_s: float | None
) -> list[ServerSocket | RequestSignal]:
    """Which of them can be read now, after at most ``timeout_s``; sends what is queued for the server; OSError."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        ready: list[ServerSocket | RequestSignal] = [server] if server.pending() else []
        if signal is not None and signal.has_requests:
            return [*ready, signal]  # they may fill the queue of the server further
        server.flush()
        if ready:
            return ready
        if signal is not None:
            signal.begin_wait()
            if signal.has_requests:
                signal.end_wait()
                continue
        readable = _poll(server, signal, deadline_s)
        if signal is not None:
            signal.end_wait()
        if readable is None:
            return []
        if server.fileno() in readable:
            return [server]


def _poll(server: ServerSocket, signal: RequestSignal | None, deadline_s: float | None) -> set[int] | None:
    """The file descriptors that can be read; empty if only the queue can go on; None: the time is over."""
    poll = select.poll()
    poll.register(server, select.POLLIN | (select.POLLOUT if server.has_unsent else 0))
    if signal is not None:
        poll.register(signal, select.POLLIN)
    wait_ms = None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1000
    events = poll.poll(wait_ms)
    return {descriptor for descriptor, event in events if event & ~select.POLLOUT} if events else None


def wait_for_room(server: ServerSocket, timeout_s: float | None) -> bool:
    """Whether more may be queued for the server, after at most ``timeout_s``; OSError."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not server.has_room:
        poll = select.poll()
        poll.register(server, select.POLLOUT)
        if not poll.poll(None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1000):
            return False
        server.flush()
    return True
