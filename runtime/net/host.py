"""Adapters of the ports Host and Listen: names, addresses, limits and TCP ports of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pwd
import resource
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final

_SIOCGIFADDR = 0x8915
"""Linux: the first IPv4 address of an interface."""

_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING: Final = "0A"
_COLUMN_ADDRESS, _COLUMN_STATE, _COLUMN_INODE = 1, 3, 9

_BACKLOG = 1024


class OsHost:
    """Implements Host with the operating system and its name service."""

    def name(self) -> str:
        """Host name of this machine."""
        return socket.gethostname()

    def user(self) -> str:
        """Name of the user of the system that runs this process; its number if it has no name."""
        try:
            return pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            return str(os.geteuid())

    def canonical_name(self) -> str:
        """Name of this machine as Java writes it to locks; see ``canonical_host_name``."""
        return canonical_host_name()

    def address_of(self, name: str) -> str:
        """IPv4 address of a host; OSError, UnicodeError for text that cannot be a host name."""
        return socket.gethostbyname(name)

    def name_of(self, address: str) -> str:
        """Host name of an address; OSError."""
        return socket.gethostbyaddr(address)[0]

    def address_of_interface(self, interface: str) -> str:
        """First IPv4 address of a network interface; OSError."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(answer[20:24])

    def describe_owner(self, port: int) -> str:
        """The process that listens on a port, for error messages: "process 4711 (java)", or "another process" if this
        user has no permission to see it."""
        owners = [f"process {pid} ({_command_name(pid)})" for pid in sorted(_processes_with(_listening_inodes(port)))]
        return " and ".join(owners) or "another process"

    def open_files_max(self) -> int | None:
        """How many files and connections this process may have open; None: no limit."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return None if limit == resource.RLIM_INFINITY else limit


def canonical_host_name() -> str:
    """Name of this machine as a Java process would write it to a lock. Uses the resolver, so it may block.

    Java resolves the host name, preferring IPv4. It uses the reverse name of the address if that resolves to the same
    address, otherwise the address. If the host name does not resolve, Java fails; we use the host name.
    """
    name = socket.gethostname()
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return name
    address = str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])
    try:
        canonical = socket.gethostbyaddr(address)[0]
        is_confirmed = address in {each[4][0] for each in socket.getaddrinfo(canonical, None, type=socket.SOCK_STREAM)}
    except OSError:
        return address
    return canonical if is_confirmed else address


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for path in _TABLES:
        for columns in _rows(path):
            if columns[_COLUMN_STATE] == _LISTENING and int(columns[_COLUMN_ADDRESS].rpartition(":")[2], 16) == port:
                inodes.add(columns[_COLUMN_INODE])
    return inodes


def _rows(path: str) -> Iterator[list[str]]:
    with contextlib.suppress(OSError), open(path, encoding="ascii") as table:
        next(table, None)
        for line in table:
            yield line.split()


def _processes_with(inodes: set[str]) -> set[int]:
    names = {f"socket:[{inode}]" for inode in inodes}
    if not names:
        return set()
    return {int(entry) for entry in _entries("/proc") if entry.isdigit() and _has_open(entry, names)}


def _has_open(pid: str, names: set[str]) -> bool:
    directory = f"/proc/{pid}/fd"
    for entry in _entries(directory):
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(f"{directory}/{entry}") in names:
                return True
    return False


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # no /proc, or a process of another user
        return []


def _command_name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return "ended"


class TcpPort:
    """An open TCP port."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.port = int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop accepting connections; open ones stay. Safe to repeat."""
        self._server.close()


async def listen_tcp(accept: Callable[[], asyncio.BaseProtocol], host: str | None, port: int) -> TcpPort:
    """Listen on ``host`` (None: all addresses) and ``port`` (0: a free one); OSError."""
    server = await asyncio.get_running_loop().create_server(accept, host, port, backlog=_BACKLOG)
    for listening in server.sockets:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit it
    return TcpPort(server)
