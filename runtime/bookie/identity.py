"""Identity of a bookie: its address, its id, and what it publishes. Source: metadata section 8.1.

The host is the first of these that is configured: ``advertised_address``; with ``is_host_name_id`` the canonical name
of the interface's address, cut at its first dot with ``is_host_name_short``; the first address of
``listening_interface``; the address of this host's name.
"""

from __future__ import annotations

import ipaddress

import msgspec

from bkctl.runtime.config import BookieConfig
from bkctl.runtime.errors import ConfigurationError
from bkctl.runtime.ledger.metadata import is_valid_bookie_id
from bkctl.runtime.metadata.bookies.cookies import Cookie
from bkctl.runtime.ports import Host

_INTERFACE_NAME_BYTES_MAX = 15


class BookieIdentity(msgspec.Struct, frozen=True):
    """The address for clients, the address to bind (None: all interfaces), and the configured id, if any."""

    host: str
    bind_host: str | None
    configured_id: str | None

    def bookie_id(self, port: int) -> str:
        """The configured id, else ``host:port``."""
        return self.configured_id or f"{self.host}:{port}"


class BookieNames(msgspec.Struct, frozen=True):
    """How the cluster knows this bookie. ``known_as``: its id, then the ids that other settings would have given."""

    known_as: tuple[str, ...]
    instance_id: str | None
    cookie: Cookie


def resolve_identity(config: BookieConfig, machine: Host) -> BookieIdentity:
    """Host and id from the settings and this machine's name; ConfigurationError for an address that cannot be used."""
    if config.bookie_id is not None and not is_valid_bookie_id(config.bookie_id):
        raise ConfigurationError(
            f"{config.bookie_id!r} is not a bookie id: use letters, digits, '.', '-', '_' and ':' (and not 'readonly')"
        )
    host = config.advertised_address or _own_host(config, machine)
    if config.bookie_id is None and not is_valid_bookie_id(host):
        raise ConfigurationError(f"the bookie's address {host!r} cannot be part of a bookie id: set --bookie-id")
    address = _resolved(host, machine)
    is_loopback = ipaddress.ip_address(address).is_loopback
    if is_loopback and not config.is_loopback_allowed:
        raise ConfigurationError(
            f"{host} is a loopback address and cannot be reached by other hosts: set --advertised-address, or "
            "allow it with --set allowLoopback=true"
        )
    # The interface's own address, because the advertised one may belong to another machine.
    interface = config.listening_interface
    bind_host = None
    if is_loopback:
        bind_host = address
    elif interface is not None:
        bind_host = _address_of_interface(interface, machine)
    return BookieIdentity(host, bind_host, config.bookie_id)


def former_bookie_ids(config: BookieConfig, port: int, machine: Host) -> tuple[str, ...]:
    """Ids this host would have with the other ways to build an id; a cookie with one of them is also this host's.

    Empty if the id is configured (metadata section 7.3). Unlike in Java, a host without a reverse name is not an error.
    Blocks on the name service.
    """
    if config.bookie_id is not None:
        return ()
    try:
        address = _own_address(config, machine)
    except ConfigurationError:
        return ()
    hosts = [address]
    name = _canonical_name(address, machine)
    if name is not None:
        hosts += [name, name.partition(".")[0]]
    own = config.advertised_address
    return tuple(dict.fromkeys(f"{host}:{port}" for host in hosts if host != own and is_valid_bookie_id(host)))


def _own_host(config: BookieConfig, machine: Host) -> str:
    address = _own_address(config, machine)
    if not config.is_host_name_id:
        return address
    name = _canonical_name(address, machine)
    if name is None:
        raise ConfigurationError(
            f"this host's address {address} has no host name, which useHostNameAsBookieID requires: set "
            "--bookie-id or --advertised-address"
        )
    return name.partition(".")[0] if config.is_host_name_short else name


def _own_address(config: BookieConfig, machine: Host) -> str:
    if config.listening_interface is not None:
        return _address_of_interface(config.listening_interface, machine)
    name = machine.name()
    try:
        return machine.address_of(name)
    except OSError as error:
        raise ConfigurationError(
            f"this host's name {name} has no address ({error.strerror}): set --advertised-address"
        ) from error


def _address_of_interface(name: str, machine: Host) -> str:
    if len(name.encode()) > _INTERFACE_NAME_BYTES_MAX:
        raise ConfigurationError(f"listeningInterface = {name}: no such interface")
    try:
        return machine.address_of_interface(name)
    except OSError as error:
        raise ConfigurationError(f"listeningInterface = {name}: it has no IPv4 address ({error.strerror})") from error


def _canonical_name(address: str, machine: Host) -> str | None:
    """Host name from a reverse lookup of the address; None if there is none."""
    try:
        name = machine.name_of(address)
    except OSError:
        return None
    return name if name != address else None


def _resolved(host: str, machine: Host) -> str:
    try:
        return machine.address_of(host)
    except OSError as error:
        raise ConfigurationError(f"cannot resolve the bookie's address {host} ({error.strerror})") from error
    except UnicodeError as error:  # an empty label between dots, or one of more than 63 characters
        raise ConfigurationError(f"cannot resolve the bookie's address {host} (no such host)") from error
