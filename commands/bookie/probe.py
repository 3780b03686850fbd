"""One GET request without the event loop and the HTTP library of other commands: probes start every few seconds."""

from __future__ import annotations

import http.client
import socket

from runtime.admin.calls import AdminAddress, connection_error, error_of_answer, lost_error, timeout_error


class _LocalConnection(http.client.HTTPConnection):
    """HTTP on a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Called by the first request."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def probe(name: str, address: AdminAddress, path: str, timeout_s: float) -> bytes:
    """The answer to a GET; errors as ``AdminClient.request``. ``timeout_s`` limits each wait for the bookie."""
    if address.socket_path:
        connection: http.client.HTTPConnection = _LocalConnection(address.socket_path, timeout_s)
    else:
        connection = http.client.HTTPConnection(address.host, address.port, timeout=timeout_s)
    try:
        connection.connect()
        connection.request("GET", path)
        response = connection.getresponse()
        status, body = response.status, response.read()
    except TimeoutError as error:
        raise timeout_error(name, address, timeout_s, is_change=False) from error
    except (ConnectionResetError, BrokenPipeError, http.client.HTTPException) as error:
        raise lost_error(name, address, is_change=False) from error
    except OSError as error:
        raise connection_error(name, address, error) from error
    finally:
        connection.close()
    if status >= 400:
        raise error_of_answer(name, status, body)
    return body
