"""A damaged disk under an acknowledged entry: the boot refuses, or the entry is there. Never "no such entry"."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bkctl.storage.adapters.filesystem import OsFileSystem
from bkctl.storage.config import EngineConfig, JournalConfig, StorageConfig
from bkctl.storage.engine.ledger_storage import LedgerStorage
from bkctl.storage.errors import JournalError, StorageError
from bkctl.storage.filenames import current_directory, journal_file_name
from bkctl.storage.ids import LogMark
from bkctl.storage.journal.catalog import read_catalog
from bkctl.storage.journal.format import encode_file_header, encode_ledger_key_record
from bkctl.storage.journal.log_mark import read_last_mark
from bkctl.storage.journal.reader import JournalEnd, JournalScan, list_journals
from bkctl.storage.journal.writer import JournalWriter
from bkctl.storage.setting import MEBIBYTE
from tests.storage.engines import KEY, checkpoint, entry, open_storage
from tests.storage.groups import group_bytes

FS = OsFileSystem()
LEDGER_ID = 5
GROUP_COUNT = 30
STEP_BYTES = 64 * 1024
SECTOR_BYTES = 512
ADVICE = "bkctl decommission"


def config_of(root: Path, *, size_bytes_max: int = 1 << 20, preallocation_bytes: int = STEP_BYTES) -> StorageConfig:
    journal = JournalConfig(size_bytes_max=size_bytes_max, preallocation_bytes=preallocation_bytes, backup_count_max=5)
    return StorageConfig(
        journal_directories=(str(root / "journal"),),
        ledger_directories=(str(root / "ledgers"),),
        journal=journal,
        engine=EngineConfig(memtable_bytes_max=MEBIBYTE),
    )


def body(entry_id: int) -> bytes:
    """Entries of many sizes, one of them a multiple of the alignment together with its length word."""
    return entry(LEDGER_ID, entry_id, b"%d" % (entry_id % 10) * (476 if entry_id == 7 else 150 + 67 * entry_id))


class Crashed:
    """A bookie that acknowledged ``2 * GROUP_COUNT`` entries in its second run and was killed."""

    def __init__(self, root: Path, config: StorageConfig | None = None) -> None:
        self.root = root
        self.config = config or config_of(root)
        self._start().close()
        storage = self._start()
        storage.engine_of(LEDGER_ID).rows.set_master_key(LEDGER_ID, KEY)
        self._journal(storage, encode_ledger_key_record(LEDGER_ID, KEY))
        for first in range(0, 2 * GROUP_COUNT, 2):
            for entry_id in (first, first + 1):
                storage.engine_of(LEDGER_ID).add(LEDGER_ID, entry_id, body(entry_id))
            self._journal(storage, body(first), body(first + 1))
        storage.close()
        self.data = self.newest.read_bytes()
        self.data_end = len(self.data.rstrip(b"\0")) // SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES

    @property
    def journal(self) -> Path:
        return Path(current_directory(self.config.journal_directories[0]))

    @property
    def ledgers(self) -> Path:
        return Path(current_directory(self.config.ledger_directories[0]))

    @property
    def newest(self) -> Path:
        return self.journal / journal_file_name(list_journals(FS, str(self.journal))[-1])

    @property
    def acknowledged_entry_ids(self) -> range:
        return range(2 * GROUP_COUNT)

    def offset_of(self, entry_id: int) -> int:
        """Where the length word of an entry stands in the newest file."""
        return self.data.index(struct.pack(">qq", LEDGER_ID, entry_id)) - 4

    def overwrite(self, offset: int, data: bytes) -> None:
        with self.newest.open("r+b") as stream:
            stream.seek(offset)
            stream.write(data)

    def found(self) -> list[int]:
        """Boot; the entries that are there, each with its bytes."""
        storage = self._start()
        try:
            bodies = {entry_id: storage.engine_of(LEDGER_ID).stored.read(LEDGER_ID, entry_id) for entry_id in range(99)}
        finally:
            storage.close()
        found = {entry_id: data for entry_id, data in bodies.items() if data is not None}
        assert found == {entry_id: body(entry_id) for entry_id in found}
        return list(found)

    def _start(self) -> LedgerStorage:
        storage = open_storage(self.config)
        try:
            storage.replay()
        except BaseException:
            storage.close()
            raise
        return storage

    @staticmethod
    def _journal(storage: LedgerStorage, *records: bytes) -> LogMark:
        return storage.journal_of(LEDGER_ID).write_group(records)


@pytest.fixture
def crashed(tmp_path: Path) -> Crashed:
    return Crashed(tmp_path)


def test_without_damage_all_is_there(crashed: Crashed) -> None:
    assert crashed.found() == list(crashed.acknowledged_entry_ids)


DAMAGES: dict[str, Callable[[Crashed], None]] = {
    "one sector of zeros": lambda crashed: crashed.overwrite(8192, bytes(512)),
    "4 KiB of zeros": lambda crashed: crashed.overwrite(8192, bytes(4096)),
    "zeros up to the last groups": lambda crashed: crashed.overwrite(8192, bytes(crashed.offset_of(50) - 8192)),
    "a length word of zeros": lambda crashed: crashed.overwrite(crashed.offset_of(20), bytes(4)),
    "a length word of zeros in the last group": lambda crashed: crashed.overwrite(crashed.offset_of(59), bytes(4)),
    "a record of zeros": lambda crashed: crashed.overwrite(crashed.offset_of(20) + 4, bytes(len(body(20)))),
    "a record of zeros and the length word behind it": lambda crashed: crashed.overwrite(
        crashed.offset_of(20) + 4, bytes(len(body(20)) + 4)
    ),
    "a huge length": lambda crashed: crashed.overwrite(crashed.offset_of(20), b"\x40"),
    "a huge length in the last group": lambda crashed: crashed.overwrite(crashed.offset_of(59), b"\x40"),
    "a longer length": lambda crashed: crashed.overwrite(crashed.offset_of(20), struct.pack(">i", len(body(20)) + 256)),
    "a shorter length": lambda crashed: crashed.overwrite(crashed.offset_of(20), struct.pack(">i", len(body(20)) - 64)),
    "a negative length": lambda crashed: crashed.overwrite(crashed.offset_of(20), b"\xff"),
    "a padding count": lambda crashed: crashed.overwrite(
        crashed.data.rindex(b"\xff\xff\xff\0\0\0", 0, crashed.offset_of(20)) + 6, b"\x77"
    ),
    "cut to half": lambda crashed: os.truncate(crashed.newest, crashed.data_end // 2),
    "cut in the last record": lambda crashed: os.truncate(crashed.newest, crashed.offset_of(59) + 50),
    "cut in the last padding": lambda crashed: os.truncate(crashed.newest, crashed.data_end - 1),
    "cut at a group's end": lambda crashed: os.truncate(crashed.newest, crashed.offset_of(40)),
    "cut at a preallocation step": lambda crashed: os.truncate(crashed.newest, STEP_BYTES),
    "cut to 0": lambda crashed: os.truncate(crashed.newest, 0),
    "cut inside the header": lambda crashed: os.truncate(crashed.newest, 300),
    "cut behind the header": lambda crashed: os.truncate(crashed.newest, 512),
    "removed": lambda crashed: crashed.newest.unlink(),
    "header of zeros": lambda crashed: crashed.overwrite(0, bytes(512)),
    "magic of zeros": lambda crashed: crashed.overwrite(0, bytes(4)),
    "another version": lambda crashed: crashed.overwrite(7, b"\7"),
    "a bit of the magic": lambda crashed: crashed.overwrite(0, b"C"),
    "all zeros": lambda crashed: crashed.overwrite(0, bytes(len(crashed.data))),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_of_acknowledged_entries_stops_the_boot(crashed: Crashed, damage: Callable[[Crashed], None]) -> None:
    damage(crashed)
    for _ in range(2):
        with pytest.raises(StorageError, match=ADVICE) as caught:
            crashed.found()
        assert str(crashed.newest) in str(caught.value) or isinstance(caught.value, JournalError)


MARK_BYTES = [(offset, bit) for offset in (15, 14, 13, 8, 7, 6, 0) for bit in (1, 2, 128)]


@pytest.mark.parametrize(("offset", "bit"), MARK_BYTES)
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_flipped_bit_of_the_mark_skips_nothing(
    crashed: Crashed, offset: int, bit: int, *, is_checkpointed: bool
) -> None:
    if is_checkpointed:
        storage = crashed._start()
        checkpoint(storage)
        storage.close()
    path = crashed.ledgers / "lastMark"
    data = bytearray(path.read_bytes())
    data[offset] ^= bit
    path.write_bytes(data)
    for _ in range(2):
        assert crashed.found() == list(crashed.acknowledged_entry_ids)


# What a crash leaves


class Torn:
    """A journal file whose last group was being written: nobody was told of it."""

    def __init__(
        self, directory: Path, sizes: list[int], last_sizes: list[int], step_bytes: int, *, has_checksums: bool = True
    ) -> None:
        """``has_checksums`` False: as a bkctl wrote it that had none yet."""
        self.has_checksums = has_checksums
        self.config = JournalConfig(preallocation_bytes=step_bytes)
        writer = JournalWriter.open(FS, str(directory), self.config, now_ms=0)
        self.path = directory / "1.txn"
        self.synced = [entry(LEDGER_ID, number, b"x" * size) for number, size in enumerate(sizes)]
        for record in self.synced:
            writer.write_group([record])
        self.group_start = writer.durable_position.offset
        self.size_before = self.path.stat().st_size
        self.last = [entry(LEDGER_ID, 100 + number, b"y" * size) for number, size in enumerate(last_sizes)]
        self.group_end = writer.write_group(self.last).offset
        writer.close()
        data = self.path.read_bytes()
        self.data = data if has_checksums else re.sub(rb"bkg[\1\2].{12}", bytes(16), data, flags=re.DOTALL)

    def scan(self, data: bytes) -> tuple[list[bytes], JournalEnd]:
        self.path.write_bytes(data)
        catalog = read_catalog(FS, str(self.path.parent))
        cataloged = catalog.find(1)
        assert cataloged is not None
        cataloged = msgspec.structs.replace(cataloged, has_checksums=self.has_checksums)
        scanned = JournalScan(FS, str(self.path), is_newest=True, cataloged=cataloged)
        return [record.payload for record in scanned], scanned.end

    def without(self, sectors: Iterable[int]) -> bytes:
        """The file without some sectors of its last group."""
        data = bytearray(self.data)
        for sector in sectors:
            start = self.group_start + sector * SECTOR_BYTES
            data[start : start + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        return bytes(data)


@pytest.mark.parametrize("has_checksums", [True, False])
def test_every_way_to_tear_a_group_boots_with_all_before_it(tmp_path: Path, *, has_checksums: bool) -> None:
    """All subsets of the sectors of a group whose words and padding lie across their borders in many ways."""
    for shift in range(24):
        directory = tmp_path / str(shift)
        directory.mkdir()
        torn = Torn(directory, [700, 40], [430 + shift, 440, 3, 1000], 64 * 1024, has_checksums=has_checksums)
        count = (torn.group_end - torn.group_start) // SECTOR_BYTES
        assert count >= 4
        for missing in range(2**count):
            data = torn.without(sector for sector in range(count) if missing >> sector & 1)
            records, end = torn.scan(data)
            assert records[:2] == torn.synced, (shift, missing)
            if missing == 0:
                assert (records[2:], end.dropped_bytes) == (torn.last, 0)


@pytest.mark.parametrize("has_checksums", [True, False])
def test_what_was_synced_is_not_taken_for_torn(tmp_path: Path, *, has_checksums: bool) -> None:
    torn = Torn(tmp_path, [700, 40], [430, 440, 3, 1000], 64 * 1024, has_checksums=has_checksums)
    at = torn.data.index(b"x" * 700) - 36
    for damage in (struct.pack(">i", -5), struct.pack(">i", 2**30), bytes(4), struct.pack(">i", 40)):
        with pytest.raises(StorageError):
            torn.scan(torn.data[:at] + damage + torn.data[at + 4 :])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_torn_group_that_made_the_file_grow(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The length is durable before the group: a crash leaves the new length, or any part of it and no group."""
    sizes = data.draw(st.lists(st.integers(0, 3000), max_size=6))
    last_sizes = data.draw(st.lists(st.integers(0, 20_000), min_size=1, max_size=5))
    torn = Torn(tmp_path_factory.mktemp("torn"), sizes, last_sizes, 4096)
    count = (torn.group_end - torn.group_start) // SECTOR_BYTES
    records, _ = torn.scan(torn.without(data.draw(st.sets(st.integers(0, count - 1)))))
    assert records[: len(sizes)] == torn.synced
    size_bytes = data.draw(st.integers(torn.size_before, len(torn.data)))
    assert torn.scan(torn.without(range(count))[:size_bytes])[0] == torn.synced


