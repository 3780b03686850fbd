"""Every decoder of a node's bytes gives a value or one of our errors, whatever the bytes are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bkctl.runtime.ledger.metadata_format import decode_ledger_metadata
from bkctl.runtime.metadata.bookies.cookies import decode_cookie
from bkctl.runtime.metadata.bookies.service_info import decode_service_info
from bkctl.runtime.metadata.cluster.operation_lock import OperationHolder
from bkctl.runtime.metadata.ledgers.layout import decode_layout
from bkctl.runtime.metadata.replication.format import (
    check_layout,
    decode_check_time,
    decode_lock,
    decode_mark,
    decode_vote,
)
from bkctl.storage.errors import BkctlError
from bkctl.storage.json_text import JsonTextError, decode_json
from tests.runtime.golden_metadata import java_vectors

DECODERS: dict[str, Callable[[bytes], object]] = {
    "ledger": decode_ledger_metadata,
    "cookie": decode_cookie,
    "layout": decode_layout,
    "service info": lambda data: decode_service_info("bookie", data),
    "mark": decode_mark,
    "lock": decode_lock,
    "vote": decode_vote,
    "check time": decode_check_time,
    "replication layout": check_layout,
    "operation lock": lambda data: decode_json(data, OperationHolder),
}
VECTORS = sorted(java_vectors().values())
TEXTS = st.text(st.sampled_from("0123456789-:{}\"'\n\t,[]e.x\\ "), max_size=40).map(str.encode)


@st.composite
def changed_vectors(draw: st.DrawFn) -> bytes:
    """What Java wrote, cut, and with other bytes in it."""
    data = bytearray(draw(st.sampled_from(VECTORS)))
    for _ in range(draw(st.integers(0, 3))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))])


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.binary(max_size=60) | TEXTS | changed_vectors())
@example(data=b"9" * 5000)
@example(data=b"-" + b"9" * 5000)
@example(data=b"[" * 100_000)
@example(data=b"\xff\xfe")
@example(data=b"3\n" + b"9" * 5000)
def test_any_bytes_give_a_value_or_an_error_of_ours(name: str, data: bytes) -> None:
    with contextlib.suppress(BkctlError, JsonTextError):  # the caller of the JSON decoder expects the latter
        DECODERS[name](data)
