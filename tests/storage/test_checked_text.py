from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bkctl.storage.checked_text import (
    decode_checked_numbers,
    decode_checked_text,
    encode_checked_numbers,
    encode_checked_text,
)

FORMAT = "bkctl test 1"


def test_the_worked_example() -> None:
    assert encode_checked_text(FORMAT, ["a 1", "b 2"]) == b"bkctl test 1\na 1\nb 2\ncrc32 e2455551\n"


@given(st.lists(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20), max_size=5))
def test_lines_come_back(lines: list[str]) -> None:
    assert decode_checked_text(FORMAT, encode_checked_text(FORMAT, lines)) == lines
    assert decode_checked_text("bkctl test 2", encode_checked_text(FORMAT, lines)) is None


def test_numbers() -> None:
    data = encode_checked_numbers(FORMAT, {"floor": 3, "number": -1})
    assert data == encode_checked_text(FORMAT, ["floor 3", "number -1"])
    assert decode_checked_numbers(FORMAT, ["floor", "number"], data) == [3, -1]
    assert decode_checked_numbers(FORMAT, ["number", "floor"], data) is None
    assert decode_checked_numbers(FORMAT, ["floor"], data) is None
    for lines in (["floor 03"], ["floor +3"], ["floor  3"], ["floor 1_0"], ["floor three"], ["floor"], []):
        assert decode_checked_numbers(FORMAT, ["floor"], encode_checked_text(FORMAT, lines)) is None


def test_no_flipped_bit_is_taken() -> None:
    data = encode_checked_text(FORMAT, ["journal 12", "offset 512"])
    for position in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[position] ^= 1 << bit
            assert decode_checked_text(FORMAT, bytes(flipped)) is None, (position, bit)


@pytest.mark.parametrize("cut", range(8))
def test_no_part_is_taken(cut: int) -> None:
    data = encode_checked_text(FORMAT, ["journal 12"])
    assert decode_checked_text(FORMAT, data[: cut * len(data) // 8]) is None
    assert decode_checked_text(FORMAT, data + data[:cut] + b"\n") is None