@pytest.mark.parametrize("kept_bytes", [0, 3, 8, 100, 512, 4096])
def test_a_file_whose_creation_a_crash_cut_off_does_not_stop_the_boots_after(crashed: Crashed, kept_bytes: int) -> None:
    journal_id = list_journals(FS, str(crashed.journal))[-1] + 1
    path = crashed.journal / journal_file_name(journal_id)
    for content in (encode_file_header().ljust(4096, b"\0")[:kept_bytes], bytes(kept_bytes)):
        path.write_bytes(content)
        for _ in range(2):
            assert crashed.found() == list(crashed.acknowledged_entry_ids)


def test_a_torn_group_is_reported_and_not_met_again(crashed: Crashed) -> None:
    start = crashed.offset_of(58)
    assert start % SECTOR_BYTES == 0
    crashed.overwrite(start, bytes(SECTOR_BYTES))
    storage = open_storage(crashed.config)
    [tail] = storage.replay().dropped_tails
    newest = crashed.journal / journal_file_name(list_journals(FS, str(crashed.journal))[-2])
    assert (tail.path, tail.offset) == (str(newest), start)
    storage.close()
    storage = open_storage(crashed.config)
    assert storage.replay().dropped_tails == []
    assert [storage.engine_of(LEDGER_ID).stored.read(LEDGER_ID, entry_id) for entry_id in range(58)] == list(
        map(body, range(58))
    )
    storage.close()


