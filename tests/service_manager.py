"""The notification socket of systemd, as a test reads it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Self

DEADLINE_S = 60.0


class NotifySocket:
    """A datagram socket at a path or, if ``name`` begins with @, in the abstract namespace."""

    def __init__(self, name: Path | str) -> None:
        self.name = str(name)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.name[1:] if self.name.startswith("@") else self.name)
        self._socket.settimeout(DEADLINE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self) -> dict[str, str]:
        """The fields of the next message; TimeoutError."""
        return dict(line.split("=", 1) for line in self._socket.recv(65536).decode().split("\n"))

    def receive_until(self, field: str) -> list[dict[str, str]]:
        """All messages up to the first that has this field."""
        received = [self.receive()]
        while field not in received[-1]:
            received.append(self.receive())
        return received

    def received(self) -> list[dict[str, str]]:
        """All messages that are already there."""
        found = []
        self._socket.setblocking(False)
        try:
            while True:
                found.append(self.receive())
        except BlockingIOError:
            return found
        finally:
            self._socket.settimeout(DEADLINE_S)
