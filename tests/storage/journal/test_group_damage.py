"""What the checksum of a group adds to telling torn from damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import JournalConfig
from bkctl.storage.errors import CorruptFileError
from bkctl.storage.framing import ReadWindow
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.group import read_group
from bkctl.storage.journal.reader import JournalEnd, JournalScan
from bkctl.storage.journal.writer import JournalWriter

FS = OsFileSystem()
SECTOR_BYTES = 512


def entry(entry_id: int, payload: bytes) -> bytes:
    return struct.pack(">qqqq", 5, entry_id, entry_id - 1, 0) + payload


class Written:
    """A file of three groups, as a killed bookie leaves it."""

    def __init__(self, directory: Path, last: list[bytes]) -> None:
        config = JournalConfig(preallocation_bytes=64 * 1024)
        writer = JournalWriter.open(FS, str(directory), config, now_ms=0)
        self.path = directory / "1.txn"
        self.groups = [[entry(0, b"a" * 700)], [entry(1, b"b" * 300), entry(2, b"c" * 900)], last]
        self.marks = [writer.durable_position, *(writer.write_group(group) for group in self.groups)]
        writer.close()
        self.data = self.path.read_bytes()

    @property
    def records(self) -> list[bytes]:
        return [record for group in self.groups for record in group]

    def scan(self, data: bytes | bytearray) -> tuple[list[bytes], JournalEnd]:
        self.path.write_bytes(data)
        catalog = read_catalog(FS, str(self.path.parent))
        scan = JournalScan(FS, str(self.path), is_newest=True, cataloged=catalog.find(1))
        return [record.payload for record in scan], scan.end

    def changed(self, offset: int, data: bytes) -> bytes:
        return self.data[:offset] + data + self.data[offset + len(data) :]


LAST = [entry(3, b"d" * 600), entry(4, b"e" * 20), entry(5, b"f" * 760)]


def test_whole_groups_come_back(tmp_path: Path) -> None:
    written = Written(tmp_path, LAST)
    records, end = written.scan(written.data)
    assert (records, end.dropped_bytes) == (written.records, 0)


def test_every_flipped_byte_of_a_group_stops_the_boot(tmp_path: Path) -> None:
    """An id or a payload of the last group too, which nothing but its checksum can find."""
    written = Written(tmp_path, LAST)
    end = len(written.data.rstrip(b"\0"))
    for offset in range(512, end):
        data = bytearray(written.data)
        data[offset] ^= 1 << offset % 8
        in_padding = any(not written.data[offset : mark.offset].strip(b"\0") for mark in written.marks[1:])
        if in_padding:
            continue  # a byte that means nothing
        with pytest.raises(CorruptFileError):
            written.scan(data)


def test_zeros_over_the_padding_in_front_of_the_last_group_stop_the_boot(tmp_path: Path) -> None:
    """Without the checksum two groups look like one torn one."""
    written = Written(tmp_path, LAST)
    last_start = written.marks[2].offset
    data = written.changed(last_start - SECTOR_BYTES, bytes(SECTOR_BYTES))
    with pytest.raises(CorruptFileError, match=f"followed by a later group \\(at {last_start}\\)"):
        written.scan(data)


def test_records_in_missing_sectors_are_dropped_the_others_kept(tmp_path: Path) -> None:
    written = Written(tmp_path, LAST)
    last_start = written.marks[2].offset
    records, end = written.scan(written.changed(last_start + SECTOR_BYTES, bytes(SECTOR_BYTES)))
    assert records[:3] == written.records[:3]
    assert entry(3, b"d" * 600) not in records
    assert end.dropped_bytes > 0


def test_where_zeros_may_be_real_no_record_is_dropped(tmp_path: Path) -> None:
    """A flip in a group whose own sectors of zeros make it look torn: its entries may have been acknowledged."""
    last = [entry(3, bytes(2000)), entry(4, b"e" * 800)]
    written = Written(tmp_path, last)
    at = written.data.index(b"e" * 800)
    records, _ = written.scan(written.changed(at, b"E"))
    assert records == [*written.records[:4], entry(4, b"E" + b"e" * 799)]


def test_a_sector_of_zeros_that_was_written_so_is_whole(tmp_path: Path) -> None:
    written = Written(tmp_path, [entry(3, bytes(3000))])
    records, end = written.scan(written.data)
    assert (records, end.dropped_bytes) == (written.records, 0)


def test_padding_whose_checksum_was_wiped_stops_the_boot(tmp_path: Path) -> None:
    written = Written(tmp_path, LAST)
    for mark in written.marks[1:]:
        at = written.data.rindex(b"bkg", 0, mark.offset)
        with pytest.raises(CorruptFileError, match="padding without a checksum"):
            written.scan(written.changed(at, bytes(16)))


def test_the_group_of_another_file_is_not_taken(tmp_path: Path) -> None:
    """As a file system shows it that hands out old blocks after a crash."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    written = Written(tmp_path / "a", LAST)
    writer = JournalWriter.open(FS, str(tmp_path / "b"), JournalConfig(preallocation_bytes=64 * 1024), now_ms=1)
    assert writer.write_group(written.groups[0]) == LogMark(2, written.marks[1].offset)
    writer.close()
    other = (tmp_path / "b" / "2.txn").read_bytes()
    with pytest.raises(CorruptFileError, match="does not match its checksum"):
        written.scan(other[: written.marks[1].offset] + written.data[written.marks[1].offset :])


