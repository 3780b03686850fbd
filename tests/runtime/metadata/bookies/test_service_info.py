from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.metadata.bookies.service_info import (
    BookieAddress,
    BookieServiceInfo,
    Endpoint,
    decode_service_info,
    encode_service_info,
    rpc_service_info,
)
from tests.runtime.golden_metadata import java_nodes, java_vectors

VECTORS = java_vectors()
RPC = Endpoint("bookie", "10.0.0.1", 3181, "bookie-rpc")


def test_what_we_publish_is_what_java_publishes() -> None:
    assert encode_service_info(rpc_service_info("10.0.0.1", 3181)) == VECTORS["bsi rpc"]


def test_vectors_of_java() -> None:
    http = Endpoint("httpserver", "0.0.0.0", 8080, "http")
    everything = decode_service_info("b", VECTORS["bsi rpc+http+prop"])
    assert everything == BookieServiceInfo((RPC, http), {"k": "v"})
    tls = decode_service_info("b", VECTORS["bsi tls"])
    assert tls.endpoints[0].extensions == ("tls",)
    for name in ("bsi rpc", "bsi rpc+http+prop", "bsi tls"):
        assert encode_service_info(decode_service_info("b", VECTORS[name])) == VECTORS[name]


def test_nodes_of_java() -> None:
    nodes = java_nodes("/available/")
    assert len(nodes) == 9
    for path, data in nodes:
        bookie_id = path.rpartition("/")[2]
        address = decode_service_info(bookie_id, data).rpc_address
        assert address is not None
        assert address.host == "127.0.0.1"
        if ":" in bookie_id:
            assert str(address) == bookie_id


def test_an_empty_payload_means_the_address_in_the_id() -> None:
    assert decode_service_info("10.0.0.1:3181", b"").rpc_address == BookieAddress("10.0.0.1", 3181)
    with pytest.raises(MetadataFormatError, match="not host:port"):
        decode_service_info("bk-1", b"")


def test_only_other_endpoints() -> None:
    info = BookieServiceInfo((Endpoint("httpserver", "h", 1, "http"),))
    assert decode_service_info("b", encode_service_info(info)).rpc_address is None


@pytest.mark.parametrize("data", [b"\xff", b"\x32\x02\x0a\x00", VECTORS["bsi rpc"][:-1]])
def test_damage(data: bytes) -> None:
    with pytest.raises(MetadataFormatError, match=r"bookie b\b"):
        decode_service_info("b", data)


@given(st.integers(0, len(VECTORS["bsi rpc"]) - 1), st.integers(0, 255))
def test_any_change_of_a_byte_gives_an_answer(position: int, byte: int) -> None:
    changed = bytearray(VECTORS["bsi rpc"])
    changed[position] = byte
    try:
        info = decode_service_info("b", bytes(changed))
    except MetadataFormatError:
        return
    assert isinstance(info.rpc_address, BookieAddress | None)
