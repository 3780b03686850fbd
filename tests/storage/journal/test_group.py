"""Groups and the checksum in their padding."""

from __future__ import annotations

import itertools
import os
import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.journal.group import decode_checksum, encode_group, is_checksum_right, split_group
from tests.storage.groups import group_bytes


def entry(entry_id: int, payload: bytes = b"data") -> bytes:
    return struct.pack(">qqqq", 5, entry_id, entry_id - 1, 0) + payload


def test_the_worked_example() -> None:
    """What docs/formats/bkctl-files.md says, built by hand."""
    group = group_bytes([entry(0, b"hello")], 512, journal_id=0x19A2B3C4D5E)
    body = (
        struct.pack(">i", 37) + entry(0, b"hello") + struct.pack(">ii", -256, 463) + b"bkg\1" + struct.pack(">q", 512)
    )
    crc = crc32c.crc32c(struct.pack(">q", 0x19A2B3C4D5E) + body)
    assert group == (body + struct.pack(">I", crc)).ljust(512, b"\0")


@pytest.mark.parametrize(("payload_bytes", "size_bytes"), [(0, 512), (452, 512), (453, 1024), (476, 1024), (477, 1024)])
def test_padding_has_room_for_the_checksum(payload_bytes: int, size_bytes: int) -> None:
    """4 + 32 + payload + 8 + 16 bytes end on a sector, or spill into the next."""
    group = group_bytes([entry(0, b"x" * payload_bytes)], 512, journal_id=7)
    assert len(group) == size_bytes
    starts, padding = split_group(group, 0)
    checksum = decode_checksum(group[padding:])
    assert starts == [0]
    assert group[4:padding] == entry(0, b"x" * payload_bytes)
    assert checksum is not None
    assert (checksum.group_start, padding + checksum.padding_bytes) == (512, size_bytes)
    assert is_checksum_right(checksum, 7, group, 0, padding)
    assert not is_checksum_right(checksum, 8, group, 0, padding), "the same bytes in another file"


@given(
    st.lists(st.sampled_from([0, 10, 479, 480, 20_000, 131_035, 300_000]), min_size=1, max_size=30), st.integers(1, 9)
)
def test_every_write_of_a_group_ends_with_a_sector(payload_bytes: list[int], sector: int) -> None:
    records = [entry(number, b"x" * size_bytes) for number, size_bytes in enumerate(payload_bytes)]
    size_bytes, writes = encode_group(records, 512 * sector, 512, 7)
    written = [b"".join(parts) for parts in writes]
    assert all(written)
    assert all(len(data) % 512 == 0 for data in written)
    assert len(b"".join(written)) == size_bytes
    starts, padding = split_group(b"".join(written), 0)
    ends = [*starts[1:], padding]
    found = [b"".join(written)[start + 4 : end] for start, end in zip(starts, ends, strict=True)]
    assert found == records


@given(st.lists(st.binary(max_size=900), min_size=1, max_size=8), st.integers(0, 2000), st.integers(1, 255))
def test_any_changed_byte_is_found(payloads: list[bytes], place: int, change: int) -> None:
    records = [entry(number, payload) for number, payload in enumerate(payloads)]
    written = group_bytes(records, 512, journal_id=7)
    _, padding = split_group(written, 0)
    place %= padding + 24
    group = written[:place] + bytes([written[place] ^ change]) + written[place + 1 :]
    checksum = decode_checksum(group[padding : padding + 24])
    if checksum is not None and checksum.group_start == 512:
        is_kind = place == padding + 11
        assert not is_checksum_right(checksum, 7, group, 0, padding) or (is_kind and change == 0)