# Files that are complete


@pytest.fixture
def rolled(tmp_path: Path) -> Crashed:
    """The same in files of about 32 KiB each, none behind the mark."""
    return Crashed(tmp_path, config_of(tmp_path, size_bytes_max=32 * 1024, preallocation_bytes=4096))


def test_a_complete_file_may_not_lose_its_last_group(rolled: Crashed) -> None:
    catalog = read_catalog(FS, str(rolled.journal))
    assert len(catalog.journals) > 3
    complete = catalog.journals[-2]
    path = rolled.journal / journal_file_name(complete.journal_id)
    data = path.read_bytes()
    for damaged in (
        data[: complete.end_offset - 512] + bytes(len(data) - complete.end_offset + 512),
        data[: complete.end_offset - 4096] + bytes(4096) + data[complete.end_offset :],
        data[: complete.end_offset - 4096],
        data[:4096],
        b"",
    ):
        path.write_bytes(damaged)
        with pytest.raises(StorageError, match=ADVICE):
            rolled.found()
    path.write_bytes(data)
    assert rolled.found() == list(rolled.acknowledged_entry_ids)


def test_a_file_in_the_middle_may_not_be_missing(rolled: Crashed) -> None:
    journal_ids = list_journals(FS, str(rolled.journal))
    (rolled.journal / journal_file_name(journal_ids[-2])).unlink()
    with pytest.raises(JournalError, match=r"bkctl\.journals references it"):
        rolled.found()


