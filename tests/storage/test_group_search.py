"""The next end of a group is found by its checksum, from wherever one looks."""

from __future__ import annotations

import contextlib
import random
import struct
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config import JournalConfig, StorageConfig
from storage.filenames import current_directory, journal_file_name
from storage.filesystem import OsFileSystem
from storage.framing import ReadWindow
from storage.index_store import open_plyvel
from storage.journal_checked import find_group_end
from storage.journal_reader import list_journals
from storage.ledger_storage import LedgerStorage
from storage.ports import File
from storage.setting import MEBIBYTE
from tests.storage.engines import NOW_MS, entry
from tests.storage.groups import group_bytes

FS = OsFileSystem()


class CountingFile:
    """Counts the bytes that are read."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.read_bytes = 0

    def size(self) -> int:
        return len(self._data)

    def pread(self, size_bytes: int, offset: int) -> bytes:
        assert offset >= 0
        self.read_bytes += size_bytes
        return self._data[offset : offset + size_bytes]


@pytest.mark.parametrize("group_start", [-4096, 0, 512, 200_000])
def test_an_entry_full_of_group_ends_is_soon_given_up(group_start: int) -> None:
    """Each would have the whole file checked."""
    fake = struct.pack(">ii3scqI", -256, 504, b"bkg", b"\1", group_start, 7)
    file = CountingFile(fake * (2 * 1024 * 1024 // len(fake)))
    assert find_group_end(ReadWindow(cast("File", file)), 5, 1024, 1 << 24) is None
    assert file.read_bytes < 100 * file.size()


@given(st.floats(0, 1))
def test_the_next_end_of_a_group_is_found_from_everywhere(journal: tuple[Path, list[int]], place: float) -> None:
    path, ends = journal
    for offset in {int(place * ends[-1]), *(end - int(place * 2000) for end in ends)}:
        expected = next((end for end in ends if end >= offset), None)
        with contextlib.closing(FS.open(str(path))) as file:
            assert find_group_end(ReadWindow(file), int(path.stem, 16), offset, 1 << 20) == expected


@pytest.mark.parametrize("behind_bytes", range(-2, 28))
def test_it_is_found_across_what_is_read_at_a_time(behind_bytes: int) -> None:
    start = MEBIBYTE - 1024
    group = group_bytes([entry(5, 1, bytes(1024 - 36 - behind_bytes))], start, journal_id=7)
    file = CountingFile(bytes(start) + group + bytes(MEBIBYTE))
    assert find_group_end(ReadWindow(cast("File", file)), 7, 0, 1 << 20) == start + len(group)


def test_it_is_not_looked_for_behind_all_that_can_begin_in_time() -> None:
    """A file may be zeros for gigabytes."""
    file = CountingFile(bytes(1 << 26))
    assert find_group_end(ReadWindow(cast("File", file)), 5, 1024, 1 << 20, 2048) is None
    assert file.read_bytes < 1 << 22


@pytest.fixture(scope="module", params=[512, 4096, MEBIBYTE])
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A journal file, longer than what is read at a time, and where its groups end."""
    root = tmp_path_factory.mktemp("journal")
    config = StorageConfig(
        journal_directories=(str(root / "journal"),),
        ledger_directories=(str(root / "ledgers"),),
        journal=JournalConfig(alignment_bytes=request.param),
    )
    storage = LedgerStorage.open(FS, open_plyvel, config, NOW_MS)
    storage.replay()
    choice = random.Random(7)
    writer = storage.journals[0]
    ends: list[int] = []
    while len(ends) < 5 or ends[-1] < 2 * MEBIBYTE:
        records = [entry(5, 1, choice.randbytes(choice.choice([10, 400, 471, 472, 3000]))) for _ in range(30)]
        # What has the form of a group's end, but not its checksum.
        records.append(entry(5, 2, struct.pack(">ii3scqI", -256, 504, b"bkg", b"\1", 512, 7) + bytes(900)))
        ends.append(writer.write_group(records).offset)
    storage.close()
    folder = current_directory(config.journal_directories[0])
    return Path(folder, journal_file_name(list_journals(FS, folder)[-1])), ends
