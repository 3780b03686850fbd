from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.entry_log import format as fmt


def test_the_worked_example() -> None:
    assert fmt.encode_header() == b"BKLO\0\0\0\1" + bytes(1016)
    assert fmt.encode_map_fields(0x479, 2).hex() == "000000000000047900000002"
    assert fmt.encode_ledgers_map({5: 82, 7: 39}).hex() == (
        "00000034ffffffffffffffff fffffffffffffffe 00000002"
        "0000000000000005 0000000000000052 0000000000000007 0000000000000027"
    ).replace(" ", "")


def test_the_header_comes_back() -> None:
    header = fmt.encode_header()
    assert fmt.decode_header(header) == fmt.EntryLogHeader(1, 0, 0)
    rolled = header[:8] + fmt.encode_map_fields(0x479, 2) + header[20:]
    assert fmt.decode_header(rolled) == fmt.EntryLogHeader(1, 0x479, 2)


@pytest.mark.parametrize("start", [b"", b"BKLO\0\0\0\1", bytes(1024), b"BKLG" + bytes(1020)])
def test_what_is_no_header_gives_none(start: bytes) -> None:
    assert fmt.decode_header(start) is None


@pytest.mark.parametrize(
    ("header", "has_map"),
    [((1, 2000, 3), True), ((0, 2000, 3), False), ((1, 0, 3), False), ((1, 2000, 0), False), ((1, -5, 3), False),
     ((1, 2000, -1), False)],
)  # fmt: skip
def test_a_map_is_announced_by_all_three_fields(header: tuple[int, int, int], has_map: bool) -> None:
    version, map_offset, ledger_count = header
    assert fmt.EntryLogHeader(version, map_offset, ledger_count).has_map == has_map


def test_a_large_map_has_several_batches() -> None:
    ledger_bytes = {ledger_id: ledger_id * 3 + 1 for ledger_id in range(25_000)}
    data = fmt.encode_ledgers_map(ledger_bytes)
    counts: list[int] = []
    rows: dict[int, int] = {}
    while data:
        size = fmt.decode_map_batch_size(data[:24])
        assert size is not None
        batch = fmt.decode_map_batch(data[:size])
        counts.append(len(batch))
        rows.update(batch)
        data = data[size:]
    assert counts == [10_000, 10_000, 5_000]
    assert rows == ledger_bytes
    assert fmt.encode_ledgers_map({}) == b""


@given(st.binary(max_size=40))
def test_any_bytes_are_a_batch_or_not(start: bytes) -> None:
    size = fmt.decode_map_batch_size(start)
    assert size is None or size >= 4 + 20 + 16


@pytest.mark.parametrize("damage", [(3, 0x35), (11, 0xFE), (19, 0xFF), (23, 3), (23, 0), (20, 0xFF)])
def test_a_damaged_batch_is_none(damage: tuple[int, int]) -> None:
    data = bytearray(fmt.encode_ledgers_map({5: 82, 7: 39}))
    assert fmt.decode_map_batch_size(bytes(data[:24])) == 56
    position, value = damage
    data[position] = value
    assert fmt.decode_map_batch_size(bytes(data[:24])) is None


def test_the_start_of_a_frame() -> None:
    assert fmt.decode_frame_start(bytes.fromhex("00000025 0000000000000005 0000000000000001")) == fmt.FrameStart(
        37, 5, 1
    )
    assert fmt.decode_frame_start(bytes(19)) is None
