from __future__ import annotations

import struct

import pytest

from bkctl.storage.entry import EntryHeader, decode_header


def test_the_header_of_a_body() -> None:
    body = struct.pack(">qqqq", 5, 1, 0, 10) + b"digest and data"
    assert decode_header(body) == EntryHeader(5, 1, 0, 10)
    assert decode_header(memoryview(body)) == EntryHeader(5, 1, 0, 10)


def test_a_body_that_ends_before_its_length_has_none() -> None:
    assert decode_header(struct.pack(">qqq", 5, 1, 0) + b"1234567") == EntryHeader(5, 1, 0, 0)


def test_a_body_without_last_add_confirmed_is_refused() -> None:
    with pytest.raises(ValueError, match="23 bytes"):
        decode_header(bytes(23))
