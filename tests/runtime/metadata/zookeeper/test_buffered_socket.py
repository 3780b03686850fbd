"""The sockets of kazoo's connection thread: real ones, with the other end in the test."""

import socket
import threading
from collections.abc import Iterator

import pytest

from bkctl.runtime.metadata.zookeeper.buffered_socket import RequestSignal, ServerSocket, wait_for_room, wait_readable


@pytest.fixture
def ends() -> Iterator[tuple[ServerSocket, socket.socket]]:
    ours, theirs = socket.socketpair()
    server = ServerSocket(ours)
    server.setblocking(0)
    yield server, theirs
    server.close()
    theirs.close()


@pytest.fixture
def signal() -> Iterator[RequestSignal]:
    signal = RequestSignal()
    yield signal
    signal.close()


def test_one_read_of_the_socket_serves_many(ends: tuple[ServerSocket, socket.socket]) -> None:
    server, theirs = ends
    theirs.sendall(b"one,two,three")
    assert wait_readable(server, None, 20.0) == [server]
    assert server.recv(4) == b"one,"
    theirs.close()
    assert wait_readable(server, None, 0.0) == [server], "the rest was read already"
    assert server.pending() == 9
    assert (server.recv(4), server.recv(100), server.pending()) == (b"two,", b"three", 0)
    assert server.recv(4) == b"", "then the end of the connection is seen"


def test_requests_are_sent_together_before_a_wait(ends: tuple[ServerSocket, socket.socket]) -> None:
    server, theirs = ends
    theirs.setblocking(False)
    assert [server.send(b"first,"), server.send(memoryview(b"second"))] == [6, 6]
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    assert wait_readable(server, None, 0.0) == []
    assert theirs.recv(100) == b"first,second"


def test_requests_in_the_queue_come_first(ends: tuple[ServerSocket, socket.socket], signal: RequestSignal) -> None:
    server, theirs = ends
    theirs.sendall(b"answer")
    assert wait_readable(server, signal, 20.0) == [server]
    server.recv(1)
    server.send(b"request")
    signal.send(b"\0")
    assert wait_readable(server, signal, 0.0) == [server, signal]
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    assert signal.recv(1) == b"\0"
    with pytest.raises(BlockingIOError):
        signal.recv(1)
    assert wait_readable(server, signal, 0.0) == [server]
    assert theirs.recv(100) == b"request", "sent before the buffered answers are handled"


def test_a_request_wakes_the_thread_that_waits(ends: tuple[ServerSocket, socket.socket], signal: RequestSignal) -> None:
    server, theirs = ends
    taken: list[int] = []

    def serve() -> None:
        while len(taken) < 2000:
            for each in wait_readable(server, signal, None):
                if each is signal:
                    signal.recv(1)
                    taken.append(len(taken))
                else:
                    server.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    for _ in range(2000):
        signal.send(b"\0")
        theirs.send(b".")
    thread.join(30.0)
    assert not thread.is_alive(), f"woke for {len(taken)} requests only"


def test_a_server_that_does_not_read(ends: tuple[ServerSocket, socket.socket]) -> None:
    server, theirs = ends
    sent_bytes = 0
    while server.has_room:
        sent_bytes += server.send(bytes(16 * 1024))
    assert not wait_for_room(server, 0.0)
    received: list[bytes] = []

    def read() -> None:
        while sum(map(len, received)) < sent_bytes:
            received.append(theirs.recv(1 << 20))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert wait_for_room(server, 30.0)
    while server.has_unsent:
        wait_readable(server, None, 0.01)
    thread.join(30.0)
    assert sum(map(len, received)) == sent_bytes


def test_a_closed_signal_refuses_requests(ends: tuple[ServerSocket, socket.socket], signal: RequestSignal) -> None:
    signal.begin_wait()
    signal.close()
    signal.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        signal.send(b"\0")
    assert wait_readable(ends[0], None, 0.0) == []
