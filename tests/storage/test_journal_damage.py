"""A damaged disk under an acknowledged entry: the boot refuses, or the entry is there. Never "no such entry"."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.config import MEBIBYTE, EngineConfig, JournalConfig, StorageConfig
from storage.errors import JournalError, StorageError
from storage.filenames import current_directory, journal_file_name
from storage.ids import LogMark
from storage.journal_format import encode_ledger_key_record
from storage.journal_reader import list_journals
from storage.ledger_storage import LedgerStorage
from tests.storage.engines import KEY, checkpoint, entry, open_storage
from tests.storage.traced_disk import TracedDisk

LEDGER_ID = 5
GROUP_COUNT = 30
STEP_BYTES = 64 * 1024
SECTOR_BYTES = 512
ADVICE = "bkctl recover failed-bookie"


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
        storage.engine_of(LEDGER_ID).set_master_key(LEDGER_ID, KEY)
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
        return self.journal / journal_file_name(list_journals(TracedDisk(), str(self.journal))[-1])

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
            bodies = {entry_id: storage.engine_of(LEDGER_ID).read(LEDGER_ID, entry_id) for entry_id in range(99)}
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
