"""The info that a bookie publishes in its registration node. Source: metadata section 8.2."""

from __future__ import annotations

from typing import Final

import msgspec

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.metadata import parse_host_and_port

RPC_ENDPOINT_ID: Final = "bookie"
RPC_PROTOCOL: Final = "bookie-rpc"
HTTP_ENDPOINT_ID: Final = "httpserver"
HTTP_PROTOCOL: Final = "http"
HTTPS_PROTOCOL: Final = "https"
"""Of a bkctl bookie; a Java bookie registers ``http`` with TLS too."""
TLS_EXTENSION: Final = "tls"
VERSION_PROPERTY: Final = "version"
"""Property in which a bkctl bookie publishes its software; a Java bookie publishes none."""
TROUBLE_PROPERTY: Final = "bkctl.trouble"
"""Property in which a bkctl bookie publishes what is wrong with it, while something is."""
BKCTL_SOFTWARE: Final = "bkctl "
"""Start of the version of every bkctl bookie; its release follows."""


class BookieAddress(msgspec.Struct, frozen=True):
    """Host and port where a bookie listens; not its identity."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Endpoint(msgspec.Struct, frozen=True):
    """One port that a bookie offers; ``extensions`` has ``TLS_EXTENSION`` when TLS is on."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


class BookieServiceInfo(msgspec.Struct, frozen=True):
    """Endpoints and properties of a bookie."""

    endpoints: tuple[Endpoint, ...]
    properties: dict[str, str] = {}

    @property
    def version(self) -> str | None:
        """Software of the bookie; None when it does not publish it."""
        return self.properties.get(VERSION_PROPERTY)

    @property
    def trouble(self) -> str:
        """What is wrong with the bookie, as it says; empty if it publishes nothing of that kind."""
        return self.properties.get(TROUBLE_PROPERTY, "")

    @property
    def is_bkctl(self) -> bool:
        """Whether the bookie identifies itself as bkctl's."""
        return self.properties.get(VERSION_PROPERTY, "").startswith(BKCTL_SOFTWARE)

    @property
    def rpc_address(self) -> BookieAddress | None:
        """Address for ledger requests; None when the bookie publishes no such endpoint."""
        for endpoint in self.endpoints:
            if endpoint.protocol == RPC_PROTOCOL:
                return BookieAddress(endpoint.host, endpoint.port)
        return None

    @property
    def http_address(self) -> BookieAddress | None:
        """Address of the admin interface; None when the bookie publishes none."""
        for endpoint in self.endpoints:
            if endpoint.id == HTTP_ENDPOINT_ID:
                return BookieAddress(endpoint.host, endpoint.port)
        return None

    @property
    def is_https(self) -> bool:
        """Whether the admin interface is published with HTTPS."""
        return any(each.id == HTTP_ENDPOINT_ID and each.protocol == HTTPS_PROTOCOL for each in self.endpoints)


def rpc_service_info(
    host: str,
    port: int,
    version: str | None = None,
    *,
    has_tls: bool = False,
    http: BookieAddress | None = None,
    is_https: bool = False,
) -> BookieServiceInfo:
    """Service info of a bookie: its port for ledger requests, its admin port if it has one, its software version."""
    properties = {} if version is None else {VERSION_PROPERTY: version}
    endpoints = [Endpoint(RPC_ENDPOINT_ID, host, port, RPC_PROTOCOL, extensions=(TLS_EXTENSION,) if has_tls else ())]
    if http is not None:
        protocol = HTTPS_PROTOCOL if is_https else HTTP_PROTOCOL
        endpoints.append(Endpoint(HTTP_ENDPOINT_ID, http.host, http.port, protocol))
    return BookieServiceInfo(tuple(endpoints), properties)


def encode_service_info(info: BookieServiceInfo) -> bytes:
    """Payload of a registration node."""
    from bkctl.runtime.metadata.metadata_nodes_pb2 import BookieServiceRecord  # noqa: PLC0415  listing bookies needs none

    record = BookieServiceRecord(
        endpoints=[
            BookieServiceRecord.Endpoint(
                id=endpoint.id,
                port=endpoint.port,
                host=endpoint.host,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
            for endpoint in info.endpoints
        ],
        properties=info.properties,
    )
    return record.SerializeToString(deterministic=True)


def decode_service_info(bookie_id: str, data: bytes) -> BookieServiceInfo:
    """Service info from a payload. An empty one, as 4.10 writes it, means the address in the bookie id.

    MetadataFormatError for damaged bytes, and for an empty payload under an id that is not ``host:port``.
    """
    if not data:
        address = parse_host_and_port(bookie_id)
        if address is None:
            raise MetadataFormatError(f"bookie {bookie_id} has registered no address, and its id is not host:port")
        return BookieServiceInfo((Endpoint(bookie_id, *address, RPC_PROTOCOL),))
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    from bkctl.runtime.metadata.metadata_nodes_pb2 import BookieServiceRecord  # noqa: PLC0415

    try:
        record = BookieServiceRecord.FromString(data)
    except DecodeError as error:
        raise MetadataFormatError(f"cannot parse the registration of bookie {bookie_id}") from error
    endpoints = []
    for endpoint in record.endpoints:
        if not all(endpoint.HasField(name) for name in ("id", "port", "host", "protocol")):
            raise MetadataFormatError(f"the endpoint in the registration of bookie {bookie_id} misses a field")
        if not all(isinstance(text, str) for text in (endpoint.id, endpoint.host, endpoint.protocol)):
            raise MetadataFormatError(f"the registration of bookie {bookie_id} is not UTF-8")
        endpoints.append(
            Endpoint(
                id=endpoint.id,
                host=endpoint.host,
                port=endpoint.port,
                protocol=endpoint.protocol,
                auth=tuple(endpoint.auth),
                extensions=tuple(endpoint.extensions),
            )
        )
    return BookieServiceInfo(tuple(endpoints), dict(record.properties))
