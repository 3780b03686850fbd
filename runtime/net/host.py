"""This machine's names, addresses and ports: the real adapter of the Host port."""

from __future__ import annotations

import fcntl
import socket
import struct

from runtime.net.port_owner import describe_owner

_SIOCGIFADDR = 0x8915
"""Linux: the first IPv4 address of an interface."""


class OsHost:
    """Asks the operating system and its name service."""

    def name(self) -> str:
        """This machine's own name."""
        return socket.gethostname()

    def canonical_name(self) -> str:
        """This machine's name as a Java process writes it into a lock."""
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
        """Which process listens on a port, for error messages: "process 4711 (java)", or "another process"."""
        return describe_owner(port)


def canonical_host_name() -> str:
    """Name of this machine as a Java process would write it into a lock; asks the resolver, so it may block.

    Java resolves the machine's own name, prefers IPv4, and takes the name that the address resolves back to if that
    leads to the address again; else the address. Where the own name does not resolve Java fails; we take the name.
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
