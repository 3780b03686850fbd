from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import plyvel
import pytest

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.adapters.index_store import open_plyvel
from bkctl.storage.errors import IndexDamagedError
from bkctl.storage.index.files import last_record_start
from bkctl.storage.index.seal import create_sealed_index, drop_last_change, open_sealed_index


def record(length: int, kind: int) -> bytes:
    return struct.pack("<IHB", 0, length, kind) + b"x" * length


def manifest_of(path: str) -> Path:
    return Path(path, Path(path, "CURRENT").read_text().strip())


def test_the_last_record_is_found() -> None:
    first, second = record(30, 1), record(50, 1)
    assert last_record_start(first + second) == len(first)
    assert last_record_start(first + second + record(20, 1)[:-1]) == len(first), "a torn record is none"
    assert last_record_start(first) == 0
    assert last_record_start(b"") == 0


def test_a_record_of_several_parts_is_one() -> None:
    begin = record(30, 1)
    rest = 32 * 1024 - len(begin) - 7
    parts = record(rest, 2) + record(32 * 1024 - 7, 3) + record(9, 4)
    assert last_record_start(begin + parts) == len(begin)
    assert last_record_start(begin + parts + record(3, 1)) == len(begin + parts)


def test_blocks_end_with_zeros_where_no_header_fits() -> None:
    first = record(32 * 1024 - 7 - 5, 1) + bytes(5)
    assert last_record_start(first + record(10, 1)) == len(first)


def test_a_table_whose_name_was_lost_is_made_again_from_what_it_replaced(tmp_path: Path) -> None:
    """As a power failure leaves it between the manifest's bytes and the name of the table that they speak of."""
    path = str(tmp_path / "database")
    index = create_sealed_index(OsFileSystem(), open_plyvel, path)
    index.write([(b"key", b"value")])
    index.record()
    index.close()
    database = plyvel.DB(path)
    database.put(b"key 2", b"value 2", sync=True)
    shutil.copytree(path, tmp_path / "before")
    database.compact_range()
    database.close()
    before, after = manifest_of(str(tmp_path / "before")), manifest_of(path)
    size_bytes = len(before.read_bytes())
    changed = after.read_bytes()
    # One change at a time is not synced: the first of them, which names the table that the log was made into.
    changed = changed[: size_bytes + 7 + struct.unpack_from("<IH", changed, size_bytes)[1]]
    shutil.rmtree(path)
    shutil.move(tmp_path / "before", path)
    manifest_of(path).write_bytes(changed)
    with pytest.raises(plyvel.CorruptionError, match="missing files"):
        plyvel.DB(path)
    reopened = open_sealed_index(OsFileSystem(), open_plyvel, path)
    assert (reopened.get(b"key"), reopened.get(b"key 2")) == (b"value", b"value 2")
    reopened.close()


def test_a_table_that_is_lost_with_what_it_replaced_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "database")
    index = create_sealed_index(OsFileSystem(), open_plyvel, path)
    index.write([(b"key", b"value")])
    index.record()
    index.close()
    open_sealed_index(OsFileSystem(), open_plyvel, path).close()
    for name in os.listdir(path):
        if name.endswith(".ldb"):
            os.remove(os.path.join(path, name))
    with pytest.raises(IndexDamagedError):
        open_sealed_index(OsFileSystem(), open_plyvel, path)


@pytest.mark.parametrize("current", ["", "MANIFEST-000099\n", "MANIFEST-/../x\n", "MANIFEST-00\0002\n"])
def test_without_a_manifest_nothing_is_done(tmp_path: Path, current: str) -> None:
    Path(tmp_path, "CURRENT").write_text(current)
    assert not drop_last_change(OsFileSystem(), str(tmp_path))
    assert os.listdir(tmp_path) == ["CURRENT"]
