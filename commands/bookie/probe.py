"""One GET request with nothing but a socket: probes start every few seconds, and importing an HTTP library takes longer
than all the rest.
"""

from __future__ import annotations

import socket
import time

from bkctl.runtime.admin.calls import (
    CREDENTIALS_BYTES,
    AdminAddress,
    connection_error,
    error_of_answer,
    lost_error,
    require_listener,
    require_short,
    timeout_error,
)

_CHUNK_BYTES = 65536


def probe(name: str, address: AdminAddress, path: str, timeout_s: float) -> bytes:
    """The body of the answer to a GET; errors as ``AdminClient.request``."""
    deadline = time.monotonic() + timeout_s
    try:
        answer = _exchange(name, address, path, deadline)
    except TimeoutError as error:
        raise timeout_error(name, address, timeout_s, is_change=False) from error
    except (ConnectionResetError, BrokenPipeError) as error:
        raise lost_error(name, address, is_change=False) from error
    except OSError as error:
        raise connection_error(name, address, error) from error
    head, separator, body = answer.partition(b"\r\n\r\n")
    words = head.split(None, 2)
    if not separator or len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise lost_error(name, address, is_change=False)
    status = int(words[1])
    if status >= 400:
        raise error_of_answer(name, status, body)
    return body


def _exchange(name: str, address: AdminAddress, path: str, deadline: float) -> bytes:
    """All that the server sends: it closes the connection after an answer in HTTP 1.0."""
    host = address.host or "localhost"
    request = f"GET {path} HTTP/1.0\r\nHost: {f'[{host}]' if ':' in host else host}\r\n\r\n".encode()
    with _connected(address, deadline) as connection:
        if address.socket_path:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS_BYTES)
            require_listener(name, address, credentials)
        connection.sendall(request)
        answer = bytearray()
        while True:
            connection.settimeout(_left_s(deadline))
            part = connection.recv(_CHUNK_BYTES)
            if not part:
                return bytes(answer)
            answer += part
            require_short(name, address, len(answer))


def _connected(address: AdminAddress, deadline: float) -> socket.socket:
    if address.host:
        return socket.create_connection((address.host, address.port), _left_s(deadline))
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_left_s(deadline))
        connection.connect(address.socket_path)
    except BaseException:
        connection.close()
        raise
    return connection


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