@pytest.mark.parametrize("length", [2**31 - 1, 2**30, 70_000])
def test_a_garbage_length_makes_nothing_large(tmp_path: Path, length: int) -> None:
    """H20: compared with what there is before anything is read."""
    path = tmp_path / "1.txn"
    path.write_bytes(struct.pack(">i", length) + b"x" * 65_000)
    file = FS.open(str(path))
    window = ReadWindow(file)
    assert read_group(window, 1, 0, 1 << 20) is None
    file.close()


def test_a_group_larger_than_the_first_look_is_read_whole(tmp_path: Path) -> None:
    written = Written(tmp_path, [entry(number, b"z" * 1000) for number in range(3, 3000)])
    records, end = written.scan(written.data)
    assert (records, end.dropped_bytes) == (written.records, 0)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_damage_gives_what_was_written_or_a_refusal(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Never another error; all of them where no sector is wiped out, and what stands before the damage where one is."""
    written = Written(tmp_path_factory.mktemp("damaged"), LAST)
    damaged = bytearray(written.data)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 6000))
        noise = data.draw(st.binary(min_size=1, max_size=60) | st.integers(1, 1500).map(bytes))
        damaged[at : at + len(noise)] = noise
    size_bytes = data.draw(st.just(len(damaged)) | st.integers(0, len(damaged)))
    try:
        records, _ = written.scan(damaged[:size_bytes])
    except CorruptFileError as error:
        assert 0 <= error.offset <= len(written.data)  # noqa: PT017
        return
    sectors = range(0, written.marks[-1].offset, SECTOR_BYTES)
    if any(damaged[start : start + SECTOR_BYTES] == bytes(SECTOR_BYTES) for start in sectors):
        # What was synced and then lost whole sectors looks like what never was (decision 6), and where the
        # checksum's own sector is gone nothing vouches for the rest of that group but the clients' digests.
        untouched = [damaged[: mark.offset] == written.data[: mark.offset] for mark in written.marks[1:]]
        count = sum(len(group) for group, is_whole in zip(written.groups, untouched, strict=True) if is_whole)
        assert records[:count] == written.records[:count]
    else:
        assert records == written.records


def test_a_file_cut_at_the_end_of_a_group_and_of_a_step_stops_the_boot(tmp_path: Path) -> None:
    writer = JournalWriter.open(FS, str(tmp_path), JournalConfig(preallocation_bytes=2048), now_ms=0)
    writer.write_group([entry(0, b"a" * 1400)])
    assert writer.durable_position.offset == 2048
    writer.write_group([entry(1, b"b")])
    writer.close()
    path = tmp_path / "1.txn"
    path.write_bytes(path.read_bytes()[:2048])
    catalog = read_catalog(FS, str(tmp_path))
    with pytest.raises(CorruptFileError, match="truncated"):
        list(JournalScan(FS, str(path), is_newest=True, cataloged=catalog.find(1)))


def test_of_a_group_without_its_checksum_no_torn_record_is_taken(tmp_path: Path) -> None:
    """A sector in the middle and the last one were not written: the second record is not what was meant."""
    last = [entry(3, b"c" * 300), entry(4, b"e" * 1500)]
    written = Written(tmp_path, last)
    start = written.marks[-2].offset
    torn = bytearray(written.data)
    torn[start + 512 : start + 1024] = bytes(512)
    torn[written.marks[-1].offset - 512 : written.marks[-1].offset] = bytes(512)
    records, end = written.scan(torn)
    assert records == [*written.records[:3], last[0]]
    assert end.dropped_bytes > 0
