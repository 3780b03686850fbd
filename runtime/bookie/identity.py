"""Who a bookie is: its address, its id, what it publishes of itself. Source: metadata section 8.1, operations 3.3."""

from __future__ import annotations

import ipaddress
import socket

import msgspec

from runtime.config import BookieConfig
from runtime.errors import ConfigurationError
from runtime.ledger.bookie_id import is_valid_bookie_id

LOOPBACK_HOST = "127.0.0.1"


class BookieIdentity(msgspec.Struct, frozen=True):
    """Where clients connect, where the socket is bound (None: everywhere), and the id once the port is known."""

    host: str
    bind_host: str | None
    configured_id: str | None

    def bookie_id(self, port: int) -> str:
        """The configured id, else ``host:port``."""
        return self.configured_id or f"{self.host}:{port}"


def resolve_identity(config: BookieConfig) -> BookieIdentity:
    """Host and id from the settings and this machine's name; ConfigurationError for an address nobody could use."""
    if config.bookie_id is not None and not is_valid_bookie_id(config.bookie_id):
        raise ConfigurationError(
            f"{config.bookie_id!r} is no bookie id: use letters, digits, '.', '-', '_' and ':' (and not 'readonly')"
        )
    host = config.advertised_address or _address_of_this_host()
    is_loopback = _is_loopback(host)
    if is_loopback and not config.is_loopback_allowed:
        raise ConfigurationError(
            f"the bookie's address {host} reaches this machine only: set --advertised-address to one that clients "
            "reach, or allow it with --set allowLoopback=true"
        )
    return BookieIdentity(host, LOOPBACK_HOST if is_loopback else None, config.bookie_id)


def _address_of_this_host() -> str:
    name = socket.gethostname()
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise ConfigurationError(
            f"this host's name {name} has no address ({error.strerror}): set --advertised-address"
        ) from error


def _is_loopback(host: str) -> bool:
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        raise ConfigurationError(f"the bookie's address {host} cannot be resolved ({error.strerror})") from error
    return ipaddress.ip_address(address).is_loopback
