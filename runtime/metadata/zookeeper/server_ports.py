"""TCP ports for servers that are started now, and again later.

The system hands out ports of one range to outgoing connections and to everybody who binds port 0. A server whose port
is of that range loses it as soon as it is down, or before it is up, to anything that connects anywhere. Below the range
a port belongs to whoever asks for it by number.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import Final

_LOOPBACK: Final = "127.0.0.1"
_LOWEST: Final = 15_000
"""Below are most of the ports that well-known servers have."""
_ROOM_MIN: Final = 1000
_ATTEMPTS_MAX: Final = 100
_RANGE_PATH: Final = "/proc/sys/net/ipv4/ip_local_port_range"
_RANGE_START_DEFAULT: Final = 32_768


def choose_server_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on at this moment, and that are given to nobody who does not ask.

    All probes stay open until the last port is chosen, so that none comes twice. Where the system hands out nearly all
    ports, they are of its choice. OSError when it has none left.
    """
    with contextlib.ExitStack() as probes:
        return [_bind_one(probes.enter_context(socket.socket())) for _ in range(count)]


def _bind_one(probe: socket.socket) -> int:
    room = _handed_out_from() - _LOWEST
    for _ in range(_ATTEMPTS_MAX if room >= _ROOM_MIN else 0):
        with contextlib.suppress(OSError):
            probe.bind((_LOOPBACK, _LOWEST + secrets.randbelow(room)))
            break
    else:
        probe.bind((_LOOPBACK, 0))
    port: int = probe.getsockname()[1]
    return port


def _handed_out_from() -> int:
    try:
        with open(_RANGE_PATH, encoding="ascii") as file:
            return int(file.read().split()[0])
    except FileNotFoundError:  # not Linux
        return _RANGE_START_DEFAULT
