from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.runtime.errors import MetadataFormatError
from bkctl.runtime.ledger.ledger_metadata_pb2 import LedgerRecord
from bkctl.runtime.ledger.protobuf_text import EnumName, format_fields, parse_fields


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
    ("text", "value"),
    [
        (r'password: "\?\\?\a\v"', b"?\\?\x07\x0b"),
        (r'password: "\x41\7\101\xe"', b"A\x07A\x0e"),
        (r'password: "\u00fc\U0001F600"', "\u00fc\U0001f600".encode()),
        ("password: '\u00fc # 1: \"'  # 1: 'x", '\u00fc # 1: "'.encode()),
        ("password: 'a' \"b\"\r\n'c'", b"abc"),
        ("password: 'a'password: 'b'", b"b"),
        ("x1: 5 password: 'a'", b"a"),
    ],
)
def test_literals_of_java(text: str, value: bytes) -> None:
    assert parse_fields(text, LedgerRecord(), "test").password == value


@pytest.mark.parametrize(
    ("text", "value"), [("+5", 5), ("-1", -1), ("017", 15), ("-0x1F", -31), ("0", 0), (str(2**63 - 1), 2**63 - 1)]
)
def test_numbers_of_java(text: str, value: int) -> None:
    assert parse_fields(f"ctime:{text}", LedgerRecord(), "test").ctime == value


@pytest.mark.parametrize(
    "text",
    [
        "1: 5",
        "10 : 5",
        "[ext]: 5",
        "ctime: 1_000",
        "ctime: 0b11",
        "ctime: -0o7",
        "ctime: 08",
        "ctime: +-5",
        f"ctime: {2**63}",
        f"quorumSize: {2**32}",
        "ctime: 5\0",
        "ctime: 5 }",
        "segment {",
        "segment: 5",
        'state: "OPEN"',
        "garbage",
        'password: "a\nb"',
    ],
)
def test_what_no_release_writes_is_refused(text: str) -> None:
    with pytest.raises(MetadataFormatError, match=r"^the thing: "):
        parse_fields(text, LedgerRecord(), "the thing")


@pytest.mark.parametrize(
    "text", [r'password: "\ "', "quorumSize 2", "quorumSize: 2.5", 'password: "a', "state: NOVEL", "password: x"]
)
def test_what_java_refuses_is_refused(text: str) -> None:
    with pytest.raises(MetadataFormatError, match=r"^the thing: "):
        parse_fields(text, LedgerRecord(), "the thing")