# Our own files beside the journal


@pytest.mark.parametrize("content", [b"", b"bkctl journals 1\ncrc32 00000000\n"])
def test_a_damaged_catalog_stops_the_boot(crashed: Crashed, content: bytes) -> None:
    (crashed.journal / "bkctl.journals").write_bytes(content)
    with pytest.raises(JournalError, match=ADVICE):
        crashed.found()


@pytest.mark.parametrize("name", ["bkctl.mark", "lastMark"])
@pytest.mark.parametrize("content", [None, b"", bytes(16), b"\xff" * 40])
def test_one_of_mark_and_record_is_enough(crashed: Crashed, name: str, content: bytes | None) -> None:
    if content is None:
        (crashed.ledgers / name).unlink()
    else:
        (crashed.ledgers / name).write_bytes(content)
    for _ in range(2):
        assert crashed.found() == list(crashed.acknowledged_entry_ids)


def test_without_a_catalog_the_journals_are_read_as_those_of_java(crashed: Crashed) -> None:
    (crashed.journal / "bkctl.journals").unlink()
    assert crashed.found() == list(crashed.acknowledged_entry_ids)


# A Java bookie in the same directories


def test_what_a_java_bookie_moved_the_mark_past_is_replayed(crashed: Crashed) -> None:
    """It flushed to an index of its own: in ours the entries would be missing."""
    journal_id = list_journals(FS, str(crashed.journal))[-1] + 1
    header = encode_file_header()
    group = header + group_bytes([entry(LEDGER_ID, 60)], len(header))
    (crashed.journal / journal_file_name(journal_id)).write_bytes(group.ljust(16384, b"\0"))
    (crashed.ledgers / "lastMark").write_bytes(struct.pack(">qq", journal_id, len(group)))
    storage = crashed._start()
    assert [storage.engine_of(LEDGER_ID).stored.read(LEDGER_ID, entry_id) is not None for entry_id in range(61)] == [
        True
    ] * 61
    storage.close()
    assert read_last_mark(FS, [str(crashed.ledgers)], 0, 1) == LogMark(journal_id, len(group))


def test_journals_that_a_java_bookie_deleted_stop_the_boot(crashed: Crashed) -> None:
    journal_ids = list_journals(FS, str(crashed.journal))
    for journal_id in journal_ids:
        (crashed.journal / journal_file_name(journal_id)).unlink()
    (crashed.journal / journal_file_name(journal_ids[-1] + 1)).write_bytes(encode_file_header())
    (crashed.ledgers / "lastMark").write_bytes(struct.pack(">qq", journal_ids[-1] + 1, 512))
    with pytest.raises(JournalError, match="is missing"):
        crashed.found()
