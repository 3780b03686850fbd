from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.journal.format import (
    JournalRecordKind,
    decode_record,
    decode_version,
    encode_explicit_lac_record,
    encode_fence_record,
    encode_file_header,
    encode_ledger_key_record,
    encode_padding,
)
from tests.storage.groups import group_bytes

KEY = hashlib.sha1(b"ledger" + b"pw").digest()
ENTRY_0 = struct.pack(">qqqq", 5, 0, -1, 5) + b"hello"
ENTRY_1 = struct.pack(">qqqq", 5, 1, 0, 10) + b"world"
EXAMPLE = bytes.fromhex(
    "00000028 0000000000000005 fffffffffffff000 00000014 2aa226ba095b6969a64871977693b14671710d76"
    "00000025 0000000000000005 0000000000000000 ffffffffffffffff 0000000000000005 68656c6c6f"
    "00000025 0000000000000005 0000000000000001 0000000000000000 000000000000000a 776f726c64"
    "00000010 0000000000000005 ffffffffffffe000 ffffff00 00000166"
).ljust(512, b"\0")


def test_the_worked_example() -> None:
    records = [encode_ledger_key_record(5, KEY), ENTRY_0, ENTRY_1, encode_fence_record(5)]
    assert group_bytes(records, 512) == EXAMPLE
    assert encode_file_header() == b"BKLG\0\0\0\6" + bytes(504)
    assert decode_version(encode_file_header()) == 6


@pytest.mark.parametrize(
    ("position", "written"), [(512, 512), (1, 511), (504, 8), (505, 519), (508, 516), (511, 513), (658, 366)]
)
def test_padding(position: int, written: int) -> None:
    padding = encode_padding(position, 512)
    assert len(padding) == written
    assert padding == struct.pack(">ii", -256, written - 8) + bytes(written - 8)


@given(st.lists(st.binary(min_size=0, max_size=3000), min_size=1, max_size=9), st.sampled_from([512, 4096]))
def test_a_group_ends_aligned_whatever_is_in_it(data: list[bytes], alignment: int) -> None:
    records = [struct.pack(">qqq", 1, index, index - 1) + payload for index, payload in enumerate(data)]
    group = group_bytes(records, 512, alignment)
    assert (512 + len(group)) % alignment == 0
    framed = b"".join(struct.pack(">i", len(record)) + record for record in records)
    assert group.startswith(framed)
    assert len(group) - len(framed) < alignment + 8


@pytest.mark.parametrize("first", [b"", b"BK", b"BKLG\0\0\0", b"BKLX\0\0\0\6"])
def test_a_file_without_the_magic_is_of_version_1(first: bytes) -> None:
    assert decode_version(first) == 1


def test_every_type_comes_back() -> None:
    lac = struct.pack(">qq", 5, 7) + b"digest"
    kinds = {
        JournalRecordKind.ENTRY: (ENTRY_1, ENTRY_1),
        JournalRecordKind.LEDGER_KEY: (encode_ledger_key_record(5, KEY), KEY),
        JournalRecordKind.FENCE: (encode_fence_record(5), b""),
        JournalRecordKind.EXPLICIT_LAC: (encode_explicit_lac_record(5, lac), lac),
    }
    for kind, (data, payload) in kinds.items():
        record = decode_record(data, 77, 6)
        assert (record.kind, record.ledger_id, record.payload, record.offset) == (kind, 5, payload, 77)
    assert decode_record(encode_ledger_key_record(5, b""), 0, 6).payload == b""


@pytest.mark.parametrize("entry_id", [-1, -0x3000, -0x4000, -(2**63)])
def test_an_unknown_type_is_named_so(entry_id: int) -> None:
    data = struct.pack(">qq", 5, entry_id) + b"abc"
    record = decode_record(data, 0, 6)
    assert (record.kind, record.entry_id, record.payload) == (JournalRecordKind.UNKNOWN, entry_id, data)


@pytest.mark.parametrize(
    ("data", "version", "reason"),
    [
        (bytes(15), 6, "15 bytes"),
        (struct.pack(">qq", -9, 0) + bytes(20), 6, "ledger -9"),
        (struct.pack(">qq", 1, 0) + bytes(7), 6, "entry 1:0 of 23 bytes"),
        (struct.pack(">qqi", 1, -0x1000, 200) + b"abc", 6, "inner length 200"),
        (struct.pack(">qqi", 1, -0x1000, -1) + b"abc", 6, "inner length -1"),
        (struct.pack(">qqi", 1, -0x8000, 4) + b"abc", 6, "inner length 4"),
        (struct.pack(">qq", 1, -0x1000) + b"abc", 6, "without a length"),
        (encode_ledger_key_record(1, KEY), 2, "ledger key, which version 2"),
        (encode_fence_record(1), 3, "fence, which version 3"),
        (encode_explicit_lac_record(1, b""), 5, "explicit LAC, which version 5"),
    ],
)
def test_a_record_that_cannot_be_real_is_refused(data: bytes, version: int, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_record(data, 0, version)


@given(st.binary(max_size=80), st.integers(1, 6))
def test_any_bytes_give_a_record_or_a_reason(data: bytes, version: int) -> None:
    try:
        record = decode_record(data, 3, version)
    except ValueError:
        return
    assert record.ledger_id >= 0
    assert record.payload in data


@pytest.mark.parametrize(
    "record",
    [b"", bytes(15), ENTRY_0[:23], struct.pack(">qq", -1, -0x2000), bytes(60),
     struct.pack(">qqi", 1, -0x1000, 3)],
)  # fmt: skip
def test_a_record_that_replay_would_refuse_is_not_written(record: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        group_bytes([ENTRY_0, record, ENTRY_1], 512)


def test_short_records_that_are_whole_are_written() -> None:
    records = [encode_fence_record(1), encode_ledger_key_record(1, b"ab"), encode_explicit_lac_record(1, b"")]
    assert len(group_bytes(records, 0, 512)) == 512
