from __future__ import annotations

import re
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.framing import ReadWindow, framed, framed_bytes
from bkctl.storage.ports import Buffer

MEBIBYTE = 1 << 20


def test_a_length_word_goes_before_every_payload() -> None:
    payloads: list[Buffer] = [b"abc", memoryview(b""), bytearray(b"defgh")]
    assert b"".join(framed(payloads)) == framed_bytes(payloads) == b"\0\0\0\3abc\0\0\0\0\0\0\0\5defgh"
    assert framed_bytes([b"abc", bytearray(b"def")]) == b"\0\0\0\3abc\0\0\0\3def"
    assert framed_bytes([b"abc"]) == b"\0\0\0\3abc"
    assert framed_bytes([]) == b""


def window_of(path: Path, data: dict[int, bytes], size: int) -> ReadWindow:
    with path.open("wb") as stream:
        for offset, piece in data.items():
            stream.seek(offset)
            stream.write(piece)
        stream.truncate(size)
    return ReadWindow(OsFileSystem().open(str(path)))


def test_reads_cross_the_window_and_stop_at_the_end(tmp_path: Path) -> None:
    window = window_of(tmp_path / "file", {MEBIBYTE - 2: b"abcd"}, MEBIBYTE + 3)
    assert window.read(3, 0) == bytes(3)
    assert window.read(4, MEBIBYTE - 2) == b"abcd"
    assert window.read(1, MEBIBYTE - 3) == b"\0"
    assert window.read(100, MEBIBYTE + 1) == b"d\0"
    assert window.read(1, 2 * MEBIBYTE) == b""


@pytest.mark.parametrize("first", [0, 1, MEBIBYTE - 1, MEBIBYTE, 3 * MEBIBYTE + 5])
def test_data_among_zeros_is_found(tmp_path: Path, first: int) -> None:
    last = first + 2 * MEBIBYTE + 7
    window = window_of(tmp_path / "file", {first: b"x", last: b"y"}, last + MEBIBYTE)
    assert window.skip_zeros(0) == first
    assert window.skip_zeros(first + 1) == last
    assert window.skip_zeros(last + 1) == last + MEBIBYTE
    assert window.data_end(0) == last + 1
    assert window.data_end(last) == last + 1
    assert window.data_end(last + 1) == last + 1
    assert window.skip(re.compile(b"[\0x]*"), 0) == last
    assert window.skip(re.compile(b"z*"), first) == first


def test_a_file_that_became_shorter_ends_earlier(tmp_path: Path) -> None:
    window = window_of(tmp_path / "file", {0: b"x"}, 3 * MEBIBYTE)
    (tmp_path / "file").write_bytes(b"x")
    assert window.read(10, 0) == b"x"
    assert window.skip_zeros(1) == 3 * MEBIBYTE
    assert window.data_end(0) == 1
