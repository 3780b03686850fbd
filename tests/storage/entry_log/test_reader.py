from __future__ import annotations

import gc
import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import EntryLogConfig
from bkctl.storage.entry import ENTRY_HEADER_BYTES_MIN
from bkctl.storage.entry_log.format import encode_header, encode_ledgers_map, encode_map_fields
from bkctl.storage.entry_log.reader import EntryLogReader, list_entry_logs
from bkctl.storage.errors import EntryLogError
from bkctl.storage.ids import EntryLocation
from tests.storage.golden import FILES, content, paths

FS = OsFileSystem()
CONFIG = EntryLogConfig(open_files_max=2)


def body(ledger_id: int, entry_id: int, size: int = 40) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, 0).ljust(size, b"x")


def frame(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[EntryLogReader]:
    reader = EntryLogReader(FS, str(tmp_path), CONFIG)
    yield reader
    reader.close()


def write_log(directory: Path, *pieces: bytes, log_id: int = 0) -> None:
    (directory / f"{log_id:x}.log").write_bytes(encode_header() + b"".join(pieces))


@pytest.mark.parametrize("name", paths("entry log"))
def test_logs_of_java(tmp_path: Path, reader: EntryLogReader, name: str) -> None:
    (tmp_path / "1f.log").write_bytes(content(name))
    expected = [entry for entry in FILES[name].get("entries", []) if entry["ledger"] >= 0]
    scan = reader.scan(0x1F)
    scanned = list(scan)
    assert [(e.location, e.ledger_id, e.entry_id, e.size_bytes) for e in scanned] == [
        ((0x1F, e["offset"] + 4), e["ledger"], e["entry"], e["size"]) for e in expected
    ]
    assert scan.dropped_bytes == 0
    for entry, description in zip(scanned, expected, strict=True):
        data = reader.read(entry.location, entry.ledger_id, entry.entry_id)
        assert hashlib.sha1(data).hexdigest() == description["sha1"]
    counted: dict[int, int] = {}
    for entry in scanned:
        counted[entry.ledger_id] = counted.get(entry.ledger_id, 0) + entry.size_bytes + 4
    assert reader.ledgers_map(0x1F) == counted
    if "map" in FILES[name]:
        assert counted == {int(ledger_id): size for ledger_id, size in FILES[name]["map"].items()}


LAST_LOG = content("db-4.18.0/replayed/ledgers/6.log")
DAMAGES = {
    "log_missing": None,
    "log_truncated_in_body": LAST_LOG[:1200],
    "log_truncated_before": LAST_LOG[:1100],
    "truncated_in_the_ids": LAST_LOG[: 1164 + 19],
    "log_empty": b"",
    "wrong_entry_id": LAST_LOG[:1183] + b"\7" + LAST_LOG[1184:],
    "wrong_ledger_id": LAST_LOG[:1175] + b"\2" + LAST_LOG[1176:],
    "size_12": LAST_LOG[:1164] + struct.pack(">i", 12) + LAST_LOG[1168:],
    "size_negative": LAST_LOG[:1164] + struct.pack(">i", -5) + LAST_LOG[1168:],
    "size_0": LAST_LOG[:1164] + bytes(4) + LAST_LOG[1168:],
    "size_huge": LAST_LOG[:1164] + struct.pack(">i", 2**31 - 16) + LAST_LOG[1168:],
    "size_300M": LAST_LOG[:1164] + struct.pack(">i", 300 << 20) + LAST_LOG[1168:],
    "size_beyond_the_end": LAST_LOG[:1164] + struct.pack(">i", 1000) + LAST_LOG[1168:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_log_is_an_error_and_never_no_entry(tmp_path: Path, reader: EntryLogReader, damage: str) -> None:
    data = DAMAGES[damage]
    if data is not None:
        (tmp_path / "6.log").write_bytes(data)
    with pytest.raises(EntryLogError, match=r"6\.log: entry 1:8 at offset 1168"):
        reader.read(EntryLocation(6, 1168), 1, 8)


def test_a_flipped_body_is_served_for_the_client_to_judge(tmp_path: Path, reader: EntryLogReader) -> None:
    (tmp_path / "6.log").write_bytes(LAST_LOG[:1210] + b"!" + LAST_LOG[1211:])
    assert reader.read(EntryLocation(6, 1168), 1, 8) == (tmp_path / "6.log").read_bytes()[1168:1224]


@pytest.mark.parametrize("offset", [-5, 0, 3, 4, 1024, 1027, 10**6])
def test_locations_where_no_entry_can_be(tmp_path: Path, reader: EntryLogReader, offset: int) -> None:
    write_log(tmp_path, frame(body(5, 0)))
    with pytest.raises(EntryLogError):
        reader.read(EntryLocation(0, offset), 5, 0)


@pytest.mark.parametrize("size", [32, 4091, 4092, 4093, 100_000, 5 << 20])
def test_entries_of_any_size_are_read(tmp_path: Path, reader: EntryLogReader, size: int) -> None:
    write_log(tmp_path, frame(body(5, 0, size)), frame(body(5, 1)))
    assert reader.read(EntryLocation(0, 1028), 5, 0) == body(5, 0, size)
    assert reader.read(EntryLocation(0, 1028 + size + 4), 5, 1) == body(5, 1)


def test_an_entry_above_the_limit_is_taken_for_damage(tmp_path: Path, reader: EntryLogReader) -> None:
    write_log(tmp_path, frame(body(5, 0, (5 << 20) + 1)))
    with pytest.raises(EntryLogError, match="size word is 5242881"):
        reader.read(EntryLocation(0, 1028), 5, 0)


def test_the_logs_used_last_stay_open(tmp_path: Path, reader: EntryLogReader) -> None:
    for log_id in range(4):
        write_log(tmp_path, frame(body(5, log_id)), log_id=log_id)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for log_id in (3, 0, 1, 0, 2):
        assert reader.read(EntryLocation(log_id, 1028), 5, log_id) == body(5, log_id)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    # Deleted behind its back: an open log is still read, a closed one is missing.
    for log_id in range(4):
        (tmp_path / f"{log_id}.log").unlink()
    for log_id in (0, 2):
        assert reader.read(EntryLocation(log_id, 1028), 5, log_id) == body(5, log_id)
    with pytest.raises(EntryLogError, match="No such file"):
        reader.read(EntryLocation(1, 1028), 5, 1)
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before


def entry_ids(reader: EntryLogReader, log_id: int = 0) -> list[int]:
    return [entry.entry_id for entry in reader.scan(log_id)]


@pytest.mark.parametrize("filler", [b"\xf0" * 5000, b"\xf0", bytes(4096), bytes(1), b"\xff\xf0"])
def test_filler_is_passed_over(tmp_path: Path, reader: EntryLogReader, filler: bytes) -> None:
    write_log(tmp_path, frame(body(5, 0)), filler, frame(body(5, 1)), filler)
    assert entry_ids(reader) == [0, 1]
    scan = reader.scan(0)
    assert [entry.location.offset for entry in scan] == [1028, 1072 + len(filler)]


def test_filler_of_many_windows_is_passed_over(tmp_path: Path, reader: EntryLogReader) -> None:
    write_log(tmp_path, frame(body(5, 0)), b"\xf0" * (3 << 20), frame(body(5, 1)))
    with (tmp_path / "0.log").open("r+b") as stream:
        stream.truncate(64 << 20)
    scan = reader.scan(0)
    assert [entry.entry_id for entry in scan] == [0, 1]
    assert scan.dropped_bytes == 0


def test_what_is_no_entry_of_a_ledger_is_passed_over(tmp_path: Path, reader: EntryLogReader) -> None:
    dummy = frame(struct.pack(">qq", -1, 0).ljust(3068, b"\0"))
    negative = frame(struct.pack(">qq", 5, -3).ljust(50, b"x"))
    write_log(tmp_path, dummy, frame(body(5, 0)), encode_ledgers_map({5: 1}), negative, frame(body(5, 1)))
    assert entry_ids(reader) == [0, 1]


@pytest.mark.parametrize("size", [1024, 1024 + 44 + 10, 1024 + 44 + 43, 0, 500])
def test_a_torn_tail_ends_a_scan_and_is_reported(tmp_path: Path, reader: EntryLogReader, size: int) -> None:
    write_log(tmp_path, frame(body(5, 0)), frame(body(5, 1)))
    os.truncate(tmp_path / "0.log", size)
    scan = reader.scan(0)
    assert [entry.entry_id for entry in scan] == ([0] if size > 1068 else [])
    assert (scan.dropped_bytes > 0) == (size > 1068)


def test_a_size_beyond_the_file_does_not_allocate(tmp_path: Path, reader: EntryLogReader) -> None:
    write_log(tmp_path, frame(body(5, 0)), struct.pack(">i", 2**31 - 1) + body(5, 1), frame(body(5, 2)))
    scan = reader.scan(0)
    assert [entry.entry_id for entry in scan] == [0]
    assert scan.dropped_bytes == 88


def test_a_missing_log_is_an_error(reader: EntryLogReader) -> None:
    with pytest.raises(EntryLogError, match="cannot scan"):
        entry_ids(reader, 9)
    with pytest.raises(EntryLogError, match="cannot read the ledgers map"):
        reader.ledgers_map(9)


@settings(max_examples=60)
@given(data=st.data())
def test_any_damage_gives_entries_within_the_log(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    write_log(directory, *(frame(body(5, entry_id, 60)) for entry_id in range(5)))
    content_bytes = bytearray((directory / "0.log").read_bytes())
    start = data.draw(st.integers(1000, len(content_bytes)))
    noise = data.draw(st.binary(max_size=40))
    content_bytes[start : start + len(noise)] = noise
    (directory / "0.log").write_bytes(content_bytes)
    reader = EntryLogReader(FS, str(directory), CONFIG)
    scan = reader.scan(0)
    for entry in scan:
        if (
            entry.size_bytes < ENTRY_HEADER_BYTES_MIN
        ):  # no bookie took such an entry: damage, which a reader must be told
            with pytest.raises(EntryLogError, match="its size word is"):
                reader.read(entry.location, entry.ledger_id, entry.entry_id)
            continue
        found = reader.read(entry.location, entry.ledger_id, entry.entry_id)
        assert len(found) == entry.size_bytes
        assert struct.unpack_from(">qq", found) == (entry.ledger_id, entry.entry_id)
    assert 0 <= scan.dropped_bytes <= len(content_bytes)
    reader.ledgers_map(0)
    reader.close()


def rolled(directory: Path, map_bytes: bytes, *, count: int, shift: int = 0, version: int = 1) -> None:
    data = bytearray(encode_header() + frame(body(5, 0)) + frame(body(7, 0)))
    data[8:20] = encode_map_fields(len(data) + shift, count)
    data[4:8] = struct.pack(">i", version)
    (directory / "0.log").write_bytes(bytes(data) + map_bytes)


def test_the_map_is_believed_when_it_is_whole(tmp_path: Path, reader: EntryLogReader) -> None:
    rolled(tmp_path, encode_ledgers_map({5: 111, 7: 222}), count=2)
    assert reader.ledgers_map(0) == {5: 111, 7: 222}
    rolled(tmp_path, encode_ledgers_map({5: 111}) + encode_ledgers_map({7: 222}) + b"\xf0" * 900, count=2)
    assert reader.ledgers_map(0) == {5: 111, 7: 222}
    many = dict.fromkeys(range(20_001), 1)
    rolled(tmp_path, encode_ledgers_map(many), count=20_001)
    assert reader.ledgers_map(0) == many


@pytest.mark.parametrize(
    ("map_bytes", "count", "shift", "version"),
    [
        (encode_ledgers_map({5: 111, 7: 222}), 3, 0, 1),
        (encode_ledgers_map({5: 111, 7: 222}), 1, 0, 1),
        (encode_ledgers_map({5: 111, 7: 222}), 0, 0, 1),
        (encode_ledgers_map({5: 111, 7: 222}), 2, 1, 1),
        (encode_ledgers_map({5: 111, 7: 222}), 2, 10**9, 1),
        (encode_ledgers_map({5: 111, 7: 222}), 2, -3000, 1),
        (encode_ledgers_map({5: 111, 7: 222}), 2, 0, 0),
        (encode_ledgers_map({5: 111, 7: 222})[:-1], 2, 0, 1),
        (encode_ledgers_map({5: 111}) + encode_ledgers_map({5: 222}), 2, 0, 1),
        (encode_ledgers_map({5: 111, -7: 222}), 2, 0, 1),
        (b"", 2, 0, 1),
    ],
)
def test_a_map_that_is_not_whole_gives_way_to_a_scan(
    tmp_path: Path, reader: EntryLogReader, map_bytes: bytes, count: int, shift: int, version: int
) -> None:
    rolled(tmp_path, map_bytes, count=count, shift=shift, version=version)
    assert reader.ledgers_map(0) == {5: 44, 7: 44}


def test_logs_are_listed_as_numbers(tmp_path: Path) -> None:
    for name in ("10.log", "9.log", "a.log", "foo.log", "b.log.compacting", "c.log.a.compacted", "lastId"):
        (tmp_path / name).touch()
    assert list_entry_logs(FS, str(tmp_path)) == [9, 10, 16]
