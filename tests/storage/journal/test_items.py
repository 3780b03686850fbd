from __future__ import annotations

import struct
from pathlib import Path

import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.framing import ReadWindow
from bkctl.storage.journal.items import ItemKind, JournalItem, item_around, read_item

RECORD = struct.pack(">qqqq", 5, 1, 0, 0)


@pytest.mark.parametrize(
    ("offset", "around"),
    [
        (0, None),
        (1, (0, 36)),
        (35, (0, 36)),
        (36, None),
        (37, (36, 56)),
        (56, None),
        (91, (56, 92)),
        (92, None),
        (93, None),
        (130, None),
    ],
)
def test_what_an_offset_is_inside_of(tmp_path: Path, offset: int, around: tuple[int, int] | None) -> None:
    """Two records with padding between them; behind what is damaged nobody knows."""
    path = tmp_path / "journal"
    record = word(32) + RECORD
    path.write_bytes(record + word(-256, 12) + bytes(12) + record + word(-7) + record)
    file = OsFileSystem().open(str(path))
    try:
        assert item_around(ReadWindow(file), 6, 0, offset) == around
    finally:
        file.close()


def item(directory: Path, data: bytes, *, version: int = 6) -> JournalItem:
    """The item at offset 3 of a file."""
    path = directory / "journal"
    path.write_bytes(b"abc" + data)
    file = OsFileSystem().open(str(path))
    try:
        return read_item(ReadWindow(file), version, 3)
    finally:
        file.close()


def word(*numbers: int) -> bytes:
    return b"".join(struct.pack(">i", number) for number in numbers)


@pytest.mark.parametrize(
    ("data", "kind", "end_offset"),
    [
        (word(32) + RECORD, ItemKind.RECORD, 39),
        (word(32) + RECORD[:-1], ItemKind.CUT_RECORD, 3),
        (word(2**31 - 1) + RECORD, ItemKind.CUT_RECORD, 3),
        (word(32) + bytes(32), ItemKind.ZERO_RECORD, 39),
        (word(16) + RECORD, ItemKind.BAD, 3),
        (word(-255) + RECORD, ItemKind.BAD, 3),
        (word(0) + RECORD, ItemKind.ZEROS, 3),
        (b"", ItemKind.END, 3),
        (b"\0\0\0", ItemKind.END, 3),
        (word(-256, 0), ItemKind.PADDING, 11),
        (word(-256, 9) + bytes(9), ItemKind.PADDING, 20),
        (word(-256), ItemKind.CUT_PADDING, 3),
        (word(-256) + b"\0\0", ItemKind.CUT_PADDING, 3),
        (word(-256, 9) + bytes(8), ItemKind.CUT_PADDING, 3),
        (word(-256, 9) + b"\0\1", ItemKind.BAD, 3),
        (word(-256, -1), ItemKind.BAD, 3),
    ],
)
def test_every_kind(tmp_path: Path, data: bytes, kind: ItemKind, end_offset: int) -> None:
    found = item(tmp_path, data)
    assert (found.kind, found.end_offset) == (kind, end_offset)
    assert (found.record is not None) == (kind is ItemKind.RECORD)
    assert found.reason or kind is ItemKind.RECORD


def test_padding_came_with_version_5(tmp_path: Path) -> None:
    assert item(tmp_path, word(-256, 0), version=4).kind is ItemKind.BAD
    assert item(tmp_path, word(-256, 0), version=5).kind is ItemKind.PADDING