@pytest.mark.parametrize(
    ("payload", "may_hold"),
    [
        (b"x" * 2000, False),
        (b"x" * 333 + bytes(512) + b"x", True),
        (bytes(500) + b"x", False),
        (bytes(512), True),
        (bytes(2000), True),
    ],
)
def test_it_says_whether_a_sector_of_zeros_can_be_real(payload: bytes, *, may_hold: bool) -> None:
    group = group_bytes([entry(0, payload)], 512, journal_id=7)
    checksum = decode_checksum(group[split_group(group, 0)[1] :])
    assert checksum is not None
    assert checksum.may_hold_zero_sectors == may_hold


@given(st.integers(0, 700), st.integers(400, 700), st.binary(max_size=300))
def test_every_sector_of_zeros_is_announced(before: int, zeros: int, after: bytes) -> None:
    payload = b"x" * before + bytes(zeros) + after
    group = group_bytes([entry(0, payload)], 512, journal_id=7)
    padding = split_group(group, 0)[1]
    checksum = decode_checksum(group[padding:])
    assert checksum is not None
    assert checksum.may_hold_zero_sectors >= (bytes(512) in group[: padding + 8])
    assert checksum.may_hold_zero_sectors <= (bytes(509) in group[: padding + 8])


@pytest.mark.parametrize("size_bytes", [1, 300, 1019, 40_000, 65_000, 200_000])
def test_a_group_of_several_parts_is_like_one_of_one_part(size_bytes: int) -> None:
    """Of one length and of many; small records are joined in parts, large ones are parts themselves."""
    count = max(3, 400_000 // size_bytes)
    alike = [entry(number, os.urandom(size_bytes)) for number in range(count)]
    for records in (alike, [*alike[:-1], entry(count), alike[-1]]):
        group = group_bytes(records, 512, journal_id=7)
        assert group.startswith(b"".join(struct.pack(">i", len(record)) + record for record in records))
        starts, padding = split_group(group, 0)
        checksum = decode_checksum(group[padding:])
        assert [group[start + 4 : end] for start, end in itertools.pairwise([*starts, padding])] == records
        assert checksum is not None
        assert is_checksum_right(checksum, 7, group, 0, padding)
        assert not checksum.may_hold_zero_sectors
        assert len(group) % 512 == 0


def test_a_sector_of_zeros_that_two_parts_share_is_announced() -> None:
    """Its last bytes are those in front of a length word of up to 16 bits, in the next part."""
    for number in range(3):
        records = [entry(0, b"x" * 40_000)] * 8
        records[number] = entry(0, b"x" * 39_490 + bytes(510))
        group = group_bytes(records, 512, journal_id=7)
        assert bytes(512) in group
        checksum = decode_checksum(group[split_group(group, 0)[1] :])
        assert checksum is not None
        assert checksum.may_hold_zero_sectors


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30))
def test_records_of_one_length_are_framed_like_others(sizes: list[int]) -> None:
    for records in ([entry(0, b"x" * size) for size in sizes], [entry(number) for number in range(len(sizes))]):
        group = group_bytes(records, 512)
        assert group.startswith(b"".join(struct.pack(">i", len(record)) + record for record in records))


@pytest.mark.parametrize(
    "padding",
    [b"", struct.pack(">ii", -256, 460) + bytes(460), struct.pack(">ii", -256, 15) + b"bkg\1" + bytes(11),
     struct.pack(">ii", -255, 460) + b"bkg\1" + bytes(456)],
)  # fmt: skip
def test_padding_of_java_has_none(padding: bytes) -> None:
    assert decode_checksum(padding) is None


@given(st.binary(max_size=300), st.integers(0, 20))
def test_any_bytes_are_split_into_what_they_hold(data: bytes, first: int) -> None:
    starts, index = split_group(data, first)
    bounds = [*starts, index]
    assert bounds[0] == first
    for start, end in itertools.pairwise(bounds):
        assert struct.unpack_from(">i", data, start) == (end - start - 4,)
        assert end - start - 4 >= 16


def test_version_4_has_no_padding() -> None:
    group = group_bytes([entry(0)], 8, version=4)
    assert group == struct.pack(">i", 36) + entry(0)
