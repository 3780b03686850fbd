from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import MetadataFormatError
from runtime.ledger.ledger_metadata_pb2 import LedgerRecord
from runtime.ledger.protobuf_text import EnumName, format_fields, parse_fields


def test_scalars_sub_messages_and_enums() -> None:
    text = format_fields([("a", -1), ("state", EnumName("OPEN")), ("m", [("b", "x"), ("n", [("c", b"\x00")])])])
    assert text == 'a: -1\nstate: OPEN\nm {\n  b: "x"\n  n {\n    c: "\\000"\n  }\n}\n'


def test_escapes_are_those_of_java() -> None:
    raw = bytes([0, 7, 8, 9, 10, 11, 12, 13, 0x22, 0x27, 0x5C, 0x7E, 0x7F, 0xFF])
    assert format_fields([("v", raw)]) == 'v: "\\000\\007\\b\\t\\n\\013\\f\\r\\"\\\'\\\\~\\177\\377"\n'
    assert format_fields([("v", "\u00fc")]) == 'v: "\\303\\274"\n'


@given(st.binary())
def test_bytes_survive(raw: bytes) -> None:
    record = parse_fields(format_fields([("password", raw)]), LedgerRecord(), "test")
    assert record.password == raw


@pytest.mark.parametrize(
    "text",
    [
        "quorumSize:2 ackQuorumSize:1 segment{ensembleMember:'a' ensembleMember:\"b\"firstEntryId:5}",
        "# comment\r\nackQuorumSize: 1; quorumSize: 0x2,\r\nsegment <ensembleMember: ['a', 'b'] firstEntryId: 5>",
        'quorumSize: 9 quorumSize: 2 ackQuorumSize: 1 surprise { deep: 1 } other: "x" segment: {ensembleMember: "a" '
        "ensembleMember: '\\142' firstEntryId: 5}",
    ],
)
def test_what_java_reads_is_read(text: str) -> None:
    record = parse_fields(text, LedgerRecord(), "test")
    assert (record.quorumSize, record.ackQuorumSize) == (2, 1)
    assert list(record.segment[0].ensembleMember) == ["a", "b"]
    assert record.segment[0].firstEntryId == 5


@pytest.mark.parametrize(
    "text", [r'password: "\ "', "quorumSize 2", "quorumSize: 2.5", 'password: "a', "state: NOVEL", "password: x"]
)
def test_what_java_refuses_is_refused(text: str) -> None:
    with pytest.raises(MetadataFormatError, match=r"^the thing: "):
        parse_fields(text, LedgerRecord(), "the thing")
