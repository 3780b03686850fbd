"""The fast scan gives what the plain one gives, for every log; and tells damage from filler."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.entry_log.examination import examine_log
from bkctl.storage.entry_log.format import (
    HEADER_BYTES,
    HEADER_MAP_FIELDS_OFFSET,
    encode_header,
    encode_ledgers_map,
    encode_map_fields,
)
from bkctl.storage.entry_log.reader import EntryLogScan
from bkctl.storage.entry_log.scan import WINDOW_BYTES, Gap, LogScan
from bkctl.storage.errors import EntryLogError
from tests.storage import golden

FS = OsFileSystem()


def frame(ledger_id: int, entry_id: int, payload_bytes: int = 8) -> bytes:
    return struct.pack(">iqq", 16 + payload_bytes, ledger_id, entry_id) + b"\x01" * payload_bytes


def write_log(directory: Path, content: bytes) -> None:
    (directory / "0.log").write_bytes(content)


def scan(directory: Path) -> LogScan:
    """A scan that has been run to its end."""
    scan = LogScan(FS, str(directory), 0)
    for _ in scan:
        pass
    return scan


def require_same(directory: Path, log_id: int = 0, window_bytes: int = WINDOW_BYTES) -> int:
    """Both scans over one log; returns the number of entries."""
    plain = EntryLogScan(FS, str(directory), log_id)
    expected = [(each.ledger_id, each.entry_id, each.location.offset, each.size_bytes) for each in plain]
    fast = LogScan(FS, str(directory), log_id, window_bytes=window_bytes)
    found = [row for batch in fast for row in zip(*(column.tolist() for column in batch), strict=True)]
    assert found == expected
    assert fast.dropped_bytes == plain.dropped_bytes
    return len(found)


@pytest.mark.parametrize("path", golden.paths("entry log"))
def test_logs_of_java(tmp_path: Path, path: str) -> None:
    write_log(tmp_path, golden.content(path))
    require_same(tmp_path)
    assert scan(tmp_path).gaps == []


SMALL_INTEGERS = st.sampled_from([-(2**31), -16, -1, 0, 1, 15, 16, 17, 255, 256, 300, 2**31 - 1])
PIECES = st.one_of(
    st.builds(frame, st.integers(-2, 5), st.integers(-2, 5), st.integers(0, 40)),
    st.builds(
        lambda count, ledger, size: b"".join(frame(ledger, entry, size) for entry in range(count)),
        st.integers(1, 200),
        st.integers(0, 3),
        st.integers(0, 30),
    ),
    st.builds(lambda fill, count: bytes([fill]) * count, st.sampled_from([0, 0xF0, 1]), st.integers(1, 600)),
    st.builds(lambda size: struct.pack(">i", size), SMALL_INTEGERS),
    st.builds(lambda rows: encode_ledgers_map(dict.fromkeys(range(rows), 7)), st.integers(1, 9)),
    st.binary(max_size=40),
)


@settings(max_examples=300)
@given(pieces=st.lists(PIECES, max_size=12), cut=st.integers(0, 60), window_bytes=st.sampled_from([64, 500, 1 << 22]))
def test_any_log_is_read_as_the_plain_scan_reads_it(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], cut: int, window_bytes: int
) -> None:
    directory = tmp_path_factory.mktemp("log")
    content = encode_header() + b"".join(pieces)
    write_log(directory, content[: len(content) - cut])
    require_same(directory, window_bytes=window_bytes)


def test_many_runs_of_different_lengths(tmp_path: Path) -> None:
    numbers = random.Random(3)
    content = bytearray(encode_header())
    for ledger_id in range(300):
        size = numbers.randrange(0, 200)
        for entry_id in range(numbers.choice([1, 7, 8, 9, 64, 65, 72, 73, 700])):
            content += frame(ledger_id, entry_id, size)
    write_log(tmp_path, bytes(content))
    assert require_same(tmp_path) > 10_000


def test_a_log_shorter_than_its_header_has_no_entries(tmp_path: Path) -> None:
    for size in (0, 1, 1023, HEADER_BYTES):
        write_log(tmp_path, encode_header()[:size])
        assert require_same(tmp_path) == 0


def test_a_stretch_of_zeros_is_a_gap(tmp_path: Path) -> None:
    first, second = frame(1, 0), frame(1, 1)
    # 100 zeros and the first three bytes of the next size word, which are zeros too.
    write_log(tmp_path, encode_header() + first + bytes(100) + second)
    between = Gap(HEADER_BYTES + len(first), 100)
    assert scan(tmp_path).gaps == [between]
    write_log(tmp_path, encode_header() + first + bytes(100) + second + bytes(50))
    assert scan(tmp_path).gaps == [between, Gap(HEADER_BYTES + len(first) + 100 + len(second), 50)]


@pytest.mark.parametrize("start", range(1024, 1024 + 3 * 47))
def test_zeros_anywhere_in_a_log_are_told(tmp_path: Path, start: int) -> None:
    """Also where no frame is found behind them any more: what a crash leaves of the last flush has no such hole."""
    log = bytearray(encode_header() + b"".join(frame(5, number, 27) for number in range(50)))
    log[start : start + 300] = bytes(300)
    write_log(tmp_path, bytes(log))
    found = scan(tmp_path)
    assert found.gaps or found.hides_frames


def test_a_frame_that_swallows_others_is_told_from_one_that_is_torn(tmp_path: Path) -> None:
    log = encode_header() + b"".join(frame(5, number, 27) for number in range(50))
    torn = log + frame(5, 50, 2000)[:-1]
    write_log(tmp_path, torn)
    assert not scan(tmp_path).hides_frames
    damaged = bytearray(log)
    damaged[HEADER_BYTES + 47 * 20 + 2] = 0x40  # the size word of entry 20
    write_log(tmp_path, bytes(damaged))
    assert scan(tmp_path).hides_frames


def test_filler_up_to_a_block_is_no_gap_and_elsewhere_it_is(tmp_path: Path) -> None:
    first, second = frame(1, 0), frame(1, 1)
    filler = b"\xf0" * (4096 - HEADER_BYTES - len(first))
    write_log(tmp_path, encode_header() + first + filler + second)
    assert scan(tmp_path).gaps == []
    write_log(tmp_path, encode_header() + first + filler[1:] + second)
    assert scan(tmp_path).gaps == [Gap(HEADER_BYTES + len(first), len(filler) - 1)]


def test_the_frame_that_reaches_behind_the_file_is_told(tmp_path: Path) -> None:
    write_log(tmp_path, encode_header() + frame(1, 0) + frame(7, 9, 100)[:-1])
    cut = scan(tmp_path).cut_frame
    assert cut is not None
    assert (cut.ledger_id, cut.entry_id, cut.size_bytes) == (7, 9, 116)


@pytest.mark.parametrize("ids", [(-19, 5), (5, -3)])
@pytest.mark.parametrize("ledgers_map", [b"", encode_ledgers_map({5: 2 * 28})])
def test_a_record_with_a_negative_id_is_damage(tmp_path: Path, ids: tuple[int, int], ledgers_map: bytes) -> None:
    content = frame(5, 0) + frame(*ids) + frame(5, 1) + frame(*ids)
    write_log(tmp_path, encode_header() + content + ledgers_map)
    if ledgers_map:
        with (tmp_path / "0.log").open("r+b") as stream:
            stream.seek(HEADER_MAP_FIELDS_OFFSET)
            stream.write(encode_map_fields(HEADER_BYTES + len(content), 1))
    assert require_same(tmp_path) == 2
    damage = examine_log(FS, str(tmp_path), 0, 1000, lambda: None).damage
    assert damage is not None
    assert damage.stray == (HEADER_BYTES + 28, *ids)
    assert damage.reason == (
        f"the record at offset {HEADER_BYTES + 28} has the ids {ids[0]}:{ids[1]}, as no entry has (1 more like it)"
    )
    assert damage.ledger_ids == (() if ledgers_map else None), "a map that lists the rest shows that nothing is missing"


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EntryLogError, match=r"0\.log"):
        scan(tmp_path)


def test_a_log_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    os.mkdir(tmp_path / "0.log")
    with pytest.raises(EntryLogError, match=r"0\.log"):
        scan(tmp_path)
